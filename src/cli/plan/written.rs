//! Files with which a planned run starts, HPL.dat and skt.toml, and the command that starts it.

use std::path::Path;

use crate::base::exit::Refusal;
use crate::cli::json_flag;
use crate::cli::launchers::{typed, typed_for_run};
use crate::model::memory::Method;
use crate::model::planner::{Advice, Inputs, Plan};
use crate::supervise::start::launcher::{Launcher, WITH_ULFM};

pub(super) fn write_files(
    dir: &Path,
    inputs: &Inputs,
    advice: &Advice,
    force: bool,
) -> Result<(), Refusal> {
    if advice.plan.protection.method == Method::Disk && inputs.level2.is_none() {
        return Err(Refusal::bad_input(
            "--method disk needs a folder for its checkpoints: give --level2 DIR, a folder that all nodes share",
        ));
    }
    let files = [("HPL.dat", &advice.hpl_dat), ("skt.toml", &advice.skt_toml)];
    if !force {
        for (name, _) in files {
            let path = dir.join(name);
            if path.exists() {
                return Err(Refusal::bad_input(format!(
                    "{} exists already; --force overwrites it",
                    path.display()
                )));
            }
        }
    }
    std::fs::create_dir_all(dir)
        .map_err(|e| Refusal::environment(format!("cannot make {}: {e}", dir.display())))?;
    for (name, text) in files {
        json_flag::overwrite(&dir.join(name), text)?;
    }
    Ok(())
}

/// Returns the text with the command that starts the written run.
pub(super) fn start(inputs: &Inputs, plan: &Plan) -> String {
    let ranks = plan.ranks;
    let each = inputs.ranks_per_node;
    let typed = |kind| typed(kind, inputs.nodes as usize, ranks as usize, each as usize);
    let plain = format!("  mpirun {} skt-hpl", typed(None));
    match plan.protection.method {
        Method::None => format!("Start the run in that folder with\n{plain}"),
        Method::Abft => format!(
            "Start the run in that folder, with Open MPI 5 and {} ranks more than the grid has, with\n  mpirun {} {} skt-hpl",
            plan.shape.p * plan.protection.checksum_columns + plan.protection.spare_ranks,
            WITH_ULFM.join(" "),
            typed(Some(Launcher::Openmpi))
        ),
        _ => format!(
            "Start the run in that folder with\n  skt-hpl run --hosts HOSTS --spares SPARES{}    (one line for each node: \
             `name slots={each}`)\nor, to restart the run by hand after a loss,\n{plain}",
            typed_for_run()
        ),
    }
}
