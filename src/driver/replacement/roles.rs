//! Role assignment after a loss under `--method abft`. The assignment gives the role of each rank, the boundary at which all
//! ranks resume, and the ranks that make new checksums. Pure.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::base::params::TestParams;
use crate::config::diagnostic::and_list;
use crate::grid::ProcessGrid;
use crate::lu::{Exchange, Exchanges, From, GridPlace, Past, Progress, Renewal, SUMS_EVER};
use crate::matrix::Shape;

/// State of a test on one rank. The rank sends this state to all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub test: usize,
    pub row: usize,
    pub col: usize,
    pub place: usize,
    /// True if the rank's memory contains checksums. If the rank has just taken the role of a process column, its memory may
    /// still contain them.
    pub sums: bool,
    /// Number of checksum columns with which the test began.
    pub columns: usize,
    pub progress: Progress,
    /// Replacements of process columns (exchanges), and new checksum columns (renewals), that this rank knows.
    pub past: Past,
}

/// Role assignment of one in-place attempt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoleAssignment {
    pub grid_places: Vec<Option<GridPlace>>,
    /// Number of checksum columns in this attempt.
    pub sums: usize,
    /// Number of checksum columns with which the test began. If the test begins now, the requested number.
    pub columns: usize,
    /// State from which all ranks resume; `None` if the test begins.
    pub from: Option<From>,
    /// Number of process columns that are replaced in this attempt. Their replacements are the last exchanges in `from.past`.
    pub exchanged: usize,
    /// Checksum columns whose ranks make new checksums in this attempt, numbered from Q on: after the process columns.
    pub new: Range<usize>,
    /// Number of ranks without a role.
    pub idle: usize,
}

impl RoleAssignment {
    /// Makes an assignment without checksums. `taken` has the position of each rank in the test.
    pub fn plain(params: &TestParams, taken: impl Iterator<Item = Option<usize>>) -> Self {
        let grid = ProcessGrid::of(params);
        let grid_place = |position: Option<usize>| {
            let (row, col) = grid.coordinates(position?)?;
            Some(GridPlace { row, col, place: position? })
        };
        Self { grid_places: taken.map(grid_place).collect(), ..Self::default() }
    }

    /// Returns the rank at the first position of the grid.
    pub fn first_rank(&self) -> usize {
        let first = |grid_place: &GridPlace| (grid_place.row, grid_place.col) == (0, 0);
        self.grid_places
            .iter()
            .position(|grid_place| grid_place.as_ref().is_some_and(first))
            .expect("it is taken")
    }

    /// Returns the replacements of process columns that are new in this attempt.
    pub fn exchanges(&self) -> &[Exchange] {
        let all = self.from.as_ref().map_or(&[][..], |from| &from.past.exchanges);
        &all[all.len() - self.exchanged..]
    }
}

impl Status {
    /// Returns true if the rank belongs to a column of new checksums, and has not completed its part.
    fn lacks_new_ones(&self, q: usize) -> bool {
        self.col >= q + self.columns && !self.progress.generated
    }

    fn has_not_computed(&self) -> bool {
        self.past.exchanges.is_empty() && self.progress.applied == 0 && self.progress.factored == 0
    }
}

/// Process columns of a test after losses, derived from the states of the ranks that are left.
struct Survivors<'a> {
    params: &'a TestParams,
    candidates: &'a [Option<Status>],
    /// All replacements of process columns and all new checksum columns that any rank knows. A rank that left an attempt before
    /// it received the last assignment may know fewer.
    past: Past,
}

impl<'a> Survivors<'a> {
    fn new(params: &'a TestParams, candidates: &'a [Option<Status>]) -> Self {
        let told = candidates.iter().flatten().map(|s| &s.past);
        let longest = told.max_by_key(|past| (past.exchanges.len(), past.renewals.len()));
        Self { params, candidates, past: longest.cloned().unwrap_or_default() }
    }

    /// Returns the states of the ranks with a part in the test, without ranks whose new checksums are incomplete.
    fn known(&self) -> impl Iterator<Item = &'a Status> {
        let q = self.params.q;
        self.candidates.iter().flatten().filter(move |s| !s.lacks_new_ones(q))
    }

    /// Returns the process column of a rank after all replacements of process columns; `None` if the rank is idle.
    fn col(&self, s: &Status) -> Option<usize> {
        after(s.col, &self.past.exchanges[s.past.exchanges.len()..], self.params.q)
    }

    fn members(&self, col: usize) -> impl Iterator<Item = &'a Status> {
        self.known().filter(move |s| self.col(s) == Some(col))
    }

    /// Returns true if a process column has each row exactly once. Two ranks with the same row do not complete a column.
    fn is_whole(&self, col: usize) -> bool {
        let p = self.params.p;
        self.members(col).count() == p && (0..p).all(|row| self.members(col).any(|s| s.row == row))
    }

    /// Returns the boundary at which all ranks resume, if the process columns in `whole` are complete. The error is a message
    /// about a bug: the ranks of a column are at different boundaries, or more than one step behind.
    fn boundary(&self, whole: &[usize]) -> Result<usize, String> {
        let applied = |col: usize| self.members(col).map(|s| s.progress.applied);
        // Checksums that took over a role contain the computation up to the boundary of their exchange. All ranks that had
        // reached this boundary may be lost since. The ranks that are left have the data to reach it.
        let exchanged_at = self.past.exchanges.iter().map(|e| e.boundary);
        let reached = whole.iter().flat_map(|&col| applied(col));
        let boundary = reached.chain(exchanged_at).max().unwrap_or(0);
        for &col in whole {
            let (least, most) = (applied(col).min(), applied(col).max());
            if least != most || least.is_some_and(|k| k + 1 < boundary) {
                return Err(format!(
                    "process column {col} is at boundaries {least:?} to {most:?}, and the furthest column at {boundary}: \
                     this is a bug in skt-hpl"
                ));
            }
        }
        Ok(boundary)
    }

    /// Returns true if the process column that owns the boundary's panel has factored it, or factors it in its next step. The
    /// column must not be one of the `lacking` columns.
    fn is_ready(&self, boundary: usize, lacking: &[usize]) -> bool {
        let owner = boundary % self.params.q;
        boundary < self.params.blocks()
            && !lacking.contains(&owner)
            && self.members(owner).all(|s| {
                let behind = s.progress.applied < boundary;
                !s.sums && (s.progress.factored > boundary || (behind && self.params.depth > 0))
            })
    }

    /// Returns the positions of all ranks after the replacements `exchanges`; `None` for an idle rank.
    fn assign_seats(&self, exchanges: &[Exchange]) -> Vec<Option<GridPlace>> {
        let q = self.params.q;
        let grid_place = |s: &Status| {
            let col = after(self.col(s)?, exchanges, q)?;
            // The ranks that are left of an incomplete checksum column become idle.
            (col < q || self.is_whole(col)).then_some(GridPlace { row: s.row, col, place: s.place })
        };
        let has_part = |s: &&Status| !s.lacks_new_ones(q);
        self.candidates
            .iter()
            .map(|candidate| candidate.as_ref().filter(has_part).and_then(grid_place))
            .collect()
    }
}

/// Assigns roles in a test to the ranks that are left, according to the state of each. If the test begins, `asked` is the number
/// of checksum columns that it should have.
///
/// # Errors
///
/// The loss is larger than the checksums can replace, or fewer ranks are left than the grid needs. The error is a message.
pub fn assign_roles(
    params: &TestParams,
    asked: usize,
    candidates: &[Option<Status>],
) -> Result<RoleAssignment, String> {
    let (p, q) = (params.p, params.q);
    let all = Survivors::new(params, candidates);
    if all.known().next().is_none() || all.known().any(|s| !s.progress.generated) {
        // No rank computes before all ranks have generated their parts.
        return begin(params, asked, candidates.len());
    }
    let columns = all.known().map(|s| s.columns).max().unwrap_or(0);
    let past = &all.past;
    let before = &past.exchanges;
    let numbers = columns + past.renewals.len();
    let lacking: Vec<usize> = (0..q).filter(|&col| !all.is_whole(col)).collect();
    let sums: Vec<usize> = (0..numbers).filter(|by| all.is_whole(q + by)).collect();
    if lacking.len() > sums.len() {
        if all.known().all(|s| s.has_not_computed()) {
            // Only generated data are lost, and generating them again takes little time.
            return begin(params, asked, candidates.len());
        }
        return Err(too_many(&lacking, &sums, before, columns, past.renewals.len()));
    }
    let there: Vec<usize> = (0..q + numbers).filter(|&col| all.is_whole(col)).collect();
    let boundary = all.boundary(&there)?;
    let exchange = |(&col, &by): (&usize, &usize)| Exchange { col, by, boundary };
    let shape = Shape::of(params.n, params.nb, ProcessGrid::of(params), 0, 0);
    let best = Exchanges::new(past, &shape).best(&sums, &lacking);
    let now: Vec<Exchange> = lacking.iter().zip(&best).map(exchange).collect();
    let ready = all.is_ready(boundary, &lacking);
    let mut grid_places = all.assign_seats(&now);
    let (left, exchanged) = (sums.len() - now.len(), now.len());
    // Idle ranks make new checksums: as many columns as the test began with, or fewer if there are too few idle ranks.
    let idle: Vec<usize> =
        (0..grid_places.len()).filter(|&rank| grid_places[rank].is_none()).collect();
    // New checksums are made at a boundary without a panel factored ahead. New checksums are useful only while panels are left.
    let in_time = boundary + usize::from(ready) < params.blocks();
    let most = if in_time { SUMS_EVER - numbers } else { 0 };
    let count = (columns.saturating_sub(left)).min(idle.len() / p).min(most);
    let new = q + numbers..q + numbers + count;
    let roles = new.clone().flat_map(|col| (0..p).map(move |row| (row, col)));
    for (&rank, (row, col)) in idle.iter().zip(roles) {
        // No rank had this place before.
        grid_places[rank] = Some(GridPlace { row, col, place: col * p + row });
    }
    let renew: Vec<usize> = (numbers..numbers + count).collect();
    let made = before.len() + exchanged;
    let drawn = |by: usize| left > 0 || by > numbers;
    let new_ones = renew.iter().map(|&by| Renewal { by, after: made, drawn: drawn(by) });
    let renewals = past.renewals.iter().copied().chain(new_ones).collect();
    let past = Past { exchanges: [before, &now[..]].concat(), renewals };
    let idle = idle.len() - count * p;
    let from = Some(From { boundary, ready, past, renew });
    Ok(RoleAssignment { grid_places, sums: left + count, columns, from, exchanged, new, idle })
}

/// Returns the number of a process or checksum column after the replacements `exchanges`; `None` if the column becomes idle.
fn after(col: usize, exchanges: &[Exchange], q: usize) -> Option<usize> {
    exchanges.iter().try_fold(col, |col, e| match col {
        col if col == q + e.by => Some(e.col),
        col if col == e.col => None,
        col => Some(col),
    })
}

/// Explains, for a message, why the checksums cannot replace the lost columns.
fn too_many(
    lacking: &[usize],
    sums: &[usize],
    before: &[Exchange],
    columns: usize,
    renewed: usize,
) -> String {
    let lost = match lacking {
        [col] => format!("process column {col} has lost a rank"),
        _ => format!("process columns {} have lost ranks", listed(lacking.iter())),
    };
    let took =
        before.iter().map(|e| format!("process column {} at boundary {}", e.col, e.boundary));
    let took = (!before.is_empty()).then(|| format!("they took the place of {}", listed(took)));
    let gone = columns + renewed - sums.len() - before.len();
    let gone = (gone > 0 || columns == 0).then(|| match (columns, gone) {
        (0, _) => "there are no checksums".to_owned(),
        (_, 1) if renewed > 0 => {
            "a column of checksums has lost a rank, too, or was not finished".to_owned()
        }
        (_, gone) if renewed > 0 => {
            format!("{gone} columns of checksums have lost ranks, too, or were not finished")
        }
        (1, _) => "the column of checksums has lost a rank, too".to_owned(),
        (_, 1) => "a column of checksums has lost a rank, too".to_owned(),
        (_, gone) => format!("{gone} columns of checksums have lost ranks, too"),
    });
    let left = match (sums.len(), &took) {
        (0, Some(took)) => Some(format!("the checksums are used up: {took}")),
        (0, None) => None,
        (left, _) => {
            let others = took.map(|took| format!("; before, {took}")).unwrap_or_default();
            Some(format!("the checksums can take the place of {}{others}", number(left)))
        }
    };
    let last = (columns + renewed == SUMS_EVER)
        .then(|| format!("a test makes at most {SUMS_EVER} columns of checksums"));
    let why: Vec<String> = [left, gone, last].into_iter().flatten().collect();
    format!("{lost}, and {}", why.join("; "))
}

fn number(count: usize) -> String {
    ["none", "one", "two", "three"]
        .get(count)
        .map_or_else(|| count.to_string(), |&word| word.into())
}

/// Joins items into a list in words, such as "0, 2 and 3".
pub fn listed(all: impl Iterator<Item = impl ToString>) -> String {
    and_list(&all.map(|one| one.to_string()).collect::<Vec<_>>())
}

/// Assigns roles in the order of ranks, for a test that begins. With too few ranks there are fewer than `asked` checksum
/// columns, or none.
fn begin(params: &TestParams, asked: usize, ranks: usize) -> Result<RoleAssignment, String> {
    let (p, q) = (params.p, params.q);
    if ranks < p * q {
        return Err(format!("{ranks} ranks are left, and the grid needs {}", p * q));
    }
    let sums = ((ranks - p * q) / p).min(asked);
    let grid = ProcessGrid { p, q: q + sums, mapping: params.mapping };
    let grid_place = |rank| {
        let (row, col) = grid.coordinates(rank)?;
        Some(GridPlace { row, col, place: rank })
    };
    let idle = ranks - p * (q + sums);
    let grid_places = (0..ranks).map(grid_place).collect();
    Ok(RoleAssignment { grid_places, sums, columns: asked, idle, ..RoleAssignment::default() })
}

impl Status {
    /// Returns the state if it belongs to test `test`, and otherwise `None`.
    pub fn of(&self, test: usize) -> Option<Self> {
        (self.test == test).then(|| self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::params::Rng;
    use crate::config::hpl_dat::HplDat;
    use crate::lu::DEPTH_IN_STEPS;

    const P: usize = 2;
    const Q: usize = 2;
    const RANKS: usize = P * (Q + 1);
    /// Boundary in the middle of the test.
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

    /// Returns the states of all ranks. The columns in the bit set `behind` are one step before boundary `K`. `factored` is
    /// true if the owner has factored the panel of `K`.
    fn everybody(behind: usize, factored: bool) -> Vec<Status> {
        everybody_with(1, behind, factored)
    }

    /// Returns the states of all ranks, with `columns` checksum columns.
    fn everybody_with(columns: usize, behind: usize, factored: bool) -> Vec<Status> {
        let one = |rank: usize| {
            let (row, col) = (rank / (Q + columns), rank % (Q + columns));
            let applied = K - (behind >> col & 1);
            let owns = factored && col == K % Q && applied == K;
            let factored = if owns { K + 1 } else { K };
            let progress = Progress { generated: true, applied, factored, ..Progress::default() };
            let (sums, past) = (col >= Q, Past::default());
            Status { test: 0, row, col, place: rank, sums, columns, progress, past }
        };
        (0..P * (Q + columns)).map(one).collect()
    }

    fn left(all: &[Status], lost: usize) -> Vec<Option<Status>> {
        let alive = |(rank, status): (usize, &Status)| {
            (lost >> rank & 1 == 0).then_some(Some(status.clone()))
        };
        all.iter().enumerate().filter_map(alive).collect()
    }

    /// Gives a rank its role, as `take_role` does.
    fn take(status: &mut Option<Status>, grid_place: Option<GridPlace>, from: &From) {
        let joins = |grid_place: &GridPlace| from.renew.iter().any(|by| grid_place.col == Q + by);
        let grid_place = grid_place.filter(|grid_place| !joins(grid_place));
        *status = status.take().zip(grid_place).map(|(s, grid_place)| Status {
            row: grid_place.row,
            col: grid_place.col,
            past: from.past.clone(),
            ..s
        });
    }

    /// Gives all ranks their roles. Ranks with new checksums have allocated memory. Ranks in the bit set `finished` have also
    /// completed their new checksums.
    fn take_all(
        candidates: &[Option<Status>],
        found: &RoleAssignment,
        finished: usize,
    ) -> Vec<Option<Status>> {
        let from = found.from.as_ref().unwrap();
        let columns = candidates.iter().flatten().map(|s| s.columns).max().unwrap();
        let mut joined = 0;
        let one = |(candidate, grid_place): (&Option<Status>, &Option<GridPlace>)| {
            let mut status = candidate.clone();
            take(&mut status, *grid_place, from);
            let grid_place = (*grid_place)?;
            if !found.new.contains(&grid_place.col) {
                return status;
            }
            let generated = finished >> joined & 1 == 1;
            joined += 1;
            let (applied, factored) = (from.boundary, from.boundary);
            let progress = Progress { generated, applied, factored, ..Progress::default() };
            let GridPlace { row, col, place } = grid_place;
            let past = from.past.clone();
            Some(Status { test: 0, row, col, place, sums: true, columns, progress, past })
        };
        candidates.iter().zip(&found.grid_places).map(one).collect()
    }

    fn columns_hit(lost: usize) -> Vec<usize> {
        (0..=Q).filter(|col| (0..P).any(|row| lost >> (row * (Q + 1) + col) & 1 == 1)).collect()
    }

    /// Covers every set of lost ranks and every set of columns that are one step behind.
    #[test]
    fn one_column_is_replaced_and_everybody_else_keeps_its_role() {
        for depth in 0..=DEPTH_IN_STEPS {
            for behind in 0..(1 << (Q + 1)) - 1 {
                for (factored, lost) in
                    [false, true].into_iter().flat_map(|f| (1..1 << RANKS).map(move |l| (f, l)))
                {
                    let all = everybody(behind, factored);
                    let candidates = left(&all, lost);
                    let hit = columns_hit(lost);
                    if hit.len() > 1 {
                        let found = assign_roles(&params(depth), 1, &candidates);
                        assert!(found.is_err(), "{lost:b} {found:?}");
                        continue;
                    }
                    let found = assign_roles(&params(depth), 1, &candidates).unwrap();
                    let from = found.from.clone().unwrap();
                    // If no complete column has taken the step, no rank may take it.
                    let whole = |col: &usize| *col != hit[0];
                    let ahead = (0..=Q).filter(whole).any(|col| behind >> col & 1 == 0);
                    let boundary = if ahead { K } else { K - 1 };
                    assert_eq!(from.boundary, boundary);
                    let exchange =
                        (hit[0] < Q).then_some(Exchange { col: hit[0], by: 0, boundary });
                    let exchanges: Vec<Exchange> = exchange.into_iter().collect();
                    assert_eq!(
                        (&from.past.exchanges[..], found.exchanges()),
                        (&exchanges[..], &exchanges[..])
                    );
                    assert_eq!(found.sums, 0);
                    let mut roles: Vec<_> =
                        found.grid_places.iter().flatten().map(|s| (s.row, s.col)).collect();
                    roles.sort_unstable();
                    assert_eq!(roles, [(0, 0), (0, 1), (1, 0), (1, 1)], "{lost:b}");
                    for (status, grid_place) in candidates.iter().flatten().zip(&found.grid_places)
                    {
                        let wanted = match status.col {
                            col if col == hit[0] => None,
                            Q => Some(hit[0]),
                            col => Some(col),
                        };
                        assert_eq!(
                            grid_place.map(|s| (s.col, s.place)),
                            wanted.map(|c| (c, status.place))
                        );
                    }
                    let owner = boundary % Q;
                    let has = match boundary {
                        // A column that is one step behind factors the panel in that step.
                        K => {
                            (factored && behind >> owner & 1 == 0)
                                || (behind >> owner & 1 == 1 && depth > 0)
                        }
                        // The owner had factored the panel when the step began.
                        _ => true,
                    };
                    assert_eq!(from.ready, owner != hit[0] && has, "{lost:b} {behind:b} {depth}");
                }
            }
        }
    }

    /// Some ranks may leave before they receive the assignment, and then join ranks that have received it. The roles stay as
    /// assigned in every case.
    #[test]
    fn a_roll_call_that_is_cut_short_changes_nothing() {
        for (behind, lost) in (0..7).flat_map(|b| (0..RANKS).map(move |rank| (b, 1 << rank))) {
            let candidates = left(&everybody(behind, true), lost);
            let first = assign_roles(&params(1), 1, &candidates).unwrap();
            let from = first.from.clone().unwrap();
            for heard in 0usize..1 << candidates.len() {
                let mut now = candidates.clone();
                for (i, status) in now.iter_mut().enumerate() {
                    if heard >> i & 1 == 1 {
                        take(status, first.grid_places[i], &from);
                    }
                }
                let again = assign_roles(&params(1), 1, &now).unwrap();
                assert_eq!(
                    (&again.grid_places, &again.from),
                    (&first.grid_places, &first.from),
                    "{lost:b} {heard:b}"
                );
            }
        }
    }

    #[test]
    fn losses_beyond_the_checksums_are_refused() {
        let refused = |lost: usize, first: Option<usize>| {
            let mut candidates: Vec<Option<Status>> =
                everybody(0, true).into_iter().map(Some).collect();
            if let Some(first) = first {
                candidates = left(&everybody(0, true), first);
                let found = assign_roles(&params(1), 1, &candidates).unwrap();
                let grid_places = found.grid_places.clone();
                for (status, grid_place) in candidates.iter_mut().zip(grid_places) {
                    take(status, grid_place, found.from.as_ref().unwrap());
                }
            }
            candidates.retain(|s| s.as_ref().is_none_or(|s| lost >> s.place & 1 == 0));
            assign_roles(&params(1), 1, &candidates)
        };
        let says = |lost, first, words: &str| {
            let why = refused(lost, first).unwrap_err();
            assert!(why.contains(words), "{why}");
        };
        says(0b000_011, None, "process columns 0 and 1 have lost ranks");
        says(
            0b100_010,
            None,
            "process column 1 has lost a rank, and the column of checksums has lost a rank, too",
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
        // The loss of idle ranks needs no replacement.
        assert!(refused(0b001_000, Some(0b000_001)).is_ok());
        assert!(refused(0b100_000, Some(0b000_100)).is_ok());
    }

    #[test]
    fn a_test_begins_with_those_there_are() {
        let begins = |ranks: usize| assign_roles(&params(1), 1, &vec![None; ranks]);
        let all = begins(7).unwrap();
        assert!(all.sums == 1 && all.from.is_none());
        assert_eq!(all.grid_places[2], Some(GridPlace { row: 0, col: 2, place: 2 }));
        assert_eq!(all.grid_places[6], None);
        let few = begins(5).unwrap();
        assert_eq!(few.sums, 0);
        assert_eq!(few.grid_places[2], Some(GridPlace { row: 1, col: 0, place: 2 }));
        assert!(begins(3).unwrap_err().contains("3 ranks are left, and the grid needs 4"));
        // The test gets two checksum columns, or fewer if there are too few ranks.
        let sums = |ranks| assign_roles(&params(1), 2, &vec![None; ranks]).unwrap().sums;
        assert_eq!([4, 5, 6, 7, 8, 11].map(sums), [0, 0, 1, 1, 2, 2]);
        // Only some ranks have generated their parts, so no rank can have computed.
        let mut some: Vec<_> = everybody(0, false).into_iter().map(Some).collect();
        some[3].as_mut().unwrap().progress.generated = false;
        assert_eq!(assign_roles(&params(1), 1, &some).unwrap().from, None);
    }

    /// If too many ranks are lost before anything is computed, only the time of generation is lost.
    #[test]
    fn a_matrix_that_was_only_generated_begins_from_scratch() {
        let with = |applied: usize, factored: usize| {
            let mut candidates = left(&everybody(0, true), 0b000_011);
            for status in candidates.iter_mut().flatten() {
                (status.progress.applied, status.progress.factored) = (applied, factored);
            }
            assign_roles(&params(1), 1, &candidates)
        };
        let begun = with(0, 0).unwrap();
        assert_eq!((begun.from, begun.sums), (None, 0));
        assert!(with(0, 1).is_err() && with(1, 1).is_err());
        let all = everybody_at_the_beginning();
        assert!(
            assign_roles(&params(1), 1, &left(&all, 0b000_111))
                .unwrap_err()
                .contains("3 ranks are")
        );
        // If checksums can replace the lost columns, the test does not begin from scratch.
        assert!(assign_roles(&params(1), 1, &left(&all, 0b000_001)).unwrap().from.is_some());
    }

    fn everybody_at_the_beginning() -> Vec<Status> {
        let mut all = everybody(0, true);
        for status in &mut all {
            (status.progress.applied, status.progress.factored) = (0, 0);
        }
        all
    }

    /// Two ranks with the same row do not form a column.
    #[test]
    fn a_column_has_each_row_once() {
        let mut candidates: Vec<Option<Status>> =
            everybody(0, true).into_iter().map(Some).collect();
        candidates[4].as_mut().unwrap().row = 0;
        let found = assign_roles(&params(1), 1, &candidates).unwrap();
        assert_eq!(found.exchanges(), [Exchange { col: 1, by: 0, boundary: K }]);
    }

    /// Loses any rank of a grid with two checksum columns, and then any other rank, while some ranks have not received the
    /// first assignment. As long as enough columns are complete for the grid, each role is taken and stays with its rank.
    #[test]
    fn two_columns_are_replaced_at_once_or_one_after_another() {
        const COLUMNS: usize = 2;
        const WIDE: usize = Q + COLUMNS;
        let ranks = P * WIDE;
        let hit = |lost: usize| {
            (0..WIDE).filter(|col| (0..P).any(|row| lost >> (row * WIDE + col) & 1 == 1)).count()
        };
        let complete = |found: &RoleAssignment| {
            let mut roles: Vec<_> =
                found.grid_places.iter().flatten().map(|s| (s.row, s.col)).collect();
            roles.sort_unstable();
            roles.dedup();
            assert_eq!(roles.len(), found.grid_places.iter().flatten().count(), "{found:?}");
            assert_eq!(roles.iter().filter(|(_, col)| *col < Q).count(), P * Q, "{found:?}");
            assert_eq!(roles.len(), P * (Q + found.sums));
        };
        for (behind, lost) in
            [0, 1, 2, 4, 8, 9].into_iter().flat_map(|b| (1..1 << ranks).map(move |l| (b, l)))
        {
            let candidates = left(&everybody_with(COLUMNS, behind, true), lost);
            let found = assign_roles(&params(1), COLUMNS, &candidates);
            assert_eq!(found.is_ok(), hit(lost) <= COLUMNS, "{lost:b} {found:?}");
            let Ok(first) = found else { continue };
            complete(&first);
            if behind > 1 || lost.count_ones() > 1 {
                continue;
            }
            let from = first.from.clone().unwrap();
            for (then, heard) in (0..ranks)
                .flat_map(|then| [0usize, 1, 0b1010101, 0b0110011, 0b1111111].map(|h| (then, h)))
            {
                let mut now = candidates.clone();
                for (i, status) in now.iter_mut().enumerate() {
                    if heard >> i & 1 == 1 {
                        take(status, first.grid_places[i], &from);
                    }
                }
                now.retain(|s| s.as_ref().is_none_or(|s| s.place != then));
                let second = assign_roles(&params(1), COLUMNS, &now).unwrap();
                complete(&second);
                let exchanges = second.from.unwrap().past.exchanges;
                if now.iter().flatten().any(|s| !s.past.exchanges.is_empty()) {
                    assert_eq!(exchanges[..from.past.exchanges.len()], from.past.exchanges[..]);
                }
                let mut by: Vec<usize> = exchanges.iter().map(|e| e.by).collect();
                by.dedup();
                assert_eq!(by.len(), exchanges.len(), "{exchanges:?}");
            }
        }
    }

    /// Loses the only column at the furthest boundary, after checksums have replaced a process column at this boundary. The
    /// checksums that took over are at that boundary, so all columns must reach it.
    #[test]
    fn an_exchange_that_was_made_binds_the_boundary() {
        const COLUMNS: usize = 2;
        const AHEAD: usize = Q + 1;
        for owner_of in [K, K + 1] {
            let mut all = everybody_with(COLUMNS, (1 << AHEAD) - 1, false);
            for status in &mut all {
                status.progress.applied += owner_of - K;
                status.progress.factored += owner_of - K;
            }
            for col in 0..Q {
                let candidates = left(&all, 1 << col);
                let first = assign_roles(&params(1), COLUMNS, &candidates).unwrap();
                assert_eq!(first.from.as_ref().unwrap().boundary, owner_of);
                let mut now = take_all(&candidates, &first, 0);
                now.retain(|s| s.as_ref().is_none_or(|s| s.place != AHEAD));
                let second = assign_roles(&params(1), COLUMNS, &now).unwrap().from.unwrap();
                assert_eq!(second.boundary, owner_of, "{col}");
                assert!(second.past.exchanges.iter().all(|e| e.boundary == owner_of));
            }
        }
    }

    /// Loses a rank of the first checksum column, too. Of the three checksum columns left, the third has the largest weight of
    /// process column 1.
    #[test]
    fn the_checksums_with_the_largest_weight_take_the_place() {
        let candidates = left(&everybody_with(4, 0, true), 0b110);
        let from = assign_roles(&params(1), 4, &candidates).unwrap().from.unwrap();
        assert_eq!(from.past.exchanges, [Exchange { col: 1, by: 3, boundary: K }]);
    }

    #[test]
    fn no_checksums_are_made_beyond_the_last_number() {
        let mut candidates = with_a_spare();
        let mut made = 1;
        let refused = loop {
            let there = candidates.iter().flatten().find(|s| s.col < Q).map(|s| s.place);
            let mut left = without(&candidates, there.unwrap());
            // Adds as many idle ranks as a column needs.
            left.extend([None, None]);
            match assign_roles(&params(1), 1, &left) {
                Ok(found) => {
                    made += found.new.len();
                    candidates = take_all(&left, &found, 0b11);
                }
                Err(why) => break why,
            }
        };
        assert_eq!(made, SUMS_EVER);
        assert!(refused.contains("a test makes at most 16 columns"), "{refused}");
    }

    #[test]
    fn losses_beyond_two_columns_of_checksums_are_refused() {
        let refused = |losses: &[usize]| {
            let mut candidates: Vec<Option<Status>> =
                everybody_with(2, 0, true).into_iter().map(Some).collect();
            let mut found = Err(String::new());
            for lost in losses {
                candidates.retain(|s| s.as_ref().is_none_or(|s| lost >> s.place & 1 == 0));
                found = assign_roles(&params(1), 2, &candidates);
                let Ok(found) = &found else { break };
                for (status, &grid_place) in candidates.iter_mut().zip(&found.grid_places) {
                    take(status, grid_place, found.from.as_ref().unwrap());
                }
            }
            found.unwrap_err()
        };
        assert_eq!(
            refused(&[0b0001_0110]),
            "process columns 0 and 1 have lost ranks, and the checksums can take the place of one; \
             a column of checksums has lost a rank, too"
        );
        assert_eq!(
            refused(&[1, 2, 4]),
            "process column 0 has lost a rank, and the checksums are used up: they took the place of process column 0 \
             at boundary 4 and process column 1 at boundary 4; a column of checksums has lost a rank, too, or was not finished"
        );
        assert_eq!(
            refused(&[1, 8, 2]),
            "process column 1 has lost a rank, and the checksums are used up: they took the place of process column 0 \
             at boundary 4; 2 columns of checksums have lost ranks, too, or were not finished"
        );
        assert_eq!(
            refused(&[4, 8, 2]),
            "process column 1 has lost a rank, and 3 columns of checksums have lost ranks, too, or were not finished"
        );
        assert_eq!(
            refused(&[1, 0b0110]),
            "process columns 0 and 1 have lost ranks, and the checksums can take the place of one; before, they \
             took the place of process column 0 at boundary 4"
        );
    }

    /// Returns the states of all ranks, and one idle rank. After the loss of a rank, the idle rank and the rank left of the lost
    /// column can form a new column.
    fn with_a_spare() -> Vec<Option<Status>> {
        everybody(0, true).into_iter().map(Some).chain([None]).collect()
    }

    fn without(candidates: &[Option<Status>], place: usize) -> Vec<Option<Status>> {
        let lives = |s: &&Option<Status>| s.as_ref().is_none_or(|s| s.place != place);
        candidates.iter().filter(lives).cloned().collect()
    }

    /// Loses any rank, of a process column or of a checksum column. Idle ranks make new checksums, and these replace the next
    /// loss.
    #[test]
    fn new_checksums_take_the_place_of_the_next_column() {
        for lost in 0..RANKS {
            let first = assign_roles(&params(1), 1, &without(&with_a_spare(), lost)).unwrap();
            assert_eq!((first.sums, first.new.clone(), first.idle), (1, Q + 1..Q + 2, 0));
            let from = first.from.clone().unwrap();
            let made = from.past.exchanges.len();
            assert_eq!(from.past.renewals, [Renewal { by: 1, after: made, drawn: false }]);
            let candidates = take_all(&without(&with_a_spare(), lost), &first, 0b11);
            for then in candidates.iter().flatten().map(|s| s.place).collect::<Vec<_>>() {
                let left = without(&candidates, then);
                let second = assign_roles(&params(1), 1, &left).unwrap();
                let roles = second
                    .grid_places
                    .iter()
                    .flatten()
                    .filter(|grid_place| grid_place.col < Q)
                    .count();
                assert_eq!(roles, P * Q, "{lost} {then}");
                let past = second.from.clone().unwrap().past;
                assert_eq!(past.exchanges[..made], from.past.exchanges[..]);
                assert_eq!(past.renewals[0], from.past.renewals[0]);
                // One rank is idle, and a new column needs two.
                assert_eq!((second.new.len(), second.idle), (0, 1));
                let takes = past.exchanges.last().filter(|_| past.exchanges.len() > made);
                assert!(takes.is_none_or(|e| e.by == 1));
                // The first exchange and the second renewal leave nothing that could replace a third loss.
                let now = take_all(&left, &second, 0);
                for third in now.iter().flatten().filter(|s| s.col < Q).map(|s| s.place) {
                    assert!(assign_roles(&params(1), 1, &without(&now, third)).is_err());
                }
            }
        }
    }

    /// New checksums count only once all their ranks have finished. Otherwise the next attempt begins a new checksum column with
    /// another number.
    #[test]
    fn checksums_that_are_not_finished_are_none() {
        let two_spares: Vec<_> = with_a_spare().into_iter().chain([None]).collect();
        let candidates = without(&two_spares, 0);
        let first = assign_roles(&params(1), 1, &candidates).unwrap();
        assert_eq!(first.idle, 1);
        for finished in 0..3 {
            let now = take_all(&candidates, &first, finished);
            // Loses the rank without a role.
            let mut left = now.clone();
            left.retain(Option::is_some);
            left.push(None);
            let second = assign_roles(&params(1), 1, &left).unwrap();
            assert_eq!(second.new, Q + 2..Q + 3, "{finished}");
            let numbers: Vec<usize> =
                second.from.unwrap().past.renewals.iter().map(|renewal| renewal.by).collect();
            assert_eq!(numbers, [1, 2]);
            // Loses a process column, when nothing can take its place.
            let why = assign_roles(&params(1), 1, &without(&now, 1)).unwrap_err();
            assert!(why.contains("or was not finished"), "{why}");
        }
    }

    /// Checks that no new checksums are made if no panels are left, and never more columns than the test began with.
    #[test]
    fn new_checksums_are_made_while_there_are_panels() {
        let at = |applied: usize, factored: usize| {
            let mut candidates = without(&with_a_spare(), 2);
            for status in candidates.iter_mut().flatten() {
                status.progress.applied = applied;
                status.progress.factored = factored;
            }
            assign_roles(&params(1), 1, &candidates).unwrap().new.len()
        };
        assert_eq!([at(8, 9), at(9, 9), at(9, 10), at(10, 10)], [1, 1, 0, 0]);
        let nobody_lost: Vec<_> = with_a_spare().into_iter().chain([None, None]).collect();
        let found = assign_roles(&params(1), 1, &nobody_lost).unwrap();
        assert_eq!((found.sums, found.new.len(), found.idle), (1, 0, 3));
    }
}
