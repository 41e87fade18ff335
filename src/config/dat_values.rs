//! Readers for the values of a line of HPL.dat: whole numbers, sizes and choices. A line has one value, or a list whose length is
//! on the line above.
//!
//! A faulty value is reported with its line and column, and with the value that the reference HPL takes instead.
//! [`dat_reader`](super::dat_reader) knows which line contains which value.

use std::fmt;
use std::ops::RangeInclusive;

use super::choices::Choice;
use super::dat_line::{self, Piece, Token};
use super::diagnostic::{Diagnostic, Severity};
use crate::base::params::SIZE_MOST;
use crate::base::units::counted;

/// Range of the values that a size may have.
pub type Within = RangeInclusive<i128>;

/// Largest value of a size that has no bound except memory.
pub const ANY: i128 = i64::MAX as i128;

/// Largest block size and largest alignment.
pub const MOST: i128 = SIZE_MOST as i128;

/// Number of lines of HPL.dat with a meaning. Further lines are ignored.
pub const LINES: usize = 31;

/// Largest number of values in a list of HPL.dat.
pub const VALUES_MAX: i128 = 20;

/// HPL.dat while it is read: its lines, and the faults found so far.
pub struct Reader<'a> {
    origin: &'a str,
    pub lines: Vec<String>,
    pub found: Vec<Diagnostic>,
}

/// Splits bytes into lines, at LF, CR LF or a lone CR. Bytes that are no UTF-8 become U+FFFD. Returns at most [`LINES`] lines,
/// without blank lines at the end.
fn split_lines(bytes: &[u8]) -> Vec<String> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let text = String::from_utf8_lossy(bytes).replace("\r\n", "\n").replace('\r', "\n");
    let mut lines: Vec<String> = text.split('\n').take(LINES).map(str::to_owned).collect();
    while lines.last().is_some_and(|l| l.trim().is_empty()) {
        lines.pop();
    }
    lines
}

/// Values that the reference HPL reads from a line. A value is `None` if an earlier line left it in the reference's buffer.
struct Misread(Vec<Option<i32>>);

impl Misread {
    /// Returns true if the reference HPL reads the values `ours`, which this program reads from the line.
    fn is(&self, ours: &[i128]) -> bool {
        ours.iter().zip(&self.0).all(|(ours, theirs)| theirs.map(i128::from) == Some(*ours))
    }
}

impl fmt::Display for Misread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.0.iter().map(|v| v.map_or("?".to_owned(), |v| v.to_string()));
        let left =
            if self.0.contains(&None) { " (?: a value left from an earlier line)" } else { "" };
        write!(f, "reads {}{left}", words.collect::<Vec<_>>().join(" "))
    }
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &[u8], origin: &'a str) -> Reader<'a> {
        Reader { origin, lines: split_lines(bytes), found: Vec::new() }
    }

    /// Returns line `no`, counted from 1, or `None` past the end of the file.
    pub fn line(&self, no: usize) -> Option<&str> {
        self.lines.get(no - 1).map(String::as_str)
    }

    pub fn diagnose(
        &self,
        severity: Severity,
        no: usize,
        token: &Token,
        message: impl Into<String>,
    ) -> Diagnostic {
        Diagnostic::new(severity, self.origin, message).at(
            no,
            token.column,
            token.len,
            self.line(no).unwrap_or_default(),
        )
    }

    /// Returns the first `want` whole numbers of line `no`, or `None` if the line has fewer. Reports each wrong number, with the
    /// value that the reference HPL would read. `name` is the name of these values in reports.
    pub fn wholes(&mut self, no: usize, want: usize, name: &str) -> Option<Vec<(i128, Token)>> {
        let line = self.line(no)?.to_owned();
        let misread = Misread(dat_line::reference_reads(&line, want));
        let mut values = Vec::with_capacity(want);
        let mut pieces = dat_line::wholes(&line).into_iter();
        for (seen, piece) in pieces.by_ref().take(want).enumerate() {
            let found = match piece {
                Piece::Whole(value, token) => {
                    values.push((value, token));
                    continue;
                }
                Piece::Stuck(value, token) => {
                    let message = format!("a word is stuck to a value of {name}");
                    let warning = self
                        .diagnose(Severity::Warning, no, &token, message)
                        .read(format!("{value}, as the reference HPL does"))
                        .help("put a blank between the value and the word");
                    values.push((value, token));
                    warning
                }
                Piece::Bad(token) => {
                    let taken = dat_line::atoi(token.text.as_bytes());
                    let message = format!("{name} is not a whole number");
                    self.diagnose(Severity::Error, no, &token, message)
                        .read(token.text)
                        .allowed("digits, then a blank before any other text")
                        .reference(format!("takes {taken}"))
                }
                Piece::Comment(token) => {
                    let message = if want == 1 {
                        format!("there is no value for {name}")
                    } else {
                        format!("{want} values of {name} are announced, {seen} are here")
                    };
                    let read = Some(&token.text).filter(|text| !text.is_empty());
                    self.diagnose(Severity::Error, no, &token, message)
                        .read(read.map_or("the end of the line", |text| text))
                        .allowed(format!("{}, then free text", counted(want, "whole number")))
                        .reference(misread.to_string())
                }
            };
            self.found.push(found);
        }
        if values.len() < want {
            return None;
        }
        self.warn_if_misread(no, name, &values, &misread);
        let further = pieces.filter(|p| matches!(p, Piece::Whole(..) | Piece::Stuck(..))).count();
        if further > 0 && is_list(no) {
            let message = match want {
                1 => format!("only the first value of {name} is used, {further} more are not"),
                _ => format!("the first {want} values of {name} are used, {further} more are not"),
            };
            let note = self.diagnose(Severity::Note, no, &cover(&values), message);
            self.found.push(note);
        }
        Some(values)
    }

    /// Warns if the reference HPL reads other values from line `no` than `values`, which this program reads.
    fn warn_if_misread(
        &mut self,
        no: usize,
        name: &str,
        values: &[(i128, Token)],
        misread: &Misread,
    ) {
        let ours: Vec<i128> = values.iter().map(|(value, _)| *value).collect();
        // If a value does not fit in 64 bits, the caller makes an error, and no warning is needed.
        if ours.iter().any(|v| i64::try_from(*v).is_err()) || misread.is(&ours) {
            return;
        }
        let help = if ours.iter().any(|v| i32::try_from(*v).is_err()) {
            "the reference HPL has 32-bit sizes, and this program has 64-bit sizes"
        } else {
            "begin the line with the first value and put one blank between values"
        };
        let ours: Vec<String> = ours.iter().map(i128::to_string).collect();
        let message = format!("the reference HPL reads other values of {name} from this line");
        let warning = self
            .diagnose(Severity::Warning, no, &cover(values), message)
            .read(ours.join(" "))
            .reference(misread.to_string())
            .help(help);
        self.found.push(warning);
    }

    pub fn whole(&mut self, no: usize, name: &str) -> Option<(i128, Token)> {
        self.wholes(no, 1, name).map(|mut one| one.remove(0))
    }

    /// Returns the number on line `no`, which is the length of the list on the next line. If the length is not from 1 to
    /// [`VALUES_MAX`], reports an error and returns `None`.
    pub fn count(&mut self, no: usize, of: &str) -> Option<usize> {
        let (value, token) = self.whole(no, &format!("the number of {of}"))?;
        if (1..=VALUES_MAX).contains(&value) {
            return Some(value as usize);
        }
        let fault = self
            .diagnose(Severity::Error, no, &token, format!("the number of {of} is out of range"))
            .read(token.text)
            .allowed(format!("1 to {VALUES_MAX}"));
        self.found.push(fault);
        None
    }

    /// Returns `value` as a size in the range `within`, or reports an error and returns `None`.
    pub fn size(
        &mut self,
        no: usize,
        name: &str,
        within: Within,
        value: i128,
        token: &Token,
    ) -> Option<usize> {
        let (least, most) = within.into_inner();
        let size = usize::try_from(value).ok().filter(|_| (least..=most).contains(&value));
        if size.is_none() {
            let message = if value < least {
                format!("{name} must be at least {least}")
            } else {
                format!("{name} is too large: the most is {most}")
            };
            let mut fault = self
                .diagnose(Severity::Error, no, token, message)
                .read(token.text.clone())
                .allowed(format!("a whole number >= {least}"));
            if value >= least {
                let taken = dat_line::atoi(token.text.as_bytes());
                fault = fault.reference(format!("takes {taken}"));
            }
            self.found.push(fault);
        }
        size
    }

    /// Returns the `want` sizes on line `no`. Returns `None` if the line has fewer, or if a size is outside of the range
    /// `within`.
    pub fn sizes(
        &mut self,
        no: usize,
        want: usize,
        name: &str,
        within: Within,
    ) -> Option<Vec<usize>> {
        let values = self.wholes(no, want, name)?;
        let sizes: Vec<Option<usize>> = values
            .iter()
            .map(|(v, token)| self.size(no, name, within.clone(), *v, token))
            .collect();
        sizes.into_iter().collect()
    }

    pub fn counted_sizes(
        &mut self,
        no: usize,
        name: &str,
        plural: &str,
        within: Within,
    ) -> Option<Vec<usize>> {
        let want = self.count(no - 1, plural)?;
        self.sizes(no, want, name, within)
    }

    /// Warns of a value that this program replaces by the value `instead`. The reference HPL replaces the value, too, but without
    /// a warning.
    pub fn warn_of_replaced(
        &mut self,
        no: usize,
        token: &Token,
        message: String,
        allowed: String,
        instead: String,
    ) {
        let warning = self
            .diagnose(Severity::Warning, no, token, message)
            .read(token.text.clone())
            .allowed(allowed)
            .help(format!("the reference HPL takes {instead} without a warning"));
        self.found.push(warning);
    }

    /// Returns the choice that `digit` stands for. If `digit` stands for none, warns and returns the choice that the reference
    /// HPL uses instead.
    pub fn choice<T: Choice>(&mut self, no: usize, name: &str, digit: i128, token: &Token) -> T {
        T::from_digit(digit).unwrap_or_else(|| {
            let (instead, word) = (T::FALLBACK.digit(), T::FALLBACK.name());
            let message = format!("{name} {digit} does not exist; {word} is used");
            let instead = format!("{instead} ({word})");
            self.warn_of_replaced(no, token, message, T::allowed(), instead);
            T::FALLBACK
        })
    }

    pub fn counted_choices<T: Choice>(
        &mut self,
        no: usize,
        name: &str,
        plural: &str,
    ) -> Option<Vec<T>> {
        let want = self.count(no - 1, plural)?;
        let values = self.wholes(no, want, name)?;
        Some(values.iter().map(|(v, token)| self.choice(no, name, *v, token)).collect())
    }

    pub fn one_choice<T: Choice>(&mut self, no: usize, name: &str) -> Option<T> {
        let (value, token) = self.whole(no, name)?;
        Some(self.choice(no, name, value, &token))
    }

    /// Returns the single value of line `no`. If the value is below the range `within`, warns and returns `instead`, which the
    /// reference HPL uses without a warning. If there is no value, or if it is too large, reports an error and returns `None`.
    pub fn raised(
        &mut self,
        no: usize,
        name: &str,
        within: Within,
        instead: usize,
    ) -> Option<usize> {
        let (value, token) = self.whole(no, name)?;
        let least = *within.start();
        if value >= least {
            return self.size(no, name, within, value, &token);
        }
        let message = format!("{name} must be at least {least}; {instead} is used");
        let allowed = format!("a whole number >= {least}");
        self.warn_of_replaced(no, &token, message, allowed, instead.to_string());
        Some(instead)
    }
}

/// Returns a token that covers the columns from the first to the last of `values`.
fn cover(values: &[(i128, Token)]) -> Token {
    let (first, last) = (&values[0].1, &values[values.len() - 1].1);
    let len = last.column + last.len - first.column;
    Token { column: first.column, len, text: String::new() }
}

/// Returns true if line `no` of HPL.dat is a list. On such a line, numbers beyond the announced count look like values.
fn is_list(no: usize) -> bool {
    matches!(no, 6 | 8 | 11 | 12 | 15 | 17 | 19 | 21 | 23 | 25)
}
