//! Reads a line of HPL.dat: the values at the beginning of the line, with their columns. Also emulates the reader of the
//! reference HPL.
//!
//! `dat_reader` and `dat_values` call this module. Their warnings use the emulation: they state the numbers with which the
//! reference HPL would run.

/// Piece of a line of HPL.dat. `column` and `len` are in characters, and columns count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub column: usize,
    pub len: usize,
    pub text: String,
}

/// Piece of a line of HPL.dat, by kind: a value, a faulty value, or the free text after the values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Whole(i128, Token),
    /// Whole number with a word attached, such as `900Ns`. The number is used, as in the reference HPL.
    Stuck(i128, Token),
    /// Piece that begins like a number, but is no whole number or is too large: `1e5`, `10k`, `1.5`.
    Bad(Token),
    /// First word of the free text after the values. Without free text, the token is empty, and its column is one past the end of
    /// the line.
    Comment(Token),
}

fn is_separator(c: char) -> bool {
    c.is_whitespace() || c == ','
}

/// Returns the length of the whole number at the beginning of `chars`, in characters, sign included. Returns 0 if `chars` does
/// not begin with a whole number.
fn whole_len(chars: &[char]) -> usize {
    let sign = usize::from(matches!(chars.first(), Some('+' | '-')));
    let digits = chars[sign..].iter().take_while(|c| c.is_ascii_digit()).count();
    if digits == 0 { 0 } else { sign + digits }
}

/// Returns the number in `digits` if the attached text `rest` is a word of letters. Otherwise returns `None`. A single letter or
/// a unit such as `kb` does not count as a word, because it may belong to the number.
fn stuck(digits: &[char], rest: &[char]) -> Option<i128> {
    const UNITS: [&str; 8] = ["kb", "mb", "gb", "tb", "kib", "mib", "gib", "tib"];
    let word: String = rest.iter().collect();
    let free = rest.len() > 1
        && rest.iter().all(char::is_ascii_alphabetic)
        && !UNITS.contains(&word.to_lowercase().as_str());
    let digits: String = digits.iter().filter(|c| **c != '+').collect();
    digits.parse().ok().filter(|_| free)
}

/// Splits a line of HPL.dat into its values and the first word of the free text. The last piece is free text or a faulty value.
///
/// Blanks, tabs and commas separate values. Free text may follow a value without a space if the text cannot be a part of the
/// number. So `4#sizes` and `4(sizes)` are the value 4, but `4k` is a fault.
pub fn wholes(line: &str) -> Vec<Piece> {
    let chars: Vec<char> = line.chars().collect();
    let mut pieces = Vec::new();
    let mut at = 0;
    loop {
        at += chars[at..].iter().take_while(|c| is_separator(**c)).count();
        let end = at + chars[at..].iter().take_while(|c| !is_separator(**c)).count();
        let word = &chars[at..end];
        let token =
            |part: &[char]| Token { column: at + 1, len: part.len(), text: part.iter().collect() };
        let len = whole_len(word);
        if len == 0 {
            let looks_real =
                word.first() == Some(&'.') && word.get(1).is_some_and(char::is_ascii_digit);
            let kind = if looks_real { Piece::Bad } else { Piece::Comment };
            pieces.push(kind(token(word)));
            return pieces;
        }
        let (number, rest) = word.split_at(len);
        let comment = Token { column: at + len + 1, ..token(rest) };
        let zeros_only = rest.first() == Some(&'.') && rest[1..].iter().all(|c| *c == '0');
        let comment_follows = match rest {
            [] => false,
            [first, ..] if first.is_alphanumeric() || matches!(first, '_' | '.') => false,
            // `100-200` and `100:200` look like ranges, which the format does not have.
            [_, second, ..] => !second.is_ascii_digit(),
            [_] => true,
        };
        if let Some(value) = stuck(number, rest) {
            pieces.extend([Piece::Stuck(value, token(word)), Piece::Comment(comment)]);
            return pieces;
        }
        let digits: String = number.iter().filter(|c| **c != '+').collect();
        pieces.push(if rest.is_empty() || zeros_only || comment_follows {
            match digits.parse() {
                Ok(value) => Piece::Whole(value, token(number)),
                Err(_) => Piece::Bad(token(number)),
            }
        } else {
            // The values after a bad piece are checked as well.
            Piece::Bad(token(word))
        });
        if comment_follows {
            pieces.push(Piece::Comment(comment));
            return pieces;
        }
        at = end;
    }
}

/// Real number at the beginning of a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Real {
    pub value: f64,
    /// The number as text, including an attached word.
    pub token: Token,
    /// True if a word is attached that cannot belong to the number, as in `16.0threshold`. The number is used, as in the
    /// reference HPL.
    pub stuck: bool,
}

/// Returns the real number at the beginning of a line. If the first word of the line is no finite number, the error is this word.
pub fn real(line: &str) -> Result<Real, Token> {
    let chars: Vec<char> = line.chars().collect();
    let at = chars.iter().take_while(|c| is_separator(**c)).count();
    let end = at + chars[at..].iter().take_while(|c| !is_separator(**c)).count();
    let word: String = chars[at..end].iter().collect();
    let token =
        |text: &str| Token { column: at + 1, len: text.chars().count(), text: text.to_owned() };
    if !word.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return Err(token(&word));
    }
    // The loop tries the longest beginning first, so that `16.0#` gives 16.0 and `16.0e1` gives 160. The rest of the word must
    // not be a possible part of the number.
    for cut in word.char_indices().rev().map(|(k, c)| k + c.len_utf8()) {
        let Some(value) = word[..cut].parse().ok().filter(|value: &f64| value.is_finite()) else {
            continue;
        };
        let rest = &word[cut..];
        if rest.chars().next().is_none_or(|c| !c.is_alphanumeric() && !matches!(c, '_' | '.')) {
            return Ok(Real { value, token: token(&word[..cut]), stuck: false });
        }
        return if is_stuck_to_a_real(rest) {
            Ok(Real { value, token: token(&word), stuck: true })
        } else {
            Err(token(&word))
        };
    }
    Err(token(&word))
}

/// Returns true if `rest`, the text attached to a real number, is a word of letters. Returns false for a single letter that may
/// be an exponent, a type or a unit, such as `k`.
fn is_stuck_to_a_real(rest: &str) -> bool {
    const MAY_BELONG: &str = "defgklmpqtxu";
    let one = rest.chars().count() == 1;
    rest.chars().all(|c| c.is_ascii_alphabetic())
        && !(one && MAY_BELONG.contains(&rest.to_lowercase()))
}

/// Returns the real number that the reference HPL reads from a line: C's `atof` of the first word. Returns `None` for a line
/// without a word. In this case the reference HPL uses a word of an earlier line.
pub fn reference_reads_real(line: &str) -> Option<f64> {
    let blank = |c: char| c.is_ascii_whitespace() || c == '\x0b';
    line.split(blank).find(|word| !word.is_empty()).map(atof)
}

/// Returns the result of `atoi` in glibc. Without digits, the result is 0. A number beyond 64 bits becomes the nearest 64-bit
/// number, and the low 32 bits are the result.
pub fn atoi(text: &[u8]) -> i32 {
    let blank = text.iter().take_while(|b| b.is_ascii_whitespace() || **b == 0x0b).count();
    let text = &text[blank..];
    let (negative, digits) = match text.first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let digits = digits.iter().take_while(|b| b.is_ascii_digit());
    let shifted = |value: i128, b: &u8| value.saturating_mul(10).saturating_add((b - b'0').into());
    let value = digits.fold(0, shifted) * if negative { -1 } else { 1 };
    value.clamp(i64::MIN.into(), i64::MAX.into()) as i32
}

/// Returns the result of C's `atof` for a word: the longest beginning of the word that is a number, or 0.
pub fn atof(word: &str) -> f64 {
    let ends = word.char_indices().map(|(k, c)| k + c.len_utf8());
    ends.rev().find_map(|end| word[..end].parse().ok()).unwrap_or(0.0)
}

/// Returns the `want` values that the reader of the reference HPL takes from a line. A value is `None` if the reader is past the
/// end of the line, or if the line is empty. The reader then takes a value that an earlier line left in its buffer.
///
/// The reader takes a word, then advances by the word's length plus one. The blanks that the reader skipped before the word are
/// not counted. After two blanks, the reader is therefore still inside the word that it has just read.
pub fn reference_reads(line: &str, want: usize) -> Vec<Option<i32>> {
    let mut bytes = line.as_bytes().to_vec();
    bytes.push(b'\n');
    let blank = |b: &u8| b.is_ascii_whitespace() || *b == 0x0b;
    let mut at = 0;
    let mut word: Option<&[u8]> = None;
    let mut values = Vec::with_capacity(want);
    for _ in 0..want {
        if at > bytes.len() {
            values.push(None);
            continue;
        }
        let from = at + bytes[at..].iter().take_while(|b| blank(b)).count();
        let len = bytes[from..].iter().take_while(|b| !blank(b)).count();
        if len > 0 {
            word = Some(&bytes[from..from + len]);
        }
        // At the end of the line, the reader takes the previous word again.
        values.push(word.map(atoi));
        at += word.map_or(0, <[u8]>::len) + 1;
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(line: &str) -> Vec<i128> {
        wholes(line)
            .into_iter()
            .filter_map(|p| match p {
                Piece::Whole(v, _) => Some(v),
                _ => None,
            })
            .collect()
    }

    fn bad(line: &str) -> Vec<(usize, String)> {
        wholes(line)
            .into_iter()
            .filter_map(|p| match p {
                Piece::Bad(t) => Some((t.column, t.text)),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn values_stand_before_comments_of_any_shape() {
        for line in [
            "29 30 34 35  Ns",
            "  29\t30   34,35 # Ns",
            "29, 30, 34, 35 (Ns)",
            "29 30 34 35(Ns)",
            "29 30 34 35#Ns 36",
            "29 30 34 35// 36",
            "29 30 34 35 = 36",
            "+29 30.0 34. 35",
            "29 30 34 35 \u{fffd}\u{fffd} 7",
        ] {
            assert_eq!(values(line), [29, 30, 34, 35], "{line:?}");
            assert_eq!(bad(line), [], "{line:?}");
        }
        assert_eq!(values("Ns 4"), []);
        assert_eq!(values(""), []);
        assert_eq!(values("-5 Ns"), [-5]);
    }

    #[test]
    fn half_numbers_are_faults_with_a_place() {
        assert_eq!(bad("1e5 Ns"), [(1, "1e5".to_owned())]);
        assert_eq!(bad("100  10k Ns"), [(6, "10k".to_owned())]);
        assert_eq!(bad("1.5"), [(1, "1.5".to_owned())]);
        assert_eq!(bad(".5"), [(1, ".5".to_owned())]);
        assert_eq!(bad("100-200 Ns"), [(1, "100-200".to_owned())]);
        assert_eq!(bad("4N"), [(1, "4N".to_owned())]);
        assert_eq!(bad("20GB"), [(1, "20GB".to_owned())]);
        let stuck = |line: &str| match &wholes(line)[..] {
            [.., Piece::Stuck(value, token), Piece::Comment(_)] => Some((*value, token.column)),
            _ => None,
        };
        assert_eq!(stuck("800 850 900Ns of all"), Some((900, 9)));
        assert_eq!(stuck("4N"), None);
        assert_eq!(stuck("4e5Ns"), None);
        let long = "9".repeat(60);
        assert_eq!(bad(&long), [(1, long.clone())]);
        assert_eq!(values("x1 2"), []);
    }

    #[test]
    fn reals() {
        assert_eq!(real("16.0 threshold").unwrap().value, 16.0);
        assert_eq!(real("\t-1").unwrap().value, -1.0);
        assert_eq!(real("1.6e1#x").unwrap().value, 16.0);
        assert_eq!(real("16.0(x)").unwrap().value, 16.0);
        assert_eq!(real(".5").unwrap().value, 0.5);
        assert_eq!(real("  threshold").unwrap_err().column, 3);
        for bad in [
            "nan", "inf", "1e999", "1.6d1", "1.6d", "16.0k", "16.0.1", "16.0_x", "16x0", "+inf", "",
        ] {
            assert!(real(bad).is_err(), "{bad}");
        }
        for (line, value, column) in [
            ("16.0threshold", 16.0, 1),
            (" 16.0s x", 16.0, 2),
            ("1.6e1max", 16.0, 1),
            ("-1none", -1.0, 1),
        ] {
            let read = real(line).unwrap();
            assert_eq!(
                (read.value, read.token.column, read.stuck),
                (value, column, true),
                "{line}"
            );
            assert_eq!(reference_reads_real(line), Some(value), "{line}");
        }
        assert_eq!(reference_reads_real("  , 16.0"), Some(0.0));
        assert_eq!(reference_reads_real(" \t"), None);
    }

    #[test]
    fn atof_takes_the_longest_beginning() {
        for (word, value) in [
            ("16.0threshold", 16.0),
            ("1.6d1", 1.6),
            ("-2e1x", -20.0),
            ("none", 0.0),
            ("", 0.0),
            ("inf", f64::INFINITY),
            ("\u{e9}1", 0.0),
        ] {
            assert_eq!(atof(word), value, "{word}");
        }
    }

    /// Checks lines with wide spacing and with missing values, which the reference HPL misreads.
    #[test]
    fn the_reference_misreads_as_known() {
        let some = |v: &[i32]| v.iter().copied().map(Some).collect::<Vec<_>>();
        assert_eq!(reference_reads("29 30 34 35  Ns", 4), some(&[29, 30, 34, 35]));
        assert_eq!(reference_reads("29  30  34  35", 4), some(&[29, 30, 34, 4]));
        assert_eq!(reference_reads("29 30 34 Ns", 4), some(&[29, 30, 34, 0]));
        assert_eq!(reference_reads("Ns", 1), some(&[0]));
        assert_eq!(reference_reads("  29 30", 2), some(&[29, 9]));
        assert_eq!(reference_reads("1e5", 1), some(&[1]));
        assert_eq!(reference_reads("", 1), [None]);
        assert_eq!(reference_reads("7", 3), [Some(7), Some(7), None]);
        assert_eq!(reference_reads("3000000000", 1), some(&[-1294967296]));
    }

    proptest! {
        #[test]
        fn nothing_panics_and_tokens_lie_inside_the_line(line in "\\PC{0,40}|[ \t0-9,.e+-]{0,40}") {
            let chars: Vec<char> = line.chars().collect();
            for piece in wholes(&line) {
                let (Piece::Whole(_, t) | Piece::Stuck(_, t) | Piece::Bad(t) | Piece::Comment(t)) = piece;
                let text: String = chars[t.column - 1..t.column - 1 + t.len].iter().collect();
                prop_assert_eq!(text, t.text);
            }
            let t = real(&line).map_or_else(|token| token, |read| read.token);
            let text: String = chars[t.column - 1..t.column - 1 + t.len].iter().collect();
            prop_assert_eq!(text, t.text);
            prop_assert_eq!(reference_reads(&line, 20).len(), 20);
        }

        /// If single blanks separate the values, as in the reference's own files, the reference HPL and this program read equal
        /// values.
        #[test]
        fn single_spacing_is_read_alike(v in prop::collection::vec(0i32..1_000_000, 1..20)) {
            let line = v.iter().map(i32::to_string).collect::<Vec<_>>().join(" ") + " text";
            let reference: Vec<i128> =
                reference_reads(&line, v.len()).into_iter().map(|x| x.unwrap().into()).collect();
            prop_assert_eq!(reference, values(&line));
        }

        #[test]
        fn any_spacing_is_read(v in prop::collection::vec((0i128..1_000_000, "[ \t]{1,4}|, ?"), 1..20)) {
            let line: String = v.iter().map(|(x, s)| format!("{x}{s}")).collect();
            prop_assert_eq!(values(&(line + "# 12")), v.iter().map(|(x, _)| *x).collect::<Vec<_>>());
        }
    }
}
