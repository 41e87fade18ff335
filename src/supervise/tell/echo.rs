//! Output of several attempts, passed on as if it came from a single attempt.
//!
//! An attempt that resumes from memory begins its output with the same lines as the attempt before it: the same banner, the same
//! results of finished tests. A reader of the supervisor's output, a person or a script that looks for results, must get each
//! line once. So a line that was passed on already is not passed on again, as long as all lines before it were equal, too. Pure.

/// Beginning of a progress line. Such lines differ from one attempt to the next, and are left out of the comparison.
const PROGRESS: &[u8] = b"Column=";

/// A stream of text that begins again with each attempt.
#[derive(Debug, Default)]
pub struct Echo {
    /// Lines that have been passed on, without progress lines.
    said: Vec<Vec<u8>>,
    /// Number of these lines that this attempt has repeated.
    repeated: usize,
    /// The beginning of a line whose end has not come yet.
    pending: Vec<u8>,
}

impl Echo {
    /// Begins another attempt. An incomplete last line of the earlier attempt is dropped.
    pub fn again(&mut self) {
        self.repeated = 0;
        self.pending.clear();
    }

    /// Takes in the next bytes that this attempt has printed. Returns the part of the output to pass on.
    pub fn fresh(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in bytes.split_inclusive(|&b| b == b'\n') {
            self.pending.extend_from_slice(piece);
            if self.pending.ends_with(b"\n") {
                let line = std::mem::take(&mut self.pending);
                self.line(line, &mut out);
            }
        }
        out
    }

    /// Returns a last line without its end, to be passed on when no more output comes.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        let line = std::mem::take(&mut self.pending);
        if !line.is_empty() {
            self.line(line, &mut out);
        }
        out
    }

    fn line(&mut self, line: Vec<u8>, out: &mut Vec<u8>) {
        if line.starts_with(PROGRESS) {
            out.extend(line);
        } else if self.said.get(self.repeated) == Some(&line) {
            self.repeated += 1;
        } else {
            // From here on this attempt's lines replace those of the earlier attempt.
            out.extend_from_slice(&line);
            self.said.truncate(self.repeated);
            self.said.push(line);
            self.repeated += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the output that is passed on when `attempts` print their texts in pieces of `piece` bytes.
    fn heard(attempts: &[&str], piece: usize) -> String {
        let mut echo = Echo::default();
        let mut out = Vec::new();
        for text in attempts {
            echo.again();
            for bytes in text.as_bytes().chunks(piece) {
                out.extend(echo.fresh(bytes));
            }
        }
        out.extend(echo.rest());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_same_beginning_is_told_once() {
        for piece in [1, 3, 100] {
            assert_eq!(heard(&["head\none\n", "head\none\ntwo\n"], piece), "head\none\ntwo\n");
            // The first attempt is killed in the middle of a line, and the second before it has printed as much.
            assert_eq!(heard(&["head\non", "hea", "head\none\n"], piece), "head\none\n");
            assert_eq!(heard(&["a", "a"], piece), "a", "the last line may have no end");
        }
    }

    #[test]
    fn output_that_differs_is_printed_and_counts_from_then_on() {
        for piece in [1, 4, 100] {
            assert_eq!(heard(&["head\n20", "head\n25\n"], piece), "head\n25\n");
            let three = ["a\nb\nc\n", "a\nx\ny\n", "a\nx\ny\nz\n"];
            assert_eq!(heard(&three, piece), "a\nb\nc\nx\ny\nz\n");
        }
    }

    #[test]
    fn progress_does_not_keep_results_from_being_recognised() {
        let first = "head\nColumn=1\nresult 1\nColumn=2\n";
        let second = "head\nresult 1\nColumn=3\nresult 2\n";
        let expected = "head\nColumn=1\nresult 1\nColumn=2\nColumn=3\nresult 2\n";
        assert_eq!(heard(&[first, second], 5), expected);
    }

    proptest! {
        /// Wherever an output is cut short and begun again, the whole text is passed on once.
        #[test]
        fn cut_short_anywhere(
            text in "[a-c\n]{0,60}",
            cuts in proptest::collection::vec(0usize..60, 0..4),
            piece in 1usize..9,
        ) {
            let mut attempts: Vec<&str> =
                cuts.iter().map(|&cut| &text[..cut.min(text.len())]).collect();
            attempts.push(&text);
            prop_assert_eq!(heard(&attempts, piece), text.clone());
        }
    }
}
