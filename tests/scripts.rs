//! Tests of `scripts/run.sh` and other scripts on unusual machines: little room in /dev/shm, cargo's output elsewhere, no Debian,
//! another language, a user without sudo, a locked root account.
//!
//! The tests build nothing. A substitute for cargo does nothing, as if the program of the tests were its build.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

#[path = "mpi/left_out.rs"]
mod left_out;

use left_out::left_out;

const PROGRAM: &str = env!("CARGO_BIN_EXE_skt-hpl");

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

fn told(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Makes an executable file.
fn tool(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Makes a cargo that builds nothing, and a rustc that reports `version`.
fn rust(folder: &Path, version: &str) {
    tool(folder, "cargo", "#!/bin/sh\nexit 0\n");
    tool(folder, "rustc", &format!("#!/bin/sh\necho 'rustc {version} (made up)'\n"));
}

/// Returns PATH with `folder` in front.
fn path_with(folder: &Path) -> String {
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

fn is_root() -> bool {
    // SAFETY: geteuid cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Returns the path of a program; None if it is not in PATH.
fn place_of(name: &str) -> Option<String> {
    let out = output(Command::new("sh").args(["-c", &format!("command -v {name}")]));
    let place = String::from_utf8(out.stdout).unwrap().trim().to_owned();
    (!place.is_empty()).then_some(place)
}

/// Returns true if `unshare` can create namespaces of all `kinds`.
fn unshares(kinds: &[&str]) -> bool {
    output(Command::new("unshare").args(kinds).arg("true")).status.success()
}

/// Makes a folder inside the target folder. Returns its full path, and its path relative to the repository if possible.
fn target(name: &str) -> (PathBuf, PathBuf) {
    let whole = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(whole.join("release")).unwrap();
    let told = whole.strip_prefix(repository()).map_or(whole.clone(), Path::to_path_buf);
    (whole, told)
}

/// Environment of a call of `scripts/run.sh`: a folder of tools, with a cargo and a rustc, and a folder that replaces the
/// script's output folder in the repository.
struct FirstRun {
    tools: tempfile::TempDir,
    written: tempfile::TempDir,
    target: PathBuf,
}

impl FirstRun {
    /// Makes the environment. Returns None, and notes that the test is left out, if this needs rights that the test does not
    /// have.
    #[track_caller]
    fn new(name: &str) -> Option<FirstRun> {
        if !is_root() || !unshares(&["-mi"]) {
            left_out("a /dev/shm of its own needs root and a mount namespace");
            return None;
        }
        let (whole, target) = target(name);
        let _ = fs::remove_file(whole.join("release/skt-hpl"));
        symlink(PROGRAM, whole.join("release/skt-hpl")).unwrap();
        let tools = tempfile::tempdir().unwrap();
        rust(tools.path(), "9.9.9");
        fs::create_dir_all(repository().join("target/run")).unwrap();
        let first = FirstRun { tools, written: tempfile::tempdir().unwrap(), target };
        first.launched_with("\"$@\"");
        Some(first)
    }

    /// Makes every launcher that the script may choose run the launcher of the program's MPI. `words` are its arguments, in which
    /// `"$@"` stands for those of the script.
    fn launched_with(&self, words: &str) {
        let own = std::env::var("SKT_TEST_MPIRUN").ok();
        for name in ["mpirun.openmpi", "mpirun"] {
            if let Some(place) = place_of(own.as_deref().unwrap_or(name)) {
                let text = format!("#!/usr/bin/env bash\nexec {place} {words}\n");
                tool(self.tools.path(), name, &text);
            }
        }
    }

    /// Runs a shell command on a machine whose /dev/shm has size `shm`. `$run` stands for `scripts/run.sh`.
    fn sh(&self, shm: &str, words: &str) -> Output {
        let home = repository().display();
        let script = format!(
            "mount -t tmpfs -o size={shm} tmpfs /dev/shm && mount --bind {} {home}/target/run || exit 99
             run={home}/scripts/run.sh
             {words}",
            self.written.path().display()
        );
        let mut command = Command::new("unshare");
        command.args(["-mi", "sh", "-c", &script]).env("PATH", path_with(self.tools.path()));
        // The current folder is not that of the repository.
        output(command.env("CARGO_TARGET_DIR", &self.target).current_dir("/"))
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.written.path().join(name)).unwrap()
    }
}

/// With 64 MiB in /dev/shm, as in containers, the plan of the first run uses System V memory and the run ends well. If no kind of
/// memory has room, the script ends at the plan, which reports the shortage. The program is found where cargo puts it.
#[test]
fn the_first_run_where_shared_memory_is_short() {
    let Some(first) = FirstRun::new("first-run") else { return };
    let ran = first.sh("64m", "exec $run -n 3000");
    assert!(ran.status.success() && told(&ran).contains("solution PASSED"), "{}", told(&ran));
    assert!(first.read("skt.toml").contains("store = \"sysv\""), "{}", first.read("skt.toml"));
    let limit = "mount -t proc proc /proc && echo 1000000 >/proc/sys/kernel/shmmax";
    let ran = first.sh("64m", &format!("{limit} && exec $run -n 3000"));
    let said = told(&ran);
    assert!(!ran.status.success() && !said.contains("== run"), "{said}");
    assert!(said.contains("/dev/shm") && said.contains("remount,size="), "{said}");
}

/// The first run starts two ranks in a batch job that has one task, and so one slot. Slurm's variables make it a Slurm job for
/// Open MPI.
#[test]
fn the_first_run_in_a_batch_job_of_one_task() {
    let Some(first) = FirstRun::new("batch-run") else { return };
    let version = output(Command::new(first.tools.path().join("mpirun")).arg("--version"));
    if told(&version).contains("HYDRA") {
        return left_out("MPICH has Slurm itself start its ranks, and there is none");
    }
    let ran = first.sh(
        "1g",
        "export SLURM_JOB_ID=7 SLURM_JOBID=7 SLURM_JOB_NODELIST=$(hostname) SLURM_NODELIST=$(hostname)
         export SLURM_JOB_NUM_NODES=1 SLURM_NNODES=1 SLURM_TASKS_PER_NODE=1
         exec $run -n 3000",
    );
    assert!(ran.status.success() && told(&ran).contains("solution PASSED"), "{}", told(&ran));
}

/// An interrupted run is resumed, even if a new plan would differ. Another problem is refused before its input overwrites the
/// files, and `--new` gives the interrupted run up.
#[test]
fn a_run_that_was_interrupted_is_gone_on_with() {
    let Some(first) = FirstRun::new("interrupted-run") else { return };
    // The launcher changes the interval of saves to every boundary. The script's own interval is longer than the run.
    first.launched_with("\"${@/#15s/1}\"");
    let ran = first.sh(
        "1g",
        "kill='env SKT_FAULT=1@committed:0:2:kill'
         $kill $run -n 2000; echo \"interrupted: $?\"
         cp ${run%/*}/../target/run/HPL.dat /dev/shm/before
         $run -n 1500; echo \"another: $?\"
         cmp /dev/shm/before ${run%/*}/../target/run/HPL.dat && echo 'the input is kept'
         $run; echo \"the same: $?\"
         $kill $run -n 2000 >/dev/null 2>&1
         $run -n 1500 --new; echo \"new: $?\"
         [ -e ${run%/*}/../target/run/again ] || echo 'nothing to start again'",
    );
    let said = told(&ran);
    let (_, after) = said.split_once("interrupted: ").expect(&said);
    assert!(!after.starts_with("0\n"), "{said}");
    assert!(after.contains("another: 1\n") && after.contains("the input is kept\n"), "{said}");
    assert!(after.contains("started by scripts/run.sh -n 2000"), "{said}");
    assert!(
        after.contains("resumes at boundary 2 of") && after.contains("the same: 0\n"),
        "{said}"
    );
    assert!(after.contains("new: 0\n") && after.contains("nothing to start again\n"), "{said}");
    assert_eq!(after.matches("solution PASSED").count(), 2, "{said}");
}

/// The scripts find the program in the target folder that a variable or cargo's configuration sets, or in the default one. A
/// relative path is relative to the repository.
#[test]
fn the_program_is_where_cargo_puts_it() {
    let script = format!("source {}/scripts/common.sh && release_program", repository().display());
    let found = |variable: Option<(&str, &str)>| {
        let mut bash = Command::new("bash");
        bash.args(["-c", &script]).current_dir("/");
        bash.env_remove("CARGO_TARGET_DIR").env_remove("CARGO_BUILD_TARGET_DIR").envs(variable);
        String::from_utf8(output(&mut bash).stdout).unwrap()
    };
    let here = repository().display();
    assert_eq!(
        found(Some(("CARGO_TARGET_DIR", "some/where"))),
        format!("{here}/some/where/release/skt-hpl\n")
    );
    assert_eq!(found(Some(("CARGO_TARGET_DIR", "/a b/c"))), "/a b/c/release/skt-hpl\n");
    assert_eq!(
        found(Some(("CARGO_BUILD_TARGET_DIR", "else"))),
        format!("{here}/else/release/skt-hpl\n")
    );
    assert!(found(None).ends_with("/release/skt-hpl\n"));
    assert!(found(None).starts_with('/'));
}

/// On a system without dpkg, nothing is reported as missing if all tools exist; missing tools are named.
#[test]
fn missing_packages_are_named_by_their_tools() {
    let tools = tempfile::tempdir().unwrap();
    // Tools that the scripts use, without dpkg-query, apt-get and sudo.
    for name in [
        "bash", "env", "sh", "cc", "as", "ld", "sed", "awk", "grep", "sort", "head", "xargs",
        "basename", "dirname", "realpath", "ldconfig", "mpirun", "cat", "tr", "rm",
    ] {
        if let Some(place) = place_of(name) {
            tool(tools.path(), name, &format!("#!/bin/sh\nexec {place} \"$@\"\n"));
        }
    }
    // A site's module provides each tool under one name.
    let mpicc = place_of("mpicc").unwrap_or_default();
    tool(
        tools.path(),
        "mpicc",
        &format!("#!/bin/sh\nPATH={} exec {mpicc} \"$@\"\n", std::env::var("PATH").unwrap()),
    );
    rust(tools.path(), "9.9.9");
    let setup = |more: &[&str]| {
        let mut command = Command::new(tools.path().join("bash"));
        command.arg(repository().join("scripts/setup.sh")).arg("--for-run").args(more);
        output(command.env("PATH", tools.path()).env_remove("HOME"))
    };
    let there = setup(&[]);
    assert!(there.status.success(), "{}", told(&there));
    assert!(told(&setup(&["--dry-run"])).starts_with("missing: nothing\n"));

    fs::remove_file(tools.path().join("mpicc")).unwrap();
    for out in [setup(&["--dry-run"]), setup(&[])] {
        let said = told(&out);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(
            said.contains("an MPI (mpicc, mpirun)") && said.contains("libopenmpi-dev"),
            "{said}"
        );
        assert!(!said.contains("libclang") && !said.contains("BLIS"), "{said}");
    }
    assert!(told(&setup(&[])).contains("not a Debian system"));
}

/// If the first Rust in PATH is too old, the scripts use that of rustup in the home folder; otherwise the first. Root's tools are
/// found with the PATH of a plain `su`.
#[test]
fn the_right_tools_come_first() {
    let folder = tempfile::tempdir().unwrap();
    let (system, home) = (folder.path().join("usr"), folder.path().join("home/.cargo/bin"));
    for place in [&system, &home] {
        fs::create_dir_all(place).unwrap();
    }
    let script =
        format!("source {}/scripts/common.sh && command -v rustc chroot", repository().display());
    let found = |version: &str| {
        rust(&system, version);
        rust(&home, "9.9.9");
        let mut bash = Command::new("bash");
        bash.args(["-c", &script]).env("HOME", folder.path().join("home"));
        bash.env("PATH", format!("{}:/usr/bin:/bin", system.display()));
        String::from_utf8(output(&mut bash).stdout).unwrap()
    };
    let (old, new) = (found("1.0.0"), found("9.9.8"));
    assert!(old.starts_with(&format!("{}/rustc\n", home.display())), "{old}");
    assert!(new.starts_with(&format!("{}/rustc\n", system.display())), "{new}");
    assert!(old.ends_with("/chroot\n"), "{old}");
}

/// Packages that apt offers are found even if apt prints another language.
#[test]
fn packages_are_found_in_every_language() {
    let tools = tempfile::tempdir().unwrap();
    rust(tools.path(), "1.0.0");
    for name in ["dpkg", "dpkg-query", "apt-get"] {
        tool(tools.path(), name, "#!/bin/sh\nexit 0\n");
    }
    let text = "#!/bin/sh\n[ \"$LC_ALL\" = C ] && word=Candidate || word=Installationskandidat\necho \"  $word: 9.9.9\"\n";
    tool(tools.path(), "apt-cache", text);
    let mut setup = Command::new("bash");
    setup.arg(repository().join("scripts/setup.sh")).args(["--for-run", "--dry-run"]);
    setup.env("PATH", path_with(tools.path())).env("LC_ALL", "de_DE.UTF-8").env_remove("HOME");
    let out = output(&mut setup);
    assert!(told(&out).contains("from Debian: rustc cargo\n"), "{}", told(&out));
}

/// If sudo refuses, the scripts report this with advice, and install nothing.
#[test]
fn a_sudo_that_refuses_is_told() {
    // In a user namespace without a mapping, root has another user id, but may still read root's files.
    if is_root() && !unshares(&["-U"]) {
        return left_out("root is to be somebody else, and there are no user namespaces");
    }
    let tools = tempfile::tempdir().unwrap();
    rust(tools.path(), "9.9.9");
    tool(tools.path(), "sudo", "#!/bin/sh\necho 'Sorry, you may not.' >&2\nexit 1\n");
    // The compiler does not work, and no package is installed.
    for name in ["cc", "dpkg-query", "apt-get"] {
        tool(tools.path(), name, "#!/bin/sh\nexit 1\n");
    }
    let mut setup = Command::new(if is_root() { "unshare" } else { "bash" });
    if is_root() {
        setup.args(["-U", "bash"]);
    }
    setup.arg(repository().join("scripts/setup.sh")).arg("--for-run");
    let out = output(setup.env("PATH", path_with(tools.path())).env_remove("CC"));
    let said = told(&out);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("sudo does not let") && said.contains("apt-get install"), "{said}");
    assert!(!said.contains("installing:") && !said.contains("reading the lists"), "{said}");
}

/// `scripts/install.sh --binary` accepts the installed program itself.
#[test]
fn the_installed_program_is_installed_again() {
    let prefix = tempfile::tempdir().unwrap();
    let installed = prefix.path().join("bin/skt-hpl");
    for program in [Path::new(PROGRAM), &installed] {
        let mut install = Command::new("bash");
        install.arg(repository().join("scripts/install.sh")).arg("--prefix").arg(prefix.path());
        let out = output(install.arg("--binary").arg(program));
        assert!(out.status.success(), "{}", told(&out));
        assert!(output(Command::new(&installed).arg("--version")).status.success());
    }
}

/// `scripts/test.sh` starts no tests on `--help` or on a wrong argument.
#[test]
fn the_script_of_all_tests_refuses_what_it_does_not_know() {
    let with = |word: &str| {
        output(Command::new("bash").arg(repository().join("scripts/test.sh")).arg(word))
    };
    let asked = with("--help");
    assert!(
        asked.status.success() && told(&asked).contains("usage: scripts/test.sh"),
        "{}",
        told(&asked)
    );
    assert_eq!(with("blas").status.code(), Some(2));
}

/// If the MPI changes, the scripts build again, although cargo sees no change. A clone is built for two MPIs, one after the
/// other.
#[test]
fn another_mpi_is_built_for_although_cargo_sees_no_change() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        tool(dir.path(), name, &format!("#!/bin/sh\n{text}\n"));
        dir.path().join(name)
    };
    let log = dir.path().join("log");
    put("cargo", &format!("echo \"$*\" >>{}; mkdir -p target/release/build", log.display()));
    let mpis = ["one", "two"].map(|mpi| put(&format!("mpicc.{mpi}"), &format!("echo gcc -l{mpi}")));
    let common = repository().join("scripts/common.sh");
    let build = |mpi: &Path| {
        let _ = fs::remove_file(&log);
        let script = format!(
            "source {}; PATH={dir}:$PATH; root_dir={dir}; CARGO_TARGET_DIR=target; build_release",
            common.display(),
            dir = dir.path().display()
        );
        let out = output(Command::new("bash").args(["-euc", &script]).env("MPICC", mpi));
        assert!(out.status.success(), "{}", told(&out));
        fs::read_to_string(&log).unwrap()
    };
    let [one, two] = &mpis;
    let builds = "build --locked --release\n";
    assert_eq!(build(one), builds, "nothing is there that would have to go");
    assert_eq!(build(one), builds);
    let rebuilt = build(two);
    assert!(
        rebuilt.starts_with("clean ")
            && rebuilt.contains("-p mpi-sys")
            && rebuilt.ends_with(builds),
        "{rebuilt}"
    );
    assert_eq!(build(two), builds);
}

/// Returns shell commands that define `functions` of `scripts/test.sh`.
fn of_all_tests(functions: &[&str]) -> String {
    let home = repository().display();
    let mut words = format!("set -euo pipefail; source {home}/scripts/common.sh\n");
    for function in functions {
        words +=
            &format!("eval \"$(sed -n '/^{function}() {{/,/^}}/p' {home}/scripts/test.sh)\"\n");
    }
    words
}

/// If /dev/shm is too small, `scripts/test.sh` starts once more with a larger one. If that is impossible, it continues.
#[test]
fn all_tests_have_room_in_shared_memory() {
    if !is_root() || !unshares(&["-m"]) {
        return left_out("a /dev/shm of its own needs root and a mount namespace");
    }
    let sizes = |shm: &str, before: &str| {
        let script = format!(
            "{}mount -t tmpfs -o size={shm} tmpfs /dev/shm || exit 99
             {before}
             with_room_in_shm df --output=size -k /dev/shm
             if shm_is_short; then echo short; else echo enough; fi",
            of_all_tests(&["shm_is_short", "with_room_in_shm"])
        );
        let out = output(Command::new("unshare").args(["-m", "bash", "-c", &script]));
        assert!(out.status.success(), "{}", told(&out));
        String::from_utf8(out.stdout).unwrap()
    };
    let moved = sizes("64m", "");
    assert!(
        moved.starts_with("/dev/shm has less than 1 GiB") && moved.contains("2097152"),
        "{moved}"
    );
    assert_eq!(sizes("1g", ""), "enough\n");
    assert_eq!(sizes("64m", "export SKT_TEST_OWN_SHM=1"), "short\n");
    assert_eq!(sizes("64m", "unshare() { false; }"), "short\n");
}

/// If the system's Open MPI continues after a lost process, `scripts/test.sh` runs the tests of this behaviour with it. Otherwise
/// these tests are skipped for it.
#[test]
fn tests_of_lost_processes_are_those_of_the_mpi() {
    let tools = tempfile::tempdir().unwrap();
    let functions = [
        "skip",
        "open_mpi_goes_on",
        "node_loss",
        "ranks",
        "node_loss_with_open_mpi",
        "with_open_mpi_5",
    ];
    let script = format!(
        "{}
         tests() {{ shift; echo \"run: $*\"; }}
         nodes_missing() {{ :; }}; shm_is_short() {{ false; }}
         open_mpi=(system); open_mpi_5=(own); clusters=1; skipped=(); blas=(); not_in_nonstop=()
         OPENMPI5_DIR=/nowhere
         open_mpi_version=$(open_mpi_major \"$(mpi_tool mpirun openmpi)\")
         node_loss_with_open_mpi
         with_open_mpi_5",
        of_all_tests(&functions),
    );
    let runs = |version: &str| {
        let text = format!("#!/bin/sh\necho 'mpirun ({version}'\necho\necho 'Report bugs'\n");
        for name in ["mpirun", "mpirun.openmpi"] {
            tool(tools.path(), name, &text);
        }
        let mut bash = Command::new("bash");
        let out = output(bash.args(["-c", &script]).env("PATH", path_with(tools.path())));
        assert!(out.status.success(), "{}", told(&out));
        told(&out)
    };
    let old = runs("OpenRTE) 4.1.4");
    assert!(old.contains("--skip in_place::") && !old.contains("without_ulfm::"), "{old}");
    assert!(!old.contains("--test nonstop") && old.contains("--with-openmpi5"), "{old}");
    let new = runs("Open MPI) 5.0.7");
    assert!(new.contains("--skip without_ulfm::") && !new.contains("in_place::"), "{new}");
    assert!(new.contains("run: system cargo test") && new.contains("--test nonstop"), "{new}");
    assert!(!new.contains("--with-openmpi5"), "{new}");
}

/// A suite without time is reported as skipped. If the deadline ends a suite, its completed tests count.
#[test]
fn tests_without_time_are_told_as_skipped() {
    let script = format!(
        "{}passed=0; failed=0; failures=(); skipped=(); retried=(); times=()
         log=$(mktemp) notes_log=$(mktemp)
         deadline=$((SECONDS + 50)); tests late false
         printf 'test a ... ok\\ntest b ... ok\\ntest c ...' >$log
         deadline=$SECONDS; count cut $log $notes_log 124 9
         printf '%s\\n' \"${{skipped[@]}}\" \"$passed passed, $failed failed\"",
        of_all_tests(&["skip", "tests", "count", "what_failed"])
    );
    let out = output(Command::new("bash").args(["-c", &script]));
    let text = told(&out);
    assert!(text.contains("late: NO TIME LEFT, not run"), "{text}");
    assert!(text.contains("cut: NO TIME LEFT after 2 of its tests"), "{text}");
    assert!(text.ends_with("2 passed, 0 failed\n"), "{text}");
}

/// `scripts/test.sh` prints its summary, however many tests fail.
#[test]
fn very_many_failures_are_summed_up() {
    let mut log = String::new();
    for i in 0..3000 {
        log +=
            &format!("---- test {i} stdout ----\n{}\n", format!("{}\n", "x".repeat(100)).repeat(5));
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), log + "failures:\n").unwrap();
    let script = format!(
        "{}failures=()
         failures+=(\"$(what_failed {})\")
         wc -l <<<\"${{failures[0]}}\"",
        of_all_tests(&["what_failed"]),
        file.path().display()
    );
    let out = output(Command::new("bash").args(["-c", &script]));
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "200", "{}", told(&out));
}

/// Virtual nodes can be reached even if root's account is locked, as on systems with sudo.
#[test]
fn a_locked_root_is_let_into_virtual_nodes() {
    let bridge = "unshare --net ip link add probe type bridge";
    let sshd = Path::new("/usr/sbin/sshd").exists();
    if !is_root()
        || !sshd
        || !unshares(&["--net", "--ipc", "--uts", "--mount", "--pid", "--fork"])
        || !output(Command::new("sh").args(["-c", bridge])).status.success()
    {
        return left_out("virtual nodes need root, sshd, namespaces and network devices");
    }
    let shadow = tempfile::NamedTempFile::new().unwrap();
    let script = format!(
        "sed 's/^root:[^:]*:/root:!:/' /etc/shadow >{copy} && mount --bind {copy} /etc/shadow || exit 99
         vcluster='{home}/scripts/vcluster -c locked{id}'
         $vcluster up 1 --shm 8m --while $$
         $vcluster ssh n1 echo let in
         $vcluster down",
        copy = shadow.path().display(),
        home = repository().display(),
        id = std::process::id()
    );
    let out = output(Command::new("unshare").args(["--mount", "sh", "-c", &script]));
    assert!(told(&out).contains("let in\n"), "{}", told(&out));
}
