//! Formats numbers as C's `printf` does.
//!
//! Rust writes `1.5e1` and `NaN`, but scripts that read the output of HPL expect `1.5e+01` and `nan`. So [`super::text`] uses
//! these functions. The tests compare each function with the C library.

/// Formats `value` as `%.{precision}e` of C does: the exponent has a sign and at least two digits.
pub fn exponent(value: f64, precision: usize) -> String {
    if let Some(word) = not_finite(value) {
        return word.to_owned();
    }
    let rust = format!("{value:.precision$e}");
    let (mantissa, power) = rust.split_once('e').expect("`{:e}` writes an e");
    let (sign, digits) = match power.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', power),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// Formats `value` as `%.{precision}f` of C does.
pub fn fixed(value: f64, precision: usize) -> String {
    match not_finite(value) {
        Some(word) => word.to_owned(),
        None => format!("{value:.precision$}"),
    }
}

fn not_finite(value: f64) -> Option<&'static str> {
    match (value.is_nan(), value.is_infinite(), value.is_sign_negative()) {
        (true, _, false) => Some("nan"),
        (true, _, true) => Some("-nan"),
        (_, true, false) => Some("inf"),
        (_, true, true) => Some("-inf"),
        _ => None,
    }
}

/// Formats a Unix time in local time as C's `ctime` does, with a line end: `Fri Nov 20 08:08:53 2026\n`.
pub fn ctime(unix_s: u64) -> String {
    let seconds = libc::time_t::try_from(unix_s).unwrap_or(libc::time_t::MAX);
    // SAFETY: `tm` is plain integers and a pointer, for which all zeroes is a valid value.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live values of the right type; the reentrant form keeps nothing.
    let known = !unsafe { libc::localtime_r(&seconds, &mut tm) }.is_null();
    if known {
        calendar(&tm)
    } else {
        // This happens only for years beyond the range of C's `int`.
        format!("{unix_s} seconds after 1970\n")
    }
}

fn calendar(tm: &libc::tm) -> String {
    const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    format!(
        "{} {} {:2} {:02}:{:02}:{:02} {}\n",
        DAYS[tm.tm_wday as usize],
        MONTHS[tm.tm_mon as usize],
        tm.tm_mday,
        tm.tm_hour,
        tm.tm_min,
        tm.tm_sec,
        i64::from(tm.tm_year) + 1900
    )
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, CString};

    use proptest::prelude::*;

    use super::*;

    fn snprintf(conversion: &str, precision: usize, value: f64) -> String {
        let format = CString::new(format!("%.{precision}{conversion}")).unwrap();
        let mut buffer = [0u8; 512];
        // SAFETY: the format takes exactly one double; the length of the buffer is passed.
        let length =
            unsafe { libc::snprintf(buffer.as_mut_ptr().cast(), 512, format.as_ptr(), value) };
        assert!(0 < length && length < 512);
        CStr::from_bytes_until_nul(&buffer).unwrap().to_str().unwrap().to_owned()
    }

    /// Generates doubles of all bit patterns, including subnormals, infinities and NaNs of both signs.
    fn any_double() -> impl Strategy<Value = f64> {
        prop_oneof![
            any::<u64>().prop_map(f64::from_bits),
            (-1e6..1e6f64),
            // Halves, eighths and so on, which are exact ties in the last printed digit.
            (-100_000i64..100_000, 0i32..12).prop_map(|(m, e)| m as f64 / f64::from(1 << e)),
        ]
    }

    proptest! {
        #[test]
        fn exponent_is_what_c_prints(value in any_double(), precision in 0usize..10) {
            prop_assert_eq!(exponent(value, precision), snprintf("e", precision, value));
        }

        #[test]
        fn fixed_is_what_c_prints(value in any_double(), precision in 0usize..10) {
            prop_assert_eq!(fixed(value, precision), snprintf("f", precision, value));
        }

        #[test]
        fn ctime_is_what_c_prints(unix_s in 0u64..50_000_000_000) {
            let seconds = unix_s as libc::time_t;
            let mut text = [0u8; 64];
            // SAFETY: as in `ctime`; strftime is given the buffer's length.
            unsafe {
                let mut tm: libc::tm = std::mem::zeroed();
                libc::localtime_r(&seconds, &mut tm);
                libc::strftime(text.as_mut_ptr().cast(), 64, c"%a %b %e %H:%M:%S %Y\n".as_ptr(), &tm);
            }
            let expected = CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap();
            prop_assert_eq!(ctime(unix_s), expected);
        }
    }

    #[test]
    fn the_values_a_table_can_hold() {
        assert_eq!(exponent(248.125, 4), "2.4812e+02");
        assert_eq!(exponent(0.0, 4), "0.0000e+00");
        assert_eq!(exponent(9.999_99e5, 4), "1.0000e+06");
        assert_eq!(exponent(1e-300, 8), "1.00000000e-300");
        assert_eq!(exponent(f64::NAN.copysign(-1.0), 8), "-nan");
        assert_eq!(fixed(f64::INFINITY, 2), "inf");
        assert_eq!(fixed(11.0449, 2), "11.04");
    }
}
