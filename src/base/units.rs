//! Quantities with units: `64GiB`, `5h`, `100Gbit/s`. One grammar for every flag, key and variable.
//!
//! A bare number is read in the unit that the flag documents. A wrong suffix is refused, and the error lists the valid suffixes.
//! Without units, `--mtbf 5`, meant as years and read as seconds, would give a useless plan.

use std::time::Duration;

/// Result of parsing a quantity; the error states why the text is not a quantity of the wanted kind.
type Result<T> = std::result::Result<T, String>;

/// Seconds in a year of 365 days, as the papers in docs/MODELS.md count it.
pub const YEAR_S: f64 = 365.0 * 86_400.0;
pub const HOUR_S: f64 = 3_600.0;
pub const GIB: f64 = 1_073_741_824.0;

const TIMES: [(&str, f64); 14] = [
    ("ms", 1e-3),
    ("us", 1e-6),
    ("s", 1.0),
    ("sec", 1.0),
    ("min", 60.0),
    ("m", 60.0),
    ("h", HOUR_S),
    ("hours", HOUR_S),
    ("d", 86_400.0),
    ("days", 86_400.0),
    ("w", 604_800.0),
    ("y", YEAR_S),
    ("years", YEAR_S),
    ("year", YEAR_S),
];

const SIZES: [(&str, f64); 13] = [
    ("b", 1.0),
    ("kb", 1e3),
    ("mb", 1e6),
    ("gb", 1e9),
    ("tb", 1e12),
    ("kib", 1024.0),
    ("mib", 1_048_576.0),
    ("gib", GIB),
    ("tib", 1024.0 * GIB),
    ("k", 1024.0),
    ("m", 1_048_576.0),
    ("g", GIB),
    ("t", 1024.0 * GIB),
];

/// Units of rates. A lower-case b means bit, as network vendors write it.
const RATES: [(&str, f64); 20] = [
    ("B/s", 1.0),
    ("kB/s", 1e3),
    ("MB/s", 1e6),
    ("GB/s", 1e9),
    ("TB/s", 1e12),
    ("MiB/s", 1_048_576.0),
    ("GiB/s", GIB),
    ("Mbit/s", 1.25e5),
    ("Gbit/s", 1.25e8),
    ("Tbit/s", 1.25e11),
    ("Mb/s", 1.25e5),
    ("Gb/s", 1.25e8),
    ("Tb/s", 1.25e11),
    ("Mbps", 1.25e5),
    ("Gbps", 1.25e8),
    ("Tbps", 1.25e11),
    ("b/s", 0.125),
    ("kb/s", 125.0),
    ("Mib/s", 131_072.0),
    ("Gib/s", GIB / 8.0),
];

const FLOPS: [(&str, f64); 12] = [
    ("gflop/s", 1e9),
    ("tflop/s", 1e12),
    ("pflop/s", 1e15),
    ("eflop/s", 1e18),
    ("gflops", 1e9),
    ("tflops", 1e12),
    ("pflops", 1e15),
    ("eflops", 1e18),
    ("g", 1e9),
    ("t", 1e12),
    ("p", 1e15),
    ("e", 1e18),
];

fn parse(text: &str, kind: &str, default: f64, table: &[(&str, f64)]) -> Result<f64> {
    let text = text.trim();
    let refuse = || {
        let units: Vec<&str> = table.iter().map(|(name, _)| *name).collect();
        format!(
            "`{text}` is not {kind}: write a number above zero and a unit, one of {}",
            units.join(", ")
        )
    };
    // The number is the longest prefix that is a valid number: an `e` without digits belongs to the unit.
    let number = |end| Some((text.get(..end)?.parse::<f64>().ok()?, end));
    let (number, end) = (0..=text.len()).rev().find_map(number).ok_or_else(refuse)?;
    let unit = text[end..].trim();
    let scale = if unit.is_empty() { default } else { scale_of(unit, table).ok_or_else(refuse)? };
    let value = number * scale;
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err(refuse()) }
}

/// Returns the factor of a unit; `None` if `table` has no such unit. Case is ignored, unless two units of `table` differ only in
/// case.
fn scale_of(unit: &str, table: &[(&str, f64)]) -> Option<f64> {
    if let Some((_, scale)) = table.iter().find(|(name, _)| *name == unit) {
        return Some(*scale);
    }
    let mut found = table.iter().filter(|(name, _)| name.eq_ignore_ascii_case(unit));
    let (_, scale) = found.next()?;
    found.next().is_none().then_some(*scale)
}

/// Parses seconds, such as `90s`, `13.6min`, `5h`, `3d`, `5y`. A bare number is seconds.
pub fn seconds(text: &str) -> Result<f64> {
    parse(text, "a duration", 1.0, &TIMES)
}

/// Parses seconds as [`seconds`] does, and also accepts zero: `0`, `0s`.
pub fn seconds_or_none(text: &str) -> Result<f64> {
    let number = text.trim().trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let none = number.parse::<f64>() == Ok(0.0) && seconds(&text.replacen('0', "1", 1)).is_ok();
    if none { Ok(0.0) } else { seconds(text) }
}

/// Parses a duration as [`seconds_or_none`] does. Returns an error if the duration is 30 years or more.
pub fn duration(text: &str) -> Result<Duration> {
    match seconds_or_none(text)? {
        value if value < 1e9 => Ok(Duration::from_secs_f64(value)),
        _ => Err(format!("`{text}` is too long: it must be less than 30 years")),
    }
}

/// Parses a duration as [`duration`] does. Returns an error if the duration is less than a millisecond. For durations that must
/// not be zero.
pub fn some_time(text: &str) -> Result<Duration> {
    match duration(text)? {
        time if time.as_millis() > 0 => Ok(time),
        _ => Err(format!("`{text}` is too short: at least a millisecond is needed")),
    }
}

/// Parses bytes as [`bytes`] does, and rounds down to a whole number.
pub fn whole_bytes(text: &str) -> Result<u64> {
    match bytes(text)? {
        value if value < 1.8e19 => Ok(value as u64),
        _ => Err(format!("`{text}` is too much: it must be less than 1.8e19 bytes")),
    }
}

/// Parses bytes, such as `64GiB`, `600MB`, `16g`. A bare number is bytes.
pub fn bytes(text: &str) -> Result<f64> {
    parse(text, "an amount of memory", 1.0, &SIZES)
}

/// Parses bytes per second, such as `12.5GB/s`, `100Gb/s` or `100Gbit/s`. A bare number is bytes per second.
pub fn bytes_per_second(text: &str) -> Result<f64> {
    parse(text, "a bandwidth", 1.0, &RATES)
}

/// Parses flop/s, such as `83Gflop/s`, `5.2T`, `1.1Eflops`. A bare number is Gflop/s.
pub fn flops_per_second(text: &str) -> Result<f64> {
    parse(text, "a rate of computing", 1e9, &FLOPS)
}

/// Formats a duration: `950 ms`, `16.0 s`, `13.6 min`, `5.00 h`, `2.1 d`, `12.1 y`.
pub fn show_seconds(s: f64) -> String {
    let magnitude = s.abs();
    if magnitude == 0.0 {
        "0 s".into()
    } else if magnitude < 1e-3 {
        format!("{:.1} us", s * 1e6)
    } else if magnitude < 1.0 {
        format!("{:.0} ms", s * 1e3)
    } else if magnitude < 120.0 {
        format!("{s:.1} s")
    } else if magnitude < 2.0 * HOUR_S {
        format!("{:.1} min", s / 60.0)
    } else if magnitude < 3.0 * 86_400.0 {
        format!("{:.2} h", s / HOUR_S)
    } else if magnitude < YEAR_S {
        format!("{:.1} d", s / 86_400.0)
    } else {
        format!("{:.1} y", s / YEAR_S)
    }
}

/// Formats a count with its noun: `1 rank`, `2 ranks`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Formats an amount of memory, in binary units.
pub fn show_bytes(b: f64) -> String {
    let mut value = b;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value.abs() < 1024.0 {
            return if unit == "B" {
                format!("{value:.0} B")
            } else {
                format!("{value:.2} {unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.2} EiB")
}

/// Formats a rate given in flop/s.
pub fn show_flops(r: f64) -> String {
    for (scale, unit) in [(1e18, "E"), (1e15, "P"), (1e12, "T")] {
        if r >= scale {
            return format!("{:.2} {unit}flop/s", r / scale);
        }
    }
    format!("{:.2} Gflop/s", r / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn people_write_many_units() {
        assert_eq!(seconds("13.6min").unwrap(), 816.0);
        assert_eq!(seconds("5h").unwrap(), 18_000.0);
        assert_eq!(seconds("7").unwrap(), 7.0);
        assert_eq!(seconds("1e3 s").unwrap(), 1000.0);
        assert_eq!(seconds("2.5y").unwrap(), 2.5 * YEAR_S);
        assert_eq!(bytes("64 GiB").unwrap(), 64.0 * GIB);
        assert_eq!(bytes("64GB").unwrap(), 64e9);
        for text in
            ["100Gbit/s", "100Gb/s", "100Gbps", "100gbit/s", "100gbps", "12.5GB/s", "12500 MB/s"]
        {
            assert_eq!(bytes_per_second(text).unwrap(), 12.5e9, "{text}");
        }
        assert_eq!(bytes_per_second("1Mb/s").unwrap(), 1.25e5);
        assert_eq!(bytes_per_second("1GiB/s").unwrap(), 8.0 * bytes_per_second("1Gib/s").unwrap());
        for either in ["100gb/s", "100Gb/S", "1mb/s", "1gib/s", "1KB/S"] {
            assert!(
                bytes_per_second(either).unwrap_err().contains("GB/s"),
                "bits or bytes: {either}"
            );
        }
        assert_eq!(flops_per_second("5.2T").unwrap(), 5.2e12);
        assert_eq!(flops_per_second("2 Eflop/s").unwrap(), 2e18);
        assert_eq!(flops_per_second("83.2").unwrap(), 83.2e9);
    }

    #[test]
    fn a_wrong_unit_is_refused_with_the_right_ones() {
        let message = seconds("5 parsecs").unwrap_err();
        assert!(message.contains("parsecs") && message.contains("min"), "{message}");
        for bad in ["", "h", "-3h", "0s", "nan", "inf", "1e999y", "5h5", "..", "é5"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn none_is_a_duration_where_it_is_asked_for() {
        for none in ["0", "0s", "0m", "0.0h", " 0 "] {
            assert_eq!(seconds_or_none(none), Ok(0.0), "{none}");
            assert!(seconds(none).is_err());
        }
        for bad in ["0parsecs", "", "s", "0x", "00s5"] {
            assert!(seconds_or_none(bad).is_err(), "{bad}");
        }
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert!(duration("40y").is_err());
        assert_eq!(some_time("1ms"), Ok(Duration::from_millis(1)));
        for none in ["0", "0s", "10us"] {
            assert!(some_time(none).unwrap_err().contains("too short"), "{none}");
        }
        assert_eq!(whole_bytes("2G"), Ok(2 << 30));
        assert_eq!(whole_bytes("2GB"), Ok(2_000_000_000));
        assert!(whole_bytes("1e30").is_err());
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic_or_lie(text in "\\PC{0,12}") {
            if let Ok(v) = seconds(&text) { prop_assert!(v.is_finite() && v > 0.0); }
            if let Ok(v) = bytes(&text) { prop_assert!(v.is_finite() && v > 0.0); }
            if let Ok(v) = bytes_per_second(&text) { prop_assert!(v.is_finite() && v > 0.0); }
        }
    }
}
