//! Rank of this process before MPI starts, from the variables that launchers set.
//!
//! Some messages are printed before MPI starts, such as a usage error or the preflight's finding. With a thousand ranks, such a
//! message should appear once, not a thousand times.

use crate::supervise::start::launcher::RANK_VARS;

/// Returns this process's rank, as the launcher has set it in the environment. Returns `None` if no known variable has a rank.
pub fn launcher_rank() -> Option<u64> {
    rank_from(|name| std::env::var(name).ok())
}

/// Returns true if this process prints for all ranks. Such a process is rank 0, or was started without a launcher.
pub fn speaks_for_all() -> bool {
    launcher_rank().is_none_or(|rank| rank == 0)
}

/// Returns true if this process prints for its node. Under Open MPI, the first rank of each node prints. Under other launchers,
/// rank 0 prints. Without a launcher, every process prints.
pub fn speaks_for_node() -> bool {
    std::env::var(LOCAL_RANK).map_or_else(|_| speaks_for_all(), |rank| rank.trim() == "0")
}

/// Variable in which Open MPI gives a rank its number on the node. Other launchers' variables are not needed, because only under
/// Open MPI can a rank refuse to start before MPI starts.
const LOCAL_RANK: &str = "OMPI_COMM_WORLD_LOCAL_RANK";

fn rank_from(variable: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let set = RANK_VARS.iter().filter_map(|name| variable(name));
    set.filter_map(|value| value.trim().parse().ok()).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launchers_own_variable_wins_over_slurms() {
        let vars = |pairs: &'static [(&str, &str)]| {
            rank_from(move |name| {
                let found = pairs.iter().find(|(n, _)| *n == name);
                found.map(|(_, v)| v.to_string())
            })
        };
        assert_eq!(vars(&[]), None);
        assert_eq!(vars(&[("PMI_RANK", "3")]), Some(3));
        // If mpirun runs inside a batch job, every process inherits the SLURM_PROCID of the script.
        assert_eq!(vars(&[("SLURM_PROCID", "0"), ("OMPI_COMM_WORLD_RANK", "7")]), Some(7));
        assert_eq!(vars(&[("PMIX_RANK", "x"), ("SLURM_PROCID", "2")]), Some(2));
    }
}
