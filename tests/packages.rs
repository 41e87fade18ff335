//! Tests of `scripts/install.sh`, `scripts/package.sh` and the Spack recipe: installations and packages are complete and run.
//!
//! The packed program is the program that Cargo built for these tests. `scripts/try-package.sh`, which `scripts/test.sh` runs,
//! tests whether a package can be installed on a bare system.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

#[path = "mpi/left_out.rs"]
mod left_out;

use left_out::left_out;

const PROGRAM: &str = env!("CARGO_BIN_EXE_skt-hpl");

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn run(command: &mut Command) -> Output {
    let out = command.stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {errors}");
    out
}

fn text(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn script(name: &str) -> Command {
    Command::new(repository().join("scripts").join(name))
}

/// Returns the paths of all files below a folder, relative to the folder.
fn files(folder: &Path) -> BTreeSet<String> {
    fn walk(folder: &Path, top: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => walk(&path, top, found),
                false => {
                    found.insert(path.strip_prefix(top).unwrap().to_string_lossy().into_owned());
                }
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(folder, folder, &mut found);
    found
}

fn is_here(tool: &str) -> bool {
    Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Files that every installation and every package must contain: a page, an example and a completion of each kind.
const EXPECTED: [&str; 8] = [
    "bin/skt-hpl",
    "share/man/man1/skt-hpl.1",
    "share/man/man1/skt-hpl-run.1",
    "share/bash-completion/completions/skt-hpl",
    "share/zsh/site-functions/_skt-hpl",
    "share/fish/vendor_completions.d/skt-hpl.fish",
    "share/skt-hpl/hpl-configs/one-node.dat",
    "share/doc/skt-hpl/docs/INSTALLING.md",
];

#[test]
fn an_installation_runs_and_goes_without_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("a prefix");
    fs::create_dir_all(prefix.join("share/man/man1")).unwrap();
    fs::write(prefix.join("share/man/man1/other.1"), "").unwrap();
    let install =
        || run(script("install.sh").arg("--prefix").arg(&prefix).args(["--binary", PROGRAM]));
    install();
    let installed = files(&prefix);
    for expected in EXPECTED {
        assert!(installed.contains(expected), "{expected} is not among {installed:?}");
    }
    // A user sees a program that runs, a valid example, and completions that the shell can read.
    let program = prefix.join("bin/skt-hpl");
    let check = run(Command::new(&program)
        .arg("check")
        .arg(prefix.join("share/skt-hpl/hpl-configs/one-node.dat")));
    assert!(!text(&check).is_empty());
    run(Command::new("bash").arg("-n").arg(prefix.join(EXPECTED[3])));
    links_lead_somewhere(&prefix.join("share/doc/skt-hpl"));
    // A second installation removes an old file that the new version no longer has.
    let list = prefix.join("share/skt-hpl/installed-files");
    let old = prefix.join("share/skt-hpl/old");
    fs::write(&old, "").unwrap();
    fs::write(&list, fs::read_to_string(&list).unwrap() + "share/skt-hpl/old\n").unwrap();
    install();
    assert_eq!(files(&prefix), installed);
    run(script("install.sh").arg("--prefix").arg(&prefix).arg("--uninstall"));
    assert_eq!(files(&prefix), BTreeSet::from(["share/man/man1/other.1".to_owned()]));
    assert_eq!(fs::read_dir(&prefix).unwrap().count(), 1, "empty folders are left");
    let again =
        script("install.sh").arg("--prefix").arg(&prefix).arg("--uninstall").output().unwrap();
    assert_eq!(again.status.code(), Some(1));
}

/// Asserts that the links between the installed pages lead to installed files.
fn links_lead_somewhere(docs: &Path) {
    let link = regex::Regex::new(r"\]\(([^)#:]+)(#[^)]*)?\)").unwrap();
    for page in files(docs).iter().filter(|name| name.ends_with(".md")) {
        let page = docs.join(page);
        for found in link.captures_iter(&fs::read_to_string(&page).unwrap()) {
            let target = page.parent().unwrap().join(&found[1]);
            assert!(
                target.exists(),
                "{} links to {}, which is not installed",
                page.display(),
                &found[1]
            );
        }
    }
}

fn package(kind: &str, output: &Path) -> PathBuf {
    let mut make = script("package.sh");
    let made = run(make.arg(kind).args(["--binary", PROGRAM]).arg("--output").arg(output));
    PathBuf::from(text(&made).lines().last().unwrap())
}

#[test]
fn a_deb_holds_the_installation_and_needs_what_the_program_is_linked_to() {
    if !is_here("dpkg-deb") || !is_here("dpkg-shlibdeps") {
        return left_out("dpkg-deb or dpkg-shlibdeps is missing");
    }
    let dir = tempfile::tempdir().unwrap();
    let made = package("deb", dir.path());
    let needs = text(&run(Command::new("dpkg-deb").arg("-f").arg(&made).arg("Depends")));
    let linked = text(&run(Command::new("ldd").arg(PROGRAM)));
    let mpi = if linked.contains("libmpich") {
        ["libmpich12", "mpich"]
    } else {
        ["libopenmpi", "openmpi-bin"]
    };
    let blas = if linked.contains("libblis") { "libblis" } else { "libopenblas" };
    for part in [mpi[0], mpi[1], blas] {
        assert!(needs.contains(part), "{part} is not among {needs}");
    }
    let unpacked = dir.path().join("unpacked");
    run(Command::new("dpkg-deb").arg("-x").arg(&made).arg(&unpacked));
    holds_the_installation(&unpacked);
    run(Command::new(unpacked.join("usr/bin/skt-hpl")).arg("--version"));
}

fn holds_the_installation(root: &Path) {
    let held = files(&root.join("usr"));
    for expected in EXPECTED {
        let expected =
            if expected.contains("man1") { format!("{expected}.gz") } else { expected.to_owned() };
        assert!(held.contains(&expected), "{expected} is not among {held:?}");
    }
    assert!(
        !held.iter().any(|file| file.contains("uninstall") || file.contains("installed-files"))
    );
}

#[test]
fn an_rpm_holds_the_installation_and_needs_what_the_program_is_linked_to() {
    if !is_here("rpmbuild") || !is_here("cpio") {
        return left_out("rpmbuild or cpio is missing; scripts/setup.sh installs them");
    }
    let dir = tempfile::tempdir().unwrap();
    let made = package("rpm", dir.path());
    let needs = text(&run(Command::new("rpm").args(["-qp", "--requires"]).arg(&made)));
    assert!(needs.contains("libmpi"), "{needs}");
    assert!(needs.contains("libblis") || needs.contains("libopenblas"), "{needs}");
    let unpack = "mkdir unpacked && cd unpacked && rpm2cpio \"$1\" | cpio -idm --quiet";
    run(Command::new("sh").args(["-c", unpack, "sh"]).arg(&made).current_dir(dir.path()));
    let unpacked = dir.path().join("unpacked");
    holds_the_installation(&unpacked);
    run(Command::new(unpacked.join("usr/bin/skt-hpl")).arg("--version"));
}

#[test]
fn the_spack_recipe_installs_with_a_stand_in_for_spack() {
    if !is_here("python3") {
        return left_out("python3 is missing");
    }
    let dir = tempfile::tempdir().unwrap();
    let rehearse = repository().join("scripts/packaging/spack/rehearse.py");
    let out = run(Command::new("python3").arg(rehearse).arg(dir.path()).arg(PROGRAM));
    assert!(text(&out).contains("runs: cargo build --locked --release"), "{}", text(&out));
    assert!(files(dir.path()).contains(EXPECTED[0]));
}
