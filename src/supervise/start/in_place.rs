//! Message of the benchmark about a loss that the ranks have recovered in place: its writer and its reader.
//!
//! The benchmark prints the message on standard error, for people. Under `skt-hpl run` the supervisor reads the moments for its
//! journal from the same message.

use std::fmt::{Display, Formatter, Result as Written};

use serde::{Deserialize, Serialize};

use crate::base::clock::unix_ms;

const DAY_MS: i64 = 86_400_000;

/// A lost rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gone {
    /// Number that the launcher gave the rank.
    pub rank: usize,
    pub node: String,
    /// Grid position of the rank, or `None` if it stood by.
    pub position: Option<usize>,
}

impl Display for Gone {
    fn fmt(&self, f: &mut Formatter) -> Written {
        let Gone { rank, node, position } = self;
        match position {
            Some(position) => write!(f, "rank {rank} on {node} (position {position})"),
            None => write!(f, "rank {rank} on {node} ({STANDS_BY})"),
        }
    }
}

impl Gone {
    fn find(text: &str) -> Option<Self> {
        let (who, part) = text.trim().strip_suffix(')')?.rsplit_once(" (")?;
        let (rank, node) = who.strip_prefix("rank ")?.split_once(" on ")?;
        let position = match part {
            STANDS_BY => None,
            _ => Some(part.strip_prefix("position ")?.parse().ok()?),
        };
        Some(Self { rank: rank.parse().ok()?, node: node.to_owned(), position })
    }
}

/// A loss of ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    pub lost: Vec<Gone>,
    /// Moment at which the loss was first noticed, by the clock of the rank that noticed it.
    pub noticed_unix_s: f64,
    pub agreed_s: f64,
    /// Text on the ranks that take the lost positions.
    pub takers: String,
}

const STANDS_BY: &str = "standing by";
const LOST: &str = " lost: noticed at ";
const AGREED: &str = " UTC, agreed ";
const LATER: &str = " s later";
const AFTER: &str = " s after the notice";
const BOUNDARY: &str = "resumes at boundary ";

/// Text for a test that begins from scratch.
pub const FROM_SCRATCH: &str = "begins from scratch";

impl Display for Notice {
    fn fmt(&self, f: &mut Formatter) -> Written {
        let who: Vec<String> = self.lost.iter().map(Gone::to_string).collect();
        let are = if who.len() == 1 { "is" } else { "are" };
        // The time is rounded to milliseconds first, so that the seconds are never 60.
        let ms = (self.noticed_unix_s * 1e3).round() as i64 % DAY_MS;
        write!(
            f,
            "{} {are}{LOST}{:02}:{:02}:{:02}.{:03}{AGREED}{:.3}{LATER}{}",
            who.join(", "),
            ms / 3_600_000,
            ms / 60_000 % 60,
            ms / 1000 % 60,
            ms % 1000,
            self.agreed_s,
            self.takers
        )
    }
}

impl Notice {
    /// Returns the message about the loss, now that the run continues. `how` describes how the run continues.
    pub fn told(&self, how: &str) -> String {
        let since = (unix_ms() as f64 / 1e3 - self.noticed_unix_s).max(0.0);
        format!("{self}; {how}; {since:.3}{AFTER}")
    }
}

/// Describes the boundary at which a test resumes.
pub fn from_boundary(test: usize, boundary: usize, blocks: usize) -> String {
    format!("test {test} {BOUNDARY}{boundary} of {blocks}")
}

/// Content of a message about a loss recovered in place.
#[derive(Clone, Debug, PartialEq)]
pub struct GoneOn {
    pub lost: Vec<Gone>,
    /// Moment at which the loss was first noticed, in milliseconds since midnight UTC.
    pub noticed_day_ms: i64,
    pub agreed_ms: u64,
    /// Milliseconds from the notice until the run continued.
    pub since_ms: u64,
    /// Boundary at which the test resumes, or `None` if all tests were done.
    pub boundary: Option<u64>,
    /// The message itself.
    pub words: String,
}

impl GoneOn {
    /// Parses a complete line. Returns `None` if it is no message about a recovered loss.
    pub fn find(line: &str) -> Option<Self> {
        let seconds = |text: &str| text.parse().ok().filter(|s: &f64| s.is_finite() && *s >= 0.0);
        let milliseconds = |text: &str| Some((seconds(text)? * 1e3).round() as u64);
        let (_, words) = line.trim_end().split_once("skt-hpl: ")?;
        let (who, rest) = words.split_once(LOST)?;
        let who = who.strip_suffix(" is").or_else(|| who.strip_suffix(" are"))?;
        let lost: Option<Vec<Gone>> = who.split(", ").map(Gone::find).collect();
        let (noticed, rest) = rest.split_once(AGREED)?;
        let mut noticed_day_ms = 0;
        for (part, unit_ms) in noticed.splitn(3, ':').zip([3_600_000.0, 60_000.0, 1000.0]) {
            noticed_day_ms += (seconds(part)? * unit_ms).round() as i64;
        }
        let (agreed, rest) = rest.split_once(LATER)?;
        let (how, since) = rest.strip_suffix(AFTER)?.rsplit_once("; ")?;
        let boundary = match how.split_once(BOUNDARY) {
            Some((_, rest)) => Some(rest.split(' ').next()?.parse().ok()?),
            None => how.contains(FROM_SCRATCH).then_some(0),
        };
        Some(Self {
            lost: lost?,
            noticed_day_ms,
            agreed_ms: milliseconds(agreed)?,
            since_ms: milliseconds(since)?,
            boundary,
            words: words.to_owned(),
        })
    }

    /// Returns the moment of the notice by the clock of the supervisor, which read the message at `read_ms`. The rank was known
    /// to be well at `well_ms`. Because clocks differ, the reported moment may be impossible. It is then moved to the nearest
    /// moment from `well_ms` to `read_ms` less [`since_ms`](Self::since_ms).
    pub fn noticed_ms(&self, well_ms: Option<u64>, read_ms: u64) -> u64 {
        let latest_ms = read_ms.saturating_sub(self.since_ms);
        let before_ms = (latest_ms as i64 - self.noticed_day_ms).rem_euclid(DAY_MS);
        let before_ms = if before_ms < DAY_MS / 2 { before_ms as u64 } else { 0 };
        latest_ms.saturating_sub(before_ms).max(well_ms.unwrap_or(0)).min(latest_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(rank: usize, position: Option<usize>) -> Gone {
        Gone { rank, node: "n3".into(), position }
    }

    fn notice() -> Notice {
        Notice {
            lost: vec![gone(2, Some(1))],
            noticed_unix_s: 86_400.0 * 20_000.0 + 3600.0 * 6.0 + 62.5,
            agreed_s: 0.0123,
            takers: "; rank 4 on n5 takes position 1".to_owned(),
        }
    }

    #[test]
    fn a_loss_is_reported_with_rank_node_and_moment() {
        let mut notice = notice();
        assert_eq!(
            notice.to_string(),
            "rank 2 on n3 (position 1) is lost: noticed at 06:01:02.500 UTC, agreed 0.012 s later; \
             rank 4 on n5 takes position 1"
        );
        notice.lost.push(gone(5, None));
        assert!(notice.to_string().contains("rank 5 on n3 (standing by) are lost"), "{notice}");
        notice.noticed_unix_s = 59.9999;
        assert!(notice.to_string().contains("00:01:00.000"), "{notice}");
    }

    #[test]
    fn a_notice_is_read_again() {
        let mut notice = notice();
        notice.lost.push(gone(5, None));
        let ways = [
            (from_boundary(2, 17, 40) + " (checkpoint 3); rebuilt positions [1]", Some(17)),
            (format!("test 1 {FROM_SCRATCH}, nothing was saved"), Some(0)),
            ("all tests are done".to_owned(), None),
        ];
        for (how, boundary) in ways {
            let line = format!("[1,0]<stderr>:skt-hpl: {notice}; {how}; 0.250{AFTER}\n");
            let read = GoneOn::find(&line).unwrap();
            assert_eq!((&read.lost, read.boundary), (&notice.lost, boundary), "{line}");
            assert_eq!((read.agreed_ms, read.since_ms), (12, 250));
            assert_eq!(read.noticed_day_ms, 6 * 3_600_000 + 62_500);
            for end in 0..line.len() - 2 {
                assert_eq!(GoneOn::find(&line[..end]), None, "cut short");
            }
        }
        let told = notice.told("all tests are done");
        assert!(GoneOn::find(&format!("skt-hpl: {told}")).is_some(), "{told}");
        let ends =
            format!("skt-hpl: {notice}. The run cannot be recovered in place: 3 ranks are left");
        assert_eq!(GoneOn::find(&ends), None);
    }

    #[test]
    fn clocks_that_agree_are_believed_over_midnight_too() {
        let day_ms = DAY_MS as u64 * 20_000;
        let at = |noticed_day_ms| GoneOn {
            lost: Vec::new(),
            noticed_day_ms,
            agreed_ms: 0,
            since_ms: 200,
            boundary: None,
            words: String::new(),
        };
        let read_ms = day_ms + 5450;
        assert_eq!(at(5000).noticed_ms(None, read_ms), day_ms + 5000);
        assert_eq!(at(DAY_MS - 100).noticed_ms(None, day_ms + 300), day_ms - 100);
        // Impossible moments are corrected.
        assert_eq!(at(5300).noticed_ms(None, read_ms), day_ms + 5250);
        assert_eq!(at(3000).noticed_ms(Some(day_ms + 4800), read_ms), day_ms + 4800);
        assert_eq!(at(5000).noticed_ms(Some(day_ms + 5300), read_ms), day_ms + 5250);
    }
}
