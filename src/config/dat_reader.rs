//! Reads the 31 lines of HPL.dat, and returns checked values and every fault found.
//!
//! `Input::load` calls [`read`] for the benchmark, and `skt-hpl check` calls it, too. The rules are those of the reference HPL,
//! without the faults of its reader. Wide spacing, tabs, other line ends, attached comments and missing last lines are read as
//! the user means them. If the reference HPL would run with other numbers, a warning names these numbers. A file without a
//! warning therefore gives the same tests under both programs.

use std::path::PathBuf;

use super::dat_line::{self, Real, Token};
use super::dat_shape::{self, OtherLine, REFERENCE_LINE_MAX, Why};
use super::dat_values::{ANY, LINES, MOST, Reader};
use super::diagnostic::{Diagnostic, Severity};
use super::hpl_dat::{HplDat, Output};
use super::settings::Overrides;
use crate::base::units::counted;

/// Result of reading an HPL.dat. For a faulty value, `dat` contains the default.
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

/// Reads the bytes of an HPL.dat. `origin` is the file's name in diagnostics. At its end, the file may lack the lines of values
/// that the settings `given` replace.
pub fn read(bytes: &[u8], origin: &str, given: &Overrides) -> Read {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        let fault = Diagnostic::error(origin, "the file is UTF-16 text")
            .allowed("plain text (ASCII or UTF-8)")
            .help("save it as plain text, for example with `iconv -f UTF-16 -t UTF-8`");
        return Read { dat: HplDat::default(), diagnostics: vec![fault] };
    }
    let mut reader = Reader::new(bytes, origin);
    let dat = reader.all(given);
    reader.out_of_step();
    reader.other_lines(bytes);
    let mut diagnostics = reader.found;
    diagnostics.sort_by_key(|d| d.span.as_ref().map(|s| (s.line, s.column)));
    Read { dat, diagnostics }
}

impl Reader<'_> {
    /// Returns the word `file`, and adds a warning, if line 4 has this word in place of the number of the output device.
    /// Otherwise returns `None`. The reference HPL reads the word as 0, which also means a file.
    fn word_for_a_file(&mut self) -> Option<Token> {
        let line = self.line(4)?;
        let blank = line.chars().take_while(|c| c.is_whitespace()).count();
        let text = line.split_whitespace().next().filter(|w| w.eq_ignore_ascii_case("file"))?;
        let token = Token { column: blank + 1, len: text.len(), text: text.to_owned() };
        let warning = self
            .diagnose(Severity::Warning, 4, &token, "the output device is a word")
            .read("a file, named on line 3")
            .reference("reads 0, which also means a file")
            .help("write 6 for the standard output, 7 for the standard error, any other number for a file");
        self.found.push(warning);
        Some(token)
    }

    fn output(&mut self) -> Option<Output> {
        let (device, token) = match self.word_for_a_file() {
            Some(token) => (0, token),
            None => self.whole(4, "the output device")?,
        };
        match device {
            6 => return Some(Output::Stdout),
            7 => return Some(Output::Stderr),
            _ => {}
        }
        let name = self.line(3)?.split_whitespace().next();
        if let Some(name) = name {
            return Some(Output::File(PathBuf::from(name)));
        }
        let nowhere = Token { column: 1, len: 1, text: String::new() };
        let fault = self
            .diagnose(Severity::Error, 3, &nowhere, "there is no output file name")
            .read("an empty line")
            .allowed(format!("a file name, because line 4 selects a file (device {})", token.text))
            .reference("takes the text that an earlier line left in its buffer")
            .help("name the file here, or write 6 (standard output) on line 4");
        self.found.push(fault);
        None
    }

    fn grids(&mut self, given: &Overrides) -> Option<Vec<(usize, usize)>> {
        let want = self.count(10, "process grids")?;
        let ps = self.sizes(11, want, "P", 1..=ANY);
        let qs = self.sizes(12, want, "Q", 1..=ANY);
        // A list that the file lacks, and that a setting gives, is filled with ones. The setting then replaces them.
        let fill = |list: Option<Vec<usize>>, missing: bool| match list {
            None if missing => Some(vec![1; want]),
            other => other,
        };
        let ps = fill(ps, given.p.is_some() && self.line(11).is_none())?;
        let qs = fill(qs, given.q.is_some() && self.line(12).is_none())?;
        Some(ps.into_iter().zip(qs).collect())
    }

    fn threshold(&mut self) -> Option<f64> {
        let line = self.line(13)?.to_owned();
        match dat_line::real(&line) {
            Ok(Real { value, token, stuck }) => {
                if stuck {
                    let warning = self
                        .diagnose(Severity::Warning, 13, &token, "a word is stuck to the threshold")
                        .read(format!("{value}, as the reference HPL does"))
                        .help("put a blank between the value and the word");
                    self.found.push(warning);
                }
                let taken = dat_line::reference_reads_real(&line);
                if let Some(taken) = taken.filter(|taken| *taken != value) {
                    let warning = self
                        .diagnose(
                            Severity::Warning,
                            13,
                            &token,
                            "the reference HPL reads another threshold from this line",
                        )
                        .read(value.to_string())
                        .reference(format!("takes {taken}"))
                        .help("begin the line with the value");
                    self.found.push(warning);
                }
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
                    .diagnose(Severity::Error, 13, &token, "the threshold is not a finite number")
                    .read(read)
                    .allowed("a number such as 16.0; zero or less skips the check");
                // For an empty line, the reference takes the last word that it read.
                let fault = match dat_line::atof(&token.text) {
                    _ if token.text.is_empty() => fault,
                    0.0 => fault.reference("takes 0 and skips the check"),
                    taken => fault.reference(format!("takes {taken}")),
                };
                self.found.push(fault);
                None
            }
        }
    }

    fn equilibration(&mut self) -> Option<bool> {
        let (value, token) = self.whole(30, "equilibration")?;
        if !(0..=1).contains(&value) {
            let message = format!("equilibration {value} does not exist; 1 (yes) is used");
            self.warn_of_replaced(30, &token, message, "0 (no), 1 (yes)".into(), "1".into());
        }
        Some(value != 0)
    }

    fn all(&mut self, given: &Overrides) -> HplDat {
        self.end_of_file(given);
        let default = HplDat::default();
        HplDat {
            output: self.output().unwrap_or(default.output),
            ns: self.counted_sizes(6, "N", "problem sizes", 0..=ANY).unwrap_or_default(),
            nbs: self.counted_sizes(8, "NB", "block sizes", 1..=MOST).unwrap_or_default(),
            mapping: self.one_choice(9, "PMAP").unwrap_or(default.mapping),
            grids: self.grids(given).unwrap_or_default(),
            threshold: self.threshold().unwrap_or(default.threshold),
            pfacts: self
                .counted_choices(15, "PFACT", "panel factorisations")
                .unwrap_or(default.pfacts),
            nbmins: self
                .counted_sizes(17, "NBMIN", "recursion stops", 1..=MOST)
                .unwrap_or(default.nbmins),
            ndivs: self
                .counted_sizes(19, "NDIV", "panels in recursion", 2..=ANY)
                .unwrap_or(default.ndivs),
            rfacts: self
                .counted_choices(21, "RFACT", "recursive factorisations")
                .unwrap_or(default.rfacts),
            bcasts: self.counted_choices(23, "BCAST", "broadcasts").unwrap_or(default.bcasts),
            depths: self
                .counted_sizes(25, "DEPTH", "lookahead depths", 0..=ANY)
                .unwrap_or(default.depths),
            swap: self.one_choice(26, "SWAP").unwrap_or(default.swap),
            swap_threshold: self
                .raised(27, "the swapping threshold", 0..=ANY, 0)
                .unwrap_or(default.swap_threshold),
            l1: self.one_choice(28, "the form of L1").unwrap_or(default.l1),
            u: self.one_choice(29, "the form of U").unwrap_or(default.u),
            equilibrate: self.equilibration().unwrap_or(default.equilibrate),
            align: self.raised(31, "the alignment", 1..=MOST, 4).unwrap_or(default.align),
        }
    }

    /// Warns if the reference HPL splits the file into other lines than this program. From the first such line on, the reference
    /// HPL reads other values.
    fn other_lines(&mut self, bytes: &[u8]) {
        let Some(OtherLine { line, column, len, why }) = dat_shape::other_line(bytes) else {
            return;
        };
        let place = Token { column, len, text: String::new() };
        let warning = match why {
            Why::LoneReturn => self
                .diagnose(Severity::Warning, line, &place, "the line ends with a CR alone, as on old Macintoshes")
                .reference("continues the same line, because a CR does not end a line")
                .help("end lines with LF, for example with `tr '\\r' '\\n'`"),
            Why::TooLong => self
                .diagnose(
                    Severity::Warning,
                    line,
                    &place,
                    format!("the line, with its end-of-line character, is longer than the {REFERENCE_LINE_MAX} bytes that the reference HPL reads at once"),
                )
                .reference("takes the rest of this line for the next line, so all lines below are shifted")
                .help("shorten the line"),
        };
        self.found.push(warning);
    }

    /// Warns if comments are not on the lines of the values that they describe. In this case lines above are missing, or there
    /// are too many.
    fn out_of_step(&mut self) {
        let Some(shift) = dat_shape::out_of_step(&self.lines) else { return };
        let line = self.line(shift.at).unwrap_or_default();
        let start = line.chars().take_while(|c| c.is_whitespace()).count();
        let token =
            Token { column: start + 1, len: line.trim().chars().count(), text: String::new() };
        let why = match shift.belongs.checked_sub(shift.at) {
            Some(missing) => format!("{} above this line may be missing", counted(missing, "line")),
            None => format!(
                "{} above this line may be too many",
                counted(shift.at - shift.belongs, "line")
            ),
        };
        let warning = self
            .diagnose(
                Severity::Warning,
                shift.at,
                &token,
                format!(
                    "from this line on, comments do not describe the values of their lines: the comment here belongs to line {}",
                    shift.belongs
                ),
            )
            .help(format!("{why}; `skt-hpl check` shows the meaning of each line"));
        self.found.push(warning);
    }

    /// Adds a single diagnostic for all lines that are missing at the end of the file.
    fn end_of_file(&mut self, given: &Overrides) {
        let have = self.lines.len();
        if have >= LINES {
            return;
        }
        let needed = [
            (given.n.is_some(), 6, "the problem sizes N (lines 5 and 6)"),
            (given.nb.is_some(), 8, "the block sizes NB (lines 7 and 8)"),
            (given.p.is_some(), 11, "the grids' P (lines 10 and 11)"),
            (given.q.is_some(), 12, "the grids' Q (line 12)"),
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
                .help(format!("defaults are used; line {}", defaults.join("; line ")))
        } else {
            self.diagnose(Severity::Error, have.max(1), &end, message)
                .read("the end of the file")
                .allowed(format!("{}, which have no default", lacking.join(", ")))
        };
        let fault = fault.reference(match have {
            0 => "takes whatever is in its buffer",
            _ => "reads the last line again for each missing line",
        });
        self.found.push(fault);
    }
}

/// Values of [`HplDat::default`] in words. Each number is the last line of HPL.dat from which the value is read.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::params::{Bcast, Fact, Form, Mapping, Swap};
    use crate::config::choices::Choice;
    use proptest::prelude::*;

    /// Lines of a file in the layout of the HPL.dat that the reference ships.
    const SHIPPED: [&str; LINES] = [
        "HPLinpack benchmark input file",
        "any text",
        "HPL.out      output file name (if any)",
        "6            device out (6=stdout,7=stderr,file)",
        "4            # of problems sizes (N)",
        "29 30 34 35  Ns",
        "4            # of NBs",
        "1 2 3 4      NBs",
        "0            PMAP process mapping (0=Row-,1=Column-major)",
        "3            # of process grids (P x Q)",
        "2 1 4        Ps",
        "2 4 1        Qs",
        "16.0         threshold",
        "3            # of panel fact",
        "0 1 2        PFACTs (0=left, 1=Crout, 2=Right)",
        "2            # of recursive stopping criterium",
        "2 4          NBMINs (>= 1)",
        "1            # of panels in recursion",
        "2            NDIVs",
        "3            # of recursive panel fact.",
        "0 1 2        RFACTs (0=left, 1=Crout, 2=Right)",
        "1            # of broadcast",
        "0            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)",
        "1            # of lookahead depth",
        "0            DEPTHs (>=0)",
        "2            SWAP (0=bin-exch,1=long,2=mix)",
        "64           swapping threshold",
        "0            L1 in (0=transposed,1=no-transposed) form",
        "0            U  in (0=transposed,1=no-transposed) form",
        "1            Equilibration (0=no,1=yes)",
        "8            memory alignment in double (> 0)",
    ];

    fn shipped() -> HplDat {
        HplDat {
            output: Output::Stdout,
            ns: vec![29, 30, 34, 35],
            nbs: vec![1, 2, 3, 4],
            mapping: Mapping::Row,
            grids: vec![(2, 2), (1, 4), (4, 1)],
            threshold: 16.0,
            pfacts: vec![Fact::Left, Fact::Crout, Fact::Right],
            nbmins: vec![2, 4],
            ndivs: vec![2],
            rfacts: vec![Fact::Left, Fact::Crout, Fact::Right],
            bcasts: vec![Bcast::OneRing],
            depths: vec![0],
            swap: Swap::Mix,
            swap_threshold: 64,
            l1: Form::Transposed,
            u: Form::Transposed,
            equilibrate: true,
            align: 8,
        }
    }

    /// Returns the shipped file with some lines (counted from 1) replaced.
    fn file(changes: &[(usize, &str)]) -> String {
        let mut lines = SHIPPED;
        for (no, text) in changes {
            lines[no - 1] = text;
        }
        lines.join("\n") + "\n"
    }

    fn read_text(text: &str) -> Read {
        read(text.as_bytes(), "HPL.dat", &Overrides::default())
    }

    /// Returns the single diagnostic of a file, and checks its severity and place.
    fn only(text: &str, severity: Severity, line: usize, column: usize) -> (HplDat, Diagnostic) {
        let mut got = read_text(text);
        assert_eq!(got.diagnostics.len(), 1, "{:#?}", got.diagnostics);
        let one = got.diagnostics.remove(0);
        let span = one.span.as_ref().unwrap();
        assert_eq!((one.severity, span.line, span.column), (severity, line, column), "{one}");
        (got.dat, one)
    }

    #[test]
    fn the_shipped_layout_is_read_without_a_word() {
        let got = read_text(&file(&[]));
        assert_eq!(got.diagnostics, []);
        assert_eq!(got.dat, shipped());
        assert_eq!(got.dat.test_count(), 864);
    }

    #[test]
    fn line_ends_marks_and_further_lines_do_not_matter() {
        let lf = file(&[]);
        for text in [
            lf.replace('\n', "\r\n"),
            format!("\u{feff}{lf}"),
            format!("{lf}##### This line (no. 32) is ignored #####\n0 Number of sizes\n-1\n"),
            lf.trim_end().to_owned(),
            format!("{lf}\n\n\n"),
        ] {
            let got = read_text(&text);
            assert_eq!(got.diagnostics, [], "{text:?}");
            assert_eq!(got.dat, shipped());
        }
    }

    #[test]
    fn every_value_of_every_choice_is_read() {
        for (digit, fact) in [(0, Fact::Left), (1, Fact::Crout), (2, Fact::Right)] {
            let line = format!("{digit}");
            let dat = read_text(&file(&[(14, "1"), (15, &line), (20, "1"), (21, &line)])).dat;
            assert_eq!((dat.pfacts, dat.rfacts), (vec![fact], vec![fact]));
        }
        let dat = read_text(&file(&[(22, "6"), (23, "0 1 2 3 4 5 BCASTs")])).dat;
        let all = [
            Bcast::OneRing,
            Bcast::OneRingM,
            Bcast::TwoRing,
            Bcast::TwoRingM,
            Bcast::Long,
            Bcast::LongM,
        ];
        assert_eq!(dat.bcasts, all);
        for (digit, swap) in [(0, Swap::BinaryExchange), (1, Swap::Long), (2, Swap::Mix)] {
            assert_eq!(read_text(&file(&[(26, &digit.to_string())])).dat.swap, swap);
        }
        let dat = read_text(&file(&[(9, "1"), (28, "1"), (29, "1"), (30, "0")])).dat;
        assert_eq!(dat.mapping, Mapping::Column);
        assert_eq!((dat.l1, dat.u), (Form::NotTransposed, Form::NotTransposed));
        assert!(!dat.equilibrate);
    }

    #[test]
    fn outputs() {
        let output = |changes: &[(usize, &str)]| read_text(&file(changes)).dat.output;
        assert_eq!(output(&[(4, "7 device")]), Output::Stderr);
        assert_eq!(output(&[(4, "8 device")]), Output::File("HPL.out".into()));
        assert_eq!(output(&[(3, "  /tmp/x.y name"), (4, "0")]), Output::File("/tmp/x.y".into()));
        assert_eq!(output(&[(3, ""), (4, "6")]), Output::Stdout);
        let (_, one) = only(&file(&[(3, ""), (4, "9 file")]), Severity::Error, 3, 1);
        assert!(one.message.contains("no output file name"));
    }

    /// If the reference HPL replaces a value without a warning, this program uses the same replacement, and warns.
    #[test]
    fn silent_substitutions_become_warnings() {
        let check = |no: usize, text: &str, column: usize, holds: fn(&HplDat) -> bool| {
            let (dat, one) = only(&file(&[(no, text)]), Severity::Warning, no, column);
            assert!(holds(&dat), "{one}");
            assert!(one.help.unwrap().contains("without a warning"));
        };
        check(9, "2 PMAP", 1, |d| d.mapping == Mapping::Row);
        check(15, "0 7 2 PFACTs", 3, |d| d.pfacts == [Fact::Left, Fact::Right, Fact::Right]);
        check(21, "0 1 -1 RFACTs", 5, |d| d.rfacts == [Fact::Left, Fact::Crout, Fact::Right]);
        check(23, "6 BCASTs", 1, |d| d.bcasts == [Bcast::OneRingM]);
        check(26, "3 SWAP", 1, |d| d.swap == Swap::Long);
        check(27, "-4 threshold", 1, |d| d.swap_threshold == 0);
        check(28, "2 L1", 1, |d| d.l1 == Form::Transposed);
        check(29, "\t9 U", 2, |d| d.u == Form::Transposed);
        check(30, "2 Equil", 1, |d| d.equilibrate);
        check(31, "0 align", 1, |d| d.align == 4);
        check(31, "-8 align", 1, |d| d.align == 4);
    }

    /// Values that stop the reference HPL are errors, reported with line and column.
    #[test]
    fn bad_values_are_errors_with_a_place() {
        for (changes, line, column, words) in [
            (vec![(5, "0 sizes")], 5, 1, "number of problem sizes"),
            (vec![(5, "21 sizes")], 5, 1, "number of problem sizes"),
            (vec![(6, "29 -1 34 35")], 6, 4, "N must be at least 0"),
            (vec![(7, "0")], 7, 1, "number of block sizes"),
            (vec![(8, "1 2 0 4 NBs")], 8, 5, "NB must be at least 1"),
            (vec![(10, "-3")], 10, 1, "number of process grids"),
            (vec![(11, "2 0 4 Ps")], 11, 3, "P must be at least 1"),
            (vec![(12, "2 4 -1 Qs")], 12, 5, "Q must be at least 1"),
            (vec![(13, "none")], 13, 1, "threshold"),
            (vec![(14, "99")], 14, 1, "number of panel factorisations"),
            (vec![(17, "2 0 NBMINs")], 17, 3, "NBMIN must be at least 1"),
            (vec![(19, "1 NDIVs")], 19, 1, "NDIV must be at least 2"),
            (vec![(20, "0")], 20, 1, "number of recursive factorisations"),
            (vec![(22, "0")], 22, 1, "number of broadcasts"),
            (vec![(24, "0")], 24, 1, "number of lookahead depths"),
            (vec![(25, "-1 DEPTHs")], 25, 1, "DEPTH must be at least 0"),
            (vec![(4, "stdout")], 4, 1, "output device"),
            (vec![(26, "")], 26, 1, "no value for SWAP"),
            (vec![(6, "1e5 30 34 35")], 6, 1, "not a whole number"),
            (vec![(6, "29 30 34 10k Ns")], 6, 10, "not a whole number"),
        ] {
            let (_, one) = only(&file(&changes), Severity::Error, line, column);
            assert!(one.message.contains(words), "{one}");
            assert!(one.read.is_some() && one.allowed.is_some(), "{one}");
        }
    }

    #[test]
    fn a_threshold_that_is_none_tells_what_the_reference_takes() {
        for (line, taken) in
            [("none", "takes 0 and skips the check"), ("1.6d1", "takes 1.6"), ("inf", "takes inf")]
        {
            let (_, one) = only(&file(&[(13, line)]), Severity::Error, 13, 1);
            assert_eq!(one.reference.as_deref(), Some(taken));
        }
    }

    #[test]
    fn a_missing_value_tells_what_the_reference_would_run() {
        let (_, one) = only(&file(&[(6, "29 30 34 Ns")]), Severity::Error, 6, 10);
        assert_eq!(one.message, "4 values of N are announced, 3 are here");
        assert_eq!(one.read.as_deref(), Some("Ns"));
        assert_eq!(one.reference.as_deref(), Some("reads 29 30 34 0"));
    }

    #[test]
    fn wide_spacing_is_read_and_warned_of() {
        let (dat, one) = only(&file(&[(6, "29  30  34  35 Ns")]), Severity::Warning, 6, 1);
        assert_eq!(dat, shipped());
        assert_eq!(one.reference.as_deref(), Some("reads 29 30 34 4"));
        assert_eq!(one.span.unwrap().len, 14);
    }

    #[test]
    fn sizes_past_the_references_ints_are_read_and_warned_of() {
        let (dat, one) = only(&file(&[(5, "1"), (6, "3000000000 Ns")]), Severity::Warning, 6, 1);
        assert_eq!(dat.ns, [3_000_000_000]);
        assert_eq!(one.reference.as_deref(), Some("reads -1294967296"));
        for (no, text) in [(8, "3000000000 NB"), (17, "3000000000 NBMIN"), (31, "3000000000 align")]
        {
            let changes = [(no - 1, if no == 31 { "1" } else { "1 of them" }), (no, text)];
            let found = read_text(&file(&changes)).diagnostics;
            let says = |d: &Diagnostic| d.message.contains("too large: the most is 2147483647");
            assert!(found.iter().any(|d| d.is_error() && says(d)), "{no}: {found:#?}");
        }
        let (_, one) =
            only(&file(&[(5, "1"), (6, "99999999999999999999 Ns")]), Severity::Error, 6, 1);
        assert!(one.message.contains("too large"), "{one}");
        assert_eq!(one.reference.as_deref(), Some("takes -1"));
    }

    #[test]
    fn values_that_the_reference_takes_are_taken_with_a_warning() {
        let (dat, one) = only(&file(&[(5, "3"), (6, "800 850 900Ns")]), Severity::Warning, 6, 9);
        assert_eq!(dat.ns, [800, 850, 900]);
        assert!(one.message.contains("stuck to a value of N"), "{one}");
        let (dat, _) = only(&file(&[(4, "file  device out")]), Severity::Warning, 4, 1);
        assert_eq!(dat.output, Output::File("HPL.out".into()));
    }

    #[test]
    fn the_threshold_is_read_as_the_reference_does_or_warned_of() {
        for line in ["16.0threshold", "16.0s"] {
            let (dat, one) = only(&file(&[(13, line)]), Severity::Warning, 13, 1);
            assert_eq!(dat.threshold, 16.0);
            assert!(one.message.contains("stuck to the threshold"), "{one}");
        }
        for line in [", 16.0", "\u{a0}16.0"] {
            let (dat, one) =
                only(&file(&[(13, line)]), Severity::Warning, 13, line.chars().count() - 3);
            assert_eq!(dat.threshold, 16.0);
            assert_eq!(one.reference.as_deref(), Some("takes 0"));
        }
    }

    /// The reference HPL reads at most 253 bytes of a line at once, and only LF ends a line.
    #[test]
    fn lines_that_are_other_lines_to_the_reference_are_warned_of() {
        let fits = "t".repeat(dat_shape::REFERENCE_LINE_MAX - 1);
        assert_eq!(
            read_text(&file(&[(1, &fits), (6, &format!("29 30 34 35 {}", &fits[12..]))]))
                .diagnostics,
            []
        );
        let long = format!("{fits}t");
        let (dat, one) = only(&file(&[(1, &long)]), Severity::Warning, 1, long.len() + 1);
        assert_eq!(dat, shipped());
        assert!(one.reference.unwrap().contains("the next line"));
        // A character of several bytes counts as one character, and so does a CR before the line's end.
        let umlauts = format!("29 30 34 35 {}", "\u{e4}".repeat(121));
        only(&file(&[(6, &umlauts)]), Severity::Warning, 6, umlauts.chars().count());
        let returns = file(&[(2, &fits)]).replace('\n', "\r\n");
        only(&returns, Severity::Warning, 2, fits.len() + 1);
        // The reference reads nothing after the last line, so text behind line 31, or behind its end, is not warned of.
        assert_eq!(read_text(&file(&[(31, &format!("8 {long}"))])).diagnostics, []);
        // Lone CRs: in all of the file, or a single one in a comment.
        let (dat, one) = only(&file(&[]).replace('\n', "\r"), Severity::Warning, 1, 31);
        assert_eq!(dat, shipped());
        assert!(one.message.contains("CR"), "{one}");
        assert!(one.reference.unwrap().contains("does not end a line"));
    }

    #[test]
    fn a_file_that_nobody_has_finished_is_refused() {
        for (line, text) in [(6, "<<<<<<< HEAD\n29\n=======\n30\n>>>>>>> b"), (8, "{{ nb }} NBs")] {
            let read = read(file(&[(line, text)]).as_bytes(), "HPL.dat", &Overrides::default());
            let first = read.diagnostics.iter().find(|d| d.is_error()).unwrap();
            assert_eq!(first.span.as_ref().unwrap().line, line, "{first}");
        }
    }

    #[test]
    fn a_missing_line_is_told_by_the_comments_below() {
        let whole = file(&[]);
        let lines: Vec<&str> =
            whole.lines().enumerate().filter(|(at, _)| *at != 17).map(|(_, l)| l).collect();
        let read = read(lines.join("\n").as_bytes(), "HPL.dat", &Overrides::default());
        let told = read.diagnostics.iter().find(|d| d.message.contains("belongs to line"));
        let told = told.unwrap_or_else(|| panic!("{:?}", read.diagnostics));
        assert_eq!(told.span.as_ref().unwrap().line, 18, "{told}");
        assert!(told.message.ends_with("line 19"), "{told}");
    }

    #[test]
    fn more_values_than_announced_are_a_note() {
        let (dat, one) = only(&file(&[(5, "1")]), Severity::Note, 6, 1);
        assert_eq!(dat.ns, [29]);
        assert!(one.message.contains("only the first value of N"), "{one}");
        let (dat, _) = only(&file(&[(13, "-1.0")]), Severity::Note, 13, 1);
        assert_eq!(dat.threshold, -1.0);
    }

    #[test]
    fn all_faults_are_told_in_order() {
        let text = file(&[(8, "0 2 -3 x NBs"), (5, "4"), (6, "1 2 x3"), (19, "0"), (15, "9 9 9")]);
        let got = read_text(&text);
        let places: Vec<_> = got
            .diagnostics
            .iter()
            .map(|d| (d.span.as_ref().unwrap().line, d.span.as_ref().unwrap().column))
            .collect();
        // The value `x` on line 8 is no number, so the other values of this line are not checked.
        assert_eq!(places, [(6, 5), (8, 8), (15, 1), (15, 3), (15, 5), (19, 1)]);
        assert!(got.has_errors());
    }

    #[test]
    fn a_file_may_end_early_where_defaults_make_sense() {
        for have in 12..LINES {
            let text = SHIPPED[..have].join("\n");
            let got = read_text(&text);
            assert_eq!(got.diagnostics.len(), 1, "{have}: {:#?}", got.diagnostics);
            let one = &got.diagnostics[0];
            assert_eq!(one.severity, Severity::Warning);
            let expected = format!("ends after line {have} of 31");
            assert!(one.message.contains(&expected), "{one}");
            assert!(one.reference.as_ref().unwrap().contains("again"));
            let default = HplDat::default();
            assert_eq!(got.dat.ns, shipped().ns);
            assert_eq!(got.dat.align, default.align);
            assert_eq!(got.dat.swap, if have >= 26 { shipped().swap } else { default.swap });
            let bcasts = if have >= 23 { shipped().bcasts } else { default.bcasts };
            assert_eq!(got.dat.bcasts, bcasts);
        }
    }

    #[test]
    fn sizes_and_grids_have_no_default_unless_given_elsewhere() {
        let all = Overrides {
            n: Some(vec![100]),
            nb: Some(vec![10]),
            p: Some(vec![1]),
            q: Some(vec![1]),
            ..Overrides::default()
        };
        for have in 0..12 {
            let text = SHIPPED[..have].join("\n");
            let got = read_text(&text);
            assert_eq!(got.diagnostics.len(), 1, "{have}: {:#?}", got.diagnostics);
            assert!(got.has_errors());
            let with = read(text.as_bytes(), "HPL.dat", &all);
            assert!(!with.has_errors(), "{have}: {:#?}", with.diagnostics);
        }
        let q_alone = Overrides { q: Some(vec![1]), ..Overrides::default() };
        let got = read(SHIPPED[..11].join("\n").as_bytes(), "f", &q_alone);
        assert!(!got.has_errors());
        assert_eq!(got.dat.grids, [(2, 1), (1, 1), (4, 1)]);
    }

    /// The defaults are written twice, as values and as words in a warning. Both must agree.
    #[test]
    fn the_defaults_in_words_are_the_defaults() {
        let d = HplDat::default();
        let name =
            |no: usize| DEFAULTED.iter().find(|(line, _)| *line == no).unwrap().1.to_lowercase();
        let said = [
            (4, d.output.to_string()),
            (9, d.mapping.name()),
            (13, format!("{:.1}", d.threshold)),
            (15, d.pfacts[0].name()),
            (17, d.nbmins[0].to_string()),
            (19, d.ndivs[0].to_string()),
            (21, d.rfacts[0].name()),
            (23, d.bcasts[0].name().to_lowercase()),
            (25, d.depths[0].to_string()),
            (26, d.swap.name()),
            (27, d.swap_threshold.to_string()),
            (28, d.l1.name()),
            (29, d.u.name()),
            (31, d.align.to_string()),
        ];
        for (no, words) in said {
            let words = words.trim_start_matches("the ");
            assert!(name(no).contains(words), "line {no}: {words}");
        }
        assert!(d.equilibrate && name(30) == "equilibration");
    }

    #[test]
    fn other_encodings_are_told() {
        let utf16: Vec<u8> =
            b"\xff\xfe".iter().copied().chain(file(&[]).bytes().flat_map(|b| [b, 0])).collect();
        let got = read(&utf16, "f", &Overrides::default());
        assert_eq!(got.diagnostics.len(), 1);
        assert!(got.diagnostics[0].message.contains("UTF-16"));
        // Latin-1 in the free text causes no diagnostic.
        let mut latin = file(&[(5, "4   Gr")]).into_bytes();
        let at = latin.windows(2).position(|w| w == b"Gr").unwrap();
        latin.splice(at..at + 2, *b"Gr\xf6\xdfen");
        let got = read(&latin, "f", &Overrides::default());
        assert_eq!((got.diagnostics, got.dat), (vec![], shipped()));
    }

    /// Returns `dat` as the text of an HPL.dat, with the given spacing, comments and line ends.
    fn written(dat: &HplDat, blank: &str, comment: &str, end: &str) -> String {
        let words = |values: Vec<String>| values.join(blank);
        let sizes = |v: &[usize]| words(v.iter().map(usize::to_string).collect());
        fn digits<T: Choice>(v: &[T]) -> Vec<String> {
            v.iter().map(|x| x.digit().to_string()).collect()
        }
        let (ps, qs): (Vec<usize>, Vec<usize>) = dat.grids.iter().copied().unzip();
        let mut lines = vec!["free".to_owned(), "text".to_owned()];
        let mut put = |values: String| lines.push(format!("{values}{comment}"));
        put("HPL.out".to_owned());
        put("6".to_owned());
        let mut list = |count: usize, lists: Vec<String>| {
            put(count.to_string());
            lists.into_iter().for_each(&mut put);
        };
        list(dat.ns.len(), vec![sizes(&dat.ns)]);
        list(dat.nbs.len(), vec![sizes(&dat.nbs), words(digits(&[dat.mapping]))]);
        list(ps.len(), vec![sizes(&ps), sizes(&qs), format!("{:?}", dat.threshold)]);
        list(dat.pfacts.len(), vec![words(digits(&dat.pfacts))]);
        list(dat.nbmins.len(), vec![sizes(&dat.nbmins)]);
        list(dat.ndivs.len(), vec![sizes(&dat.ndivs)]);
        list(dat.rfacts.len(), vec![words(digits(&dat.rfacts))]);
        list(dat.bcasts.len(), vec![words(digits(&dat.bcasts))]);
        list(dat.depths.len(), vec![sizes(&dat.depths)]);
        put(words(digits(&[dat.swap])));
        put(dat.swap_threshold.to_string());
        put(words(digits(&[dat.l1])));
        put(words(digits(&[dat.u])));
        put(u8::from(dat.equilibrate).to_string());
        put(dat.align.to_string());
        assert_eq!(lines.len(), LINES);
        lines.join(end)
    }

    fn one_of<T: Choice + std::fmt::Debug>() -> impl Strategy<Value = T> {
        (0..T::value_variants().len()).prop_map(|k| T::value_variants()[k])
    }

    fn sizes(least: usize) -> impl Strategy<Value = Vec<usize>> {
        prop::collection::vec(least..100_000, 1..=20)
    }

    prop_compose! {
        fn any_dat()(
            (ns, nbs, nbmins) in (sizes(0), sizes(1), sizes(1)),
            (ndivs, depths) in (sizes(2), sizes(0)),
            grids in prop::collection::vec((1usize..99, 1usize..99), 1..=20),
            pfacts in prop::collection::vec(one_of::<Fact>(), 1..=20),
            rfacts in prop::collection::vec(one_of::<Fact>(), 1..=20),
            bcasts in prop::collection::vec(one_of::<Bcast>(), 1..=20),
            (mapping, swap, l1, u) in (one_of::<Mapping>(), one_of::<Swap>(), one_of::<Form>(), one_of::<Form>()),
            threshold in 0.001f64..1e6,
            (swap_threshold, equilibrate, align) in (0usize..1000, any::<bool>(), 1usize..64),
        ) -> HplDat {
            HplDat {
                output: Output::Stdout, ns, nbs, mapping, grids, threshold, pfacts, nbmins, ndivs,
                rfacts, bcasts, depths, swap, swap_threshold, l1, u, equilibrate, align,
            }
        }
    }

    proptest! {
        /// Written values are read again with any spacing. With single blanks they are read without a warning.
        #[test]
        fn written_files_are_read(
            dat in any_dat(),
            blank in "[ \t]{1,3}",
            comment in "[ \t]{1,9}(Ns|# 5|// 7|\\(0=a,1=b\\))?|#|",
            end in prop::sample::select(vec!["\n", "\r\n", "\r"]),
        ) {
            let text = written(&dat, &blank, &comment, end);
            let got = read_text(&text);
            prop_assert!(!got.has_errors(), "{:#?}", got.diagnostics);
            prop_assert_eq!(&got.dat, &dat);
            // Only the warning of a lone CR depends on the line ends.
            let returns = |d: &Diagnostic| d.message.contains("a CR alone");
            prop_assert_eq!(got.diagnostics.iter().filter(|d| returns(d)).count(), usize::from(end == "\r"));
            if blank.len() == 1 {
                prop_assert!(got.diagnostics.iter().all(returns), "{:#?}", got.diagnostics);
            }
        }

        /// No bytes make the reader panic, and every diagnostic can be shown.
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let got = read(&bytes, "f", &Overrides::default());
            for one in &got.diagnostics {
                prop_assert!(!one.to_string().is_empty());
            }
        }

        /// A damaged file does not make the reader panic. If there is no error, the file has at least one test.
        #[test]
        fn no_damage_panics(
            changes in prop::collection::vec((0..LINES, "[-+0-9.,eE \tkN#\u{0}é]{0,12}"), 0..6),
        ) {
            let mut lines: Vec<String> = SHIPPED.iter().map(|l| l.to_string()).collect();
            for (no, text) in changes {
                lines[no] = text;
            }
            let got = read_text(&lines.join("\n"));
            for one in &got.diagnostics {
                let shown = one.to_string();
                prop_assert!(shown.contains('^'), "{}", shown);
            }
            if !got.has_errors() {
                prop_assert!(got.dat.test_count() > 0);
                prop_assert!(got.dat.tests(crate::base::params::Rng::Hpl, 1).next().is_some());
            }
        }
    }
}
