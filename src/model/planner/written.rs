//! Writes a plan as input of the solver: the parameters of the test, and skt.toml.

use super::super::memory::{ALIGN, Method};
use super::evaluate::{Plan, Protected};
use super::inputs::Inputs;
use crate::base::params::{Bcast, Fact, Form, Mapping, Rng, Swap, TestParams};
use crate::checkpoint::layout::ParityLayout;
use crate::shm::Store;

/// Returns the plan as parameters of the solver.
pub fn test_params(plan: &Plan) -> TestParams {
    let shape = &plan.shape;
    let grid = (shape.p as usize, shape.q as usize);
    TestParams { depth: shape.depth as usize, ..usual(shape.n as usize, shape.nb as usize, grid) }
}

/// Returns a test with choices that are good on most machines.
pub fn usual(n: usize, nb: usize, grid: (usize, usize)) -> TestParams {
    let (p, q) = grid;
    TestParams {
        n,
        nb,
        p,
        q,
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
        u: Form::Transposed,
        equilibrate: true,
        align: ALIGN,
        threshold: 16.0,
        rng: Rng::Hpl,
        seed: 100,
    }
}

/// Writes skt.toml for a plan with these inputs.
pub fn skt_toml(plan: &Plan, inputs: &Inputs) -> String {
    let Protected { method, scope, group_asked, losses, parity_layout, .. } = plan.protection;
    let mut text = String::from("# written by skt-hpl plan\n");
    text += &format!("threads = {}\n", plan.threads_per_rank);
    if inputs.devices.is_some() {
        text += "device = \"cuda\"\n";
    }
    if method.saves() {
        text += &format!(
            "\n[checkpoint]\n\
             # saves at the optimal interval, if some part of the system fails once in the time mtbf\n\
             every = \"auto\"\n\
             mtbf = \"{:.0}s\"\n\
             method = \"{}\"\n\
             scope = \"{}\"\n",
            plan.mtbf_system.max(1.0),
            method.name(),
            scope.name(),
        );
        if method.in_memory() {
            let code = if losses > 1 { "reed-solomon" } else { "xor" };
            text +=
                &format!("parity-code = \"{code}\"\nlosses = {losses}\ngroup = {group_asked}\n");
            if parity_layout != ParityLayout::Striped {
                text += &format!("parity-layout = \"{}\"\n", parity_layout.name());
            }
        }
        if plan.store == Store::SysV {
            text += "# /dev/shm has too little room\nstore = \"sysv\"\n";
        }
        if plan.saving.helpers.is_some() {
            text += "encode = \"helper\"\n";
        }
        if let Some(dir) = &inputs.level2 {
            let dir = dir.to_string_lossy().into_owned();
            text += &format!("level2 = {}\n", toml::Value::String(dir));
            if let Some(every) = inputs.level2_every.filter(|_| method.in_memory()) {
                text += &format!("level2-every = \"{every}s\"\n");
            }
        }
        if let Some(job) = &inputs.job {
            text += &format!("job = {}\n", toml::Value::String(job.clone()));
        }
    }
    if method == Method::Abft {
        text += &format!(
            "\n# process columns for checksums, in addition to the grid\nmethod = \"abft\"\nchecksum-columns = {}\n",
            plan.protection.checksum_columns
        );
        let waiting = plan.protection.spare_ranks;
        if waiting > 0 {
            text += &format!("# ranks that wait to make new checksums\nspare-ranks = {waiting}\n");
        }
    }
    text
}
