//! Tests of device `cuda` with stand-ins for NVIDIA's libraries, which compute on the processor. They test the calls and the
//! handling of errors. They do not show that a GPU computes the same.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use skt_hpl::base::outcome::Verdict;

use crate::dat::Dat;
use crate::job::{Job, Ran};
use crate::left_out::left_out;

/// Returns the folder of the stand-ins for NVIDIA's libraries. All of them are links to one library.
fn libraries() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cuda-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (source, library) =
            (concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mpi/cuda.c"), folder.join("stand-in.so"));
        let done = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([library.as_os_str(), source.as_ref()])
            .status();
        assert!(done.is_ok_and(|status| status.success()), "cc builds {source}");
        for name in ["libcuda.so.1", "libcublas.so.13", "libnvrtc.so.13", "libnvidia-ml.so.1"] {
            symlink(&library, folder.join(name)).unwrap();
        }
        folder
    })
}

fn on_cuda(dat: &Dat, args: &[&str]) -> Job {
    let path = libraries().to_str().unwrap();
    Job::tests(dat).args(&["--device", "cuda"]).args(args).env("LD_LIBRARY_PATH", path)
}

/// Runs a small test in which call number `number` of the library function `function` fails with error 214.
fn failing(function: &str, number: u32) -> Ran {
    let dat = Dat { ns: vec![80], nbs: vec![16], grids: vec![(2, 1)], ..Dat::default() };
    on_cuda(&dat, &[]).env("CUDA_FAILS", &format!("{function} {number} 214")).run()
}

#[test]
fn a_device_of_cuda_solves_all_tests() {
    let dat = Dat {
        ns: vec![0, 1, 60, 203],
        nbs: vec![9, 32],
        grids: vec![(1, 1), (2, 1), (1, 3), (3, 2)],
        depths: vec![0, 1],
        ..Dat::default()
    };
    for args in
        [["--split-update", "always", "--l1", "transposed"], ["--threads", "2", "--swap", "mix"]]
    {
        let ran = on_cuda(&dat, &args).run().expect_code(0);
        let told = ran.told();
        assert!(told.contains("device of rank 0: Stand-in 0, compute capability 9.0"), "{told}");
        assert!(told.contains("driver for CUDA 12.8, cuBLAS 12.8.4"), "{told}");
        let run = ran.json();
        let device = run.machine.kinds[0].make.device.as_ref().unwrap();
        assert!(told.contains(device), "{device}");
        assert_eq!(run.tests.len(), dat.tests());
        for test in &run.tests {
            assert_eq!(
                test.outcome.as_ref().unwrap().verdict,
                Verdict::Passed,
                "{:?}",
                test.params
            );
        }
    }
}

/// An exchange with more rows than one launch of the kernel copies uses several launches.
#[test]
fn rows_are_copied_in_several_launches() {
    let dat = Dat { ns: vec![1300], nbs: vec![600], grids: vec![(1, 1), (2, 1)], ..Dat::default() };
    on_cuda(&dat, &[]).run().expect_code(0);
}

#[test]
fn a_call_that_fails_at_the_start_refuses_the_run() {
    for function in [
        "cuInit",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetAttribute",
        "cuDevicePrimaryCtxRetain",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuStreamCreateWithPriority",
        "cuMemAlloc",
        "cublasCreate",
        "cublasSetStream",
        "cublasGetVersion",
        "nvrtcCreateProgram",
        "nvrtcGetCUBINSize",
        "nvrtcGetCUBIN",
    ] {
        let told = failing(function, 1).expect_code(6).told();
        assert!(told.contains(&format!("--device cuda: {function} failed")), "{function}: {told}");
    }
    let told = failing("nvrtcCompileProgram", 1).expect_code(6).told();
    assert!(
        told.contains("cannot compile for compute capability 9.0")
            && told.contains("a stand-in's log"),
        "{told}"
    );
}

/// If a call fails during a test, the run ends and names the rank, the call and the error.
#[test]
fn a_call_that_fails_during_a_test_ends_the_run() {
    for (function, number) in [
        ("cuCtxSetCurrent", 40),
        ("cuMemAlloc", 4),
        ("cuMemcpyAsync", 3),
        ("cuMemcpy2DAsync", 3),
        ("cuLaunchKernel", 2),
        ("cuEventCreate", 2),
        ("cuEventRecord", 5),
        ("cuEventQuery", 4),
        ("cuEventSynchronize", 2),
        ("cuStreamWaitEvent", 2),
        ("cublasDgemm", 2),
        ("cublasDtrsm", 2),
        ("cuMemHostUnregister", 2),
        ("cuMemFree", 2),
    ] {
        let ran = failing(function, number);
        let told = ran.told();
        assert!(!ran.ended_with(0), "{function}: {told}");
        for words in ["rank ", "the device at 0000:0", " is lost: ", &format!("{function} failed")]
        {
            assert!(told.contains(words), "{function}: {told}");
        }
        let name = if function.starts_with("cublas") {
            "status 214 of cuBLAS"
        } else {
            "CUDA_ERROR_ECC_UNCORRECTABLE (214)"
        };
        assert!(told.contains(name), "{function}: {told}");
    }
}

/// If the device or the system has no memory for a test, this test is skipped and the other tests run.
#[test]
fn a_test_without_memory_is_skipped() {
    let dat = Dat { ns: vec![80], nbs: vec![16, 20], grids: vec![(1, 1)], ..Dat::default() };
    for fails in ["cuMemAlloc 3 2", "cuMemHostRegister 1 1"] {
        let ran = on_cuda(&dat, &[]).env("CUDA_FAILS", fails).run().expect_code(6);
        let run = ran.json();
        assert!(run.tests[0].outcome.is_none(), "{}", ran.told());
        assert_eq!(run.tests[1].outcome.as_ref().unwrap().verdict, Verdict::Passed);
    }
}

/// The energy counters of all devices count in the power of their node. If a counter fails, the devices are left out.
#[test]
fn the_energy_of_devices_is_counted() {
    let dat = Dat { ns: vec![600], nbs: vec![32], grids: vec![(1, 1)], ..Dat::default() };
    let power = |fails: &str| {
        let ran = on_cuda(&dat, &[]).env("CUDA_FAILS", fails).run().expect_code(0);
        ran.json().tests[0].outcome.as_ref().unwrap().power.clone()
    };
    let measured = power("").unwrap();
    assert!(["nvml", "rapl+nvml"].contains(&&measured.source[..]), "{measured:?}");
    assert!(measured.watts > 390.0, "{measured:?}");
    let without = power("nvmlDeviceGetTotalEnergyConsumption 1 3");
    assert!(without.is_none_or(|power| power.source == "rapl"));
}

/// Returns the output of the doctor for a run with `n` on this node's two devices, and whether a problem was found. `fails` is
/// the value of `CUDA_FAILS`.
fn examined(n: &str, fails: &str) -> (String, bool) {
    let done = Command::new(env!("CARGO_BIN_EXE_skt-hpl"))
        .args(["doctor", "--no-mpi", "--", "--device", "cuda", "-n", n, "--nb", "64"])
        .args(["-p", "1", "-q", "1"])
        .env("LD_LIBRARY_PATH", libraries())
        .env("CUDA_FAILS", fails)
        .output()
        .unwrap();
    (String::from_utf8_lossy(&done.stdout).into_owned(), !done.status.success())
}

/// Without --device-memory, a plan takes the number and the free memory of this node's devices.
#[test]
fn a_plan_takes_the_devices_of_this_node() {
    let plan = |fails: &str| {
        Command::new(env!("CARGO_BIN_EXE_skt-hpl"))
            .args(["plan", "--device", "cuda", "--runs", "0"])
            .env("LD_LIBRARY_PATH", libraries())
            .env("CUDA_FAILS", fails)
            .output()
            .unwrap()
    };
    let told = String::from_utf8_lossy(&plan("").stderr).into_owned();
    // The stand-in's devices have less memory than driver and libraries may take.
    assert!(told.contains("a device has 512.00 MiB of memory, of which driver"), "{told}");
    let told = String::from_utf8_lossy(&plan("nvmlInit 1 9").stderr).into_owned();
    assert!(told.contains("nvmlInit failed with status 9 of NVML; give --device-memory"), "{told}");
}

#[test]
fn the_doctor_examines_devices() {
    let (told, _) = examined("1000", "");
    let device = "device 1: Stand-in 1: 1024 MiB with 512 MiB free, ECC on, 1200 of 1980 MHz";
    assert!(told.contains(device), "{told}");
    assert!(told.contains("warning: 1 device(s) stay idle: 1 rank(s) compute there"), "{told}");
    assert!(!told.contains("PROBLEM: device"), "{told}");
    let (told, refused) = examined("9000", "");
    let lacks = "PROBLEM: device 0 (Stand-in 0) has 512 MiB of memory free, 1 rank(s) there need 6";
    assert!(refused && told.contains(lacks), "{told}");
    for function in [
        "nvmlInit",
        "nvmlDeviceGetCount",
        "nvmlDeviceGetHandleByIndex",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetEccMode",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetMaxClockInfo",
    ] {
        let (told, refused) = examined("1000", &format!("{function} 1 999"));
        let why = format!("PROBLEM: --device cuda: {function} failed with status 999 of NVML");
        assert!(refused && told.contains(&why), "{told}");
    }
}

#[test]
fn a_run_that_has_no_device_is_refused() {
    let dat = Dat { ns: vec![20], ..Dat::default() };
    let told = on_cuda(&dat, &[]).env("CUDA_DEVICES", "0").run().expect_code(6).told();
    assert!(told.contains("--device cuda: the driver finds no device"), "{told}");
    let emulated = on_cuda(&dat, &[]).env("CUBLAS_EMULATE_DOUBLE_PRECISION", "1").run();
    let told = emulated.expect_code(6).told();
    assert!(told.contains("HPL requires native double precision: unset this variable"), "{told}");
    let without = Job::tests(&dat).args(&["--device", "cuda"]).run();
    if without.ended_with(0) {
        return left_out("this machine has a device");
    }
    let told = without.expect_code(6).told();
    assert!(told.contains("--device cuda: no libcuda.so.1 can be loaded"), "{told}");
    assert!(told.contains("is NVIDIA's driver installed?"), "{told}");
}
