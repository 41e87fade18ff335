//! Sets of crash points, from which tests choose the points that a run reaches.

use crate::base::faults::Point;

impl Point {
    /// Returns whether this point comes before the first test of a job.
    pub fn is_of_start(self) -> bool {
        matches!(self, Point::Started | Point::RollCall)
    }

    /// Returns whether this point is reached only by a run that starts from scratch and finds memory of earlier runs.
    pub fn is_of_ground(self) -> bool {
        matches!(self, Point::GroundSeen | Point::GroundHalf | Point::GroundCleared)
    }

    /// Returns whether this point is reached only by saves whose parity is encoded by helpers.
    pub fn is_helpers(self) -> bool {
        matches!(self, Point::EncodeLeft | Point::EncodeFound)
    }

    /// Returns the points `first` and `last`, and all points between them.
    pub fn between(first: Point, last: Point) -> &'static [Point] {
        let at = |point| Point::ALL.iter().position(|p| *p == point).expect("it is there");
        &Point::ALL[at(first)..=at(last)]
    }

    /// Returns whether this point is a step of the solver itself, which exists under any protection. `tests/nonstop` injects
    /// faults at such points.
    pub fn is_solvers(self) -> bool {
        Point::between(Point::PanelHalf, Point::RecomputeHalf).contains(&self)
            || matches!(self, Point::SolveHalf | Point::SolveSent)
    }
}
