//! HPL.dat's 31 lines: bytes in, checked values and every fault out.
//!
//! Called by `input::load` for the benchmark and by `skt-hpl check`. The rules are the reference's,
//! its reader's faults are not: wide spacing, tabs, other line ends, attached comments and missing
//! last lines are read as meant, and where the reference would run with other numbers a warning
//! names them. So a file that is read here without a warning gives the same tests under both
//! programs.

use std::path::PathBuf;

use super::choices::Choice;
use super::dat_line::{self, Piece, Token};
use super::diagnostic::{Diagnostic, Severity};
use super::hpl_dat::{HplDat, Output};

/// The last line with a meaning.
pub const LINES: usize = 31;

/// The most values a list may hold.
pub const VALUES_MAX: i128 = 20;

/// What is known from elsewhere (flags, environment), so that the file may end before it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given {
    pub n: bool,
    pub nb: bool,
    pub p: bool,
    pub q: bool,
}

/// A file as read. Where there was a fault, `dat` holds the default.
#[derive(Clone, Debug)]
pub struct Read {
    pub dat: HplDat,
    pub diagnostics: Vec<Diagnostic>,
}

impl Read {
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(Diagnostic::is_error)
    }
}

/// Reads the bytes of a file; `origin` is the name that diagnostics show.
pub fn read(bytes: &[u8], origin: &str, given: Given) -> Read {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        let fault = Diagnostic::error(origin, "the file is UTF-16 text")
            .allowed("plain text (ASCII or UTF-8)")
            .help("save it as plain text, for example with `iconv -f UTF-16 -t UTF-8`");
        return Read {
            dat: HplDat::default(),
            diagnostics: vec![fault],
        };
    }
    let mut reader = Reader::new(bytes, origin);
    let dat = reader.all(given);
    let mut diagnostics = reader.found;
    diagnostics.sort_by_key(|d| d.span.as_ref().map(|s| (s.line, s.column)));
    Read { dat, diagnostics }
}

struct Reader<'a> {
    origin: &'a str,
    lines: Vec<String>,
    found: Vec<Diagnostic>,
}

/// Lines end at LF, CR LF or a lone CR; bytes that are no UTF-8 are shown as U+FFFD.
fn split_lines(bytes: &[u8]) -> Vec<String> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let text = String::from_utf8_lossy(bytes)
        .replace("\r\n", "\n")
        .replace('\r', "\n");
    let mut lines: Vec<String> = text.split('\n').take(LINES).map(str::to_owned).collect();
    while lines.last().is_some_and(|l| l.trim().is_empty()) {
        lines.pop();
    }
    lines
}

impl<'a> Reader<'a> {
    fn new(bytes: &[u8], origin: &'a str) -> Reader<'a> {
        Reader {
            origin,
            lines: split_lines(bytes),
            found: Vec::new(),
        }
    }

    /// Line `no`, or `None` past the end of the file.
    fn line(&self, no: usize) -> Option<&str> {
        self.lines.get(no - 1).map(String::as_str)
    }

    fn diagnose(
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

    /// The first `want` whole numbers of a line, or `None` if that many are not there. Tells what
    /// is wrong with each, and what the reference would have read instead.
    fn wholes(&mut self, no: usize, want: usize, name: &str) -> Option<Vec<(i128, Token)>> {
        let line = self.line(no)?.to_owned();
        let misread = dat_line::reference_reads(&line, want);
        let misread_words = || {
            let words: Vec<String> = misread
                .iter()
                .map(|v| v.map_or("?".to_owned(), |v| v.to_string()))
                .collect();
            let note = if misread.contains(&None) {
                " (?: what is left of an earlier line)"
            } else {
                ""
            };
            format!("reads {}{note}", words.join(" "))
        };
        let mut values = Vec::with_capacity(want);
        let mut faulty = false;
        let mut seen = 0;
        let mut further = 0;
        for piece in dat_line::wholes(&line) {
            match piece {
                Piece::Whole(value, token) if seen < want => {
                    seen += 1;
                    values.push((value, token));
                }
                Piece::Bad(token) if seen < want => {
                    seen += 1;
                    faulty = true;
                    let taken = dat_line::atoi(token.text.as_bytes());
                    let fault = self
                        .diagnose(
                            Severity::Error,
                            no,
                            &token,
                            format!("{name} is not a whole number"),
                        )
                        .read(token.text)
                        .allowed("digits, parted from what follows by a blank")
                        .reference(format!("takes {taken}"));
                    self.found.push(fault);
                }
                Piece::Whole(..) => further += 1,
                Piece::Bad(_) => {}
                Piece::Comment(token) => {
                    if seen < want {
                        faulty = true;
                        let message = match (want, seen) {
                            (1, _) => format!("there is no value for {name}"),
                            _ => format!("{want} values of {name} are announced, {seen} are here"),
                        };
                        let read = if token.text.is_empty() {
                            "the end of the line".to_owned()
                        } else {
                            token.text.clone()
                        };
                        let fault = self
                            .diagnose(Severity::Error, no, &token, message)
                            .read(read)
                            .allowed(format!(
                                "{want} whole number{}, then free text",
                                plural(want)
                            ))
                            .reference(misread_words());
                        self.found.push(fault);
                    }
                }
            }
        }
        if faulty {
            return None;
        }
        let whole_line = Token {
            column: values[0].1.column,
            len: {
                let last = &values[want - 1].1;
                last.column + last.len - values[0].1.column
            },
            text: String::new(),
        };
        let same = values
            .iter()
            .zip(&misread)
            .all(|((ours, _), theirs)| theirs.map(i128::from) == Some(*ours));
        if !same {
            let ours: Vec<String> = values.iter().map(|(v, _)| v.to_string()).collect();
            let help = if values.iter().any(|(v, _)| i32::try_from(*v).is_err()) {
                "the reference's sizes are 32-bit numbers; this program's are not"
            } else {
                "begin the line with the first value and put one blank between values"
            };
            let warning = self
                .diagnose(
                    Severity::Warning,
                    no,
                    &whole_line,
                    format!("the reference HPL reads other values of {name} from this line"),
                )
                .read(ours.join(" "))
                .reference(misread_words())
                .help(help);
            self.found.push(warning);
        }
        if further > 0 && is_list(no) {
            let note = self.diagnose(
                Severity::Note,
                no,
                &whole_line,
                format!(
                    "the first {want} value{} of {name} are used, {further} more are not",
                    plural(want)
                ),
            );
            self.found.push(note);
        }
        Some(values)
    }

    fn whole(&mut self, no: usize, name: &str) -> Option<(i128, Token)> {
        self.wholes(no, 1, name).map(|mut one| one.remove(0))
    }

    /// The number of values that the list below has.
    fn count(&mut self, no: usize, of: &str) -> Option<usize> {
        let (value, token) = self.whole(no, &format!("the number of {of}"))?;
        if (1..=VALUES_MAX).contains(&value) {
            return Some(value as usize);
        }
        let fault = self
            .diagnose(
                Severity::Error,
                no,
                &token,
                format!("the number of {of} is out of range"),
            )
            .read(token.text)
            .allowed(format!("1 to {VALUES_MAX}"));
        self.found.push(fault);
        None
    }

    /// `value` as a size of at least `least`.
    fn size(
        &mut self,
        no: usize,
        name: &str,
        least: i128,
        value: i128,
        token: &Token,
    ) -> Option<usize> {
        let size = usize::try_from(value).ok().filter(|_| value >= least);
        if size.is_none() {
            let message = if value < least {
                format!("{name} must be at least {least}")
            } else {
                format!("{name} is too large for this machine")
            };
            let fault = self
                .diagnose(Severity::Error, no, token, message)
                .read(token.text.clone())
                .allowed(format!("a whole number >= {least}"));
            self.found.push(fault);
        }
        size
    }

    /// A list of sizes on line `no`, their number on the line before it (or given).
    fn sizes(&mut self, no: usize, want: usize, name: &str, least: i128) -> Option<Vec<usize>> {
        let values = self.wholes(no, want, name)?;
        let sizes: Vec<Option<usize>> = values
            .iter()
            .map(|(v, token)| self.size(no, name, least, *v, token))
            .collect();
        sizes.into_iter().collect()
    }

    fn counted_sizes(
        &mut self,
        no: usize,
        name: &str,
        plural: &str,
        least: i128,
    ) -> Option<Vec<usize>> {
        let want = self.count(no - 1, plural)?;
        self.sizes(no, want, name, least)
    }

    /// A digit that stands for a choice; any other is replaced as the reference does, with a
    /// warning.
    fn choice<T: Choice>(&mut self, no: usize, name: &str, digit: i128, token: &Token) -> T {
        if let Some(value) = T::from_digit(digit) {
            return value;
        }
        let fallback = T::FALLBACK.named();
        let warning = self
            .diagnose(
                Severity::Warning,
                no,
                token,
                format!("{name} {digit} does not exist; {} is used", fallback.name),
            )
            .read(token.text.clone())
            .allowed(T::allowed())
            .help(format!(
                "the reference HPL takes {} ({}) without a word",
                fallback.digit, fallback.name
            ));
        self.found.push(warning);
        fallback.value
    }

    fn counted_choices<T: Choice>(
        &mut self,
        no: usize,
        name: &str,
        plural: &str,
    ) -> Option<Vec<T>> {
        let want = self.count(no - 1, plural)?;
        let values = self.wholes(no, want, name)?;
        Some(
            values
                .iter()
                .map(|(v, token)| self.choice(no, name, *v, token))
                .collect(),
        )
    }

    fn one_choice<T: Choice>(&mut self, no: usize, name: &str) -> Option<T> {
        let (value, token) = self.whole(no, name)?;
        Some(self.choice(no, name, value, &token))
    }

    /// A scalar that the reference silently raises to `instead` where it is below `least`.
    fn raised(&mut self, no: usize, name: &str, least: i128, instead: usize) -> Option<usize> {
        let (value, token) = self.whole(no, name)?;
        if value >= least {
            return self.size(no, name, least, value, &token);
        }
        let warning = self
            .diagnose(
                Severity::Warning,
                no,
                &token,
                format!("{name} must be at least {least}; {instead} is used"),
            )
            .read(token.text.clone())
            .allowed(format!("a whole number >= {least}"))
            .help(format!("the reference HPL takes {instead} without a word"));
        self.found.push(warning);
        Some(instead)
    }

    fn output(&mut self) -> Option<Output> {
        let (device, token) = self.whole(4, "the output device")?;
        match device {
            6 => return Some(Output::Stdout),
            7 => return Some(Output::Stderr),
            _ => {}
        }
        let name = self.line(3)?.split_whitespace().next();
        if let Some(name) = name {
            return Some(Output::File(PathBuf::from(name)));
        }
        let nowhere = Token {
            column: 1,
            len: 1,
            text: String::new(),
        };
        let fault = self
            .diagnose(Severity::Error, 3, &nowhere, "there is no output file name")
            .read("an empty line")
            .allowed(format!(
                "a file name, as line 4 asks for a file (device {})",
                token.text
            ))
            .reference("takes whatever its buffer held before")
            .help("name the file here, or write 6 (standard output) on line 4");
        self.found.push(fault);
        None
    }

    fn grids(&mut self, given: Given) -> Option<Vec<(usize, usize)>> {
        let want = self.count(10, "process grids")?;
        let ps = self.sizes(11, want, "P", 1);
        let qs = self.sizes(12, want, "Q", 1);
        // With one of the two lists given elsewhere, what the file lacks is filled up by it.
        let fill = |list: Option<Vec<usize>>, missing: bool| match list {
            None if missing => Some(vec![1; want]),
            other => other,
        };
        let ps = fill(ps, given.p && self.line(11).is_none())?;
        let qs = fill(qs, given.q && self.line(12).is_none())?;
        Some(ps.into_iter().zip(qs).collect())
    }

    fn threshold(&mut self) -> Option<f64> {
        let line = self.line(13)?.to_owned();
        match dat_line::real(&line) {
            Ok((value, token)) => {
                if value <= 0.0 {
                    let note = self.diagnose(
                        Severity::Note,
                        13,
                        &token,
                        "a threshold of zero or less: the solutions will not be checked",
                    );
                    self.found.push(note);
                }
                Some(value)
            }
            Err(token) => {
                let read = if token.text.is_empty() {
                    "the end of the line".to_owned()
                } else {
                    token.text.clone()
                };
                let fault = self
                    .diagnose(
                        Severity::Error,
                        13,
                        &token,
                        "the threshold is not a finite number",
                    )
                    .read(read)
                    .allowed("a number such as 16.0; zero or less skips the check");
                self.found.push(fault);
                None
            }
        }
    }

    fn equilibration(&mut self) -> Option<bool> {
        let (value, token) = self.whole(30, "equilibration")?;
        match value {
            0 => return Some(false),
            1 => return Some(true),
            _ => {}
        }
        let warning = self
            .diagnose(
                Severity::Warning,
                30,
                &token,
                format!("equilibration {value} does not exist; 1 (yes) is used"),
            )
            .read(token.text.clone())
            .allowed("0 (no), 1 (yes)")
            .help("the reference HPL takes 1 without a word");
        self.found.push(warning);
        Some(true)
    }

    fn all(&mut self, given: Given) -> HplDat {
        self.end_of_file(given);
        let default = HplDat::default();
        HplDat {
            output: self.output().unwrap_or(default.output),
            ns: self
                .counted_sizes(6, "N", "problem sizes", 0)
                .unwrap_or_default(),
            nbs: self
                .counted_sizes(8, "NB", "block sizes", 1)
                .unwrap_or_default(),
            mapping: self.one_choice(9, "PMAP").unwrap_or(default.mapping),
            grids: self.grids(given).unwrap_or_default(),
            threshold: self.threshold().unwrap_or(default.threshold),
            pfacts: self
                .counted_choices(15, "PFACT", "panel factorisations")
                .unwrap_or(default.pfacts),
            nbmins: self
                .counted_sizes(17, "NBMIN", "recursion stops", 1)
                .unwrap_or(default.nbmins),
            ndivs: self
                .counted_sizes(19, "NDIV", "panels in recursion", 2)
                .unwrap_or(default.ndivs),
            rfacts: self
                .counted_choices(21, "RFACT", "recursive factorisations")
                .unwrap_or(default.rfacts),
            bcasts: self
                .counted_choices(23, "BCAST", "broadcasts")
                .unwrap_or(default.bcasts),
            depths: self
                .counted_sizes(25, "DEPTH", "lookahead depths", 0)
                .unwrap_or(default.depths),
            swap: self.one_choice(26, "SWAP").unwrap_or(default.swap),
            swap_threshold: self
                .raised(27, "the swapping threshold", 0, 0)
                .unwrap_or(default.swap_threshold),
            l1: self.one_choice(28, "the form of L1").unwrap_or(default.l1),
            u: self.one_choice(29, "the form of U").unwrap_or(default.u),
            equilibrate: self.equilibration().unwrap_or(default.equilibrate),
            align: self
                .raised(31, "the alignment", 1, 4)
                .unwrap_or(default.align),
        }
    }

    /// One diagnostic for all the lines a file that ends early does not have.
    fn end_of_file(&mut self, given: Given) {
        let have = self.lines.len();
        if have >= LINES {
            return;
        }
        let needed = [
            (given.n, 6, "the problem sizes N (lines 5 and 6)"),
            (given.nb, 8, "the block sizes NB (lines 7 and 8)"),
            (given.p, 11, "the grids' P (lines 10 and 11)"),
            (given.q, 12, "the grids' Q (line 12)"),
        ];
        let lacking: Vec<&str> = needed
            .iter()
            .filter(|(given, line, _)| !given && have < *line)
            .map(|(_, _, words)| *words)
            .collect();
        let defaults: Vec<String> = DEFAULTED
            .iter()
            .filter(|(line, _)| have < *line)
            .map(|(line, words)| format!("{line}: {words}"))
            .collect();
        let message = match have {
            0 => "the file is empty".to_owned(),
            _ => format!("the file ends after line {have} of {LINES}"),
        };
        let end = Token {
            column: self.line(have.max(1)).map_or(0, |l| l.chars().count()) + 1,
            len: 1,
            text: String::new(),
        };
        let fault = if lacking.is_empty() {
            self.diagnose(Severity::Warning, have.max(1), &end, message)
                .help(format!(
                    "defaults are used; line {}",
                    defaults.join("; line ")
                ))
        } else {
            self.diagnose(Severity::Error, have.max(1), &end, message)
                .read("the end of the file")
                .allowed(format!("{}, which have no default", lacking.join(", ")))
        };
        let fault = fault.reference(match have {
            0 => "takes whatever its buffer held before",
            _ => "reads the last line again for each missing one",
        });
        self.found.push(fault);
    }
}

/// The values of [`HplDat::default`], in words, by the last line each is read from.
const DEFAULTED: [(usize, &str); 15] = [
    (4, "standard output"),
    (9, "row-major mapping"),
    (13, "threshold 16.0"),
    (15, "PFACT right"),
    (17, "NBMIN 4"),
    (19, "NDIV 2"),
    (21, "RFACT Crout"),
    (23, "BCAST 1ringM"),
    (25, "DEPTH 1"),
    (26, "SWAP mix"),
    (27, "swapping threshold 64"),
    (28, "L1 transposed"),
    (29, "U transposed"),
    (30, "equilibration"),
    (31, "alignment 8"),
];

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Lines that hold lists, where numbers beyond the announced ones look like values.
fn is_list(no: usize) -> bool {
    matches!(no, 6 | 8 | 11 | 12 | 15 | 17 | 19 | 21 | 23 | 25)
}
