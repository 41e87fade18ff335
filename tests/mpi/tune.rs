//! Tests of `skt-hpl tune` with real jobs. The jobs are small: the benchmark `tuning` and simulated machines test whether `tune`
//! finds the best settings.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigHandler, Signal, kill};
use nix::unistd::Pid;

use crate::dat::Dat;
use crate::inheriting::inheriting;
use crate::job::{Job, PROGRAM, for_a_launcher, mpirun};

fn tune(dir: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    let launcher = format!("{} -np {{ranks}}", mpirun());
    command.args(["tune", "--cores", "2", "--launch-command", &launcher, "--write"]);
    command.arg(dir).args(flags).stdin(Stdio::null()).current_dir(dir);
    for_a_launcher(&mut command);
    command
}

/// Returns the command of a search for a small problem.
fn tune_small(dir: &Path, flags: &[&str]) -> Command {
    tune(dir, &[&["-n", "700"], flags].concat())
}

fn kept(dir: &Path) -> serde_json::Value {
    let text = std::fs::read(dir.join("tune.json")).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn measured(dir: &Path) -> Vec<serde_json::Value> {
    kept(dir)["measured"].as_array().cloned().unwrap_or_default()
}

/// A killed search resumes with the measurements that it has. The settings that it finds run, and pass the check.
#[test]
fn an_interrupted_search_goes_on_and_what_it_finds_runs() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    // The budget is large enough to leave measurements for the resumed search, even on a fast machine.
    let flags = ["--budget", "8s", "--nb", "16,24,32"];
    let mut first = tune_small(dir, &flags).stderr(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    while measured(dir).len() < 2 {
        assert!(began.elapsed() < Duration::from_secs(120), "two measurements take a second or so");
        assert!(first.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(5));
    }
    first.kill().unwrap();
    first.wait().unwrap();
    let before = measured(dir);

    let out = tune_small(dir, &flags).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{said}");
    assert!(said.contains("resumes with N = 700: "), "{said}");
    let told = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        told.contains("The best candidate") && told.contains("How certain the result is"),
        "{told}"
    );
    let after = measured(dir);
    assert_eq!(after[..before.len()], before, "what was measured stands");
    assert_eq!(kept(dir)["tuned"]["measured"], after.len());
    for measurement in &after {
        assert!(measurement["found"]["seconds"].as_f64().unwrap() > 0.0, "{measurement}");
    }

    let out = for_launch(dir).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && text.contains("PASSED"), "{text}\n{out:?}");
    assert!(text.contains("N      :     700"), "{text}");

    let other = tune_small(dir, &["--budget", "8s", "--nb", "20"]).output().unwrap();
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(!other.status.success() && said.contains("--new discards the measurements"), "{said}");
    assert!(said.contains("--nb: 16,24,32 there, 20 now"), "{said}");
    assert_eq!(measured(dir), after, "nothing is lost by that");
}

fn for_launch(dir: &Path) -> Command {
    let mut command = Command::new(dir.join("launch.sh"));
    for_a_launcher(&mut command);
    // A user's shell does not have the variables with which tests run Open MPI as root.
    command.env_remove("OMPI_ALLOW_RUN_AS_ROOT").env_remove("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM");
    command
}

/// Without `-n`, a search chooses N by the free memory, which differs at the next start. A resumed search keeps its N.
#[test]
fn a_search_without_n_goes_on_whatever_memory_is_free() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let flags = ["--budget", "2s", "--nb", "24"];
    let first = tune_small(dir, &flags).output().unwrap();
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let before = measured(dir);
    let again = tune(dir, &flags).output().unwrap();
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(again.status.success() && said.contains("resumes with N = 700: "), "{said}");
    assert_eq!(measured(dir)[..before.len()], before);
    // N was not given by the user, so it is a multiple of NB.
    let dat = std::fs::read_to_string(dir.join("HPL.dat")).unwrap();
    assert!(dat.lines().nth(5).unwrap().starts_with("696"), "{dat}");
}

/// A search with a device times the matrix in device memory. The run that it finds takes place there, too.
#[test]
fn a_search_with_a_device_finds_a_run_on_it() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let flags = ["--budget", "4s", "--nb", "24,32", "--device", "host"];
    let out = tune_small(dir, &flags).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let all = measured(dir);
    assert!(all.iter().all(|one| one["engine"] == "blas"), "{all:?}");
    assert!(all.iter().any(|one| one["found"]["seconds"].as_f64().is_some()), "{all:?}");
    let settings = fs::read_to_string(dir.join("skt.toml")).unwrap();
    assert!(settings.contains("device = \"host\""), "{settings}");
    let out = for_launch(dir).args(["--json", "run.json"]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && text.contains("PASSED"), "{text}\n{out:?}");
    let run: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.join("run.json")).unwrap()).unwrap();
    assert!(run.to_string().contains("in place of a device"), "{run}");
}

#[test]
fn a_failed_measurement_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    for (flags, status, words) in [
        (
            &["--launch-command", "/no/such/launcher {ranks}"][..],
            6,
            "name another with --launch-command",
        ),
        (&["--launch-command", "false"], 6, "the first job could not be run"),
        (&["--nb", "0"], 2, "1 or more"),
        (&["-p", "1,2", "-q", "2"], 2, "in pairs"),
        (&["-p", "3", "-q", "5", "--ranks-per-node", "2"], 6, "no grid fits the number of ranks"),
    ] {
        let dir = folder.path().join(words.replace(' ', "-"));
        std::fs::create_dir(&dir).unwrap();
        let out = tune_small(&dir, flags).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(status), "{flags:?}: {said}");
        assert!(said.contains(words), "{flags:?}: {said}");
    }
}

/// Writes a launcher script to `dir`, and returns its command. Its arguments are the number of ranks, the program, and the
/// arguments of the program.
fn own_launcher(dir: &Path, script: &str) -> String {
    let path = dir.join("launcher.sh");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{} {{ranks}}", path.display())
}

/// Runs `tune` with few candidates. Returns its exit code and its output.
fn tune_few(dir: &Path, launcher: &str) -> (Option<i32>, String) {
    // All candidates have enough iterations for the final measurements, of three parts each.
    let flags =
        ["--nb", "16,18,20,22", "--ranks-per-node", "2", "-p", "1", "-q", "2", "--budget", "4s"];
    let mut command = Command::new(PROGRAM);
    command.args(["tune", "-n", "700", "--cores", "2", "--write", "best"]).args(flags);
    command.args(["--launch-command", launcher]).stdin(Stdio::null()).current_dir(dir);
    for_a_launcher(&mut command);
    let out = command.output().unwrap();
    (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
}

fn failed(dir: &Path) -> Vec<serde_json::Value> {
    let all = measured(&dir.join("best")).into_iter();
    all.filter(|one| one["found"].is_null()).collect()
}

/// The launcher fails during the final measurements. A candidate that was not measured then is not recorded as unable to run, and
/// the search can resume.
#[test]
fn a_search_that_lost_its_launcher_goes_on_when_that_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let script = format!(
        "for file in \"$@\"; do case $file in *trials.json) break;; esac; done\n\
         if [ -e broken ] && [ $(grep -o '\"start\"' $file | wc -l) -eq $((3 * $(grep -o stretches $file | wc -l))) ]\n\
         then echo the daemon is lost >&2; exit 1; fi\n\
         exec {} -np \"$@\"",
        mpirun()
    );
    let launcher = own_launcher(dir, &script);
    fs::write(dir.join("broken"), "").unwrap();
    let (status, said) = tune_few(dir, &launcher);
    assert_eq!(status, Some(6), "{said}");
    assert!(said.contains("none of the best candidates could be run again"), "{said}");
    assert!(said.contains("the daemon is lost"), "{said}");
    assert!(failed(dir).is_empty(), "{:?}", failed(dir));
    fs::remove_file(dir.join("broken")).unwrap();
    let (status, said) = tune_few(dir, &launcher);
    assert_eq!(status, Some(0), "{said}");
}

/// Each job dies after its first measurement, while another candidate is measured. Only this candidate is lost; all others are
/// measured.
#[test]
fn a_job_that_dies_costs_only_the_candidate_it_ran() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let script = format!(
        "[ -e broken ] || exec {0} -np \"$@\"\n\
         {0} -np \"$@\" > told 2> errors || {{ cat errors >&2; exit 1; }}\n\
         grep -e engine -e seconds told | head -n 2\n\
         echo killed >&2\nexit 1",
        mpirun()
    );
    let launcher = own_launcher(dir, &script);
    fs::write(dir.join("broken"), "").unwrap();
    let (status, said) = tune_few(dir, &launcher);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("killed"), "{said}");
    let (all, lost) = (measured(&dir.join("best")).len(), failed(dir).len());
    assert!(lost > 0 && 2 * lost <= all, "{lost} of {all}: {said}");
    fs::remove_file(dir.join("broken")).unwrap();
    let (status, said) = tune_few(dir, &launcher);
    assert_eq!(status, Some(0), "{said}");
    assert!(failed(dir).is_empty(), "they are measured again: {:?}", failed(dir));
}

/// Waits until `holds` returns true. Panics after 60 s, and names `what` in the message.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts a command whose job never ends. Returns the command, and the process of the job after it has started.
fn for_ever(dir: &Path, words: &[&str]) -> (Child, Pid) {
    // The launcher starts a script within a script. So the command must end more than the launcher itself.
    let launcher = own_launcher(dir, "sh -c 'echo $$ > pid.new; mv pid.new pid; sleep 300; :'; :");
    let mut command = Command::new(PROGRAM);
    command.args(words).args(["--cores", "2", "--launch-command", &launcher]);
    command.stdin(Stdio::null()).stderr(Stdio::piped()).current_dir(dir);
    for_a_launcher(&mut command);
    fs::create_dir_all(dir.join("tmp")).unwrap();
    for which in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        inheriting(&mut command, which, SigHandler::SigDfl);
    }
    let tune = command.env("TMPDIR", dir.join("tmp")).spawn().unwrap();
    until("the job starts", || dir.join("pid").exists());
    let pid = fs::read_to_string(dir.join("pid")).unwrap().trim().parse().unwrap();
    (tune, Pid::from_raw(pid))
}

fn lives(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

fn own_folders(dir: &Path) -> Vec<std::path::PathBuf> {
    let all = fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path());
    all.filter(|path| path.file_name().unwrap().to_string_lossy().contains("skt-hpl-")).collect()
}

#[test]
fn an_interrupted_search_leaves_neither_a_job_nor_a_folder() {
    for which in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        for (words, status, folders) in [
            (&["tune", "-n", "700"][..], 6, 1),
            (&["tune", "-n", "700", "--write", "best"], 75, 0),
            (&["tune", "-n", "700", "--nodes", "2"], 6, 1),
            // `plan` passes all settings of its job as flags, so it needs no folder.
            (&["plan", "--calibrate", "10s"], 6, 0),
            (&["plan", "--calibrate", "10s", "--memory", "4GB", "--nodes", "2"], 6, 0),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let dir = folder.path();
            let (tune, job) = for_ever(dir, words);
            // The program cannot know on which nodes this launcher starts ranks, so the folder must be visible to other nodes.
            let parent = dir.to_owned();
            let own = own_folders(&parent);
            assert_eq!(own.len(), folders, "{words:?}: {own:?}");
            for own in own {
                let mode = fs::metadata(&own).unwrap().permissions().mode() & 0o777;
                assert_eq!(mode, 0o700, "{}", own.display());
            }
            kill(Pid::from_raw(tune.id() as i32), which).unwrap();
            let out = tune.wait_with_output().unwrap();
            let left = lives(job);
            if left {
                let _ = kill(job, Signal::SIGKILL);
            }
            let said = String::from_utf8_lossy(&out.stderr);
            assert!(!left, "{which} {words:?}: the job runs on: {said}");
            assert_eq!(own_folders(&parent), [] as [&Path; 0], "{which} {words:?}: {said}");
            assert_eq!(out.status.code(), Some(status), "{which} {words:?}: {said}");
            assert!(said.contains("interrupted"), "{said}");
        }
    }
}

/// Without `--write`, a search does not use the folder that another search has left.
#[test]
fn without_write_a_search_begins_from_scratch() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let launcher = format!("{} -np {{ranks}}", mpirun());
    // The shell is replaced by the program, so both have the same process id.
    let script = "mkdir $TMPDIR/skt-hpl-tune-$$ && echo nonsense > $TMPDIR/skt-hpl-tune-$$/tune.json && exec \"$@\"";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh", PROGRAM, "tune", "-n", "700", "--cores", "2", "--budget", "1s"]);
    command.args(["--nb", "24", "--ranks-per-node", "1", "--launch-command", &launcher]);
    command.stdin(Stdio::null()).current_dir(dir).env("TMPDIR", dir);
    for_a_launcher(&mut command);
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(own_folders(dir).len(), 1, "its own is gone, the other one stays");
}

/// Stretches (ranges of iterations) of every kind of factorisation begin and end without leaving a message for the next stretch.
#[test]
fn stretches_of_every_kind_follow_each_other() {
    let dat = Dat {
        ns: vec![700],
        nbs: vec![16],
        grids: vec![(2, 2), (1, 3), (4, 1)],
        depths: vec![0, 1, 2],
        bcasts: vec![0, 1, 2, 3, 4, 5],
        ..Dat::default()
    };
    let tests = Job::tests(&dat).run().expect_code(0).json().tests;
    let trials: Vec<serde_json::Value> = tests
        .iter()
        .map(|test| {
            let stretches = [(0, 3), (5, 6), (20, 24), (40, 44)]
                .map(|(start, end)| serde_json::json!({ "start": start, "end": end }));
            serde_json::json!({ "test": test.params, "stretches": stretches })
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trials.json");
    std::fs::write(&file, serde_json::to_vec(&trials).unwrap()).unwrap();
    let ran = Job::of(PROGRAM.into(), 4)
        .args(&["trials", file.to_str().unwrap(), "--threads", "1"])
        .run()
        .expect_code(0);
    let lines: Vec<serde_json::Value> =
        ran.out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(lines[0]["engine"].is_string(), "{lines:?}");
    assert_eq!(lines.len() - 1, trials.len());
    for line in &lines[1..] {
        let seconds = line["seconds"].as_array().unwrap();
        assert_eq!(seconds.len(), 4);
        assert!(seconds.iter().all(|s| s.as_f64().unwrap() > 0.0), "{line}");
    }
}
