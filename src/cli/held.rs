//! Memory of protected runs on this node, which `status` lists and `clean` removes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::stored_checkpoints;
use crate::base::exit::{Exit, Refusal};
use crate::base::terminal::print;
use crate::checkpoint::layout::ParityLayout;
use crate::checkpoint::protocol::Method;
use crate::config::job_name::job_name;
use crate::config::memory_need::human;
use crate::lu::unix_seconds;
use crate::shm::header::{Claim, Doing, Head, Header, Phase, Stage, count_of};
use crate::shm::{Held, MemoryStore, Part, Store, memory_store};
use crate::supervise::talk::progress::{self, Role};

/// Memory of a grid position, with the content of its header if the header is valid.
#[derive(Debug, Serialize)]
pub struct Position {
    pub position: u32,
    pub bytes: u64,
    /// True if a process uses this memory now.
    pub in_use: bool,
    /// Content of the header; `None` if the header is missing, damaged or of another version.
    pub header: Option<Known>,
    /// Reason why the header is not valid.
    pub fault: Option<String>,
}

/// Content of the header of a position's memory, as `status` shows it.
#[derive(Debug, Serialize)]
pub struct Known {
    pub run: String,
    pub test: u32,
    pub n: u64,
    pub nb: u64,
    pub p: u32,
    pub q: u32,
    pub method: Option<Method>,
    pub group: Vec<u32>,
    pub losses: u8,
    /// Layout of the group's parity.
    pub parity_layout: Option<ParityLayout>,
    /// Role of the rank in a test of method abft; `None` for other methods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Process column whose work this rank does under method abft.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    pub attempt: u64,
    pub claim: Claim,
    /// Boundary of the committed checkpoint in this memory; `None` if there is none.
    pub boundary: Option<u64>,
    pub iteration: u64,
    pub doing: Option<Doing>,
    /// Seconds since the last heartbeat of the process that uses this memory; `None` if no heartbeat was ever reported.
    pub heartbeat_age_s: Option<f64>,
}

/// Memory of a job on this node.
#[derive(Debug, Serialize)]
pub struct Job {
    pub job: String,
    pub store: Store,
    pub bytes: u64,
    pub positions: Vec<Position>,
}

/// Lists all memory of this user on this node, by job.
pub fn survey() -> Vec<Job> {
    let mut jobs: BTreeMap<(String, u8), Vec<Held>> = BTreeMap::new();
    for held in memory_store::list_user() {
        jobs.entry((held.job.clone(), held.store as u8)).or_default().push(held);
    }
    jobs.into_values().map(job).collect()
}

fn job(parts: Vec<Held>) -> Job {
    let (name, store) = (parts[0].job.clone(), parts[0].store);
    let mut by_position: BTreeMap<u32, u64> = BTreeMap::new();
    for part in &parts {
        *by_position.entry(part.position).or_default() += part.bytes;
    }
    let memory_store = MemoryStore::new(store, &name);
    let positions = by_position
        .into_iter()
        .map(|(position, bytes)| {
            let mut told = Position { position, bytes, in_use: false, header: None, fault: None };
            let Ok(memory_store) = &memory_store else { return told };
            told.in_use = memory_store.in_use(position);
            match memory_store.peek(position, Part::Head) {
                Err(error) => told.fault = Some(error.to_string()),
                Ok(region) => match Head::new(region).and_then(|h| Ok((h.read()?, h.progress()))) {
                    Err(fault) => told.fault = Some(fault.to_string()),
                    Ok((header, progress)) => told.header = Some(known(header, progress)),
                },
            }
            told
        })
        .collect();
    Job { job: name, store, bytes: parts.iter().map(|p| p.bytes).sum(), positions }
}

fn known(header: Header, progress: crate::shm::header::Progress) -> Known {
    let id = header.id;
    let at = progress.at_unix_ms as f64 / 1e3;
    let role = Role::of(&id);
    Known {
        run: format!("{:032x}", id.run),
        test: id.test,
        n: id.n,
        nb: id.nb,
        p: id.p,
        q: id.q,
        method: Method::from_byte(id.method),
        group: id.members,
        losses: id.losses,
        role,
        column: role.filter(|role| *role != Role::Sums).map(|_| id.group),
        parity_layout: ParityLayout::from_byte(id.layout),
        attempt: count_of(header.claim.joined),
        claim: header.claim,
        boundary: header.claim.base.map(|_| header.base.boundary),
        iteration: progress.iteration,
        doing: Doing::from_word(progress.doing),
        heartbeat_age_s: (at > 0.0).then(|| (unix_seconds() - at).max(0.0)),
    }
}

/// Describes the memory of the jobs on this node as text.
pub fn words(jobs: &[Job]) -> String {
    if jobs.is_empty() {
        return "this node has no memory of your protected runs\n".to_owned();
    }
    let mut text = String::new();
    for job in jobs {
        let state = if job.positions.iter().any(|p| p.in_use) { "running" } else { "left over" };
        text += &format!("job {} ({state}): {}\n", job.job, human(u128::from(job.bytes)));
        for position in &job.positions {
            text += &format!("  position {}: {}\n", position.position, line(position));
        }
        if job.positions.iter().flat_map(|p| &p.header).any(|h| h.role.is_some()) {
            text += WITH_CHECKSUMS;
        }
    }
    text
}

/// Note on memory of a test under `--method abft`.
const WITH_CHECKSUMS: &str = "  method abft saves nothing: this memory shows progress and roles while the ranks live (spare and idle ranks have \
                              none); after the ranks have ended, the next run begins from scratch\n";

fn line(position: &Position) -> String {
    let Some(h) = &position.header else {
        let why = position.fault.as_deref().unwrap_or("the header cannot be read");
        return format!("{}; not usable: {why}", human(u128::from(position.bytes)));
    };
    let blocks = h.n.div_ceil(h.nb.max(1));
    let held = match (h.claim.stage, h.claim.base, h.claim.seal, h.boundary) {
        (Stage::Overwriting, ..) => {
            "holds no checkpoint: a save had begun to overwrite the only copy".to_owned()
        }
        (_, Some(base), _, Some(at)) if h.method == Some(Method::Disk) => {
            format!("checkpoint {} (boundary {at}) is on storage, none in memory", base.number)
        }
        (_, Some(base), _, Some(at)) => format!("holds checkpoint {} (boundary {at})", base.number),
        (_, None, Some(seal), _) => format!("holds checkpoint {}, sealed", seal.number),
        _ => "holds no checkpoint yet".to_owned(),
    };
    let recovering =
        if matches!(h.claim.phase, Phase::Recovering(_)) { ", in recovery" } else { "" };
    let protection = match h.group.len() {
        // This memory shows only the progress of a test under `skt-hpl run`.
        0 => match (h.role, h.column) {
            (None, _) => "nothing is saved".to_owned(),
            // A killed process could not remove its memory.
            (Some(_), _) if !position.in_use => "its rank has ended".to_owned(),
            (Some(Role::Own), Some(column)) => format!("computes, in process column {column}"),
            (Some(Role::InPlaceOf(column)), _) => {
                format!("computes in the place of process column {column}")
            }
            (Some(_), _) => "holds checksums".to_owned(),
        },
        1 => format!("{held}; attempt {}", h.attempt),
        members => format!(
            "{held}{recovering}; attempt {}, group of {members} that survives {} loss(es){}",
            h.attempt,
            h.losses,
            match h.parity_layout {
                None | Some(ParityLayout::Striped) => String::new(),
                Some(layout) => format!(", parity {}", layout.words()),
            }
        ),
    };
    let at = match h.doing {
        // A rank that saves nothing shows its present work, except while it computes. In all other cases the iteration is shown.
        Some(doing) if h.group.is_empty() && doing != Doing::Computing => progress::words(doing),
        _ => format!("iteration {} of {blocks}", h.iteration),
    };
    let sign =
        h.heartbeat_age_s.map_or(String::new(), |s| format!(", last heartbeat {s:.0} s ago"));
    format!(
        "test {}, N = {}, NB = {}, {} x {}, {at}; {protection}{sign}",
        h.test + 1,
        h.n,
        h.nb,
        h.p,
        h.q
    )
}

/// `skt-hpl clean`: removes one job's memory from this node.
#[derive(Clone, Debug, Args)]
pub struct CleanFlags {
    /// Job whose memory is removed.
    ///
    /// Only memory of this user on this node is removed. The default is the name that a run started here would have: the number
    /// of the batch job, or `default`.
    #[arg(long, value_name = "NAME", env = "SKT_JOB")]
    pub job: Option<String>,

    /// Also remove the job's checkpoints in DIR (the benchmark's --level2)
    #[arg(long, value_name = "DIR")]
    pub level2: Option<PathBuf>,
}

pub fn run_clean(flags: &CleanFlags) -> ExitCode {
    clean(flags).map_or_else(super::say_why, |text| print(text.as_bytes()))
}

fn clean(flags: &CleanFlags) -> Result<String, Refusal> {
    // An empty variable counts as unset, as for a run.
    let job = flags.job.clone().filter(|job| !job.is_empty());
    let job = job.unwrap_or_else(|| job_name(|name| std::env::var(name).ok()));
    // If the name is not valid for memory, the job has no memory.
    let gone = match MemoryStore::new(Store::Posix, &job) {
        Ok(memory_store) => memory_store.clean(),
        Err(_) => Ok(Vec::new()),
    };
    let gone = gone.map_err(|error| Refusal::new(Exit::NoSharedMemory, error))?;
    let (parts, removed) = (gone.len(), gone.iter().map(|part| part.bytes).sum::<u64>());
    let mut text = match parts {
        0 => format!("job {job}: nothing of yours on this node\n"),
        _ => format!("job {job}: removed {parts} pieces, {}\n", human(u128::from(removed))),
    };
    if let Some(dir) = &flags.level2 {
        text += &stored_checkpoints::clean(dir, &job).map_err(Refusal::environment)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::header::{NO_CODE, Progress, SUMS, WITHOUT_SUMS};
    use crate::testkit::memory::sample;

    /// Makes memory whose header shows the progress of a test that saves nothing.
    fn shown(code: u8, column: u32, doing: Doing) -> Position {
        let mut header = sample();
        (header.id.code, header.id.group, header.id.q) = (code, column, 2);
        (header.id.members, header.id.method) = (Vec::new(), NO_CODE);
        let progress = Progress { iteration: 7, doing: doing as u64, ..Progress::default() };
        let header = Some(known(header, progress));
        Position { position: 4, bytes: 16384, in_use: true, header, fault: None }
    }

    #[test]
    fn memory_of_method_abft_names_roles() {
        let own = shown(WITHOUT_SUMS, 1, Doing::Computing);
        let of = |code, column| line(&shown(code, column, Doing::Solving));
        let test = "test 3, N = 1000, NB = 64, 2 x 2";
        let computes = format!("{test}, iteration 7 of 16; computes, in process column 1");
        assert_eq!(line(&own), computes);
        assert_eq!(of(SUMS, 2), format!("{test}, solving; holds checksums"));
        let taken = format!("{test}, solving; computes in the place of process column 0");
        assert_eq!(of(SUMS, 0), taken);
        assert_eq!(of(NO_CODE, 1), format!("{test}, solving; nothing is saved"));
        let dead = Position { in_use: false, ..shown(WITHOUT_SUMS, 1, Doing::Computing) };
        assert_eq!(line(&dead), format!("{test}, iteration 7 of 16; its rank has ended"));
        let job = |position: Position| Job {
            job: "r".into(),
            store: Store::Posix,
            bytes: 16384,
            positions: vec![position],
        };
        let text = words(&[job(own), job(shown(NO_CODE, 1, Doing::Computing))]);
        assert_eq!(text.matches("the next run begins from scratch").count(), 1, "{text}");
        let json = serde_json::to_value(shown(SUMS, 0, Doing::Computing)).unwrap();
        let role = serde_json::json!({ "in-place-of": 0 });
        assert_eq!((&json["header"]["role"], &json["header"]["column"]), (&role, &0.into()));
    }
}
