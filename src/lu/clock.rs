//! Measures how the main thread spends its time: every moment between start and stop belongs to exactly one part.

use std::time::{Duration, Instant};

use crate::base::outcome::Times;

/// Parts into which the time of the main thread is divided. At any time the thread is in exactly one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Panel factorisation, except the base of its recursion.
    Recursion,
    /// Base of the recursion in a panel factorisation, except the choice of each pivot row (`Pivot`).
    Base,
    Pivot,
    Broadcast,
    Swap,
    /// Waiting for rows of other process rows, with no other work at the same time.
    SwapWait,
    Triangle,
    Multiply,
    Solve,
    /// All work of the observer at a boundary, such as a save.
    Save,
    Other,
}

const PARTS: usize = 11;

/// A stopwatch that charges all time to exactly one part at a time.
pub struct Clock {
    seconds: [f64; PARTS],
    current: Part,
    since: Instant,
    start: Instant,
}

impl Clock {
    pub fn start() -> Self {
        let now = Instant::now();
        Self { seconds: [0.0; PARTS], current: Part::Other, since: now, start: now }
    }

    /// Charges time to `part` from now on. Returns the previous part.
    pub fn enter(&mut self, part: Part) -> Part {
        let now = Instant::now();
        self.seconds[self.current as usize] += (now - self.since).as_secs_f64();
        self.since = now;
        std::mem::replace(&mut self.current, part)
    }

    /// Divides the time that is not yet charged between two parts: the fraction `share` is charged to `other`, the rest to the
    /// current part. Use this function after threads have done work of both parts, if `share` is the measured fraction of
    /// `other`.
    pub fn give(&mut self, other: Part, share: f64) {
        let now = Instant::now();
        let seconds = (now - self.since).as_secs_f64();
        self.seconds[other as usize] += seconds * share;
        self.seconds[self.current as usize] += seconds * (1.0 - share);
        self.since = now;
    }

    /// Moves `time`, which was charged to the part `from` before, to the part `to`.
    pub fn hand_over(&mut self, from: Part, to: Part, time: Duration) {
        self.enter(self.current);
        self.seconds[from as usize] -= time.as_secs_f64();
        self.seconds[to as usize] += time.as_secs_f64();
    }

    /// Returns the seconds charged to `part`, which must not be the current part.
    pub fn spent(&self, part: Part) -> f64 {
        self.seconds[part as usize]
    }

    /// Returns the seconds since the clock was started.
    pub fn elapsed(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Stops the clock and returns the seconds of all parts, which add up to the seconds since the start, `total`.
    pub fn stop(mut self) -> Times {
        self.enter(Part::Other);
        let total = (self.since - self.start).as_secs_f64();
        let s = |part: Part| self.seconds[part as usize];
        let pfact = s(Part::Base) + s(Part::Pivot);
        let laswp = s(Part::Swap) + s(Part::SwapWait);
        Times {
            rfact: s(Part::Recursion) + pfact,
            pfact,
            mxswp: s(Part::Pivot),
            bcast: s(Part::Broadcast),
            update: laswp + s(Part::Triangle) + s(Part::Multiply),
            laswp,
            laswp_wait: s(Part::SwapWait),
            trsm: s(Part::Triangle),
            gemm: s(Part::Multiply),
            solve: s(Part::Solve),
            save: s(Part::Save),
            other: s(Part::Other),
            total,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_add_up() {
        let mut clock = Clock::start();
        for part in [
            Part::Recursion,
            Part::Pivot,
            Part::Multiply,
            Part::Swap,
            Part::SwapWait,
            Part::Solve,
            Part::Save,
        ] {
            let before = clock.enter(part);
            std::thread::sleep(std::time::Duration::from_millis(2));
            clock.enter(before);
        }
        assert!(clock.spent(Part::Multiply) >= 0.002);
        let (swap, before) = (clock.spent(Part::Swap), clock.enter(Part::Triangle));
        std::thread::sleep(std::time::Duration::from_millis(4));
        clock.give(Part::Swap, 0.75);
        clock.enter(before);
        assert!(clock.spent(Part::Swap) >= swap + 0.003 && clock.spent(Part::Triangle) >= 0.001);
        let (swap, triangle) = (clock.spent(Part::Swap), clock.spent(Part::Triangle));
        clock.hand_over(Part::Swap, Part::Triangle, Duration::from_millis(1));
        assert!((clock.spent(Part::Swap) - (swap - 0.001)).abs() < 1e-12);
        assert!((clock.spent(Part::Triangle) - (triangle + 0.001)).abs() < 1e-12);
        let t = clock.stop();
        let sum = t.rfact + t.bcast + t.update + t.solve + t.save + t.other;
        assert!((sum - t.total).abs() < 1e-9, "{t:?}");
        assert!((t.laswp + t.trsm + t.gemm - t.update).abs() < 1e-12);
        assert!(t.laswp_wait >= 0.002 && t.laswp >= t.laswp_wait + 0.002);
        assert!(t.mxswp >= 0.002 && t.pfact >= t.mxswp && t.rfact >= t.pfact + 0.002);
    }
}
