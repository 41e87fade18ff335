//! Checks on a whole HPL.dat. Its comments should be on the lines of the values that they describe, and the reference HPL should
//! split the file into the same lines as this program.

use super::dat_values::LINES;

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

    const SHIPPED: &str = "title\nmore\nHPL.out output file name (if any)\n6 device out\n1 # of problems sizes (N)\n29 Ns\n\
        1 # of NBs\n4 NBs\n0 PMAP process mapping\n1 # of process grids (P x Q)\n2 Ps\n2 Qs\n16.0 threshold\n\
        1 # of panel fact\n2 PFACTs (0=left)\n1 # of recursive stopping criterium\n4 NBMINs (>= 1)\n\
        1 # of panels in recursion\n2 NDIVs\n1 # of recursive panel fact.\n1 RFACTs (0=left)\n1 # of broadcast\n\
        0 BCASTs (0=1rg)\n1 # of lookahead depth\n1 DEPTHs (>=0)\n2 SWAP (0=bin-exch)\n64 swapping threshold\n\
        0 L1 in form\n0 U in form\n1 Equilibration (0=no)\n8 memory alignment in double (> 0)\n";

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn an_ordinary_file_is_in_step() {
        assert_eq!(out_of_step(&lines(SHIPPED)), None);
        for bare in ["", "1\n2\n3\n", "{{ title }}\n${x}\n6\n"] {
            assert_eq!(out_of_step(&lines(bare)), None);
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
