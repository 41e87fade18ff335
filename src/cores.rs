//! The cores a process may use. Hardware threads of one core share its arithmetic and its caches, so a core counts once,
//! however many threads it has.

use std::collections::BTreeSet;
use std::path::Path;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// The processors, as the system numbers them, that this process is bound to: each hardware thread is one. Empty where
/// the system does not tell.
pub fn bound_to() -> BTreeSet<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return BTreeSet::new() };
    (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect()
}

/// Of these processors the first of each core.
fn one_a_core(processors: &BTreeSet<usize>) -> BTreeSet<usize> {
    let folder = Path::new("/sys/devices/system/cpu");
    one_each(processors, |cpu| {
        let list = folder.join(format!("cpu{cpu}/topology/thread_siblings_list"));
        std::fs::read_to_string(list).map_or_else(|_| Vec::new(), |text| read_list(&text))
    })
}

/// How many cores this process may use, at least one.
pub fn count() -> usize {
    match one_a_core(&bound_to()).len() {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        // A container may be given less time than its processors have.
        cores => std::thread::available_parallelism().map_or(cores, |time| cores.min(time.get())),
    }
}

/// The first of each group of siblings. One whose siblings are not known is alone.
fn one_each(
    processors: &BTreeSet<usize>,
    siblings: impl Fn(usize) -> Vec<usize>,
) -> BTreeSet<usize> {
    let mut taken = BTreeSet::new();
    let mut firsts = BTreeSet::new();
    for &cpu in processors {
        if taken.insert(cpu) {
            firsts.insert(cpu);
            taken.extend(siblings(cpu));
        }
    }
    firsts
}

/// The numbers in a list as the kernel writes it: `0-3,8`. What cannot be read is left out.
pub fn read_list(list: &str) -> Vec<usize> {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let range = |part: &str| match part.split_once('-') {
        Some((first, last)) => Some(number(first)?..number(last)? + 1),
        None => number(part).map(|only| only..only + 1),
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(read_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(read_list("5"), [5]);
        assert_eq!(read_list("\n"), [0usize; 0]);
        assert_eq!(read_list("x,2-y,7-4,3"), [3]);
        assert_eq!(read_list("0,64\n"), [0, 64]);
    }

    #[test]
    fn a_core_counts_once() {
        // Two threads a core: 0 and 4, 1 and 5, ...
        let siblings = |cpu: usize| vec![cpu % 4, cpu % 4 + 4];
        let of = |list: &str| one_each(&read_list(list).into_iter().collect(), siblings);
        assert_eq!(of("0-7"), BTreeSet::from([0, 1, 2, 3]));
        // A rank bound to both threads of two cores, and one bound to one thread of each.
        assert_eq!(of("1,2,5,6"), BTreeSet::from([1, 2]));
        assert_eq!(of("4-6"), BTreeSet::from([4, 5, 6]));
        assert_eq!(of(""), BTreeSet::new());
        assert_eq!(one_each(&BTreeSet::from([3, 9]), |_| Vec::new()), BTreeSet::from([3, 9]));
    }

    #[test]
    fn this_process_may_use_some() {
        let processors = bound_to();
        assert!(!processors.is_empty());
        let firsts = one_a_core(&processors);
        assert!(!firsts.is_empty() && firsts.is_subset(&processors));
        assert!((1..=firsts.len()).contains(&count()));
    }
}
