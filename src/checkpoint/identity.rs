//! Identity of a test's memory: header fields that a start writes, and in which memory found at a start must agree. Pure.

use super::terms::{Config, Test};
use crate::shm::header::{Header, Identity};

/// Returns the identity fields for the header of position `position` in run `run`. `members` are the positions of its group, and
/// `number` is the number of this group.
pub(crate) fn identity(
    test: &Test,
    config: &Config,
    run: u128,
    position: usize,
    number: usize,
    members: &[usize],
) -> Identity {
    let (layout, scheme) = (&test.layout, &config.scheme);
    let (rows, cols) = layout.shape(position);
    Identity {
        run,
        test: test.index,
        position: position as u32,
        n: layout.n as u64,
        nb: layout.nb as u64,
        p: layout.p as u32,
        q: layout.q as u32,
        mapping: layout.mapping,
        rng: test.rng,
        seed: test.seed,
        params_digest: test.params_digest,
        rows: rows as u64,
        cols: cols as u64,
        ld: config.ld as u64,
        group: number as u32,
        members: members.iter().map(|&m| m as u32).collect(),
        losses: scheme.losses as u8,
        code: scheme.code as u8,
        method: scheme.method as u8,
        scope: scheme.scope as u8,
        layout: scheme.layout as u8,
        state_bytes: config.state_bytes as u64,
    }
}

/// Returns true if a header belongs to this test, in any run. Any group that contains the header's position is accepted. The
/// leading dimension is not compared: it is checked when the memory is opened.
pub(super) fn belongs(header: &Header, test: &Test, config: &Config) -> bool {
    let id = &header.id;
    let members: Vec<usize> = id.members.iter().map(|&member| member as usize).collect();
    let (position, group) = (id.position as usize, id.group as usize);
    let now = identity(test, config, id.run, position, group, &members);
    let positions = test.layout.positions();
    *id == Identity { ld: id.ld, ..now }
        && members.contains(&position)
        && members.iter().all(|&member| member < positions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::params::{Mapping, Rng};
    use crate::checkpoint::layout::ParityLayout;
    use crate::checkpoint::plan::Scope;
    use crate::checkpoint::protocol::Method;
    use crate::parity::Code;
    use crate::testkit::start::{asked, header};

    #[test]
    fn a_written_header_belongs_whatever_the_run_the_group_and_the_rows() {
        let (test, mut config) = asked();
        for (run, group) in [(1, 0), (u128::MAX, 9)] {
            for position in 0..4 {
                let members = [position, (position + 1) % 4];
                assert!(belongs(&header(run, position, (group, &members)), &test, &config));
            }
        }
        config.ld += 8;
        assert!(
            belongs(&header(1, 0, (0, &[0, 1])), &test, &config),
            "reported where it is opened"
        );
    }

    /// Changes each setting that makes a different test. Neither test may then use the memory of the other test.
    #[test]
    fn memory_of_any_other_test_does_not_belong() {
        type Change = fn(&mut Test, &mut Config);
        let changes: [(&str, Change); 17] = [
            ("index", |t, _| t.index += 1),
            ("n", |t, _| t.layout.n += 1),
            ("nb", |t, _| t.layout.nb += 1),
            ("p", |t, _| t.layout.p = 1),
            ("p, as many positions", |t, _| (t.layout.p, t.layout.q) = (4, 1)),
            ("q, as many positions", |t, _| (t.layout.p, t.layout.q) = (1, 4)),
            ("mapping", |t, _| t.layout.mapping = Mapping::Column),
            ("rng", |t, _| t.rng = Rng::Xoshiro),
            ("seed", |t, _| t.seed += 1),
            ("digest", |t, _| t.params_digest += 1),
            ("losses", |_, c| c.scheme.losses = 2),
            ("code", |_, c| c.scheme.code = Code::ReedSolomon),
            ("method", |_, c| c.scheme.method = Method::Double),
            ("scope", |_, c| c.scheme.scope = Scope::Whole),
            ("layout", |_, c| c.scheme.layout = ParityLayout::Grid),
            ("state", |_, c| c.state_bytes += 1),
            ("q", |t, _| t.layout.q = 3),
        ];
        let (test, config) = asked();
        let ours = header(1, 0, (0, &[0, 1]));
        for (what, change) in changes {
            let (mut other, mut other_config) = asked();
            change(&mut other, &mut other_config);
            assert!(!belongs(&ours, &other, &other_config), "{what}");
            let id = identity(&other, &other_config, 1, 0, 0, &[0, 1]);
            assert!(!belongs(&Header { id, ..ours.clone() }, &test, &config), "{what}");
        }
    }

    #[test]
    fn a_position_is_a_member_of_a_group_of_this_runs_positions() {
        let (test, config) = asked();
        assert!(!belongs(&header(1, 0, (0, &[1, 2])), &test, &config), "not its own group");
        assert!(!belongs(&header(1, 0, (0, &[0, 4])), &test, &config), "no such position");
        assert!(!belongs(&header(1, 0, (0, &[])), &test, &config));
    }
}
