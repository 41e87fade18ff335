//! One dimension of the block-cyclic distribution.

/// Distribution of `n` indices to `procs` processes. Blocks of `nb` indices go to the processes in turn, starting with process
/// 0.
///
/// *Global* indices count through all indices of the dimension. *Local* indices count through the indices of one process, in
/// the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cyclic {
    pub n: usize,
    pub nb: usize,
    pub procs: usize,
}

impl Cyclic {
    pub fn new(n: usize, nb: usize, procs: usize) -> Self {
        assert!(nb > 0 && procs > 0, "a distribution needs a block size and processes");
        Self { n, nb, procs }
    }

    /// Returns the process that owns global index `g`.
    pub fn owner(&self, g: usize) -> usize {
        (g / self.nb) % self.procs
    }

    /// Returns the local index of global index `g` on its owner.
    pub fn local(&self, g: usize) -> usize {
        (g / self.nb / self.procs) * self.nb + g % self.nb
    }

    /// Returns the global index of local index `l` on process `proc`.
    pub fn global(&self, l: usize, proc: usize) -> usize {
        (l / self.nb * self.procs + proc) * self.nb + l % self.nb
    }

    /// Number of indices below `end` that process `proc` owns. The number is also the local index of the first index at or
    /// after `end` that the process owns.
    pub fn count_below(&self, end: usize, proc: usize) -> usize {
        let end = end.min(self.n);
        let blocks = end / self.nb;
        let full = blocks / self.procs + usize::from(blocks % self.procs > proc);
        let partial = if blocks % self.procs == proc { end % self.nb } else { 0 };
        full * self.nb + partial
    }

    /// Number of indices that process `proc` owns. No process owns more than process 0.
    pub fn count(&self, proc: usize) -> usize {
        self.count_below(self.n, proc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For every small case, compares the formulas with a distribution of the indices one by one.
    #[test]
    fn agrees_with_dealing_out_by_hand() {
        for n in 0..40 {
            for nb in 1..9 {
                for procs in 1..6 {
                    let map = Cyclic::new(n, nb, procs);
                    let mut held = vec![Vec::new(); procs];
                    for g in 0..n {
                        let owner = (g / nb) % procs;
                        assert_eq!(map.owner(g), owner);
                        assert_eq!(map.local(g), held[owner].len());
                        held[owner].push(g);
                    }
                    for (proc, held) in held.iter().enumerate() {
                        assert_eq!(map.count(proc), held.len());
                        assert!(map.count(proc) <= map.count(0));
                        for (l, &g) in held.iter().enumerate() {
                            assert_eq!(map.global(l, proc), g);
                        }
                        for end in 0..=n + 3 {
                            let below = held.iter().filter(|&&g| g < end).count();
                            assert_eq!(map.count_below(end, proc), below);
                        }
                    }
                }
            }
        }
    }
}
