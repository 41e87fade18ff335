//! Judgement of whether a node can take part in a run, from the facts that its agent reports. Pure.
//!
//! `skt-hpl run` judges every node before every launch, and `skt-hpl doctor` judges nodes without a run. A finding names the
//! fault and the remedy. A spare with an old binary is thus found before it is needed.

use crate::device::DeviceFacts;
use crate::kernels::arithmetic::Rules;
use crate::shm::Store;
use crate::supervise::talk::wire::{Facts, WIRE_VERSION};

/// Memory that the ranks of a node need: persistent shared memory (`named_bytes`, in `store`) and private memory (`own_bytes`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    pub store: Store,
    pub named_bytes: u64,
    pub own_bytes: u64,
    /// Bytes of a checkpoint on the storage of the node: the node's own part, or the whole checkpoint if all nodes share one
    /// folder.
    pub stored_bytes: u64,
    /// Number of ranks that compute on devices.
    pub device_ranks: usize,
    /// Device memory that the largest of these ranks needs.
    pub device_bytes: u64,
}

impl Need {
    /// Returns the need of a node without ranks.
    pub fn none(store: Store) -> Self {
        Self {
            store,
            named_bytes: 0,
            own_bytes: 0,
            stored_bytes: 0,
            device_ranks: 0,
            device_bytes: 0,
        }
    }

    /// Returns a need that covers both needs: the larger value of each field.
    pub fn max(self, other: Self) -> Self {
        Self {
            store: self.store,
            named_bytes: self.named_bytes.max(other.named_bytes),
            own_bytes: self.own_bytes.max(other.own_bytes),
            stored_bytes: self.stored_bytes.max(other.stored_bytes),
            device_ranks: self.device_ranks.max(other.device_ranks),
            device_bytes: self.device_bytes.max(other.device_bytes),
        }
    }
}

/// Conditions for every node.
#[derive(Clone, Debug)]
pub struct Expected<'a> {
    /// Digest of the program file.
    pub binary: &'a str,
    /// Memory that the node's ranks need, if known.
    pub need: Option<Need>,
    /// Arithmetic of the run, if identical bits are promised.
    pub rounding: Option<(Rules, &'a str)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The node cannot be used.
    Problem(String),
    /// The node can be used, but the user should know.
    Warning(String),
}

/// Largest difference of clocks without a warning. If the difference is larger, the times in logs and of `--at` mislead. Often
/// the node's clock is then not synchronised at all.
const CLOCK_OFF_MAX_MS: u64 = 10_000;
/// Default size of /dev/shm in containers.
const SHM_TINY_BYTES: u64 = 64 << 20;
/// First user id of ordinary users. logind does not remove shared memory of users with smaller ids.
const FIRST_PLAIN_UID: u32 = 1000;

/// Judges the facts of a node, which arrived at `unix_ms` by the clock of this machine. Ranks of this run already have
/// `held_bytes` of memory on the node.
pub fn judge(facts: &Facts, unix_ms: u64, held_bytes: u64, expected: &Expected) -> Vec<Finding> {
    let version = env!("CARGO_PKG_VERSION");
    let mut found = Vec::new();
    let mut problem = |text: String| found.push(Finding::Problem(text));
    if facts.wire != WIRE_VERSION || facts.version != version {
        problem(format!(
            "skt-hpl is version {} there and {version} here; install the same version",
            facts.version
        ));
    } else if facts.binary != expected.binary {
        problem(format!(
            "the program file differs (digest {} there, {} here); install the same file",
            facts.binary, expected.binary
        ));
    }
    if let Some(Err(why)) = &facts.arithmetic.named {
        problem(format!(
            "{why}; install this library there, or give --blas a library that every node has"
        ));
    } else if let Some((rules, run)) = &expected.rounding
        && let Err(why) = rules.suits(&facts.arithmetic, run)
    {
        problem(why);
    }
    if !facts.shm.is_memory {
        problem("/dev/shm is not a tmpfs; mount one".to_string());
    }
    if let Some(need) = &expected.need
        && let Some(text) = lacking(facts, need, held_bytes)
    {
        problem(text);
    }
    if let Some(need) = expected.need.filter(|need| need.stored_bytes > 0) {
        let lacking = match &facts.storage {
            Some(Ok(storage)) => storage.lacking(need.stored_bytes),
            Some(Err(why)) => Some(why.clone()),
            None => None,
        };
        lacking.into_iter().for_each(&mut problem);
    }
    facts.helper_cores.clone().into_iter().for_each(&mut problem);
    match &facts.devices {
        Some(Ok(devices)) => found.extend(judge_devices(devices, expected.need)),
        Some(Err(why)) => problem(why.clone()),
        None => {}
    }
    let off_ms = facts.unix_ms.abs_diff(unix_ms);
    if off_ms > CLOCK_OFF_MAX_MS {
        found.push(Finding::Warning(format!(
            "its clock and that of this machine differ by {} s; times in its logs will not match other logs",
            off_ms / 1000
        )));
    }
    if facts.remove_ipc == Some(true) && facts.uid >= FIRST_PLAIN_UID {
        found.push(Finding::Warning(
            "systemd-logind removes shared memory at logout (RemoveIPC=yes): checkpoints would vanish when \
             this user's last session ends; set RemoveIPC=no in /etc/systemd/logind.conf or run `loginctl enable-linger`"
                .to_string(),
        ));
    }
    if facts.shm.bytes <= SHM_TINY_BYTES {
        found.push(Finding::Warning(format!(
            "/dev/shm has only {} MiB (a container's default); give it more, e.g. docker run --shm-size",
            facts.shm.bytes >> 20
        )));
    }
    found
}

/// Judges the devices of a node, whose ranks share them evenly.
fn judge_devices(devices: &[DeviceFacts], need: Option<Need>) -> Vec<Finding> {
    let mut found = Vec::new();
    if devices.is_empty() {
        found.push(Finding::Problem("--device cuda: the driver finds no device".to_owned()));
    }
    let (ranks, bytes) = need.map_or((0, 0), |need| (need.device_ranks, need.device_bytes));
    let each = ranks.div_ceil(devices.len().max(1));
    let needed = bytes.saturating_mul(each as u64);
    if ranks > 0 && ranks < devices.len() {
        found.push(Finding::Warning(format!(
            "{} device(s) stay idle: {ranks} rank(s) compute there on {} devices; take a rank for each device",
            devices.len() - ranks,
            devices.len()
        )));
    }
    for (number, device) in devices.iter().enumerate() {
        if device.free_bytes < needed {
            found.push(Finding::Problem(format!(
                "device {number} ({}) has {} MiB of memory free, {each} rank(s) there need {} MiB; end other programs on this \
                 device, take fewer ranks a node, or lower N",
                device.model,
                device.free_bytes >> 20,
                needed.div_ceil(1 << 20)
            )));
        }
        if device.memory_errors > 0 {
            found.push(Finding::Warning(format!(
                "device {number} ({}) had {} memory error(s) that could not be corrected, since the driver was loaded: results may \
                 be wrong; replace the device",
                device.model, device.memory_errors
            )));
        }
        if !device.corrects_errors {
            found.push(Finding::Warning(format!(
                "device {number} ({}) does not correct memory errors (nvidia-smi -e 1)",
                device.model
            )));
        }
    }
    found
}

/// Describes the memory that the node lacks, if any.
fn lacking(facts: &Facts, need: &Need, held_bytes: u64) -> Option<String> {
    // Memory that this job already has there is used again.
    let left = need.named_bytes.saturating_sub(held_bytes);
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let memory_bytes = match need.store {
        Store::Posix if left > facts.free.shm_bytes => {
            return Some(format!(
                "/dev/shm has {} MiB free, the ranks there need {} MiB; remove files there (skt-hpl status \
                 lists those of skt-hpl), enlarge it (mount -o remount,size={}m /dev/shm), or lower N",
                facts.free.shm_bytes >> 20,
                mib(left),
                mib(facts.shm.bytes - facts.free.shm_bytes.min(facts.shm.bytes) + left)
            ));
        }
        Store::HugeTlbfs => match facts.free.huge_bytes {
            None => {
                return Some(
                    "no hugetlbfs is mounted for this user; mount one, or choose --store posix"
                        .to_string(),
                );
            }
            Some(free) if left > free => {
                return Some(format!(
                    "the pool of huge pages has {} MiB free, the ranks there need {} MiB; enlarge it \
                     (/proc/sys/vm/nr_hugepages), or lower N",
                    free >> 20,
                    mib(left)
                ));
            }
            // Reserved huge pages are not part of the free memory.
            Some(_) => need.own_bytes,
        },
        Store::SysV => match facts.free.sysv_bytes {
            Some(free) if left > free => {
                return Some(format!(
                    "the kernel's limit of System V shared memory leaves {} MiB, the ranks there need {} MiB; raise it \
                     (sysctl kernel.shmall, in pages), remove segments there (skt-hpl status, ipcs -m), or lower N",
                    free >> 20,
                    mib(left)
                ));
            }
            _ => left.saturating_add(need.own_bytes),
        },
        Store::Posix => left.saturating_add(need.own_bytes),
    };
    (memory_bytes > facts.free.memory_bytes).then(|| {
        format!(
            "{} MiB of memory are free, the ranks there need {} MiB; end other programs there, take fewer ranks \
             a node, or lower N",
            facts.free.memory_bytes >> 20,
            mib(memory_bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::talk::wire::Shm;
    use crate::supervise::talk::wire::{Free, Storage};

    fn good() -> Facts {
        Facts {
            wire: WIRE_VERSION,
            version: env!("CARGO_PKG_VERSION").into(),
            binary: "b".into(),
            unix_ms: 1_000_000,
            shm: Shm { bytes: 8 << 30, is_memory: true, device: 0 },
            free: Free { shm_bytes: 4 << 30, memory_bytes: 6 << 30, ..Free::default() },
            remove_ipc: Some(false),
            uid: 1000,
            ..Facts::default()
        }
    }
    fn judged(facts: &Facts, expected: &Expected) -> Vec<Finding> {
        judge(facts, 1_000_400, 0, expected)
    }
    fn expected(named_bytes: u64) -> Expected<'static> {
        let need = Need { named_bytes, own_bytes: 1 << 30, ..Need::none(Store::Posix) };
        Expected { binary: "b", need: Some(need), rounding: None }
    }

    #[test]
    fn a_good_node_passes() {
        assert_eq!(judged(&good(), &expected(4 << 30)), []);
    }

    #[test]
    fn a_node_that_would_round_otherwise_is_refused_where_bits_are_promised() {
        let engines = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let mut facts = good();
        facts.arithmetic.engines = engines(&["avx2-12x4", "blas"]);
        let engine = crate::base::params::Engine::Auto;
        let rules = Rules { engine, preflight: true, told: false, named: false };
        let run = rules.rounding([&facts.arithmetic]).unwrap();
        let promised = Expected { rounding: Some((rules, &run)), ..expected(4 << 30) };
        assert_eq!(judged(&facts, &promised), []);
        facts.arithmetic.engines = engines(&["blas"]);
        let found = judged(&facts, &promised);
        assert!(
            matches!(&found[..], [Finding::Problem(why)] if why.contains("differ in their last bits")),
            "{found:?}"
        );
        assert_eq!(judged(&facts, &expected(4 << 30)), []);
    }

    /// Returns what is found on a node with two devices of which the second is changed by `spoil`, for three ranks of 1 GiB.
    fn found_on_devices(spoil: fn(&mut DeviceFacts)) -> Vec<Finding> {
        let one = DeviceFacts {
            model: "M".into(),
            memory_bytes: 4 << 30,
            free_bytes: 2 << 30,
            corrects_errors: true,
            ..DeviceFacts::default()
        };
        let mut facts = Facts { devices: Some(Ok(vec![one.clone(), one])), ..good() };
        spoil(&mut facts.devices.as_mut().unwrap().as_mut().unwrap()[1]);
        let mut expected = expected(1 << 30);
        let need =
            expected.need.map(|need| Need { device_ranks: 3, device_bytes: 1 << 30, ..need });
        expected.need = need;
        judged(&facts, &expected)
    }

    #[test]
    fn devices_need_memory_and_are_to_correct_errors() {
        assert_eq!(found_on_devices(|_| ()), []);
        let lacks = found_on_devices(|device| device.free_bytes -= 1);
        assert!(
            matches!(&lacks[..], [Finding::Problem(why)]
                if why.contains("device 1 (M) has 2047 MiB of memory free, 2 rank(s) there need 2048 MiB")),
            "{lacks:?}"
        );
        for (spoil, words) in [
            (
                (|device: &mut DeviceFacts| device.memory_errors = 7) as fn(&mut DeviceFacts),
                "device 1 (M) had 7 memory error(s)",
            ),
            (|device| device.corrects_errors = false, "device 1 (M) does not correct"),
        ] {
            let found = found_on_devices(spoil);
            assert!(
                matches!(&found[..], [Finding::Warning(why)] if why.contains(words)),
                "{found:?}"
            );
        }
    }

    #[test]
    fn devices_that_are_missing_or_idle_are_named() {
        let facts = |devices| Facts { devices: Some(devices), ..good() };
        let refused = judged(&facts(Err("--device cuda: no library".into())), &expected(1 << 30));
        assert_eq!(refused, [Finding::Problem("--device cuda: no library".into())]);
        let none = judged(&facts(Ok(Vec::new())), &expected(1 << 30));
        assert!(matches!(&none[..], [Finding::Problem(why)] if why.contains("finds no device")));
        let one =
            DeviceFacts { free_bytes: 1 << 30, corrects_errors: true, ..DeviceFacts::default() };
        let mut expected = expected(1 << 30);
        let need = expected.need.map(|need| Need { device_ranks: 1, device_bytes: 5, ..need });
        expected.need = need;
        let idle = judged(&facts(Ok(vec![one.clone(), one.clone(), one])), &expected);
        assert!(
            matches!(&idle[..], [Finding::Warning(why)] if why.contains("2 device(s) stay idle")),
            "{idle:?}"
        );
    }

    type Spoil = fn(&mut Facts);

    #[test]
    fn each_fault_is_found_and_named() {
        let cases: [(Spoil, bool, &str); 10] = [
            (|f| f.helper_cores = Some("--helper-cores 7: x".into()), true, "--helper-cores 7"),
            (
                |f| f.arithmetic.named = Some(Err("--blas x cannot be loaded".into())),
                true,
                "--blas x cannot be loaded; install this library there",
            ),
            (|f| f.version = "0".into(), true, "version 0"),
            (|f| f.binary = "c".into(), true, "program file differs"),
            (|f| f.shm.is_memory = false, true, "tmpfs"),
            (
                |f| f.free.shm_bytes = 1 << 30,
                true,
                "/dev/shm has 1024 MiB free, the ranks there need 3072 MiB",
            ),
            (
                |f| f.free.memory_bytes = 1 << 30,
                true,
                "1024 MiB of memory are free, the ranks there need 4096",
            ),
            (|f| f.unix_ms += 60_000, false, "clock"),
            (|f| f.remove_ipc = Some(true), false, "RemoveIPC"),
            (|f| f.shm.bytes = 64 << 20, false, "container"),
        ];
        for (spoil, fatal, part) in cases {
            let mut facts = good();
            spoil(&mut facts);
            match &judged(&facts, &expected(3 << 30))[..] {
                [Finding::Problem(text)] if fatal => assert!(text.contains(part), "{text}"),
                [Finding::Warning(text)] if !fatal => assert!(text.contains(part), "{text}"),
                other => panic!("{part}: {other:?}"),
            }
        }
    }

    #[test]
    fn memory_held_already_counts_as_room_and_root_need_not_mind_logind() {
        let mut facts = good();
        facts.free.shm_bytes = 1 << 30;
        facts.remove_ipc = Some(true);
        facts.uid = 0;
        assert_eq!(judge(&facts, facts.unix_ms, 2 << 30, &expected(3 << 30)), []);
    }

    #[test]
    fn the_limits_of_system_v_shared_memory_are_known_before() {
        let mut facts = good();
        let ask = |facts: &Facts, store, held_bytes| {
            let need = expected(3 << 30).need.map(|need| Need { store, ..need });
            judge(facts, facts.unix_ms, held_bytes, &Expected { need, ..expected(0) })
        };
        assert_eq!(ask(&facts, Store::SysV, 0), [], "nobody knows");
        facts.free.sysv_bytes = Some(2 << 30);
        match &ask(&facts, Store::SysV, 0)[..] {
            [Finding::Problem(why)] => {
                assert!(why.contains("leaves 2048 MiB") && why.contains("need 3072 MiB"), "{why}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(ask(&facts, Store::SysV, 1 << 30), [], "what it holds is not taken again");
        assert_eq!(ask(&facts, Store::Posix, 0), []);
    }

    #[test]
    fn storage_has_room_for_two_checkpoints() {
        let mut facts = good();
        let dir = "/local".to_owned();
        let mut storage =
            Storage { dir, free_bytes: 3 << 30, held_bytes: 1 << 30, lying: Vec::new() };
        let ask = |facts: &Facts, stored_bytes| {
            let need = expected(0).need.map(|need| Need { stored_bytes, ..need });
            judged(facts, &Expected { need, ..expected(0) })
        };
        assert_eq!(ask(&facts, 2 << 30), [], "nobody has looked");
        facts.storage = Some(Ok(storage.clone()));
        assert_eq!(ask(&facts, 2 << 30), []);
        storage.held_bytes = 0;
        facts.storage = Some(Ok(storage));
        match &ask(&facts, 2 << 30)[..] {
            [Finding::Problem(why)] => {
                assert!(
                    why.contains("takes 2048 MiB") && why.contains("3072 MiB are free"),
                    "{why}"
                );
            }
            other => panic!("{other:?}"),
        }
        facts.storage = Some(Err("--level2 /local: it is gone".to_owned()));
        assert_eq!(ask(&facts, 1), [Finding::Problem("--level2 /local: it is gone".to_owned())]);
        assert_eq!(ask(&facts, 0), [], "nothing goes there");
    }

    #[test]
    fn each_kind_of_memory_has_a_limit_of_its_own() {
        let ask = |facts: &Facts, store| {
            let need = Need { named_bytes: 3 << 30, own_bytes: 1 << 30, ..Need::none(store) };
            judged(facts, &Expected { need: Some(need), ..expected(0) })
        };
        let mut facts = good();
        facts.free.shm_bytes = 1 << 30;
        assert_eq!(ask(&facts, Store::Posix).len(), 1);
        assert_eq!(ask(&facts, Store::SysV), []);
        for (free, part) in [(None, "no hugetlbfs"), (Some(1 << 30), "pool of huge pages")] {
            facts.free.huge_bytes = free;
            match &ask(&facts, Store::HugeTlbfs)[..] {
                [Finding::Problem(text)] => assert!(text.contains(part), "{text}"),
                other => panic!("{other:?}"),
            }
        }
        facts.free.huge_bytes = Some(3 << 30);
        facts.free.memory_bytes = 1 << 30;
        assert_eq!(ask(&facts, Store::HugeTlbfs), []);
        assert_eq!(ask(&facts, Store::SysV).len(), 1);
    }
}
