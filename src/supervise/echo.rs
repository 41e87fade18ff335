//! What several incarnations print, passed on as if it had been one.
//!
//! An incarnation that goes on from memory begins its output as the one before it did: the same banner, the
//! same results of tests that were finished. Whoever reads the supervisor's output, a person or a harness that
//! looks for results, is to see each line once. So what was passed on already is not passed on again, as
//! long as it is the same. Pure.

/// One stream of text that begins anew now and then.
#[derive(Debug, Default)]
pub struct Echo {
    /// What has been passed on, as this incarnation has it.
    said: Vec<u8>,
    /// How much of it this incarnation has repeated.
    repeated: usize,
    /// It has said something else: from there on all of it is new.
    apart: bool,
}

impl Echo {
    /// Another incarnation begins to print.
    pub fn again(&mut self) {
        self.repeated = 0;
        self.apart = false;
    }

    /// What of these bytes, the next that this incarnation has printed, is to be passed on.
    pub fn fresh(&mut self, bytes: &[u8]) -> Vec<u8> {
        if self.apart {
            return bytes.to_vec();
        }
        let known = &self.said[self.repeated..];
        let same = known.iter().zip(bytes).take_while(|(a, b)| a == b).count();
        self.repeated += same;
        let rest = &bytes[same..];
        if rest.is_empty() {
            return Vec::new();
        }
        if self.repeated == self.said.len() {
            self.said.extend_from_slice(rest);
            self.repeated = self.said.len();
            return rest.to_vec();
        }
        // Something else stands there now: from the beginning of that line.
        self.apart = true;
        let broken = self.said.last().is_some_and(|&last| last != b'\n');
        let line =
            self.said[..self.repeated].iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        let mut out = if broken { vec![b'\n'] } else { Vec::new() };
        out.extend_from_slice(&self.said[line..self.repeated]);
        out.extend_from_slice(rest);
        self.said.truncate(self.repeated);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All that reaches the reader when these incarnations print, each in pieces of that many bytes.
    fn heard(incarnations: &[&str], piece: usize) -> String {
        let mut echo = Echo::default();
        let mut out = Vec::new();
        for text in incarnations {
            echo.again();
            for bytes in text.as_bytes().chunks(piece) {
                out.extend(echo.fresh(bytes));
            }
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_same_beginning_is_told_once() {
        for piece in [1, 3, 100] {
            assert_eq!(heard(&["head\none\n", "head\none\ntwo\n"], piece), "head\none\ntwo\n");
            // Killed in the middle of a line, and before it had got as far again.
            assert_eq!(heard(&["head\non", "hea", "head\none\n"], piece), "head\none\n");
        }
    }

    #[test]
    fn what_differs_is_told_from_the_beginning_of_its_line() {
        for piece in [1, 4, 100] {
            assert_eq!(
                heard(&["head\n10 %\n20 %\n", "head\n15 %\nend\n"], piece),
                "head\n10 %\n20 %\n15 %\nend\n"
            );
            assert_eq!(heard(&["head\n20", "head\n25\n"], piece), "head\n20\n25\n");
            // A third is compared with what the second had up to there.
            assert_eq!(heard(&["a\nb\n", "a\nc\n", "a\nd\n"], piece), "a\nb\nc\nd\n");
        }
    }

    proptest! {
        /// However an output is cut short and begun anew, the whole comes out once.
        #[test]
        fn cut_short_anywhere(text in "[a-c\n]{0,60}", cuts in proptest::collection::vec(0usize..60, 0..4), piece in 1usize..9) {
            let mut incarnations: Vec<&str> = cuts.iter().map(|&cut| &text[..cut.min(text.len())]).collect();
            incarnations.push(&text);
            prop_assert_eq!(heard(&incarnations, piece), text.clone());
        }
    }
}
