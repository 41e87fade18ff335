//! Parser of `/proc/<pid>/stat`: state, parent, start time and other fields of a process or thread.
//!
//! `lock` uses this parser to find processes that are ending, and `supervise` to find live processes. The second field is a name
//! of the user's choice, which may contain spaces and brackets. So the other fields are counted from the last bracket on.

use std::fs;
use std::path::Path;
use std::str::FromStr;

/// Text of the `stat` file of a process or thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat(pub(super) String);

/// Number of the field with the state, the first field after the name.
const STATE: usize = 3;

impl Stat {
    /// Reads the file of a process; None if there is no such process.
    pub fn of(pid: u32) -> Option<Self> {
        Self::within(Path::new(&format!("/proc/{pid}")))
    }

    /// Reads the file from the folder of a process or thread. None if the file cannot be read.
    pub fn within(folder: &Path) -> Option<Self> {
        // The name is read as bytes. The kernel cuts a long name at a byte, which may be in the middle of a character.
        let line = fs::read(folder.join("stat")).ok()?;
        Some(Self(String::from_utf8_lossy(&line).into_owned()))
    }

    /// Returns a field after the name, by its number in proc(5), which counts from 1. None if there is no such field.
    pub fn field<T: FromStr>(&self, number: usize) -> Option<T> {
        let (_, behind) = self.0.rsplit_once(')')?;
        behind.split_ascii_whitespace().nth(number.checked_sub(STATE)?)?.parse().ok()
    }

    /// State letter: `R`, `S`, `D`, `T` if stopped by a signal, `Z` if ended and not yet reaped, and others.
    pub fn state(&self) -> Option<char> {
        self.field(STATE)
    }

    pub fn parent(&self) -> Option<u32> {
        self.field(4)
    }

    /// Kernel flags of the process, as bits.
    pub fn flags(&self) -> Option<u64> {
        self.field(9)
    }

    /// Processor time in clock ticks, user and kernel together.
    pub fn ran(&self) -> Option<u64> {
        Some(self.field::<u64>(14)? + self.field::<u64>(15)?)
    }

    /// Returns true if the address of the environment is known. During exec the address is unknown, because the kernel sets it
    /// last.
    pub fn has_variables(&self) -> bool {
        self.field(51).is_some_and(|end: u64| end > 0)
    }

    /// Start time in clock ticks since boot.
    pub fn started(&self) -> Option<u64> {
        self.field(22)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Line that Linux 6.1 has written, with the given name.
    fn named(name: &str) -> Stat {
        Stat(format!(
            "4242 ({name}) S 17 4242 17 34816 4300 4194304 120 99 1 2 3 4 5 6 39 19 1 0 987654321 2400256 200 \
             18446744073709551615 1 1 0 0 0 0 0 0 65536 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
        ))
    }

    #[test]
    fn fields_are_counted_behind_the_name_whatever_that_holds() {
        for name in
            ["skt-hpl", "", "a b", "a) b", ") R 1 2", "(sd-pam)", "((", "))", ") ", " )", "x\ny"]
        {
            let stat = named(name);
            assert_eq!(stat.state(), Some('S'), "{name:?}");
            assert_eq!(stat.parent(), Some(17), "{name:?}");
            assert_eq!(stat.flags(), Some(0x400000), "{name:?}");
            assert_eq!(stat.field::<i32>(19), Some(19), "{name:?}");
            assert_eq!(stat.ran(), Some(3 + 4), "{name:?}");
            assert_eq!(stat.started(), Some(987_654_321), "{name:?}");
        }
    }

    #[test]
    fn missing_fields_are_none() {
        for line in ["", "12", "12 (a", "12 (a)", "12 (a) "] {
            let stat = Stat(line.into());
            assert_eq!((stat.state(), stat.parent(), stat.started()), (None, None, None), "{line}");
        }
        let short = Stat("12 (a) R 1 x".into());
        assert_eq!((short.state(), short.parent(), short.flags()), (Some('R'), Some(1), None));
        // A letter gives no number, and there is no field before the name.
        assert_eq!(
            (short.field::<u32>(3), short.field::<u32>(5), short.field::<u32>(1)),
            (None, None, None)
        );
        assert_eq!(Stat::of(u32::MAX / 2), None);
    }

    #[test]
    fn this_process_is_running_and_its_parents_child() {
        let own = Stat::of(std::process::id()).unwrap();
        assert_eq!(own.parent(), Some(std::os::unix::process::parent_id()));
        assert!(own.state().is_some_and(|state| "RSD".contains(state)), "{own:?}");
        assert!(own.started() > Some(0), "{own:?}");
    }
}
