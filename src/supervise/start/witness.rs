//! Process that ended first, according to a launcher's error messages. Pure.
//!
//! A launcher ends all ranks at the first death. Hydra does so within milliseconds, so heartbeats show all ranks ending at once.
//! But the launcher prints which rank ended first, and the supervisor trusts this more than heartbeats.

/// Returns the node on which a process ended first, by the launcher's name for the node.
pub fn first_to_end(complaints: &str) -> Option<String> {
    // Open MPI wraps its lines at any word.
    let words: Vec<&str> = complaints.split_whitespace().collect();
    let mut places = (0..words.len()).map(|at| &words[at..]);
    let found = places.find_map(mpirun).or_else(|| complaints.lines().find_map(srun));
    found.map(String::from)
}

/// Reads a message of Open MPI's mpirun, or of Hydra, that begins with the first of `words`.
fn mpirun<'t>(words: &[&'t str]) -> Option<&'t str> {
    match words {
        // `mpirun noticed that process rank 2 with PID 0 on node n3 exited on signal 9 (Killed).`
        ["process", "rank", _, "with", "PID", _, "on", "node", node, "exited", ..] => Some(node),
        // `[n4:02051] Local abort before MPI_INIT completed ...`: other messages about a rank that could not begin name only its
        // number.
        [who, "Local", "abort", "before", "MPI_INIT", ..] => {
            let (node, pid) = who.strip_prefix('[')?.strip_suffix(']')?.rsplit_once(':')?;
            pid.parse::<u32>().is_ok().then_some(node)
        }
        // `=   PID 28129 RUNNING AT n3`
        ["PID", _, "RUNNING", "AT", node, ..] => Some(node),
        _ => None,
    }
}

/// Reads a message of srun, such as `srun: error: n3: task 2: Killed`. A line on tasks of several nodes (`n[2-3]: tasks 2-5`)
/// names no single node.
fn srun(line: &str) -> Option<&str> {
    let (node, what) = line.trim().strip_prefix("srun: error: ")?.split_once(": ")?;
    (what.starts_with("task") && !node.contains(['[', ',', ' '])).then_some(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_launcher_names_the_rank_that_ended_first() {
        for (complaints, node) in [
            (
                "-----\nprterun noticed that process rank 2 with PID 28185 on node n3 exited on\nsignal 9 (Killed).\n-----",
                Some("n3"),
            ),
            (
                "mpirun noticed that process rank 0 with PID 0 on node n1.site exited on signal 9 (Killed).",
                Some("n1.site"),
            ),
            (
                "=====\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 28129 RUNNING AT n2\n=   EXIT CODE: 9",
                Some("n2"),
            ),
            (
                "*** An error occurred in MPI_Init_thread\n[n4:02051] Local abort before MPI_INIT completed completed successfully, but\nProcess name: [[24559,1],3]\n  Exit code:    1",
                Some("n4"),
            ),
            ("Local abort before MPI_INIT completed", None),
            ("srun: error: n4: task 3: Killed\nsrun: error: n5: task 4: Terminated", Some("n4")),
            ("srun: error: n[4-5]: tasks 3-4: Killed", None),
            ("srun: error: Unable to create step for job 4: Invalid node", None),
            ("process rank 1 with PID 7 on node", None),
            ("PID 7 RUNNING AT", None),
            ("", None),
        ] {
            assert_eq!(first_to_end(complaints).as_deref(), node, "{complaints}");
        }
    }
}
