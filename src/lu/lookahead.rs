//! Decides which panels are factored before panel k is applied, and which boundaries are clean: pure functions.
//!
//! Boundary k is the point at which all panels before k are applied. The boundary is *clean* if panel k is not yet factored at
//! this point. `schedule` calls these functions in each iteration. The callback `drains` returns whether a boundary must be
//! clean. With a lookahead, `drains` is called for a boundary some iterations before the boundary is reached.

/// The number of panels factored so far, and the limits for the next panel.
pub struct Lookahead {
    blocks: usize,
    depth: usize,
    /// Number of panels factored so far.
    factored: usize,
    /// Last boundary for which the caller was asked whether the boundary must be clean.
    asked: usize,
    /// Boundary that must be clean and is not yet reached, or `None`. Until the boundary is reached, no panel with this number or
    /// a larger number may be factored.
    drain: Option<usize>,
}

impl Lookahead {
    /// Starts at the clean boundary `start` of a matrix with `blocks` block columns. Panels are factored at most `depth`
    /// iterations ahead.
    pub fn new(start: usize, blocks: usize, depth: usize) -> Self {
        let depth = depth.min(blocks);
        Self { blocks, depth, factored: start, asked: start, drain: None }
    }

    /// Returns the number of panels factored so far, including panels that [`Self::next`] has returned.
    pub fn factored(&self) -> usize {
        self.factored
    }

    /// Returns whether boundary `k`, at which iteration `k` starts, had to be clean. If true, neither panel `k` nor a later panel
    /// is factored yet. `drains` returns whether a boundary must be clean.
    pub fn is_clean(&mut self, k: usize, drains: impl FnOnce(usize) -> bool) -> bool {
        // Without lookahead, `drains` has not been called for this boundary before.
        if self.factored == k {
            self.ask(drains);
        }
        self.drain.take_if(|at| *at == k).is_some()
    }

    /// Returns the next panel to factor in iteration `k`. Returns `None` if no further panel may be factored in this iteration.
    /// `drains` returns whether a boundary must be clean.
    pub fn next(&mut self, k: usize, drains: impl FnOnce(usize) -> bool) -> Option<usize> {
        if self.drain.is_some() || self.factored >= self.blocks || self.factored > k + self.depth {
            return None;
        }
        self.ask(drains);
        if self.drain.is_some() {
            return None;
        }
        self.factored += 1;
        Some(self.factored - 1)
    }

    /// Asks with `drains` whether the boundary before the next panel must be clean, at most once for each boundary. If yes, no
    /// further panel is factored until this boundary is reached.
    fn ask(&mut self, drains: impl FnOnce(usize) -> bool) {
        if self.factored > self.asked {
            self.asked = self.factored;
            if drains(self.factored) {
                self.drain = Some(self.factored);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Tests every start and every choice of clean boundaries. `drains` is called once for each boundary, in order. At a
        /// clean boundary no panel is factored ahead. At other boundaries all panels within the lookahead are factored.
        #[test]
        fn panels_go_ahead_as_far_as_they_may(
            start in 0usize..20,
            blocks in 0usize..20,
            depth in prop_oneof![0usize..6, Just(usize::MAX)],
            clean in proptest::collection::vec(any::<bool>(), 20),
        ) {
            let mut ahead = Lookahead::new(start, blocks, depth);
            let (mut asked, mut factored) = (Vec::new(), Vec::new());
            for k in start..blocks {
                let mut drains = |boundary: usize| {
                    asked.push(boundary);
                    clean[boundary]
                };
                let here = ahead.is_clean(k, &mut drains);
                // The start is clean already.
                prop_assert_eq!(here, k > start && clean[k]);
                if here {
                    prop_assert_eq!(ahead.factored(), k);
                }
                while let Some(panel) = ahead.next(k, &mut drains) {
                    factored.push(panel);
                }
                // Panel k is ready to be applied.
                let stop = (k + 1..blocks).find(|&boundary| clean[boundary]).unwrap_or(blocks);
                prop_assert_eq!(ahead.factored(), stop.min(depth.saturating_add(k + 1)));
            }
            prop_assert_eq!(factored, Vec::from_iter(start..blocks));
            prop_assert_eq!(asked, Vec::from_iter(start + 1..blocks));
        }
    }

    #[test]
    fn a_boundary_is_asked_about_as_soon_as_a_panel_could_cross_it() {
        let mut ahead = Lookahead::new(0, 10, 2);
        let mut asked = Vec::new();
        assert!(!ahead.is_clean(0, |_| unreachable!("it begins here")));
        while ahead
            .next(0, |k| {
                asked.push(k);
                false
            })
            .is_some()
        {}
        assert_eq!((ahead.factored(), asked), (3, vec![1, 2]));
        assert!(!ahead.is_clean(1, |_| unreachable!("asked about before")));
        assert_eq!(ahead.next(1, |k| k == 3), None);
        assert_eq!(ahead.next(2, |_| unreachable!("held back")), None);
        assert!(!ahead.is_clean(2, |_| unreachable!()));
        assert!(ahead.is_clean(3, |_| unreachable!()));
        assert_eq!(ahead.next(3, |_| unreachable!("reached")), Some(3));
    }

    #[test]
    fn without_lookahead_it_is_asked_about_when_it_is_reached() {
        let mut ahead = Lookahead::new(4, 6, 0);
        assert_eq!(ahead.next(4, |_| unreachable!()), Some(4));
        assert_eq!(ahead.next(4, |_| unreachable!("it could not be factored yet")), None);
        assert!(ahead.is_clean(5, |k| k == 5));
        assert_eq!(ahead.next(5, |_| unreachable!()), Some(5));
    }
}
