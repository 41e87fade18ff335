//! Proof of life: what the ranks' own iterations say about a node that cannot be heard. Pure.
//!
//! In HPL everybody needs everybody's panels, so no rank gets further ahead of another than the look-ahead and the
//! panel under way. Where any rank is further than that beyond the last that was seen of a silent node, the node's
//! ranks have worked meanwhile. Its silence counts from then: the supervisor's way to it has failed, not the node.

/// What ranks may be ahead of each other beside the look-ahead: the iteration under way, the panel that is being
/// passed on, and one more since not all are seen at the same moment.
const STEPS: u64 = 3;

/// By how many iterations ranks can be ahead of each other with so deep a look-ahead.
pub fn lead(depth: u64) -> u64 {
    depth + STEPS
}

/// Whether the foremost rank's test and iteration prove that those of a node have got beyond where they were last
/// `seen`.
pub fn proves(front: (u32, u64), seen: Option<(u32, u64)>, lead: u64) -> bool {
    let Some((test, iteration)) = seen else { return false };
    // Iterations count from zero again in another test, which begins when all are through with the last.
    match front.0.checked_sub(test) {
        Some(0) => front.1 > iteration + lead,
        Some(_) => front.1 > lead,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cannot_be_done_alone_is_a_proof() {
        let lead = lead(1);
        assert!(!proves((0, 10), Some((0, 10)), lead));
        assert!(!proves((0, 14), Some((0, 10)), lead));
        assert!(proves((0, 15), Some((0, 10)), lead));
        assert!(!proves((0, 99), None, lead), "it has no rank");
        // The next test is begun by all.
        assert!(!proves((1, 3), Some((0, 10)), lead));
        assert!(proves((1, 5), Some((0, 10)), lead));
        assert!(!proves((0, 99), Some((1, 10)), lead));
    }
}
