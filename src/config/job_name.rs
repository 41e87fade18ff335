//! Default name of a run's memory, made from the number of the batch job.
//!
//! Two jobs of one user, and two elements of a job array, must not share a name: each run would use the memory of the other run.
//! A restart inside the same job must give the same name. In another job the default name differs. To resume in another job, the
//! user gives a name (`--job`).

/// Largest number of characters in the name of a run's memory, also if `--job` gives the name.
pub const LENGTH_MAX: usize = 64;

/// Returns the default name of a run's memory. `var` looks up a variable of the environment. Outside of any batch system the name
/// is `default`.
pub fn job_name(var: impl Fn(&str) -> Option<String>) -> String {
    let var = |name: &str| var(name).filter(|value| !value.is_empty());
    slurm(&var)
        .or_else(|| pbs(&var))
        .or_else(|| lsf(&var))
        .or_else(|| flux(&var))
        .or_else(|| grid_engine(&var))
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "default".to_owned())
}

/// Returns the ASCII letters and digits of a text, cut so that two such texts and `_` fit in a name of [`LENGTH_MAX`] characters.
fn plain(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).take(LENGTH_MAX / 2 - 1).collect()
}

fn element(job: &str, index: Option<String>) -> String {
    match index.map(|index| plain(&index)).filter(|index| !index.is_empty()) {
        Some(index) => format!("{}_{index}", plain(job)),
        None => plain(job),
    }
}

fn slurm(var: &impl Fn(&str) -> Option<String>) -> Option<String> {
    match (var("SLURM_ARRAY_JOB_ID"), var("SLURM_ARRAY_TASK_ID")) {
        (Some(job), Some(task)) => Some(element(&job, Some(task))),
        _ => var("SLURM_JOB_ID").map(|job| plain(&job)),
    }
}

/// Returns the name in a PBS job; `None` outside of PBS. A job has the id `1234.server`, and an element of a job array has the id
/// `1234[5].server`.
fn pbs(var: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let id = var("PBS_JOBID")?;
    let number = id.split(['.', '[']).next().unwrap_or_default();
    let bracketed = id.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    let bracketed = bracketed.map(|(index, _)| index.to_owned());
    let index = var("PBS_ARRAY_INDEX").or_else(|| var("PBS_ARRAYID")).or(bracketed);
    Some(element(number, index))
}

/// Returns the name in an LSF job; `None` outside of LSF. If the job is no array, its index is 0.
fn lsf(var: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let job = var("LSB_JOBID")?;
    Some(element(&job, var("LSB_JOBINDEX").filter(|index| index != "0")))
}

/// Returns the name in a Flux job; `None` outside of Flux. Within an allocation every `flux run` is a job of its own, so the name
/// is made from the allocation's id.
fn flux(var: &impl Fn(&str) -> Option<String>) -> Option<String> {
    var("FLUX_ENCLOSING_ID").or_else(|| var("FLUX_JOB_ID")).map(|id| plain(&id))
}

/// Returns the name in a Grid Engine job; `None` outside of Grid Engine. A `JOB_ID` without `SGE_TASK_ID` may come from another
/// program. If the job is no array, its index is `undefined`.
fn grid_engine(var: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let index = var("SGE_TASK_ID")?;
    Some(element(&var("JOB_ID")?, Some(index).filter(|index| index != "undefined")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(vars: &[(&str, &str)]) -> String {
        job_name(|wanted| {
            vars.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn each_batch_system_has_its_own_words() {
        for (vars, expected) in [
            (&[][..], "default"),
            (&[("SLURM_JOB_ID", "77")], "77"),
            (
                &[
                    ("SLURM_JOB_ID", "79"),
                    ("SLURM_ARRAY_JOB_ID", "77"),
                    ("SLURM_ARRAY_TASK_ID", "2"),
                ],
                "77_2",
            ),
            (&[("PBS_JOBID", "1234.pbs-server")], "1234"),
            (&[("PBS_JOBID", "1234[5].pbs-server"), ("PBS_ARRAY_INDEX", "5")], "1234_5"),
            (&[("PBS_JOBID", "1234[5].pbs-server"), ("PBS_ARRAYID", "5")], "1234_5"),
            (&[("PBS_JOBID", "1234[5].pbs-server")], "1234_5"),
            (&[("LSB_JOBID", "88"), ("LSB_JOBINDEX", "0")], "88"),
            (&[("LSB_JOBID", "88"), ("LSB_JOBINDEX", "3")], "88_3"),
            (&[("FLUX_JOB_ID", "\u{192}3ETxsR9H")], "3ETxsR9H"),
            (&[("FLUX_JOB_ID", "f3"), ("FLUX_ENCLOSING_ID", "f2")], "f2"),
            (&[("JOB_ID", "9"), ("SGE_TASK_ID", "undefined")], "9"),
            (&[("JOB_ID", "9"), ("SGE_TASK_ID", "4")], "9_4"),
            (&[("JOB_ID", "9")], "default"),
            (&[("SLURM_JOB_ID", "")], "default"),
        ] {
            assert_eq!(name(vars), expected, "{vars:?}");
        }
    }

    /// Elements of a job array never share a name, in any batch system.
    #[test]
    fn elements_of_an_array_have_names_of_their_own() {
        for system in ["PBS_ARRAY_INDEX", "PBS_ARRAYID", "LSB_JOBINDEX", "SLURM_ARRAY_TASK_ID"] {
            let of = |index: &str| {
                name(&[
                    (system, index),
                    match &system[..3] {
                        "PBS" => ("PBS_JOBID", "12[].server"),
                        "LSB" => ("LSB_JOBID", "12"),
                        _ => ("SLURM_ARRAY_JOB_ID", "12"),
                    },
                ])
            };
            assert_eq!((of("1"), of("12")), ("12_1".to_owned(), "12_12".to_owned()), "{system}");
        }
    }

    proptest! {
        #[test]
        fn every_name_is_one_that_job_takes(id in "\\PC{0,80}", index in "\\PC{0,80}") {
            let name = name(&[("PBS_JOBID", &id), ("PBS_ARRAY_INDEX", &index)]);
            prop_assert!(!name.is_empty() && name.len() <= LENGTH_MAX);
            prop_assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{name}");
        }
    }
}
