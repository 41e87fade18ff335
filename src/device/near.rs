//! Assigns the devices of a node to its ranks.

/// Ranks of a node, for the assignment of devices.
#[derive(Clone, Debug, Default)]
pub struct Ranks {
    /// NUMA node of the cores of each rank, in the order of the ranks; `None` if a rank has several NUMA nodes, or none is known.
    pub memories: Vec<Option<usize>>,
    /// Number of this rank among the ranks of its node, from 0.
    pub own: usize,
}

/// Returns the number of each rank's device. The numbers of ranks that two devices serve differ by at most one. Among the devices
/// that serve the fewest ranks, a rank gets the first on its NUMA node. If none is on its NUMA node, the rank gets the first of
/// them.
pub fn assign(ranks: &[Option<usize>], devices: &[Option<usize>]) -> Vec<usize> {
    let mut serves = vec![0; devices.len()];
    let mut assign = |memory: &Option<usize>| {
        let is_far = |device: &usize| memory.is_none() || devices[*device] != *memory;
        let best = (0..devices.len()).min_by_key(|device| (serves[*device], is_far(device)));
        let best = best.expect("there is a device");
        serves[best] += 1;
        best
    };
    ranks.iter().map(&mut assign).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranks_get_devices_on_their_own_numa_node() {
        let devices = [Some(1), Some(1), Some(0), Some(0)];
        assert_eq!(assign(&[0, 0, 1, 1].map(Some), &devices), [2, 3, 0, 1]);
        assert_eq!(assign(&[0, 1, 0, 1].map(Some), &devices), [2, 0, 3, 1]);
        assert_eq!(assign(&[None; 5], &devices), [0, 1, 2, 3, 0]);
        assert_eq!(assign(&[Some(7), None], &[None, None]), [0, 1]);
    }

    proptest! {
        #[test]
        fn devices_serve_equally_many_ranks(
            ranks in prop::collection::vec(prop::option::of(0usize..3), 0..20),
            devices in prop::collection::vec(prop::option::of(0usize..3), 1..9),
        ) {
            let taken = assign(&ranks, &devices);
            let serves = |device| taken.iter().filter(|taken| **taken == device).count();
            let counts: Vec<usize> = (0..devices.len()).map(serves).collect();
            prop_assert_eq!(taken.len(), ranks.len());
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        }
    }
}
