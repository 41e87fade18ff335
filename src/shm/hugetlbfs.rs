//! Mounted hugetlbfs for this user's memory: its folder, its page size, and the number of free pages.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Free bytes in the pool of huge pages; None if no hugetlbfs is mounted for this user.
pub fn huge_free_bytes() -> Option<u64> {
    let (_, page) = find_hugetlbfs()?;
    // If the system reports no number, only an allocation can show whether there is room.
    Some(free_huge_bytes(page).unwrap_or(u64::MAX))
}

/// Page size in bytes of the hugetlbfs that this user's memory is placed in. None if no hugetlbfs is mounted for this user.
pub fn huge_page_bytes() -> Option<usize> {
    find_hugetlbfs().map(|(_, page)| page)
}

/// Number of huge pages of `page` bytes; None if the system reports no number. `kind` is `nr` for all pages, `free` for the free
/// pages, and `resv` for free pages that are reserved.
fn huge_pages(page: usize, kind: &str) -> Option<u64> {
    let path = format!("/sys/kernel/mm/hugepages/hugepages-{}kB/{kind}_hugepages", page / 1024);
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

pub(super) fn free_huge_bytes(page: usize) -> Option<u64> {
    let promised = huge_pages(page, "resv").unwrap_or(0);
    Some(huge_pages(page, "free")?.saturating_sub(promised) * page as u64)
}

/// Returns the folder and the page size of the mounted hugetlbfs for this user's memory. None if no usable hugetlbfs is mounted.
/// The mounts are read only once, so all calls return the same result.
pub(super) fn find_hugetlbfs() -> Option<(PathBuf, usize)> {
    static FOUND: OnceLock<Option<(PathBuf, usize)>> = OnceLock::new();
    FOUND.get_or_init(look_for_hugetlbfs).clone()
}

fn look_for_hugetlbfs() -> Option<(PathBuf, usize)> {
    let usable = |dir: &Path| {
        let page = nix::sys::statvfs::statvfs(dir).ok()?.block_size() as usize;
        nix::unistd::access(dir, nix::unistd::AccessFlags::W_OK).ok()?;
        Some(page)
    };
    let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
    pick(&mounts, usable, |page| huge_pages(page, "nr"))
}

/// Returns the first usable hugetlbfs whose pool has any pages. Pages in use count, so that every process finds the same
/// hugetlbfs. If no pool has pages, returns the first usable hugetlbfs.
///
/// The system itself mounts a hugetlbfs with the usual page size. An administrator who wants another page size leaves the pool of
/// that hugetlbfs empty.
fn pick(
    mounts: &str,
    usable: impl Fn(&Path) -> Option<usize>,
    pages: impl Fn(usize) -> Option<u64>,
) -> Option<(PathBuf, usize)> {
    let there = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (dir, kind) = (fields.nth(1)?, fields.next()?);
        // Other kinds of file system are not examined, because the call might wait for an unreachable server.
        let dir = PathBuf::from((kind == "hugetlbfs").then(|| dir.replace("\\040", " "))?);
        let page = usable(&dir)?;
        Some((dir, page))
    });
    let there: Vec<(PathBuf, usize)> = there.collect();
    let filled = there.iter().find(|(_, page)| pages(*page).is_some_and(|pages| pages > 0));
    filled.or(there.first()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::huge::HUGE;

    #[test]
    fn huge_pages_are_taken_where_there_are_some() {
        const GIB: usize = 1 << 30;
        let mounts = "tmpfs /dev/shm tmpfs rw 0 0\nhugetlbfs /dev/hugepages hugetlbfs rw 0 0\n\
                      none /mnt/large\\040pages hugetlbfs rw,pagesize=1024M 0 0\n";
        let usable = |dir: &Path| match dir.to_str()? {
            "/dev/hugepages" => Some(HUGE),
            "/mnt/large pages" => Some(GIB),
            other => panic!("{other} is no hugetlbfs, and may hang"),
        };
        let picked = |small: Option<u64>, large: Option<u64>| {
            let found = pick(mounts, usable, |page| if page == GIB { large } else { small });
            found.unwrap().1
        };
        assert_eq!(picked(Some(0), Some(8)), GIB);
        assert_eq!(picked(Some(5), Some(8)), HUGE);
        assert_eq!([picked(Some(0), Some(0)), picked(None, None)], [HUGE; 2]);
        assert_eq!(pick("tmpfs /dev/shm tmpfs rw 0 0\n", usable, |_| Some(1)), None);
        let own = pick(mounts, |dir| usable(dir).filter(|page| *page == GIB), |_| None);
        assert_eq!(own, Some(("/mnt/large pages".into(), GIB)), "the other is not this user's");
    }
}
