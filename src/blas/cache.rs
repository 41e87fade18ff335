//! The caches of the processor, as the system tells them. The cut of a multiplication follows from
//! them: they are the machine's, so they are never part of a result.

use std::path::Path;
use std::sync::OnceLock;

use crate::cores::read_list;

/// Where the system tells nothing: what processors of the last ten years have at least.
const USUAL: usize = 512 << 10;

/// Bytes of the second-level cache that one core may count on.
pub fn second_level() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        second_level_in(Path::new("/sys/devices/system/cpu/cpu0/cache")).unwrap_or(USUAL)
    })
}

/// From a folder as the kernel keeps it for one processor: the level's size, divided among the
/// cores that share it. Threads of a core count as one: we use one of them.
fn second_level_in(folder: &Path) -> Option<usize> {
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let read = |name| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        if read("level").trim() != "2" || read("type").trim() == "Instruction" {
            continue;
        }
        let bytes = bytes(read("size").trim())?;
        let siblings = folder.parent().map(|cpu| cpu.join("topology/thread_siblings_list"));
        let threads = siblings.and_then(|path| std::fs::read_to_string(path).ok());
        let threads = threads.map_or(1, |list| read_list(&list).len()).max(1);
        let cores = (read_list(&read("shared_cpu_list")).len() / threads).max(1);
        return Some((bytes / cores).max(64 << 10));
    }
    None
}

/// `2048K` or `2M`.
fn bytes(text: &str) -> Option<usize> {
    let (number, unit) = match text.strip_suffix(['K', 'M']) {
        Some(number) if text.ends_with('K') => (number, 1 << 10),
        Some(number) => (number, 1 << 20),
        None => (text, 1),
    };
    number.parse::<usize>().ok().filter(|&n| n > 0)?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, want) in [
            ("2048K", Some(2 << 20)),
            ("1M", Some(1 << 20)),
            ("4096", Some(4096)),
            ("0K", None),
            ("", None),
            ("many", None),
        ] {
            assert_eq!(bytes(text), want, "{text}");
        }
    }

    #[test]
    fn a_shared_cache_is_divided_among_cores_but_not_among_a_cores_threads() {
        let folder = tempfile::tempdir().unwrap();
        let cpu = folder.path();
        let put = |name: &str, text: &str| {
            let path = cpu.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("cache/index1/level", "1\n");
        put("cache/index2/level", "2\n");
        put("cache/index2/type", "Unified\n");
        put("cache/index2/size", "4096K\n");
        put("cache/index2/shared_cpu_list", "0-3\n");
        put("topology/thread_siblings_list", "0-1\n");
        assert_eq!(second_level_in(&cpu.join("cache")), Some(2 << 20));
        assert_eq!(second_level_in(&cpu.join("nothing")), None);
    }
}
