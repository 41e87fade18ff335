//! Free memory on this node, limited by the machine and by the control groups of this process.
//!
//! A container or a batch job often has a limit far below the memory of the machine. Beyond that limit the kernel kills a
//! process, so an allocation must fit the smaller figure. `file`, `sysv`, the agents and the memory check before a test call this
//! module.
//!
//! Persistent shared memory has further limits: the size of /dev/shm and the kernel's limits of System V shared memory. The
//! planning of a run uses these limits. Functions that read system files take the root folder as an argument, so tests can
//! replace the files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{Statvfs, statvfs};

use super::huge;
use crate::base::simulated::simulator;
use crate::base::topology::read_list;

/// Root folder of this machine's files.
const ROOT: &str = "/";

/// Reads a system file below `root`. None if the file cannot be read.
fn read(root: &Path, path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(root.join(path)).ok()
}

/// Number of bytes that can still be allocated, or `None` if the system reports no figure.
pub fn available_bytes() -> Option<u64> {
    match simulator() {
        None => available_under(ROOT.as_ref()),
        Some(simulator) => simulator.free_memory(),
    }
}

/// Returns total and free bytes of a file system from its counts of blocks. A tmpfs that was mounted without a limit reports zero
/// blocks. Both results are then `u64::MAX`.
pub fn of_mount(blocks: u64, free: u64, block_bytes: u64) -> (u64, u64) {
    match blocks {
        0 => (u64::MAX, u64::MAX),
        _ => (blocks * block_bytes, free * block_bytes),
    }
}

/// Free bytes of a file system.
pub fn free_on(fs: &Statvfs) -> u64 {
    of_mount(fs.blocks(), fs.blocks_available(), fs.fragment_size()).1
}

/// Free bytes in /dev/shm by the size of that file system, which may be smaller or larger than the free memory. `None` if there
/// is no such file system.
pub fn shm_bytes() -> Option<u64> {
    statvfs("/dev/shm").ok().as_ref().map(free_on)
}

/// Bytes of System V shared memory that the kernel's limits leave. `None` if such memory does not outlive its processes.
///
/// The default limits exceed the memory of any machine. The limit of one segment is used here for all segments together, because
/// the number of segments is not known. If a machine has lower limits, they are usually a few megabytes.
pub fn sysv_bytes() -> Option<u64> {
    let left = sysv_left(ROOT.as_ref()).filter(|_| sysv_outlives());
    left.map(|left| left.of_one.min(left.of_all))
}

/// Bytes that the limits leave for all System V segments together. `None` if the system reports no figure.
pub fn sysv_free_bytes() -> Option<u64> {
    sysv_left(ROOT.as_ref()).map(|left| left.of_all)
}

/// Returns true if the kernel's limits allow one more segment of `bytes` bytes, or if the system reports no limits.
pub fn sysv_allows(bytes: u64) -> bool {
    sysv_left(ROOT.as_ref()).is_none_or(|left| bytes <= left.of_one.min(left.of_all))
}

/// Describes the limits of System V shared memory, with the kernel's names.
pub fn sysv_limits() -> String {
    let limit = |(name, what): (&str, &str)| {
        let value = read("/proc/sys/kernel".as_ref(), name).unwrap_or_default();
        format!("kernel.{name} {} {what}", value.trim())
    };
    [("shmmax", "bytes each"), ("shmall", "pages in all"), ("shmmni", "segments")]
        .map(limit)
        .join(", ")
}

/// Returns true if System V shared memory stays when the last attached process ends.
pub fn sysv_outlives() -> bool {
    outlives(ROOT.as_ref())
}

fn outlives(root: &Path) -> bool {
    read(root, "proc/sys/kernel/shm_rmid_forced").is_none_or(|set| set.trim() == "0")
}

/// Bytes that the kernel's limits leave for one more segment of System V shared memory, and for all segments together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SysVLeft {
    of_one: u64,
    of_all: u64,
}

/// Returns the bytes that the limits of System V shared memory leave, from the system's files below `root`. None if a file is
/// missing.
fn sysv_left(root: &Path) -> Option<SysVLeft> {
    // The default number of pages times the page size does not fit into 64 bits.
    let limit = |name: &str| -> Option<u128> {
        read(&root.join("proc/sys/kernel"), name)?.trim().parse().ok()
    };
    let table = read(root, "proc/sysvipc/shm")?;
    let used: u128 = table
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().nth(3)?.parse::<u128>().ok())
        .sum();
    let left = (limit("shmall")? * huge::page() as u128).saturating_sub(used);
    let bytes = |many: u128| u64::try_from(many).unwrap_or(u64::MAX);
    Some(SysVLeft { of_one: bytes(limit("shmmax")?), of_all: bytes(left) })
}

/// Returns the bytes that can still be allocated, from the system's files below `root`. None if the system reports no figure.
fn available_under(root: &Path) -> Option<u64> {
    let machine = read(root, "proc/meminfo");
    let machine = machine.and_then(|text| meminfo_bytes(&text, "MemAvailable"));
    let groups = read(root, "proc/self/cgroup").unwrap_or_default();
    let folders = group_folders(&groups).into_iter();
    let limited = folders.filter_map(|folder| left_in(&root.join(folder)));
    limited.chain(machine).chain(in_own_memories(root)).min()
}

/// Free bytes in the NUMA nodes whose memory this process may use. `None` if this process may use all NUMA nodes. A batch system
/// or a container may restrict the NUMA nodes. File cache that the kernel can drop counts as free.
fn in_own_memories(root: &Path) -> Option<u64> {
    let status = read(root, "proc/self/status")?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"))?;
    let allowed: BTreeSet<usize> = read_list(allowed).into_iter().collect();
    let nodes = root.join("sys/devices/system/node");
    let all: BTreeSet<usize> = read_list(&read(&nodes, "has_memory")?).into_iter().collect();
    if all.is_subset(&allowed) {
        return None;
    }
    let free = |node: &usize| -> Option<u64> {
        let text = read(&nodes, format!("node{node}/meminfo"))?;
        let kib = |what: &str| -> Option<u64> {
            let after = text.lines().find_map(|line| line.split_once(what))?.1;
            after.trim().strip_suffix("kB")?.trim().parse().ok()
        };
        let cache = kib(" Inactive(file):").unwrap_or(0) + kib(" SReclaimable:").unwrap_or(0);
        Some((kib(" MemFree:")? + cache) * 1024)
    };
    allowed.intersection(&all).map(free).sum()
}

/// Returns a field of /proc/meminfo, in bytes.
pub fn meminfo_bytes(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Lists the folders of the control groups that may limit this process, from its own up to the root.
///
/// Inside a container, the path in /proc/self/cgroup may be a path of the host, and not exist. The list ends with the mount,
/// which is then the container's own group.
fn group_folders(groups: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        // If both versions of control groups are mounted, version 2 has a folder of its own.
        let mounts: &[&str] = if id == "0" && controllers.is_empty() {
            &["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        } else if controllers.split(',').any(|c| c == "memory") {
            &["sys/fs/cgroup/memory"]
        } else {
            continue;
        };
        for mount in mounts.iter().map(Path::new) {
            let own = mount.join(path.trim_start_matches('/'));
            folders
                .extend(own.ancestors().take_while(|f| f.starts_with(mount)).map(Path::to_owned));
        }
    }
    folders
}

/// Number of bytes that a control group's limits leave, or `None` without limits. `folder` is the group's folder. Pages of shared
/// memory count as used, because the group is charged for these pages and cannot drop them. File cache that the kernel can drop
/// counts as free.
fn left_in(folder: &Path) -> Option<u64> {
    // "max" means no limit, and does not parse.
    let number = |name: &str| -> Option<u64> { read(folder, name)?.trim().parse().ok() };
    let stat = read(folder, "memory.stat").unwrap_or_default();
    let counter = |name: &str| -> u64 {
        stat.lines()
            .filter_map(|l| l.split_once(' '))
            .find(|(key, _)| *key == name)
            .and_then(|(_, value)| value.trim().parse().ok())
            .unwrap_or(0)
    };
    // Beyond `memory.high` the kernel kills no process, but slows every allocation down, too much for a benchmark.
    let second = number("memory.max").into_iter().chain(number("memory.high")).min();
    let (limit, used, cache) = match second {
        Some(limit) => (limit, number("memory.current")?, counter("inactive_file")),
        None => (
            number("memory.limit_in_bytes")?,
            number("memory.usage_in_bytes")?,
            counter("total_inactive_file"),
        ),
    };
    Some(limit.saturating_sub(used.saturating_sub(cache)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::files::tree;

    const GIB: u64 = 1 << 30;

    const MEMINFO: (&str, &str) = (
        "proc/meminfo",
        "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n",
    );

    #[test]
    fn without_groups_the_machine_counts() {
        let dir = tree(&[MEMINFO]);
        assert_eq!(available_under(dir.path()), Some(8 * GIB));
        assert_eq!(available_under(tree(&[]).path()), None);
    }

    #[test]
    fn version_2_limits_of_any_ancestor_count() {
        let dir = tree(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/job/step\n"),
            ("sys/fs/cgroup/job/step/memory.max", "max\n"),
            ("sys/fs/cgroup/job/step/memory.current", "1073741824\n"),
            ("sys/fs/cgroup/job/memory.max", "4294967296\n"),
            ("sys/fs/cgroup/job/memory.current", "2147483648\n"),
            ("sys/fs/cgroup/job/memory.stat", "anon 5\ninactive_file 1073741824\n"),
        ]);
        assert_eq!(available_under(dir.path()), Some(3 * GIB));
    }

    #[test]
    fn memories_that_are_others_do_not_count() {
        let node = |free: &str| {
            format!(
                "Node 0 MemTotal: 9 kB\nNode 0 MemFree: {free} kB\nNode 0 Inactive(file): 1024 kB\n"
            )
        };
        let (first, second) = (node("1047552"), node("2096128"));
        let with = |allowed: &str| {
            available_under(
                tree(&[
                    MEMINFO,
                    ("proc/self/status", &format!("Name: x\nMems_allowed_list:\t{allowed}\n")),
                    ("sys/devices/system/node/has_memory", "0-1\n"),
                    ("sys/devices/system/node/node0/meminfo", &first),
                    ("sys/devices/system/node/node1/meminfo", &second),
                ])
                .path(),
            )
        };
        // A NUMA node without memory has no effect.
        assert_eq!([with("0"), with("1"), with("1-2")], [Some(GIB), Some(2 * GIB), Some(2 * GIB)]);
        assert_eq!([with("0-1"), with("0-7")], [Some(8 * GIB); 2]);
    }

    #[test]
    fn version_1_limits_count_even_where_the_path_is_the_hosts() {
        let dir = tree(&[
            MEMINFO,
            ("proc/self/cgroup", "5:cpu:/x\n4:cpuset,memory:/docker/abc\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n"),
        ]);
        assert_eq!(available_under(dir.path()), Some(GIB));
    }

    #[test]
    fn no_limit_is_no_limit_and_overuse_is_nothing_left() {
        let unlimited = tree(&[
            MEMINFO,
            ("proc/self/cgroup", "4:memory:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n"),
        ]);
        assert_eq!(available_under(unlimited.path()), Some(8 * GIB));
        let over = tree(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "1024\n"),
            ("sys/fs/cgroup/memory.current", "4096\n"),
        ]);
        assert_eq!(available_under(over.path()), Some(0));
    }

    #[test]
    fn a_limit_that_throttles_counts_as_one_that_kills() {
        let high = |max: &str| {
            available_under(
                tree(&[
                    MEMINFO,
                    ("proc/self/cgroup", "0::/step\n"),
                    ("sys/fs/cgroup/step/memory.max", max),
                    ("sys/fs/cgroup/step/memory.high", "3221225472\n"),
                    ("sys/fs/cgroup/step/memory.current", "2147483648\n"),
                    // Files in /dev/shm count as `shmem`, which the kernel cannot drop.
                    ("sys/fs/cgroup/step/memory.stat", "shmem 2147483648\ninactive_file 0\n"),
                ])
                .path(),
            )
        };
        assert_eq!(high("max\n"), Some(GIB));
        assert_eq!(high("2684354560\n"), Some(GIB / 2));
    }

    #[test]
    fn version_1_counts_every_group_up_the_tree_and_version_2_its_siblings() {
        let dir = tree(&[
            MEMINFO,
            ("proc/self/cgroup", "9:name=systemd:/\n4:memory:/job/step\n0::/other\n"),
            ("sys/fs/cgroup/memory/job/step/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/job/step/memory.usage_in_bytes", "1073741824\n"),
            ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "4294967296\n"),
            ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "3221225472\n"),
            ("sys/fs/cgroup/memory/job/memory.stat", "total_inactive_file 1073741824\n"),
        ]);
        assert_eq!(available_under(dir.path()), Some(2 * GIB));
        fs::create_dir_all(dir.path().join("sys/fs/cgroup/unified/other")).unwrap();
        for (file, text) in [("memory.max", "1073741824\n"), ("memory.current", "0\n")] {
            fs::write(dir.path().join("sys/fs/cgroup/unified/other").join(file), text).unwrap();
        }
        assert_eq!(available_under(dir.path()), Some(GIB));
    }

    #[test]
    fn system_v_shared_memory_has_what_its_limits_leave() {
        let left = |max: &str, all: &str, table: &str| {
            let files = [
                ("proc/sys/kernel/shmmax", max),
                ("proc/sys/kernel/shmall", all),
                ("proc/sysvipc/shm", table),
            ];
            let dir = tree(&files);
            let left = sysv_left(dir.path());
            left.map(|left| (left.of_one, left.of_all))
        };
        let head = "       key      shmid perms                  size  cpid  lpid nattch\n";
        let unlimited = "18446744073692774399\n";
        let (one, all) = left(unlimited, unlimited, head).unwrap();
        assert!(one > 1 << 60 && all > 1 << 60);
        assert_eq!(left("33554432\n", unlimited, head), Some((32 << 20, all)));
        let table =
            format!("{head}         1          0  1600               1048576   100   100      0\n");
        assert_eq!(left(unlimited, "1024\n", &table), Some((one, 3 << 20)));
        assert_eq!(left(unlimited, "100\n", &table), Some((one, 0)));
        assert_eq!(sysv_left(tree(&[]).path()), None);
        let forced =
            |text: &str| outlives(tree(&[("proc/sys/kernel/shm_rmid_forced", text)]).path());
        assert!(!forced("1\n") && forced("0\n") && outlives(tree(&[]).path()));
    }

    #[test]
    fn a_mount_without_a_limit_has_no_end() {
        assert_eq!(of_mount(100, 30, 4096), (409_600, 122_880));
        assert_eq!(of_mount(0, 0, 4096), (u64::MAX, u64::MAX));
    }

    #[test]
    fn this_machine_answers() {
        assert!(shm_bytes().is_some() && sysv_bytes().is_some());
        assert!(available_bytes().is_some_and(|bytes| bytes > 0));
    }
}
