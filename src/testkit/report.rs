//! Example of a test and its outcome, for tests of the report and of code that reads reports.

use crate::base::outcome::{
    Checksums, Level2, Outcome, Power, Protection, Replaced, Residual, SplitUpdates, Times, Verdict,
};
use crate::base::params::{Bcast, Fact, Form, Mapping, Rng, Swap, TestParams};
use crate::base::timeline::{Recorder, Timeline, What};
use crate::report::machine::{Kind, Machine, Make};

pub fn params() -> TestParams {
    TestParams {
        n: 12000,
        nb: 192,
        p: 2,
        q: 3,
        mapping: Mapping::Row,
        depth: 1,
        bcast: Bcast::OneRingM,
        rfact: Fact::Crout,
        ndiv: 2,
        pfact: Fact::Right,
        nbmin: 4,
        swap: Swap::Mix,
        swap_threshold: 64,
        l1: Form::Transposed,
        u: Form::NotTransposed,
        equilibrate: true,
        align: 8,
        threshold: 16.0,
        rng: Rng::Hpl,
        seed: 100,
    }
}

pub fn residual() -> Residual {
    Residual {
        scaled: 2.485_984_68e-3,
        r_inf: 1.25e-11,
        a_inf: 262.773_468,
        a_1: 263.865_287,
        x_inf: 11.351_297,
        x_1: 2_619.625_251,
        b_inf: 0.499_776,
    }
}

pub fn times() -> Times {
    Times {
        rfact: 0.25,
        pfact: 0.125,
        mxswp: 0.0625,
        bcast: 0.0,
        update: 5.0,
        laswp: 0.25,
        laswp_wait: 0.125,
        trsm: 0.25,
        gemm: 4.5,
        solve: 0.0625,
        save: 0.0,
        other: 0.0625,
        total: 5.375,
    }
}

pub fn machine() -> Machine {
    let mut machine = Machine::default();
    for host in ["n1", "n2"] {
        machine.join(Machine {
            kinds: vec![Kind {
                make: Make {
                    processor: "Example 9000".into(),
                    architecture: "x86_64".into(),
                    sockets: 2,
                    cores: 16,
                    hardware_threads: 32,
                    numa_nodes: 2,
                    flops_per_cycle: Some(32),
                    clock_base_mhz: Some(2000),
                    clock_max_mhz: Some(3500),
                    governor: Some("performance".into()),
                    network: vec!["InfiniBand 200 Gb/sec (4X HDR)".into()],
                    system: "Debian GNU/Linux 12 (bookworm)".into(),
                    kernel: "6.1.0".into(),
                    blas: "BLIS 0.9.0, skx kernels".into(),
                    device: None,
                },
                memory_bytes_min: 128 << 30,
                memory_bytes_max: 128 << 30,
                clock_seen_mhz_min: Some(1900),
                clock_seen_mhz_max: Some(3400),
                ranks_min: 3,
                ranks_max: 3,
                hosts: vec![host.into()],
            }],
        });
    }
    machine
}

pub fn timeline() -> Timeline {
    let mut recorder = Recorder::default();
    recorder.pass(0, 63, 0.0);
    recorder.pass(30, 63, 3.0);
    recorder.interrupt(What::Save, 30, 3.0, 0.25);
    recorder.interrupt(What::Down, 30, 3.25, 0.125);
    recorder.interrupt(What::Restore, 30, 3.375, 0.25);
    recorder.pass(63, 63, 5.25);
    recorder.timeline(12000, 192)
}

pub fn outcome() -> Outcome {
    Outcome {
        started_unix_s: 1_795_161_600,
        ended_unix_s: 1_795_161_605,
        seconds: 5.375,
        gflops: 214.375,
        times: times(),
        times_mean: times(),
        residual: Some(residual()),
        verdict: Verdict::Passed,
        split_update: SplitUpdates { iterations: 240, early: 236, hidden: 470, amid: 60 },
        x_digest: "0123456789abcdef".into(),
        threads: 2,
        matrix_bytes_max: 192_000_000,
        work_bytes_max: 40_000_000,
        resident_bytes_max: 240_000_000,
        protection: Some(Protection {
            attempts: 2,
            in_place: 0,
            saves: 9,
            save_s: 0.25,
            lost_s: 0.5,
            down_s: 0.125,
            restore_s: 0.25,
            memory_bytes_max: 480_000_000,
            group_min: 4,
            level2: Some(Level2 {
                checkpoints: 3,
                bytes: 1_440_000_000,
                write_s: 1.5,
                put_off: 1,
                put_off_s: 0.25,
                wait_s: 0.5,
                fetched: 1,
                alone: false,
                waited: false,
            }),
        }),
        checksums: Some(Checksums {
            columns: 2,
            losses: 1,
            replaced: vec![Replaced { column: 1, boundary: 20 }],
            going_on_s: 0.125,
            recompute_s: 0.0625,
            renewed_at: vec![21],
            renew_s: 0.25,
            matrix_bytes: 1_152_000_000,
            checksum_bytes: 384_000_000,
        }),
        timeline: timeline(),
        power: Some(Power {
            source: "hwmon".into(),
            nodes: 2,
            nodes_measured: 2,
            readings_min: 7,
            seconds: 5.5,
            joules: 5500.0,
            watts: 1000.0,
        }),
    }
}
