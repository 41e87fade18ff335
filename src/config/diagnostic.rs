//! Fault of an input, described so that a person can correct it.
//!
//! The readers of HPL.dat, `skt.toml`, the environment and the command line make [`Diagnostic`]s; `cli` and `driver` print these.
//! A diagnostic is a plain value that contains all its text, so rank 0 can find a fault and any rank can print it. A file with
//! three faults gives three diagnostics, never only the first: three typing errors should not cost three jobs in the queue.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Severity of a diagnostic. Only an [`Severity::Error`] keeps the program from running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Hint that only `skt-hpl check` prints.
    Note,
    Warning,
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

/// Part of a line of an input. Lines and columns count from 1, and columns and `len` are in characters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    pub line: usize,
    pub column: usize,
    pub len: usize,
    /// The whole line, which is printed with the diagnostic.
    pub text: String,
}

/// A fault: its place, the text read, the values allowed, and what the reference HPL would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnostic {
    pub severity: Severity,
    /// Name of a file or of an environment variable, or `command line`.
    pub origin: String,
    /// Part of the line to which the diagnostic points; `None` if the fault has no line.
    pub span: Option<Span>,
    pub message: String,
    pub read: Option<String>,
    pub allowed: Option<String>,
    /// Action of the reference HPL on the same input; `None` if it is the same as this program's.
    pub reference: Option<String>,
    /// Advice to the user; `None` if `allowed` says enough.
    pub help: Option<String>,
}

impl Diagnostic {
    pub fn new(
        severity: Severity,
        origin: impl Into<String>,
        message: impl Into<String>,
    ) -> Diagnostic {
        Diagnostic {
            severity,
            origin: origin.into(),
            span: None,
            message: message.into(),
            read: None,
            allowed: None,
            reference: None,
            help: None,
        }
    }

    pub fn error(origin: impl Into<String>, message: impl Into<String>) -> Diagnostic {
        Diagnostic::new(Severity::Error, origin, message)
    }

    pub fn warning(origin: impl Into<String>, message: impl Into<String>) -> Diagnostic {
        Diagnostic::new(Severity::Warning, origin, message)
    }

    pub fn at(mut self, line: usize, column: usize, len: usize, text: &str) -> Diagnostic {
        self.span = Some(Span { line, column, len, text: text.to_owned() });
        self
    }

    pub fn read(mut self, what: impl Into<String>) -> Diagnostic {
        self.read = Some(what.into());
        self
    }

    pub fn allowed(mut self, what: impl Into<String>) -> Diagnostic {
        self.allowed = Some(what.into());
        self
    }

    pub fn reference(mut self, what: impl Into<String>) -> Diagnostic {
        self.reference = Some(what.into());
        self
    }

    pub fn help(mut self, what: impl Into<String>) -> Diagnostic {
        self.help = Some(what.into());
        self
    }

    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// Largest number of characters of an input line that a diagnostic shows.
const SHOWN_CHARS_MAX: usize = 120;

/// Returns the part of the line to show, and the number of characters before the caret in this part. Each control character
/// except a tab becomes a visible character, because a file may contain terminal escapes. Columns do not change.
fn excerpt(span: &Span) -> (String, usize) {
    let start = span.column.saturating_sub(SHOWN_CHARS_MAX / 2);
    let shown: String = span
        .text
        .chars()
        .skip(start)
        .take(SHOWN_CHARS_MAX)
        .map(|c| if c != '\t' && c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    (shown, span.column.saturating_sub(1 + start))
}

/// Replaces control characters of a text from an input, so that the text is printed as a single visible line.
fn visible(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.severity, visible(&self.message))?;
        let origin = visible(&self.origin);
        let margin = match &self.span {
            None => {
                write!(f, "\n  --> {origin}")?;
                2
            }
            Some(span) => {
                let margin = span.line.to_string().len() + 1;
                let (shown, before) = excerpt(span);
                // The padding repeats the line's tabs, so that the caret stands under its character.
                let pad: String = shown
                    .chars()
                    .chain(std::iter::repeat(' '))
                    .take(before)
                    .map(|c| if c == '\t' { '\t' } else { ' ' })
                    .collect();
                let room = SHOWN_CHARS_MAX.saturating_sub(before).max(1);
                let carets = "^".repeat(span.len.clamp(1, room));
                let (line, column) = (span.line, span.column);
                write!(f, "\n{:margin$}--> {origin}:{line}:{column}", "")?;
                write!(f, "\n{:margin$} |", "")?;
                write!(f, "\n{line:>margin$} | {shown}")?;
                write!(f, "\n{:margin$} | {pad}{carets}", "")?;
                margin
            }
        };
        let facts = [
            ("read", &self.read),
            ("allowed", &self.allowed),
            ("reference HPL", &self.reference),
            ("help", &self.help),
        ];
        for (label, fact) in facts {
            if let Some(fact) = fact {
                write!(f, "\n{:margin$} = {label}: {}", "", visible(fact))?;
            }
        }
        Ok(())
    }
}

/// All diagnostics of an input. In an `Err`, at least one of them has the severity [`Severity::Error`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (k, one) in self.0.iter().enumerate() {
            if k > 0 {
                f.write_str("\n\n")?;
            }
            write!(f, "{one}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

/// Joins `values` as a choice: "a, b or c".
pub fn or_list(values: &[String]) -> String {
    listed(values, "or")
}

/// Joins `values` as a list: "a, b and c".
pub fn and_list(values: &[String]) -> String {
    listed(values, "and")
}

fn listed(values: &[String], last_but_one: &str) -> String {
    match values {
        [] => String::new(),
        [one] => one.clone(),
        [front @ .., last] => format!("{} {last_but_one} {last}", front.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caret_stands_under_the_value() {
        let d = Diagnostic::error("HPL.dat", "NB must be at least 1")
            .at(8, 5, 1, "12\t\t0 NBs")
            .read("0")
            .allowed("a whole number >= 1");
        assert_eq!(
            d.to_string(),
            "error: NB must be at least 1\n\
             \x20 --> HPL.dat:8:5\n\
             \x20  |\n\
             \x208 | 12\t\t0 NBs\n\
             \x20  |   \t\t^\n\
             \x20  = read: 0\n\
             \x20  = allowed: a whole number >= 1"
        );
    }

    #[test]
    fn long_lines_are_cut_around_the_fault_and_escapes_are_defused() {
        let text = format!("{}\x1b[31mBAD{}", "a".repeat(500), "b".repeat(500));
        let shown = Diagnostic::error("f", "m").at(1, 506, 3, &text).to_string();
        assert!(!shown.contains('\x1b'));
        let lines: Vec<&str> = shown.lines().collect();
        let caret = lines[4].find('^').unwrap();
        let under: String = lines[3].chars().skip(caret).take(3).collect();
        assert_eq!(under, "BAD", "{shown}");
        assert!(lines[3].chars().count() < 140);
    }

    #[test]
    fn lists_read_as_sentences() {
        let v = |w: &[&str]| or_list(&w.iter().map(|s| s.to_string()).collect::<Vec<_>>());
        assert_eq!(v(&[]), "");
        assert_eq!(v(&["a"]), "a");
        assert_eq!(v(&["a", "b", "c"]), "a, b or c");
    }
}
