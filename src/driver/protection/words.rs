//! Messages about a protected test: why it cannot begin, from where it resumes, and how it was stopped. Pure.

use crate::base::exit::{Exit, Refusal};
use crate::checkpoint::protocol::Method;
use crate::checkpoint::storage::DirScope;
use crate::checkpoint::{Restored, StartError};
use crate::config::settings;

impl From<StartError> for Refusal {
    fn from(error: StartError) -> Self {
        let exit = match error {
            StartError::Scheme(_) | StartError::Groups(_) | StartError::Other { .. } => {
                Exit::BadInput
            }
            StartError::Memory(_) | StartError::Taken(_) => Exit::NoSharedMemory,
            StartError::Refused { .. }
            | StartError::Storage { .. }
            | StartError::Nothing { .. }
            | StartError::NotWhole { .. } => Exit::Unrecoverable,
        };
        Self::new(exit, error.to_string())
    }
}

/// Returns the refusal of a test that cannot begin because of `error`. `gone` is the reason why storage, which might have helped,
/// cannot be used; `None` if storage can be used.
pub(super) fn refused(gone: Option<&str>, error: StartError) -> Refusal {
    match (gone, error) {
        (None, error) => error.into(),
        (Some(why), StartError::Nothing { job }) => Refusal::environment(format!(
            "memory of job {job:?} has no checkpoint of this run, and storage, which may have one, cannot be used: \
             {why}. Nothing is removed. Start again when storage can be used, or begin from scratch with --restart never \
             and without --level2"
        )),
        (Some(gone), error) => {
            let Refusal { exit, why } = error.into();
            Refusal::new(exit, format!("{why}\nStorage might help, but cannot be used: {gone}"))
        }
    }
}

/// Describes the restored checkpoint, its boundary in the test (`from`), and the recovery that was necessary.
pub(super) fn restored(settings: &settings::Saves, restored: &Restored, from: &str) -> String {
    let rebuilt = match restored.rebuilt.len() {
        0 => "nothing had to be rebuilt".to_owned(),
        _ => format!("rebuilt positions {:?}", restored.rebuilt),
    };
    let rebuilt = match settings.level2.as_ref().filter(|_| restored.fetched.is_some()) {
        Some(settings::Level2 { dir, scope: DirScope::Shared, .. }) => {
            format!("the checkpoint was read from {}", dir.display())
        }
        Some(settings::Level2 { dir, scope: DirScope::Node, .. }) => {
            format!("the checkpoint was read from {} of the nodes; {rebuilt}", dir.display())
        }
        None => rebuilt,
    };
    format!("{from} (checkpoint {}); {rebuilt}", restored.checkpoint)
}

/// Describes a stop. `stored` is true if the save was written to storage, and `None` if the run could not write to storage at
/// all.
pub(super) fn stopped(settings: &settings::Saves, stored: Option<bool>) -> String {
    let job = &settings.job;
    let level2 = settings.level2.as_ref();
    let dir = level2.map(|level2| level2.dir.display().to_string());
    let on_disk_alone = settings.scheme.method == Method::Disk;
    let own = level2.is_some_and(|level2| level2.scope == DirScope::Node);
    let memory = if on_disk_alone { "" } else { " in memory and" };
    match (stored.unwrap_or(false), dir) {
        (false, Some(dir)) if on_disk_alone => format!(
            "stopped as asked, but THE SAVE IS NOT IN {dir}. Earlier checkpoints are still there, and the same command \
             resumes from them. The job's name is {job}: from another batch job add --job {job}"
        ),
        (true, Some(dir)) if own => format!(
            "stopped as asked, after a save{memory} in {dir} of each node. The same command resumes on these nodes; \
             up to {} of each group may be replaced by then. The job's name is {job}: from another batch job with \
             these nodes add --job {job}",
            settings.scheme.losses
        ),
        (true, Some(dir)) => format!(
            "stopped as asked, after a save{memory} in {dir}. The same command resumes, on these nodes or any \
             nodes that see {dir}. The job's name is {job}: from another batch job add --job {job}"
        ),
        (false, Some(dir)) => format!(
            "stopped as asked, after a save in memory. THE SAVE IS NOT IN {dir}; earlier checkpoints are \
             still there. The same command resumes from memory, on these nodes. The job's name is {job}: from another \
             batch job with these nodes add --job {job}"
        ),
        _ => format!(
            "stopped as asked, after a save. The same command resumes from memory, on these nodes. The job's name is {job}: from \
             another batch job with these nodes add --job {job}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::groups::GroupError;
    use crate::checkpoint::layout::ParityLayout;
    use crate::checkpoint::plan::{Encoding, Helpers, Scheme, SchemeError, Scope};
    use crate::checkpoint::protocol::Refusal;
    use crate::checkpoint::when::Interval;
    use crate::config::settings::{Level2, Restart};
    use crate::parity::Code;
    use crate::shm::Store;

    fn settings(method: Method, scope: Option<DirScope>) -> settings::Saves {
        let scheme = Scheme {
            method,
            scope: Scope::Corner,
            code: Code::Xor,
            losses: 1,
            layout: ParityLayout::Striped,
            on_device: false,
        };
        let every = Interval::Iterations(1);
        settings::Saves {
            nonstop: None,
            interval: every,
            scheme,
            group: None,
            encode: Encoding::Pipelined,
            helpers: Helpers::default(),
            helper_cores: None,
            store: Store::Posix,
            job: "hpl".into(),
            restart: Restart::Auto,
            domains: None,
            level2: scope.map(|scope| Level2 { dir: "/scratch".into(), every, scope }),
        }
    }

    /// A message about a stop shows the user which job to start again, and on which nodes. It also says whether the save is on
    /// storage.
    #[test]
    fn a_stop_names_the_job_and_where_the_save_is() {
        use Method::{Disk, SelfCheckpoint};
        let all = [
            (SelfCheckpoint, None, None, "resumes from memory", true),
            (SelfCheckpoint, Some(DirScope::Shared), Some(true), "nodes that see /scratch", false),
            (
                SelfCheckpoint,
                Some(DirScope::Node),
                Some(true),
                "up to 1 of each group may be replaced",
                true,
            ),
            (
                SelfCheckpoint,
                Some(DirScope::Shared),
                Some(false),
                "THE SAVE IS NOT IN /scratch",
                true,
            ),
            (
                SelfCheckpoint,
                Some(DirScope::Node),
                Some(false),
                "THE SAVE IS NOT IN /scratch",
                true,
            ),
            (Disk, Some(DirScope::Shared), Some(true), "after a save in /scratch", false),
            (Disk, Some(DirScope::Node), Some(true), "after a save in /scratch of each node", true),
            (Disk, Some(DirScope::Shared), Some(false), "THE SAVE IS NOT IN /scratch", false),
        ];
        for (method, scope, stored, says, same_nodes) in all {
            let text = stopped(&settings(method, scope), stored);
            assert!(text.starts_with("stopped as asked") && text.contains("--job hpl"), "{text}");
            assert!(text.contains(says), "{text}");
            assert_eq!(
                text.contains("these nodes") && !text.contains("or any"),
                same_nodes,
                "{text}"
            );
            assert_eq!(text.contains("memory"), method != Disk, "{text}");
        }
    }

    #[test]
    fn a_restored_state_names_its_source() {
        let mut found = Restored {
            boundary: 12,
            checkpoint: 3,
            state: Vec::new(),
            rebuilt: Vec::new(),
            damaged: Vec::new(),
            fetched: None,
        };
        let shared = settings(Method::SelfCheckpoint, Some(DirScope::Shared));
        let own = settings(Method::SelfCheckpoint, Some(DirScope::Node));
        assert_eq!(restored(&shared, &found, "on"), "on (checkpoint 3); nothing had to be rebuilt");
        found.rebuilt = vec![1, 4];
        assert_eq!(restored(&own, &found, "on"), "on (checkpoint 3); rebuilt positions [1, 4]");
        found.fetched = Some(0);
        assert_eq!(
            restored(&shared, &found, "on"),
            "on (checkpoint 3); the checkpoint was read from /scratch"
        );
        let text = restored(&own, &found, "on");
        assert_eq!(
            text,
            "on (checkpoint 3); the checkpoint was read from /scratch of the nodes; rebuilt positions [1, 4]"
        );
    }

    /// Checks the exit status of each reason to refuse a test: wrong input, memory that the node does not provide, or a loss that
    /// cannot be recovered.
    #[test]
    fn each_reason_has_its_exit_code() {
        let too_many = Refusal::TooManyLost { group: 0, size: 2, losses: 1, lost: vec![0, 1] };
        let job = || "hpl".to_owned();
        let all = [
            (StartError::Scheme(SchemeError::Losses(0)), Exit::BadInput),
            (StartError::Groups(GroupError::TooMany(999)), Exit::BadInput),
            (StartError::Other { job: job(), what: "N = 5".into() }, Exit::BadInput),
            (StartError::Memory("full".into()), Exit::NoSharedMemory),
            (
                StartError::Refused {
                    refusal: too_many,
                    survey: String::new(),
                    job: String::new(),
                },
                Exit::Unrecoverable,
            ),
            (StartError::Nothing { job: job() }, Exit::Unrecoverable),
            (StartError::NotWhole { checkpoint: 1, why: "again".into() }, Exit::Unrecoverable),
        ];
        for (error, exit) in all {
            let (why, nothing) = (error.to_string(), matches!(error, StartError::Nothing { .. }));
            // If storage cannot be used, the exit code differs only if storage may have a checkpoint that memory lacks.
            let gone = refused(Some("it hangs"), copy(&error));
            assert!(gone.why.contains("it hangs"), "{}", gone.why);
            assert_eq!(gone.exit, if nothing { Exit::Environment } else { exit });
            assert_eq!(refused(None, error), crate::base::exit::Refusal { exit, why });
        }
    }

    fn copy(error: &StartError) -> StartError {
        match error {
            StartError::Scheme(error) => StartError::Scheme(*error),
            StartError::Groups(error) => StartError::Groups(error.clone()),
            StartError::Other { job, what } => {
                StartError::Other { job: job.clone(), what: what.clone() }
            }
            StartError::Memory(text) => StartError::Memory(text.clone()),
            StartError::Taken(text) => StartError::Taken(text.clone()),
            StartError::Refused { refusal, survey, job } => StartError::Refused {
                refusal: refusal.clone(),
                survey: survey.clone(),
                job: job.clone(),
            },
            StartError::Nothing { job } => StartError::Nothing { job: job.clone() },
            StartError::NotWhole { checkpoint, why } => {
                StartError::NotWhole { checkpoint: *checkpoint, why: why.clone() }
            }
            StartError::Storage { .. } => unreachable!("not among them"),
        }
    }
}
