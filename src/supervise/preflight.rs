//! What a node must be like before it may take part, judged from what its agent says. Pure.
//!
//! `skt-hpl run` asks before every launch, `skt-hpl doctor` asks alone. A finding names the node, what is
//! wrong there and what to do; the worst place to learn that a spare has an old binary is at three in the
//! morning, in the middle of a recovery.

use super::wire::{Facts, WIRE_VERSION};

/// What is expected of every node.
#[derive(Clone, Debug)]
pub struct Expected<'a> {
    pub version: &'a str,
    pub binary: &'a str,
    /// The supervisor's clock when the facts came in.
    pub unix_ms: u64,
    /// Shared memory the node's ranks will need, where known, and what they hold already.
    pub need_bytes: Option<u64>,
    pub held_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The node cannot be used.
    Problem(String),
    /// It can, but the user should know.
    Warning(String),
}

/// Clocks further apart make logs and `--at` times misleading, and often mean that time is not kept at all.
const CLOCK_OFF_MAX_MS: u64 = 10_000;
/// What containers give by default.
const SHM_TINY_BYTES: u64 = 64 << 20;
/// Users below are system users, whom logind leaves alone.
const FIRST_PLAIN_UID: u32 = 1000;

pub fn judge(facts: &Facts, expected: &Expected) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut problem = |text: String| found.push(Finding::Problem(text));
    if facts.wire != WIRE_VERSION || facts.version != expected.version {
        problem(format!(
            "skt-hpl is version {} there and {} here; install the same one",
            facts.version, expected.version
        ));
    } else if facts.binary != expected.binary {
        problem(format!(
            "the program file differs (digest {} there, {} here); install the same one",
            facts.binary, expected.binary
        ));
    }
    if !facts.shm_is_memory {
        problem("/dev/shm is not a tmpfs; mount one".to_string());
    }
    if let Some(need) = expected.need_bytes {
        let room = facts.shm_free_bytes.saturating_add(expected.held_bytes);
        if need > room {
            problem(format!(
                "/dev/shm has room for {} MiB, {} MiB are needed; remove what lies there, enlarge it \
                 (mount -o remount,size=...), or lower N",
                room >> 20,
                need >> 20
            ));
        } else if need > facts.memory_free_bytes.saturating_add(expected.held_bytes) {
            problem(format!(
                "{} MiB of memory are free, {} MiB are needed",
                facts.memory_free_bytes >> 20,
                need >> 20
            ));
        }
    }
    let off_ms = facts.unix_ms.abs_diff(expected.unix_ms);
    if off_ms > CLOCK_OFF_MAX_MS {
        found.push(Finding::Warning(format!(
            "its clock is {} s off; times in its logs will not match",
            off_ms / 1000
        )));
    }
    if facts.remove_ipc == Some(true) && facts.uid >= FIRST_PLAIN_UID {
        found.push(Finding::Warning(
            "systemd-logind removes shared memory at logout (RemoveIPC=yes): checkpoints would vanish with the \
             last session; set RemoveIPC=no in /etc/systemd/logind.conf or run `loginctl enable-linger`"
                .to_string(),
        ));
    }
    if facts.shm_bytes <= SHM_TINY_BYTES {
        found.push(Finding::Warning(format!(
            "/dev/shm has only {} MiB (a container's default); give it more, e.g. docker run --shm-size",
            facts.shm_bytes >> 20
        )));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Facts {
        Facts {
            wire: WIRE_VERSION,
            version: "1".into(),
            binary: "b".into(),
            unix_ms: 1_000_000,
            shm_bytes: 8 << 30,
            shm_free_bytes: 4 << 30,
            memory_free_bytes: 6 << 30,
            shm_is_memory: true,
            remove_ipc: Some(false),
            uid: 1000,
            ..Facts::default()
        }
    }
    fn expected(need: Option<u64>) -> Expected<'static> {
        Expected { version: "1", binary: "b", unix_ms: 1_000_400, need_bytes: need, held_bytes: 0 }
    }

    #[test]
    fn a_good_node_passes() {
        assert_eq!(judge(&good(), &expected(Some(4 << 30))), []);
    }

    type Spoil = fn(&mut Facts);

    #[test]
    fn each_fault_is_found_and_named() {
        let cases: [(Spoil, bool, &str); 8] = [
            (|f| f.version = "0".into(), true, "version 0"),
            (|f| f.binary = "c".into(), true, "program file differs"),
            (|f| f.shm_is_memory = false, true, "tmpfs"),
            (|f| f.shm_free_bytes = 1 << 30, true, "room for 1024 MiB"),
            (|f| f.memory_free_bytes = 1 << 30, true, "1024 MiB of memory"),
            (|f| f.unix_ms += 60_000, false, "clock"),
            (|f| f.remove_ipc = Some(true), false, "RemoveIPC"),
            (|f| f.shm_bytes = 64 << 20, false, "container"),
        ];
        for (spoil, fatal, part) in cases {
            let mut facts = good();
            spoil(&mut facts);
            match &judge(&facts, &expected(Some(3 << 30)))[..] {
                [Finding::Problem(text)] if fatal => assert!(text.contains(part), "{text}"),
                [Finding::Warning(text)] if !fatal => assert!(text.contains(part), "{text}"),
                other => panic!("{part}: {other:?}"),
            }
        }
    }

    #[test]
    fn memory_held_already_counts_as_room_and_root_need_not_mind_logind() {
        let mut facts = good();
        facts.shm_free_bytes = 1 << 30;
        facts.remove_ipc = Some(true);
        facts.uid = 0;
        let held = Expected { held_bytes: 2 << 30, ..expected(Some(3 << 30)) };
        assert_eq!(judge(&facts, &held), []);
    }
}
