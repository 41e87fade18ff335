//! Power of the nodes while a test is solved. One rank of each node reads the power of its node once a second. The sum over all
//! nodes is reported.
//!
//! Sources, in this order: a user's command that prints watts, the node's own meter (ACPI, by hwmon), the processors' energy
//! counters (RAPL) and, if devices compute, the devices' energy counters (NVML). A node without any source is not measured. If no
//! node is measured, the power is not reported, and there is a warning only if the user gave a command. Measurements never keep a
//! run from starting or ending: unreadable values are left out, and a command that hangs is ended.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Once};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::node_facts::entries;
use crate::base::cores;
use crate::base::new_thread;
use crate::base::outcome::Power;
use crate::base::terminal::say;
use crate::base::timed_command::ask;
use crate::comm::{Comm, Reduce};
use crate::device::Energy;

/// Time between two readings of a node's power.
const EVERY: Duration = Duration::from_secs(1);
/// Time limit of a `--power-command`.
const COMMAND_LIMIT: Duration = Duration::from_secs(5);

/// Source of a node's power readings.
#[derive(Clone)]
pub enum Source {
    /// Command of the user that prints the node's power in watts.
    Command(String),
    /// Files that contain a power in microwatts.
    Hwmon(Vec<PathBuf>),
    Counters(Counters),
}

/// Counters of the energy used so far.
#[derive(Clone, Default)]
pub struct Counters {
    /// Files of the processors' counters, in microjoules. Each file has the value after which its counter starts again from zero.
    rapl: Vec<(PathBuf, u64)>,
    devices: Option<Arc<Energy>>,
}

/// Names of the sources in the JSON document. Ranks exchange the index of a name.
const NAMES: [&str; 5] = ["command", "hwmon", "rapl", "nvml", "rapl+nvml"];

/// Result of one reading of a source: a power, or the values of all energy counters.
#[derive(Clone, Debug, PartialEq)]
enum Reading {
    Watts(f64),
    Microjoules(Vec<u64>),
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn is(folder: &Path, name: &str) -> bool {
    fs::read_to_string(folder.join("name")).is_ok_and(|text| text.trim() == name)
}

/// Returns the power in a meter's file, in microwatts. Returns `None` if the file cannot be read, or if the firmware has no
/// value. In the latter case the file contains the largest 32-bit number of milliwatts.
fn microwatts(file: &Path) -> Option<u64> {
    number(file).filter(|&microwatts| microwatts < u64::from(u32::MAX) * 1000)
}

/// Returns the files of the meters that measure a whole node. Other sensors in the folder measure a card or a part of the node.
fn meters(hwmon: &Path) -> Vec<PathBuf> {
    // The driver's files are in one of two folders, depending on the kernel's version.
    let places = entries(hwmon).into_iter().filter_map(|folder| {
        [folder.join("device"), folder].into_iter().find(|place| is(place, "power_meter"))
    });
    let mut found: Vec<(String, PathBuf)> = places
        .filter_map(|place| {
            let files = ["power1_average", "power1_input"].map(|name| place.join(name));
            let file = files.into_iter().find(|file| microwatts(file).is_some())?;
            Some((fs::read_to_string(place.join("power1_oem_info")).unwrap_or_default(), file))
        })
        .collect();
    // Some processors have nested meters: the meter of a module includes a processor, and the meter of a processor includes its
    // cores and interconnects.
    let is_of = |label: &str, what: &str| label.trim_start().starts_with(what);
    let all = ["Module Power", "Grace Power"];
    if let Some(whole) = all.iter().find(|what| found.iter().any(|(label, _)| is_of(label, what))) {
        found.retain(|(label, _)| is_of(label, whole));
    }
    found.into_iter().map(|(_, file)| file).collect()
}

impl Source {
    /// Finds the source of this node's power readings, or returns `None`. `command` is the value of --power-command. `energy`
    /// opens the counters of the node's devices, if devices compute.
    pub fn here(command: Option<&str>, energy: impl FnOnce() -> Option<Energy>) -> Option<Source> {
        Source::under(Path::new("/"), command, energy)
    }

    fn under(
        root: &Path,
        command: Option<&str>,
        energy: impl FnOnce() -> Option<Energy>,
    ) -> Option<Source> {
        if let Some(command) = command {
            return Some(Source::Command(command.to_owned()));
        }
        let meters = meters(&root.join("sys/class/hwmon"));
        if !meters.is_empty() {
            return Some(Source::Hwmon(meters));
        }
        // `intel-rapl:0` is a processor, and `intel-rapl:0:1` is a part of it. The processor's counter includes all parts but
        // the memory.
        let mut rapl = Vec::new();
        for zone in entries(&root.join("sys/class/powercap")) {
            let name = zone.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let parts = name.strip_prefix("intel-rapl:").map_or(0, |rest| rest.split(':').count());
            let counts = match parts {
                1 => fs::read_to_string(zone.join("name"))
                    .is_ok_and(|text| text.starts_with("package")),
                2 => is(&zone, "dram"),
                _ => false,
            };
            let file = zone.join("energy_uj");
            if counts && number(&file).is_some() {
                rapl.push((file, number(&zone.join("max_energy_range_uj")).unwrap_or(u64::MAX)));
            }
        }
        let counters = Counters { rapl, devices: energy().map(Arc::new) };
        (!counters.rapl.is_empty() || counters.devices.is_some())
            .then_some(Source::Counters(counters))
    }

    fn code(&self) -> u64 {
        match self {
            Source::Command(_) => 0,
            Source::Hwmon(_) => 1,
            Source::Counters(Counters { devices: None, .. }) => 2,
            Source::Counters(Counters { rapl, .. }) if rapl.is_empty() => 3,
            Source::Counters(_) => 4,
        }
    }

    fn read(&self) -> Option<Reading> {
        match self {
            Source::Command(command) => watts_of(command).map(Reading::Watts),
            Source::Hwmon(files) => {
                let all: Option<Vec<u64>> = files.iter().map(|file| microwatts(file)).collect();
                all.map(|all| Reading::Watts(all.iter().sum::<u64>() as f64 / 1e6))
            }
            Source::Counters(Counters { rapl, devices }) => {
                let processors: Option<Vec<u64>> =
                    rapl.iter().map(|(file, _)| number(file)).collect();
                let devices =
                    devices.as_ref().map_or(Some(Vec::new()), |energy| energy.microjoules());
                Some(Reading::Microjoules([processors?, devices?].concat()))
            }
        }
    }

    /// Returns the values after which the processors' energy counters start again from zero, in microjoules. The counters of
    /// devices do not start again.
    fn ranges(&self) -> Vec<u64> {
        match self {
            Source::Counters(Counters { rapl, .. }) => {
                rapl.iter().map(|(_, range)| *range).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Runs a command, and returns the first word of its output as a number of watts. Returns `None` if the command fails, if it
/// takes too long, or if the word is no such number.
fn watts_of(command: &str) -> Option<f64> {
    let (status, text) = ask(Command::new("/bin/sh").args(["-c", command]), COMMAND_LIMIT).ok()?;
    let watts: f64 = text.split_whitespace().next()?.parse().ok()?;
    (status.success() && watts.is_finite() && watts >= 0.0).then_some(watts)
}

/// Energy of a node, added up from the readings so far. Pure.
#[derive(Clone, Debug, Default, PartialEq)]
struct Tally {
    last: Option<(f64, Reading)>,
    joules: f64,
    seconds: f64,
    readings: u64,
}

impl Tally {
    /// Adds a reading, taken `at_s` seconds after the measurement began. `ranges` has the values after which counters start
    /// again from zero.
    fn add(&mut self, at_s: f64, reading: Reading, ranges: &[u64]) {
        self.readings += 1;
        if let Some((before_s, before)) = &self.last {
            let seconds = at_s - before_s;
            let joules = match (before, &reading) {
                (Reading::Watts(a), Reading::Watts(b)) => (a + b) / 2.0 * seconds,
                (Reading::Microjoules(a), Reading::Microjoules(b)) => {
                    let ranges = ranges.iter().chain(std::iter::repeat(&u64::MAX));
                    let used = a.iter().zip(b).zip(ranges).map(|((a, b), range)| {
                        match range {
                            _ if b >= a => b - a,
                            // A counter that does not start again was reset.
                            &u64::MAX => 0,
                            range => range.saturating_sub(*a).saturating_add(*b),
                        }
                    });
                    used.map(|microjoules| microjoules as f64 / 1e6).sum()
                }
                _ => return,
            };
            self.joules += joules;
            self.seconds += seconds;
        }
        self.last = Some((at_s, reading));
    }
}

/// Measurement of one node's power, from `begin` to `end`. If the meter is dropped, its thread stops by itself.
pub struct Meter {
    code: u64,
    stop: Sender<()>,
    thread: JoinHandle<Tally>,
}

impl Meter {
    pub fn begin(source: Source) -> Option<Meter> {
        let (stop, stopped) = channel();
        let code = source.code();
        let measure = move || {
            // The thread and its commands must not run on the core of the thread that starts the measurement.
            cores::unpin();
            measured(&source, &stopped)
        };
        let thread = new_thread::start("power", measure).ok()?;
        Some(Meter { code, stop, thread })
    }

    /// Ends the measurement. Returns `None` if there are fewer than two readings.
    pub fn end(self) -> Option<Measured> {
        drop(self.stop);
        let tally = self.thread.join().ok()?;
        let enough = tally.readings > 1 && tally.seconds > 0.0;
        enough.then_some(Measured { code: self.code, tally })
    }
}

/// Reads `source` once a second until `stopped` reports the end, and once more at the end. Ends at once if the first reading
/// fails.
fn measured(source: &Source, stopped: &Receiver<()>) -> Tally {
    let (began, ranges) = (Instant::now(), source.ranges());
    let mut tally = Tally::default();
    loop {
        let reading = source.read();
        if let Some(reading) = reading {
            tally.add(began.elapsed().as_secs_f64(), reading, &ranges);
        } else if tally.readings == 0 {
            return tally;
        }
        if let Err(RecvTimeoutError::Disconnected) | Ok(()) = stopped.recv_timeout(EVERY) {
            if let Some(reading) = source.read() {
                tally.add(began.elapsed().as_secs_f64(), reading, &ranges);
            }
            return tally;
        }
    }
}

/// Energy of one node during a test.
#[derive(Debug)]
pub struct Measured {
    code: u64,
    tally: Tally,
}

/// Adds up the power of all nodes. One rank of each measured node passes its node's `measured`. Returns `None` if no node was
/// measured. In this case, warns if the user gave a `command`. Collective call.
pub fn sum(
    comm: &Comm,
    measured: Option<&Measured>,
    nodes: usize,
    command: Option<&str>,
) -> Option<Power> {
    let mut sums = [0.0; 3];
    let mut most = [0.0; 4];
    if let Some(Measured { code, tally }) = measured {
        sums = [1.0, tally.joules, tally.joules / tally.seconds];
        // The maximum of the negated value gives the minimum.
        most = [tally.seconds, *code as f64, -(*code as f64), -(tally.readings as f64)];
    } else {
        most[1..].fill(f64::NEG_INFINITY);
    }
    comm.all_reduce(&mut sums, Reduce::Sum);
    comm.all_reduce(&mut most, Reduce::Max);
    let [seconds, last, first, fewest] = most;
    if let Some(command) = command
        && sums[0] == 0.0
        && comm.rank() == 0
    {
        warn_of_lack(command);
    }
    (sums[0] > 0.0).then(|| Power {
        source: if last == -first { NAMES[last as usize].into() } else { "mixed".into() },
        nodes: nodes as u64,
        nodes_measured: sums[0] as u64,
        readings_min: -fewest as u64,
        seconds,
        joules: sums[1],
        watts: sums[2],
    })
}

/// Warns that the user's command has measured no node. The warning is printed only once in a run.
fn warn_of_lack(command: &str) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        let most = COMMAND_LIMIT.as_secs();
        say(format_args!(
            "warning: --power-command {command:?} measured no node, so the power is unknown. Within {most} s, the command must print \
             a number of watts as its first word, and end with status 0"
        ));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::files::tree;

    fn under(root: &Path, command: Option<&str>) -> Option<Source> {
        Source::under(root, command, || None)
    }

    const RAPL: [(&str, &str); 8] = [
        ("sys/class/powercap/intel-rapl:0/name", "package-0\n"),
        ("sys/class/powercap/intel-rapl:0/energy_uj", "900\n"),
        ("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "1000\n"),
        // The core is a part of the package, whose counter includes it. The counter does not include the memory.
        ("sys/class/powercap/intel-rapl:0:0/name", "core\n"),
        ("sys/class/powercap/intel-rapl:0:0/energy_uj", "500\n"),
        ("sys/class/powercap/intel-rapl:0:1/name", "dram\n"),
        ("sys/class/powercap/intel-rapl:0:1/energy_uj", "7\n"),
        ("sys/class/powercap/intel-rapl:0:1/max_energy_range_uj", "1000\n"),
    ];

    #[test]
    fn the_best_source_there_is_is_taken() {
        assert!(under(tree(&[]).path(), None).is_none());
        let rapl = tree(&RAPL);
        let found = under(rapl.path(), None).unwrap();
        assert_eq!(found.read(), Some(Reading::Microjoules(vec![900, 7])));
        assert_eq!(found.ranges(), [1000, 1000]);
        let mut all = RAPL.to_vec();
        all.extend([
            ("sys/class/hwmon/hwmon0/name", "amdgpu\n"),
            ("sys/class/hwmon/hwmon0/power1_average", "99000000\n"),
            ("sys/class/hwmon/hwmon1/name", "power_meter\n"),
            ("sys/class/hwmon/hwmon1/power1_average", "250500000\n"),
        ]);
        let both = tree(&all);
        assert_eq!(under(both.path(), None).unwrap().read(), Some(Reading::Watts(250.5)));
        let told = under(both.path(), Some("echo 12.5 W")).unwrap();
        assert_eq!(told.read(), Some(Reading::Watts(12.5)));
    }

    /// The folder of the meter's files depends on the kernel's version.
    #[test]
    fn a_meter_whose_files_lie_with_its_device_is_found() {
        let mut all = RAPL.to_vec();
        all.extend([
            ("sys/class/hwmon/hwmon1/device/name", "power_meter\n"),
            ("sys/class/hwmon/hwmon1/device/power1_average", "250500000\n"),
        ]);
        let found = under(tree(&all).path(), None);
        assert!(matches!(&found, Some(Source::Hwmon(files)) if files.len() == 1));
        // The meter has no value, so the counters are used.
        all[9] = ("sys/class/hwmon/hwmon1/device/power1_average", "4294967295000\n");
        let silent = tree(&all);
        assert!(matches!(under(silent.path(), None), Some(Source::Counters(_))));
        let file = silent.path().join("sys/class/hwmon/hwmon1/device/power1_average");
        assert_eq!(Source::Hwmon(vec![file]).read(), None);
    }

    #[test]
    fn meters_that_contain_one_another_are_not_added_up() {
        let meter = |at: usize, label: &str, watts: u64| {
            let folder = format!("sys/class/hwmon/hwmon{at}");
            [("name", "power_meter".to_owned()), ("power1_oem_info", label.to_owned())]
                .into_iter()
                .chain([("power1_average", format!("{watts}000000"))])
                .map(|(file, text)| (format!("{folder}/{file}"), text))
                .collect::<Vec<_>>()
        };
        let watts = |meters: &[(&str, u64)]| {
            let files: Vec<(String, String)> = (0..)
                .zip(meters)
                .flat_map(|(at, (label, watts))| meter(at, label, *watts))
                .collect();
            let files: Vec<(&str, &str)> =
                files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
            let dir = tree(&files);
            under(dir.path(), None)?.read()
        };
        let socket = [
            ("Grace Power Socket 0\n", 100),
            ("CPU Power Socket 0\n", 50),
            ("SysIO Power Socket 0\n", 6),
        ];
        assert_eq!(watts(&socket), Some(Reading::Watts(100.0)));
        let module = [&socket[..], &[("Module Power Socket 0", 400)]].concat();
        assert_eq!(watts(&module), Some(Reading::Watts(400.0)));
        let two = [("Grace Power Socket 0", 100), ("Grace Power Socket 1", 90)];
        assert_eq!(watts(&two), Some(Reading::Watts(190.0)));
        // Two power supplies without a description.
        assert_eq!(watts(&[("", 100), ("", 120)]), Some(Reading::Watts(220.0)));
    }

    #[test]
    fn a_command_that_says_nothing_of_use_measures_nothing() {
        for command in [
            "true",
            "echo no",
            "echo -5",
            "echo nan",
            "echo 5; false",
            "sleep 9 &",
            "/no/such/program",
        ] {
            assert_eq!(watts_of(command), None, "{command}");
        }
        // A child process that keeps the pipe open is not waited for.
        let began = Instant::now();
        assert_eq!(watts_of("sleep 20 & echo 3"), Some(3.0));
        assert!(began.elapsed() < COMMAND_LIMIT);
        let meter = Meter::begin(Source::Command("false".into())).unwrap();
        assert!(meter.end().is_none());
    }

    #[test]
    fn energy_adds_up_also_where_a_counter_starts_again() {
        let mut tally = Tally::default();
        for (at, used) in [(0.0, [900, 5]), (1.0, [990, 5]), (2.0, [40, 25])] {
            tally.add(at, Reading::Microjoules(used.to_vec()), &[1000, 1000]);
        }
        assert!((tally.joules - (90.0 + 50.0 + 20.0) / 1e6).abs() < 1e-12, "{tally:?}");
        let mut tally = Tally::default();
        for (at, watts) in [(0.0, 100.0), (2.0, 200.0), (3.0, 200.0)] {
            tally.add(at, Reading::Watts(watts), &[]);
        }
        assert_eq!((tally.joules, tally.seconds, tally.readings), (500.0, 3.0, 3));
    }

    #[test]
    fn a_stand_in_counter_is_measured_from_beginning_to_end() {
        let dir = tree(&RAPL);
        let meter = Meter::begin(under(dir.path(), None).unwrap()).unwrap();
        std::thread::sleep(Duration::from_secs(1));
        fs::write(dir.path().join("sys/class/powercap/intel-rapl:0/energy_uj"), "950\n").unwrap();
        let Measured { code, tally } = meter.end().unwrap();
        assert_eq!(NAMES[code as usize], "rapl");
        assert!((tally.joules - 50e-6).abs() < 1e-12 && tally.seconds >= 0.2, "{tally:?}");
    }
}
