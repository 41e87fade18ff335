//! Checks on a whole HPL.dat. The file must be finished, and its comments should be on the lines of the values that they
//! describe. The reference HPL should split the file into the same lines as this program.

use super::dat_values::LINES;
use super::diagnostic::Diagnostic;

/// Returns an error if the file has marks of a merge with conflicts, or of a template that was not filled in. This single error
/// replaces an error for every line. Returns `None` if the file has no such marks.
pub fn unfinished(bytes: &[u8], origin: &str) -> Option<Diagnostic> {
    let text = String::from_utf8_lossy(bytes);
    let numbered = || text.lines().enumerate().map(|(at, line)| (at + 1, line));
    let begins = |mark: &str| numbered().find(|(_, line)| line.starts_with(mark));
    if let (Some((line, text)), Some((end, _))) = (begins("<<<<<<<"), begins(">>>>>>>"))
        && line < end
    {
        let fault =
            Diagnostic::error(origin, "the file contains both sides of a merge with conflicts")
                .at(line, 1, text.chars().count(), text)
                .help("keep one side: no line may begin with <<<<<<<, ======= or >>>>>>>");
        return Some(fault);
    }
    // Titles are free text, and so is the text after a value.
    let in_place_of_a_value = |line: &str| {
        let line = line.trim_start();
        let word = line.split_whitespace().next().unwrap_or_default();
        let named = |mark: char| {
            let inner = word.strip_prefix(mark).and_then(|rest| rest.strip_suffix(mark));
            inner.is_some_and(|name| {
                !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            })
        };
        ["{{", "{%", "${", "$(", "<%"].iter().any(|mark| line.starts_with(mark))
            || named('@')
            || named('%')
    };
    // Line 3 is not searched: it names a file, and is read only if line 4 selects a file.
    let (line, text) =
        numbered().skip(3).take(LINES - 3).find(|(_, line)| in_place_of_a_value(line))?;
    let what = "the line has a placeholder of a template in place of a value";
    let fault = Diagnostic::error(origin, what)
        .at(line, 1, text.chars().count(), text)
        .help("run the program that fills in this template, or write the values");
    Some(fault)
}

/// Shift of the comments of an HPL.dat against the values that they describe. Lines count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift {
    /// First line whose comment describes the value of another line.
    pub at: usize,
    /// Line of the value that the comment on line `at` describes.
    pub belongs: usize,
}

/// Words that comments of HPL.dat contain, each with the line of the value that it names.
const NAMES: [(&str, usize); 9] = [
    ("pmap", 9),
    ("pfact", 15),
    ("nbmin", 17),
    ("ndiv", 19),
    ("rfact", 21),
    ("bcast", 23),
    ("depth", 25),
    ("equilibration", 30),
    ("alignment", 31),
];
/// Least number of shifted comments for which a shift is reported.
const WITNESSES: usize = 3;

/// Returns the number of lines from line `no` down to the line whose value its comment names. The number is negative if that line
/// is above line `no`. Returns `None` if the comment names no value, or more than one.
fn off_by(no: usize, line: &str) -> Option<isize> {
    let comment = line.trim_start_matches(|c: char| !c.is_alphabetic() && c != '#').to_lowercase();
    let mut named = NAMES.iter().filter(|(name, _)| comment.contains(name));
    let (_, home) = named.next()?;
    if named.next().is_some() {
        return None;
    }
    // The line with the number of values is directly above the values.
    let counts = comment.starts_with('#') || comment.contains("number");
    Some(*home as isize - isize::from(counts) - no as isize)
}

/// Finds the first comment that does not describe the value of its own line. Returns `None` unless this comment and all later
/// ones are shifted in one direction, by at most 6 lines. Also returns `None` if fewer than 3 comments are shifted.
pub fn out_of_step(lines: &[String]) -> Option<Shift> {
    let told: Vec<(usize, isize)> = lines
        .iter()
        .enumerate()
        .skip(2)
        .filter_map(|(at, line)| Some((at + 1, off_by(at + 1, line)?)))
        .collect();
    let first = told.iter().position(|(_, off)| *off != 0)?;
    let rest = &told[first..];
    let down = rest[0].1 > 0;
    let consistent = rest.iter().all(|(_, off)| *off != 0 && (*off > 0) == down && off.abs() <= 6);
    if rest.len() < WITNESSES || !consistent {
        return None;
    }
    let (at, off) = rest[0];
    Some(Shift { at, belongs: at.checked_add_signed(off)? })
}

/// Largest number of bytes of a line, its end included, that the reference HPL reads at once. The reference HPL gives `fgets` a
/// size of 254 bytes, and the last of these bytes is the string's end.
pub const REFERENCE_LINE_MAX: usize = 253;

/// Line of HPL.dat that the reference HPL splits, or joins with the next line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherLine {
    /// Line in which the lines of the reference HPL begin to differ, counted from 1.
    pub line: usize,
    /// Column at which the lines of the reference HPL begin to differ, in characters, counted from 1.
    pub column: usize,
    pub len: usize,
    pub why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The line ends with a carriage return without a line feed. The reference HPL continues the line.
    LoneReturn,
    /// The line is too long: the reference HPL takes the rest of the line for the next line.
    TooLong,
}

/// Returns the first line before line 31 that the reference HPL splits, or joins with the next line. In the reference HPL, all
/// later lines are then shifted. Returns `None` if there is no such line.
pub fn other_line(bytes: &[u8]) -> Option<OtherLine> {
    let mut rest = bytes;
    for line in 1..LINES {
        let end = rest.iter().position(|b| matches!(b, b'\n' | b'\r'))?;
        let characters = |part: &[u8]| String::from_utf8_lossy(part).chars().count();
        let next = match (rest[end], rest.get(end + 1)) {
            (b'\n', _) => end + 1,
            (_, Some(b'\n')) => end + 2,
            (_, None) => return None,
            _ => {
                let column = characters(&rest[..end]) + 1;
                return Some(OtherLine { line, column, len: 1, why: Why::LoneReturn });
            }
        };
        if next > REFERENCE_LINE_MAX {
            let most = REFERENCE_LINE_MAX.min(end);
            let inside = |at: &usize| rest[*at] & 0xc0 == 0x80;
            let cut = (0..=most).rev().find(|at| !inside(at)).unwrap_or(most);
            let (column, len) = (characters(&rest[..cut]) + 1, characters(&rest[cut..end]).max(1));
            return Some(OtherLine { line, column, len, why: Why::TooLong });
        }
        rest = &rest[next..];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::diagnostic::Span;

    const SHIPPED: &str = "title\nmore\nHPL.out output file name (if any)\n6 device out\n1 # of problems sizes (N)\n29 Ns\n\
        1 # of NBs\n4 NBs\n0 PMAP process mapping\n1 # of process grids (P x Q)\n2 Ps\n2 Qs\n16.0 threshold\n\
        1 # of panel fact\n2 PFACTs (0=left)\n1 # of recursive stopping criterium\n4 NBMINs (>= 1)\n\
        1 # of panels in recursion\n2 NDIVs\n1 # of recursive panel fact.\n1 RFACTs (0=left)\n1 # of broadcast\n\
        0 BCASTs (0=1rg)\n1 # of lookahead depth\n1 DEPTHs (>=0)\n2 SWAP (0=bin-exch)\n64 swapping threshold\n\
        0 L1 in form\n0 U in form\n1 Equilibration (0=no)\n8 memory alignment in double (> 0)\n";

    fn unfinished(bytes: &[u8]) -> Option<Span> {
        super::unfinished(bytes, "HPL.dat").map(|fault| fault.span.unwrap())
    }

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn an_ordinary_file_is_finished_and_in_step() {
        assert_eq!(unfinished(SHIPPED.as_bytes()), None);
        assert_eq!(out_of_step(&lines(SHIPPED)), None);
        for bare in ["", "1\n2\n3\n", "<<<<<<<\n", "{{ title }}\n${x}\n6\n"] {
            assert_eq!((unfinished(bare.as_bytes()), out_of_step(&lines(bare))), (None, None));
        }
        // A ruler below the title, and marks of a template in a comment.
        let odd = SHIPPED.replace("more", "=======").replace("29 Ns", "29 ${money} {{braces}}");
        assert_eq!(unfinished(odd.as_bytes()), None);
    }

    #[test]
    fn conflicts_and_templates_are_one_fault() {
        let merged = SHIPPED.replace("29 Ns", "<<<<<<< HEAD\n29 Ns\n=======\n30 Ns\n>>>>>>> other");
        let found = unfinished(merged.as_bytes()).unwrap();
        assert_eq!((found.line, found.text.as_str()), (6, "<<<<<<< HEAD"));
        for mark in ["{{ n }}", "${N}", "<%= n %>", "@N@", "%SIZE%", "  {% n %}"] {
            let template = SHIPPED.replace("29 Ns", &format!("{mark} Ns"));
            assert_eq!(unfinished(template.as_bytes()).map(|f| f.line), Some(6), "{mark}");
        }
        for value in ["@", "%", "@ N@", "29 @N@"] {
            let text = SHIPPED.replace("29 Ns", value);
            assert_eq!(unfinished(text.as_bytes()), None, "{value}");
        }
    }

    #[test]
    fn a_missing_line_shows_in_the_comments_below_it() {
        let all = lines(SHIPPED);
        for gone in 2..29 {
            let mut file = all.clone();
            file.remove(gone);
            let found = out_of_step(&file);
            // If there are too few comments below, no shift is reported.
            if gone < 22 {
                let Shift { at, belongs } = found.unwrap_or_else(|| panic!("line {}", gone + 1));
                assert!(
                    at > gone && belongs > at && belongs <= at + 2,
                    "line {}: {found:?}",
                    gone + 1
                );
            }
            let mut file = all.clone();
            file.insert(gone, "1 one too many".into());
            if let Some(Shift { at, belongs }) = out_of_step(&file) {
                assert!(at > gone && belongs < at, "line {}", gone + 1);
            }
        }
    }

    #[test]
    fn comments_in_any_order_are_not_a_shift() {
        let mut file = lines(SHIPPED);
        file.swap(14, 20);
        assert_eq!(out_of_step(&file), None);
    }
}
