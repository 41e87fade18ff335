//! Tests of faults that are no node's: a program that fails by itself, and bad input. Tests also what `doctor` finds on nodes.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use skt_hpl::supervise::start::launcher::Launcher;

use crate::lab::{Lab, PROGRAM, launcher};
use crate::outages::launcher_by;

/// Three equal faults in a row are reported as a bug of the program.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_bug_is_told_from_bad_luck() {
    let lab = Lab::up(3, 0);
    let end = lab.stand_in("run", 60).flags(&["--export", "STAND_IN_CRASH_AT=5"]).start().end();
    assert_eq!(end.code, Some(4), "{}", end.told());
    assert_eq!(end.of("launched").len(), 3, "{}", end.told());
    assert!(end.errors.contains("bug"), "{}", end.told());
}

/// After bad input or a failed residual, the run is not tried again.
#[test]
#[ignore = "needs root and network namespaces"]
fn bad_input_and_a_failed_residual_end_the_run() {
    let lab = Lab::up(3, 0);
    for code in [1, 3] {
        let export = format!("STAND_IN_EXIT={code}");
        let run = lab.stand_in(&format!("run{code}"), 60).flags(&["--export", &export]).start();
        let end = run.end();
        assert_eq!(end.code, Some(code), "{}", end.told());
        assert_eq!(end.of("launched").len(), 1, "{}", end.told());
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn the_doctor_finds_what_is_wrong_where() {
    let lab = Lab::up(3, 0);
    let doctor = |bench: &[&str]| {
        let mut doctor = Command::new(PROGRAM);
        doctor.arg("doctor").arg("--hosts").arg(lab.list("hosts", 1, 3, 1)).arg("--no-mpi");
        doctor.arg("--rsh").arg(format!("ssh -F {}", lab.ssh_config().display()));
        doctor.args(bench);
        let out = doctor.output().unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let (code, text) = doctor(&[]);
    assert_eq!(code, Some(0), "{text}");
    // The BLAS of `--blas` exists on n1 and n3, but not on n2: each node has its own /dev/shm.
    let blas = "/dev/shm/libsite-blas.so";
    for node in ["n1", "n3"] {
        lab.vcluster(&[
            "ssh",
            node,
            &format!(
                "cp -L $(ldconfig -p | awk '/libopenblas.so.0/ {{ print $NF; exit }}') {blas}"
            ),
        ]);
    }
    let (code, text) = doctor(&["-n", "500", "--nb", "64", "-p", "1", "-q", "3", "--blas", blas]);
    assert_eq!(code, Some(6), "{text}");
    let problems: Vec<&str> = text.lines().filter(|line| line.contains("PROBLEM")).collect();
    assert_eq!(problems.len(), 1, "{text}");
    assert!(
        problems[0].starts_with("n2: PROBLEM: --blas /dev/shm/libsite-blas.so cannot be loaded"),
        "{text}"
    );
    lab.vcluster(&["cut-off", "n2"]);
    let (code, text) = doctor(&[]);
    assert_eq!(code, Some(6), "{text}");
    assert!(text.contains("n2: PROBLEM"), "{text}");
}

/// Tests that only `scripts/test.sh --all` runs. The simulation covers their losses, or a test above covers a similar case.
mod rest {
    use super::*;

    /// A launcher that fails once is tried again. Input that the benchmark refuses is not.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_launchers_failure_is_no_bad_input() {
        let lab = Lab::up(4, 0);
        let end = lab.benchmark("refused").flags(&["--export", "SKT_FAULT=nonsense"]).start().end();
        assert_eq!(end.code, Some(1), "{}", end.told());
        assert_eq!(end.of("launched").len(), 1, "{}", end.told());
        let (wrapper, failed) = (lab.path("launcher"), lab.path("failed"));
        let real = match launcher() {
            Launcher::Openmpi => "mpirun",
            _ => "mpiexec.hydra",
        };
        let real = std::env::var("SKT_TEST_MPIRUN").unwrap_or(real.to_owned());
        let failed = failed.display();
        let fails = |when: &str| {
            let text = format!(
                "#!/bin/sh\ncase \"$*\" in *--version*) ;; *) {when} ;; esac\nexec {real} \"$@\"\n"
            );
            std::fs::write(&wrapper, text).unwrap();
        };
        fails(&format!("[ -e {failed} ] || {{ : >{failed}; exit 1; }}"));
        std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).unwrap();
        let by = ["--no-trial", "--launcher-program", wrapper.to_str().unwrap()];
        let end = lab.benchmark("run").flags(&by).start().end();
        end.survived(&["launcher-gone"]);
        assert_eq!(end.of("launched").len(), 2, "{}", end.told());
        // A launcher that always fails is reported as unusable, not as a loss.
        fails("exit 1");
        let end = lab.benchmark("never").flags(&by).start().end();
        assert_eq!(end.code, Some(6), "{}", end.told());
        assert!(end.of("launched").len() > 1, "{}", end.told());
        // The same holds for any exit status, and for a launcher that starts no rank and does not end.
        fails("exit 255");
        let end = lab.benchmark("odd").flags(&by).start().end();
        assert_eq!(end.code, Some(6), "{}", end.told());
        assert!(end.errors.contains("nothing was computed"), "{}", end.told());
        fails("exec sleep 600");
        let timeout = ["--startup-timeout", "2s"];
        let end = lab.benchmark("idle").flags(&by).flags(&timeout).start().end();
        assert_eq!(end.code, Some(6), "{}", end.told());
        assert_eq!(end.faults(), ["launch-failed"; 3], "{}", end.told());
    }

    /// The launcher fails several times during a recovery and starts no rank. These failures are not counted as a bug at the
    /// iteration that the earlier ranks had reached.
    #[test]
    #[ignore = "needs root and network namespaces"]
    fn a_launcher_that_fails_amid_a_recovery_is_no_bug() {
        let lab = Lab::up(4, 0);
        let fails = "case \"$SKT_ATTEMPT\" in [234]) exit 1 ;; esac\nexec LAUNCH \"$@\"";
        let launcher = launcher_by(&lab, fails).display().to_string();
        let plan = lab.benchmark("run").flags(&["--launcher-program", &launcher]);
        let mut run = plan.hang_each(&["1@iteration:1:20"]);
        run.kill_launcher();
        let end = run.end();
        end.passed();
        assert_eq!(end.of("launched").len(), 5, "{}", end.told());
        let seen: Vec<bool> =
            end.of("fault").iter().map(|fault| fault["ranks_seen"].as_bool().unwrap()).collect();
        assert_eq!(seen, [true, false, false, false], "{}", end.told());
        lab.same_x("run", &end);
    }
}
