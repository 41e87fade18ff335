//! How much memory this process's node, or the control group it runs in, has left.
//!
//! The benchmark reads it once per node and hands it to `memory_need`, which does the judging. A
//! container or a batch job is often limited far below the machine's memory; the smaller figure
//! counts.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes that can still be allocated, or `None` where the system does not say.
pub fn available_bytes() -> Option<u64> {
    available_under(Path::new("/"))
}

/// The same, with the system's files below `root`.
fn available_under(root: &Path) -> Option<u64> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok();
    let machine = meminfo.as_deref().and_then(mem_available);
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limited = group_folders(root, &groups).into_iter().filter_map(|folder| left_in(&folder));
    limited.chain(machine).min()
}

/// `MemAvailable` of /proc/meminfo, in bytes.
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The folders of the control groups that may limit this process, from its own up to the root.
///
/// Inside a container the path in /proc/self/cgroup may be the host's, which does not exist there;
/// the walk up ends at the mount, which then is the container's own group.
fn group_folders(root: &Path, groups: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let mount = if id == "0" && controllers.is_empty() {
            root.join("sys/fs/cgroup")
        } else if controllers.split(',').any(|c| c == "memory") {
            root.join("sys/fs/cgroup/memory")
        } else {
            continue;
        };
        let own = mount.join(path.trim_start_matches('/'));
        folders.extend(
            own.ancestors().take_while(|folder| folder.starts_with(&mount)).map(Path::to_owned),
        );
    }
    folders
}

/// What a group's limit leaves, or `None` where it has none. File cache that the kernel would give
/// back counts as free.
fn left_in(folder: &Path) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
    };
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let counter = |name: &str| -> u64 {
        stat.lines()
            .filter_map(|l| l.split_once(' '))
            .find(|(key, _)| *key == name)
            .and_then(|(_, value)| value.trim().parse().ok())
            .unwrap_or(0)
    };
    // Version 2 first; "max" there does not parse, which is no limit.
    let (limit, used, cache) = match number("memory.max") {
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

    const GIB: u64 = 1 << 30;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

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
    fn this_machine_answers() {
        assert!(available_bytes().is_some_and(|bytes| bytes > 0));
    }
}
