//! Who has which role after a loss, and where all go on from: pure.

use serde::{Deserialize, Serialize};

use crate::grid::ProcessGrid;
use crate::lu::{Exchange, From, Progress, Seat};
use crate::params::TestParams;

/// What a rank has of a test, as it tells the others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub test: usize,
    pub row: usize,
    pub col: usize,
    pub place: usize,
    /// What lies in its memory are checksums, whatever its role.
    pub sums: bool,
    pub progress: Progress,
    pub exchange: Option<Exchange>,
}

/// Who does what in an act.
#[derive(Clone, Debug, PartialEq)]
pub struct Cast {
    pub seats: Vec<Option<Seat>>,
    /// Whether there is a column of checksums.
    pub sums: bool,
    /// None: the test begins.
    pub from: Option<From>,
    /// Roles are exchanged now, not in an earlier act.
    pub exchanged: bool,
}

impl Cast {
    /// Without checksums: the positions that ranks have in a test.
    pub fn plain(params: &TestParams, taken: impl Iterator<Item = Option<usize>>) -> Self {
        let grid = ProcessGrid { p: params.p, q: params.q, mapping: params.mapping };
        let seat = |position: Option<usize>| {
            let (row, col) = grid.coordinates(position?)?;
            Some(Seat { row, col, place: position? })
        };
        Self { seats: taken.map(seat).collect(), sums: false, from: None, exchanged: false }
    }
}

/// The roles in a test of those that are left, by what each has of it.
///
/// # Errors
/// More is lost than the checksums can replace; in words.
pub fn cast(params: &TestParams, players: &[Option<Status>]) -> Result<Cast, String> {
    let (p, q) = (params.p, params.q);
    let known = || players.iter().flatten();
    if known().next().is_none() || known().any(|s| !s.progress.generated) {
        // Nobody computes before all have generated.
        return begin(params, players.len());
    }
    // Somebody may have left before it heard of an exchange that others have made.
    let before = known().find_map(|s| s.exchange);
    let col = |s: &Status| match before {
        Some(e) if s.exchange.is_none() && s.col == q => Some(e.col),
        Some(e) if s.exchange.is_none() && s.col == e.col => None,
        _ => Some(s.col),
    };
    let members = |wanted: usize| known().filter(move |s| col(s) == Some(wanted));
    let whole = |col: usize| members(col).count() == p;
    let lacking: Vec<usize> = (0..q).filter(|&col| !whole(col)).collect();
    let (sums, mut exchange, mut exchanged) = (whole(q), before, false);
    let columns: Vec<usize> = (0..=q).filter(|&col| whole(col)).collect();
    let applied = |col: usize| members(col).map(|s| s.progress.applied);
    let boundary = columns.iter().flat_map(|&col| applied(col)).max().unwrap_or(0);
    match lacking[..] {
        [] => {}
        [col] if sums => (exchange, exchanged) = (Some(Exchange { col, boundary }), true),
        [col] => {
            let why = match before {
                Some(e) => format!(
                    "the checksums are used up: they took the place of process column {} at boundary {}",
                    e.col, e.boundary
                ),
                None => "the column of checksums has lost one, too".to_owned(),
            };
            return Err(format!("process column {col} has lost a rank, and {why}"));
        }
        _ => {
            let names: Vec<String> = lacking.iter().map(usize::to_string).collect();
            return Err(format!(
                "process columns {} have lost ranks, and the checksums can take the place of one",
                names.join(" and ")
            ));
        }
    }
    for &col in &columns {
        let (least, most) = (applied(col).min(), applied(col).max());
        if least != most || least.is_some_and(|k| k + 1 < boundary) {
            return Err(format!(
                "process column {col} stands at boundaries {least:?} to {most:?}, the furthest at {boundary}: this is a bug in skt-hpl"
            ));
        }
    }
    // Who has the panel of the boundary if anybody has.
    let owner = boundary % q;
    let replaced = exchanged && exchange.is_some_and(|e| e.col == owner);
    let ready = boundary < params.blocks()
        && !replaced
        && members(owner).all(|s| {
            let behind = s.progress.applied < boundary;
            !s.sums && (s.progress.factored > boundary || (behind && params.depth > 0))
        });
    let seat = |s: &Status| {
        let col = match (col(s)?, exchange) {
            (col, Some(e)) if exchanged && col == q => e.col,
            (col, Some(e)) if exchanged && col == e.col => return None,
            (col, _) if col == q && !sums => return None,
            (col, _) => col,
        };
        Some(Seat { row: s.row, col, place: s.place })
    };
    let seats = players.iter().map(|player| player.as_ref().and_then(seat)).collect();
    let sums = sums && !exchanged;
    Ok(Cast { seats, sums, from: Some(From { boundary, ready, exchange }), exchanged })
}

/// Roles by the launcher's order; without checksums where there are too few ranks by now.
fn begin(params: &TestParams, ranks: usize) -> Result<Cast, String> {
    let (p, q) = (params.p, params.q);
    let sums = ranks >= p * (q + 1);
    if ranks < p * q {
        return Err(format!("{ranks} ranks are left, and the grid needs {}", p * q));
    }
    let grid = ProcessGrid { p, q: q + usize::from(sums), mapping: params.mapping };
    let seat = |rank| {
        let (row, col) = grid.coordinates(rank)?;
        Some(Seat { row, col, place: rank })
    };
    Ok(Cast { seats: (0..ranks).map(seat).collect(), sums, from: None, exchanged: false })
}

impl Status {
    /// If it is of that test.
    pub fn of(&self, test: usize) -> Option<Self> {
        (self.test == test).then_some(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::hpl_dat::HplDat;
    use crate::lu::DEPTH_IN_STEPS;
    use crate::params::Rng;

    const P: usize = 2;
    const Q: usize = 2;
    const RANKS: usize = P * (Q + 1);
    /// A boundary somewhere in the middle.
    const K: usize = 4;

    fn params(depth: usize) -> TestParams {
        let dat = HplDat {
            ns: vec![100],
            nbs: vec![10],
            grids: vec![(P, Q)],
            depths: vec![depth],
            ..HplDat::default()
        };
        dat.tests(Rng::Hpl, 100).next().unwrap()
    }

    /// Everybody, where the columns in `behind` have a step to do until boundary `K`, and `factored` says who has its panel.
    fn everybody(behind: usize, factored: bool) -> Vec<Status> {
        let one = |rank: usize| {
            let (row, col) = (rank / (Q + 1), rank % (Q + 1));
            let applied = K - (behind >> col & 1);
            let owns = factored && col == K % Q && applied == K;
            let factored = if owns { K + 1 } else { K };
            let progress = Progress { generated: true, applied, factored, ..Progress::default() };
            Status { test: 0, row, col, place: rank, sums: col == Q, progress, exchange: None }
        };
        (0..RANKS).map(one).collect()
    }

    fn left(all: &[Status], lost: usize) -> Vec<Option<Status>> {
        let alive =
            |(rank, status): (usize, &Status)| (lost >> rank & 1 == 0).then_some(Some(*status));
        all.iter().enumerate().filter_map(alive).collect()
    }

    /// As `take_role`.
    fn take(status: &mut Option<Status>, seat: Option<Seat>, from: From) {
        *status = status.zip(seat).map(|(s, seat)| Status {
            row: seat.row,
            col: seat.col,
            exchange: from.exchange,
            ..s
        });
    }

    fn columns_hit(lost: usize) -> Vec<usize> {
        (0..=Q).filter(|col| (0..P).any(|row| lost >> (row * (Q + 1) + col) & 1 == 1)).collect()
    }

    /// Whoever is lost, and whichever columns are a step behind.
    #[test]
    fn one_column_is_replaced_and_everybody_else_keeps_its_role() {
        for depth in 0..=DEPTH_IN_STEPS {
            for behind in 0..(1 << (Q + 1)) - 1 {
                for (factored, lost) in
                    [false, true].into_iter().flat_map(|f| (1..1 << RANKS).map(move |l| (f, l)))
                {
                    let all = everybody(behind, factored);
                    let players = left(&all, lost);
                    let hit = columns_hit(lost);
                    if hit.len() > 1 {
                        let found = cast(&params(depth), &players);
                        assert!(found.is_err(), "{lost:b} {found:?}");
                        continue;
                    }
                    let found = cast(&params(depth), &players).unwrap();
                    let from = found.from.unwrap();
                    // If nobody that is whole has taken the step there is none to take.
                    let whole = |col: &usize| *col != hit[0];
                    let ahead = (0..=Q).filter(whole).any(|col| behind >> col & 1 == 0);
                    let boundary = if ahead { K } else { K - 1 };
                    assert_eq!(from.boundary, boundary);
                    let exchange = (hit[0] < Q).then_some(Exchange { col: hit[0], boundary });
                    assert_eq!((from.exchange, found.exchanged), (exchange, hit[0] < Q));
                    assert!(!found.sums);
                    let mut roles: Vec<_> =
                        found.seats.iter().flatten().map(|s| (s.row, s.col)).collect();
                    roles.sort_unstable();
                    assert_eq!(roles, [(0, 0), (0, 1), (1, 0), (1, 1)], "{lost:b}");
                    for (status, seat) in players.iter().flatten().zip(&found.seats) {
                        let wanted = match status.col {
                            col if col == hit[0] => None,
                            Q => Some(hit[0]),
                            col => Some(col),
                        };
                        assert_eq!(
                            seat.map(|s| (s.col, s.place)),
                            wanted.map(|c| (c, status.place))
                        );
                    }
                    let owner = boundary % Q;
                    let has = match boundary {
                        // Who is behind factors it while catching up.
                        K => {
                            (factored && behind >> owner & 1 == 0)
                                || (behind >> owner & 1 == 1 && depth > 0)
                        }
                        // Everybody had it when the step began.
                        _ => true,
                    };
                    assert_eq!(from.ready, owner != hit[0] && has, "{lost:b} {behind:b} {depth}");
                }
            }
        }
    }

    /// Some may leave before they have heard of it, and be joined by those who have: whoever those are, roles stay as they
    /// were given out.
    #[test]
    fn a_roll_call_that_is_cut_short_changes_nothing() {
        for (behind, lost) in (0..7).flat_map(|b| (0..RANKS).map(move |rank| (b, 1 << rank))) {
            let players = left(&everybody(behind, true), lost);
            let first = cast(&params(1), &players).unwrap();
            let from = first.from.unwrap();
            for heard in 0usize..1 << players.len() {
                let mut now = players.clone();
                for (i, status) in now.iter_mut().enumerate() {
                    if heard >> i & 1 == 1 {
                        take(status, first.seats[i], from);
                    }
                }
                let again = cast(&params(1), &now).unwrap();
                assert_eq!(
                    (&again.seats, again.from),
                    (&first.seats, first.from),
                    "{lost:b} {heard:b}"
                );
            }
        }
    }

    #[test]
    fn what_cannot_be_borne_is_said() {
        let refused = |lost: usize, first: Option<usize>| {
            let mut players: Vec<Option<Status>> =
                everybody(0, true).into_iter().map(Some).collect();
            if let Some(first) = first {
                players = left(&everybody(0, true), first);
                let found = cast(&params(1), &players).unwrap();
                let seats = found.seats.clone();
                for (status, seat) in players.iter_mut().zip(seats) {
                    take(status, seat, found.from.unwrap());
                }
            }
            players.retain(|s| s.is_none_or(|s| lost >> s.place & 1 == 0));
            cast(&params(1), &players)
        };
        let says = |lost, first, words: &str| {
            let why = refused(lost, first).unwrap_err();
            assert!(why.contains(words), "{why}");
        };
        says(0b000_011, None, "process columns 0 and 1 have lost ranks");
        says(
            0b100_010,
            None,
            "process column 1 has lost a rank, and the column of checksums has lost one, too",
        );
        says(0b000_010, Some(0b000_001), "they took the place of process column 0 at boundary 4");
        says(
            0b000_100,
            Some(0b000_001),
            "process column 0 has lost a rank, and the checksums are used up",
        );
        says(
            0b000_010,
            Some(0b000_100),
            "process column 1 has lost a rank, and the column of checksums",
        );
        // Who stands idle is not missed.
        assert!(refused(0b001_000, Some(0b000_001)).is_ok());
        assert!(refused(0b100_000, Some(0b000_100)).is_ok());
    }

    #[test]
    fn a_test_begins_with_those_there_are() {
        let begins = |ranks: usize| cast(&params(1), &vec![None; ranks]);
        let all = begins(7).unwrap();
        assert!(all.sums && all.from.is_none());
        assert_eq!(all.seats[2], Some(Seat { row: 0, col: 2, place: 2 }));
        assert_eq!(all.seats[6], None);
        let few = begins(5).unwrap();
        assert!(!few.sums);
        assert_eq!(few.seats[2], Some(Seat { row: 1, col: 0, place: 2 }));
        assert!(begins(3).unwrap_err().contains("3 ranks are left, and the grid needs 4"));
        // Generated by some: nobody can have computed.
        let mut some: Vec<_> = everybody(0, false).into_iter().map(Some).collect();
        some[3].as_mut().unwrap().progress.generated = false;
        assert_eq!(cast(&params(1), &some).unwrap().from, None);
    }
}
