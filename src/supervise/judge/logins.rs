//! Timeout of a login, learned from earlier logins. Pure.
//!
//! A connection that ended is made again by a login. The time of a login depends on the site: a home directory on a slow file
//! system or a remote shell that asks a batch system takes long. The supervisor notes each login and asks for the timeout of the
//! next.

use std::collections::VecDeque;
use std::time::Duration;

/// Number of logins that are kept.
const KEPT: usize = 200;
/// Timeout of a single login, as a factor on the median of the last logins. Logins made at the same time get more.
const TIMES: f64 = 1.5;
/// Time of the other nodes to answer once half of the nodes have answered, as a factor on the slowest login so far.
const REST_TIMES: u64 = 10;
/// Lower bound of this time of the other nodes.
const REST_LEAST_MS: u64 = 10_000;

#[derive(Clone, Debug, Default)]
pub struct Logins {
    /// Times of the last logins, in milliseconds.
    took_ms: VecDeque<u64>,
    /// Slowest login among those made at once, and the largest number of nodes called at once.
    first: Option<(u64, usize)>,
}

impl Logins {
    /// Notes that a login took `ms` milliseconds, while `at_once` nodes were called at the same time.
    pub fn note(&mut self, ms: u64, at_once: usize) {
        self.took_ms.truncate(KEPT - 1);
        self.took_ms.push_front(ms);
        if at_once > 1 {
            let (slowest_ms, most) = self.first.unwrap_or_default();
            self.first = Some((slowest_ms.max(ms), most.max(at_once)));
        }
    }

    /// Returns the time of the slowest of the last logins.
    pub fn slowest(&self) -> Duration {
        Duration::from_millis(self.took_ms.iter().copied().max().unwrap_or_default())
    }

    /// Returns the time within which each of the `asked` nodes must give its first answer, at most `most_ms`. The `answered`
    /// nodes show how long a login takes.
    pub fn first_ms(&self, most_ms: u64, answered: usize, asked: usize) -> u64 {
        match self.took_ms.iter().max() {
            Some(slowest_ms) if 2 * answered >= asked => {
                (REST_TIMES * slowest_ms).clamp(REST_LEAST_MS.min(most_ms), most_ms)
            }
            _ => most_ms,
        }
    }

    /// Returns the timeout for the answers of `at_once` nodes that are called at the same time, at least `least_ms`.
    pub fn timeout_ms(&self, least_ms: u64, at_once: usize) -> u64 {
        if self.took_ms.is_empty() {
            return least_ms;
        }
        let mut sorted = Vec::from(self.took_ms.clone());
        let middle = sorted.len() / 2;
        let usual_ms = *sorted.select_nth_unstable(middle).1;
        // Logins made at the same time wait for each other, as the logins of the first call did.
        let queue_ms = match self.first {
            Some((slowest_ms, most)) if at_once > 1 => {
                slowest_ms as f64 * (at_once as f64 / most as f64).min(1.0)
            }
            _ => 0.0,
        };
        least_ms.max((TIMES * usual_ms as f64 + queue_ms) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(took: &[u64]) -> Logins {
        let mut logins = Logins::default();
        took.iter().for_each(|ms| logins.note(*ms, took.len()));
        logins
    }

    #[test]
    fn quick_logins_leave_the_least_timeout() {
        assert_eq!(Logins::default().timeout_ms(700, 5), 700);
        assert_eq!(known(&[200, 250, 300, 220]).timeout_ms(700, 1), 700);
    }

    #[test]
    fn slow_logins_and_many_at_once_are_given_time() {
        let slow = known(&[4000, 5000, 6000, 20_000]);
        assert_eq!(slow.timeout_ms(700, 1), 9000);
        assert_eq!(slow.timeout_ms(700, 2), 19_000);
        assert_eq!(slow.timeout_ms(700, 4), 29_000);
        assert_eq!(slow.timeout_ms(700, 400), 29_000);
    }

    #[test]
    fn the_first_half_shows_how_long_the_rest_may_take() {
        let logins = known(&[300, 800]);
        assert_eq!(logins.first_ms(30_000, 2, 5), 30_000);
        assert_eq!(logins.first_ms(30_000, 3, 5), 10_000);
        assert_eq!(known(&[2000]).first_ms(30_000, 3, 5), 20_000);
        assert_eq!(known(&[9000]).first_ms(30_000, 3, 5), 30_000);
        assert_eq!(Logins::default().first_ms(30_000, 0, 0), 30_000);
    }

    #[test]
    fn old_logins_are_forgotten() {
        let mut logins = known(&[9000]);
        (0..2 * KEPT).for_each(|_| logins.note(100, 1));
        assert_eq!(logins.timeout_ms(700, 1), 700);
    }
}
