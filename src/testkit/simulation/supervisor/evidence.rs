//! Evidence that justifies giving a node up: the faults of each node, and their times. The module is pure.

/// Time for which evidence against a node counts after the fault has ended, since calls and judgements take time.
const LASTS_MS: u64 = 12_000;

/// Shortest duration of a fault that justifies giving a node up without a further fault. It is shorter than the 4 s without
/// heartbeat after which the supervisor gives a node up.
pub(super) const SHORT_MS: u64 = 2500;

/// Longest time from the start of a fault to its judgement: 4 s without heartbeat, or a second call.
const JUDGED_AFTER_MS: u64 = 6000;

/// A fault of a node. `until_ms` is [`u64::MAX`] for a node that stays off.
#[derive(Clone, Debug)]
struct Fault {
    node: String,
    from_ms: u64,
    until_ms: u64,
    /// Whether the fault justifies giving the node up.
    counts: bool,
}

impl Fault {
    /// Returns true if a second fault at `now_ms` comes so soon that the two faults together are evidence.
    fn is_fresh(&self, now_ms: u64) -> bool {
        let end_ms = if self.until_ms == u64::MAX { self.from_ms } else { self.until_ms };
        now_ms <= end_ms + LASTS_MS
    }
}

#[derive(Debug)]
pub(super) struct Evidence {
    faults: Vec<Fault>,
    /// True if some nodes are called by other nodes and not by the supervisor.
    is_tree: bool,
}

impl Evidence {
    pub fn new(is_tree: bool) -> Self {
        Self { faults: Vec::new(), is_tree }
    }

    /// Records a fault of `node` that lasts `lasts_ms`. A short fault is evidence only together with another fault at about the
    /// same time. In a tree, the other fault may be of another node, which calls this node again.
    pub fn adds(&mut self, node: &str, now_ms: u64, lasts_ms: u64) {
        let until_ms = now_ms.saturating_add(lasts_ms);
        let mut counts = lasts_ms >= SHORT_MS;
        for fault in &mut self.faults {
            if fault.is_fresh(now_ms) && (self.is_tree || fault.node == node) {
                counts = true;
                fault.counts = true;
                fault.until_ms =
                    fault.until_ms.max(if lasts_ms < 1 << 40 { until_ms } else { now_ms });
            }
        }
        self.faults.push(Fault { node: node.to_owned(), from_ms: now_ms, until_ms, counts });
    }

    /// Records evidence against a node from `now_ms` to `until_ms`.
    pub fn condemns(&mut self, node: &str, now_ms: u64, until_ms: u64) {
        self.faults.push(Fault { node: node.to_owned(), from_ms: now_ms, until_ms, counts: true });
    }

    /// Records that a node that was off boots.
    pub fn boots(&mut self, node: &str, now_ms: u64) {
        let off = self.faults.iter_mut().filter(|f| f.node == node && f.until_ms == u64::MAX);
        off.for_each(|fault| fault.until_ms = now_ms);
    }

    /// Returns whether a fault began so recently that the supervisor may not have judged it yet.
    pub fn is_unjudged(&self, now_ms: u64) -> bool {
        self.faults.iter().any(|fault| now_ms <= fault.from_ms + JUDGED_AFTER_MS)
    }

    /// Returns whether there is evidence against the node at `at_ms`.
    pub fn holds(&self, node: &str, at_ms: u64) -> bool {
        self.has_held(node, at_ms, at_ms)
    }

    /// Returns whether there was evidence against the node at some moment from `from_ms` to `to_ms`.
    pub fn has_held(&self, node: &str, from_ms: u64, to_ms: u64) -> bool {
        let ends_ms = |fault: &Fault| fault.until_ms.saturating_add(LASTS_MS);
        self.of(node).any(|fault| fault.from_ms <= to_ms && from_ms <= ends_ms(fault))
    }

    /// Returns whether there was evidence against the node at `since_ms` or later.
    pub fn has_held_since(&self, node: &str, since_ms: u64) -> bool {
        self.of(node).any(|fault| since_ms <= fault.until_ms.saturating_add(LASTS_MS))
    }

    fn of<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Fault> {
        self.faults.iter().filter(move |fault| fault.counts && fault.node == node)
    }

    /// Returns the time until which a fault that ends at `until_ms` counts as evidence.
    pub fn end_of(until_ms: u64) -> u64 {
        until_ms.saturating_add(LASTS_MS)
    }
}
