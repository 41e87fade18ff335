//! How much of the processor's caches the cut of a multiplication counts on. They are the machine's, so they are never
//! part of a result.

use std::sync::OnceLock;

use crate::topology;

/// Where the system tells nothing: what processors of the last ten years have at least.
const USUAL: usize = 512 << 10;

/// However little the system tells of, a cut for less would not pay.
const LEAST: usize = 64 << 10;

/// Bytes of the second-level cache that one core may count on.
pub fn second_level() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| topology::second_level().unwrap_or(USUAL).max(LEAST))
}
