//! Sizes of each position's persistent shared memory in a protected test, and of its file on storage. Pure arithmetic.
//!
//! `skt-hpl run` and `skt-hpl doctor` calculate the sizes before any rank starts, with the failure domains of the ranks. So both
//! commands can name a node whose /dev/shm is a tenth too small. Otherwise a rank would fail only after other ranks have
//! generated their matrices. The sizes are those of the buffers that a rank creates ([`Buffers::parts`]), plus header and
//! results.

use super::groups::Groups;
use super::holding::LEDGER_BYTES;
use super::plan::{Buffers, Layout, Scheme};
use crate::checkpoint::storage::{BLOCK_BYTES, DirScope};
use crate::shm::header::HEAD_BYTES;
use crate::shm::{Part, Store};

/// Returns the buffers of all positions, in order of positions. `ld` returns the leading dimension of a position's matrix.
pub fn buffers_of_each(
    layout: &Layout,
    groups: &Groups,
    ld: impl Fn(usize) -> usize,
    scheme: &Scheme,
    state_bytes: usize,
) -> Vec<Buffers> {
    let mut all = vec![None; layout.positions()];
    for members in groups {
        for &position in members {
            let ld = ld(position);
            all[position] = Some(Buffers::new(layout, members, position, ld, scheme, state_bytes));
        }
    }
    all.into_iter().map(|buffers| buffers.expect("each position is in a group")).collect()
}

/// Bytes of a position's persistent shared memory in a store of this kind, in whole pages. `huge` is the bytes of a huge page.
pub fn memory_bytes(buffers: &Buffers, store: Store, huge: usize) -> u64 {
    let parts = buffers.parts().into_iter();
    let parts = parts.chain([(Part::Head, HEAD_BYTES), (Part::Done, LEDGER_BYTES)]);
    parts.map(|(part, bytes)| bytes.next_multiple_of(part.page_bytes(store, huge)) as u64).sum()
}

/// Bytes of a position's file on storage. Includes the parity if each node has a DIR of its own.
pub fn file_bytes(buffers: &Buffers, dir_scope: DirScope) -> u64 {
    let parity = dir_scope == DirScope::Node;
    let check = if parity { buffers.checksum_words() } else { 0 };
    let parts = [buffers.vouch_words(parity), buffers.data_words(), check];
    let bytes = |words: usize| (words * 8).next_multiple_of(BLOCK_BYTES) as u64;
    BLOCK_BYTES as u64 + parts.map(bytes).iter().sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::super::layout::ParityLayout;
    use super::super::plan::Scope;
    use super::super::protocol::Method;
    use super::*;
    use crate::base::params::Mapping;
    use crate::parity::Code;
    use crate::testkit::papers::available;

    const SCHEME: Scheme = Scheme {
        method: Method::SelfCheckpoint,
        scope: Scope::Corner,
        code: Code::Xor,
        losses: 1,
        layout: ParityLayout::Striped,
        on_device: false,
    };

    fn layout(n: usize, p: usize, q: usize) -> Layout {
        Layout { n, nb: 64, p, q, mapping: Mapping::Row, dedicated: 0 }
    }

    fn domains(of: &[usize]) -> Vec<String> {
        of.iter().map(|d| format!("n{d}")).collect()
    }

    /// Buffers of all positions. `of` has the number of each position's failure domain.
    fn of_all(layout: &Layout, of: &[usize], scheme: &Scheme) -> Vec<Buffers> {
        let ld = |position| layout.shape(position).1;
        let groups = scheme.layout.groups(layout, &domains(of), None, scheme.losses).unwrap();
        buffers_of_each(layout, &groups, ld, scheme, 1024)
    }

    fn in_small_pages(buffers: &Buffers) -> u64 {
        memory_bytes(buffers, Store::Posix, 0)
    }

    /// Each part begins at a page boundary, so with larger pages more of its last page is unused.
    #[test]
    fn pages_are_taken_whole() {
        const GIB: u64 = 1 << 30;
        let one = &of_all(&layout(8000, 2, 2), &[0, 1, 2, 3], &SCHEME)[0];
        let (small, large) =
            (in_small_pages(one), memory_bytes(one, Store::HugeTlbfs, GIB as usize));
        // A, B, C and D use huge pages; small state, header and results stay in small pages.
        assert!(small < GIB && (4 * GIB..4 * GIB + small).contains(&large), "{small} {large}");
        assert_eq!(memory_bytes(one, Store::SysV, GIB as usize), small);
    }

    #[test]
    fn all_together_follow_the_papers_formula() {
        for method in Method::ALL {
            let scheme = Scheme { method, ..SCHEME };
            let all = of_all(&layout(8000, 2, 2), &[0, 1, 2, 3], &scheme);
            let ideal = (8000.0 * 8001.0 * 8.0) / available(&scheme, 4);
            let real = all.iter().map(in_small_pages).sum::<u64>() as f64;
            assert!((real / ideal - 1.0).abs() < 0.05, "{method:?}: {real} for {ideal}");
        }
    }

    #[test]
    fn smaller_groups_take_more() {
        let layout = layout(4000, 2, 2);
        let bytes =
            |of: &[usize]| -> u64 { of_all(&layout, of, &SCHEME).iter().map(in_small_pages).sum() };
        assert!(bytes(&[0, 0, 1, 1]) > bytes(&[0, 1, 2, 3]));
    }
}
