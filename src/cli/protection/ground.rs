//! What one rank needs to be protected at all: found by itself, before all agree to begin.
//!
//! What is missing is a refusal like any other a rank may have to its part in the run.

use std::path::Path;

use crate::checkpoint::groups::DomainFile;
use crate::cli::agreement::Ended;
use crate::cli::exit::Exit;
use crate::input::settings;
use crate::memory::Depot;
use crate::whole;

/// Where this rank is, and where its memory will be.
#[derive(Clone)]
pub struct Ground {
    pub host: String,
    pub domain: String,
    pub(super) depot: Depot,
}

impl Ground {
    pub fn prepare(settings: &settings::Protection, rank: usize) -> Result<Self, Ended> {
        let bad = |why: String| Ended::new(Exit::BadInput, why);
        settings.scheme.check().map_err(|e| bad(e.to_string()))?;
        let host = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
        let domain = domain(settings, rank, &host).map_err(bad)?;
        let depot = Depot::new(settings.store, &settings.job)
            .map_err(|e| Ended::new(Exit::NoSharedMemory, e.to_string()))?;
        Ok(Self { host, domain, depot })
    }
}

/// The failure domain of a rank.
fn domain(settings: &settings::Protection, rank: usize, host: &str) -> Result<String, String> {
    match &settings.domains {
        None => Ok(host.to_owned()),
        Some(path) => Ok(read_domains(path)?.domain(rank, host)),
    }
}

pub fn read_domains(path: &Path) -> Result<DomainFile, String> {
    let text = whole::text(path)
        .map_err(|e| format!("the domain file {} cannot be read: {e}", path.display()))?;
    DomainFile::parse(&text).map_err(|e| format!("{}: {e}", path.display()))
}
