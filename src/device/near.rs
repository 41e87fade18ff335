//! Assigns the devices of a node to its ranks.

/// Ranks of a node, as far as devices concern them.
#[derive(Clone, Debug, Default)]
pub struct Ranks {
    /// NUMA node of the cores of each rank, in the order of the ranks; `None` if they have several, or none is known.
    pub memories: Vec<Option<usize>>,
    /// Number of this rank among them.
    pub own: usize,
}

/// Returns the device of each rank. All devices serve equally many ranks, or one rank more. If there is a choice, a rank gets a
/// device on its NUMA node, else the first.
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
