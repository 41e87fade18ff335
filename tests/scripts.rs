//! What `scripts/run.sh` and the scripts it calls do on machines that are not like this one: little room in /dev/shm, cargo's
//! output elsewhere, no Debian.
//!
//! Nothing is built here: a cargo that does nothing stands in for the real one, and finds the program of the tests built.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

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

/// An executable of that name.
fn tool(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A folder below the repository's target folder, by a path that begins in the repository where that can be.
fn target(name: &str) -> (PathBuf, PathBuf) {
    let whole = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(whole.join("release")).unwrap();
    let told = whole.strip_prefix(repository()).map_or(whole.clone(), Path::to_path_buf);
    (whole, told)
}

/// With 64 MiB in /dev/shm, as containers have it, the first run's plan keeps the matrix elsewhere and the run ends well;
/// where there is room nowhere, it ends at the plan, which says of what there is too little. The program is looked for where
/// cargo puts it.
#[test]
fn the_first_run_where_shared_memory_is_short() {
    // SAFETY: geteuid cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root || !output(Command::new("unshare").args(["-mi", "true"])).status.success() {
        eprintln!("left out: a small /dev/shm needs root and a mount namespace");
        return;
    }
    let (whole, given) = target("first-run");
    let _ = fs::remove_file(whole.join("release/skt-hpl"));
    symlink(PROGRAM, whole.join("release/skt-hpl")).unwrap();
    let tools = tempfile::tempdir().unwrap();
    tool(tools.path(), "cargo", "#!/bin/sh\nexit 0\n");
    tool(tools.path(), "rustc", "#!/bin/sh\necho 'rustc 9.9.9 (made up)'\n");
    let path = format!("{}:{}", tools.path().display(), std::env::var("PATH").unwrap());
    let run = |before: &str, n: &str| {
        let script = format!(
            "mount -t tmpfs -o size=64m tmpfs /dev/shm && {before} && exec {}/scripts/run.sh -n {n}",
            repository().display()
        );
        let mut command = Command::new("unshare");
        command.args(["-mi", "sh", "-c", &script]).env("PATH", &path);
        // From a folder that is not the repository's.
        output(command.env("CARGO_TARGET_DIR", &given).current_dir("/"))
    };
    let planned = || fs::read_to_string(repository().join("target/run/skt.toml")).unwrap();
    let ran = run("true", "3000");
    assert!(ran.status.success() && told(&ran).contains("solution PASSED"), "{}", told(&ran));
    assert!(planned().contains("store = \"sysv\""), "{}", planned());
    let limit = "mount -t proc proc /proc && echo 1000000 >/proc/sys/kernel/shmmax";
    let ran = run(limit, "3000");
    let said = told(&ran);
    assert!(!ran.status.success() && !said.contains("== run"), "{said}");
    assert!(said.contains("/dev/shm") && said.contains("remount,size="), "{said}");
}

/// A variable, a file of cargo's, or nothing says where cargo builds; a path that is not whole begins in the repository.
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

/// A system without dpkg that has all the tools lacks nothing; what it does lack is named.
#[test]
fn what_is_missing_is_told_by_its_tools() {
    let tools = tempfile::tempdir().unwrap();
    let at = |name: &str| {
        let out = output(Command::new("sh").args(["-c", &format!("command -v {name}")]));
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    };
    // What scripts are written with, and no dpkg-query, apt-get or sudo.
    for name in [
        "bash", "env", "sh", "cc", "as", "ld", "sed", "awk", "grep", "sort", "head", "xargs",
        "basename", "dirname", "realpath", "ldconfig", "mpirun", "cat", "tr", "rm",
    ] {
        let place = at(name);
        if !place.is_empty() {
            tool(tools.path(), name, &format!("#!/bin/sh\nexec {place} \"$@\"\n"));
        }
    }
    // The module of a site: one name of each tool.
    let mpicc = at("mpicc");
    tool(
        tools.path(),
        "mpicc",
        &format!("#!/bin/sh\nPATH={} exec {mpicc} \"$@\"\n", std::env::var("PATH").unwrap()),
    );
    tool(tools.path(), "cargo", "#!/bin/sh\nexit 0\n");
    tool(tools.path(), "rustc", "#!/bin/sh\necho 'rustc 9.9.9 (made up)'\n");
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
