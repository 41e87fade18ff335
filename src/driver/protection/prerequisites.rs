//! Prerequisites for protection on this node. Each rank checks its own prerequisites before all ranks agree to begin. A missing
//! prerequisite makes the rank refuse the run.

use std::path::Path;

use crate::base::bounded_read;
use crate::base::exit::{Exit, Refusal};
use crate::base::host_name;
use crate::checkpoint::groups::DomainFile;
use crate::config::settings;
use crate::shm::MemoryStore;

/// Host and failure domain of this rank, and the shared-memory store of its node.
pub struct Prerequisites {
    pub host: String,
    pub domain: String,
    /// True if the domain file lists hosts, but not this one.
    pub(super) left_out: bool,
    pub(super) memory_store: MemoryStore,
}

impl Prerequisites {
    pub fn prepare(settings: &settings::Saves, rank: usize) -> Result<Self, Refusal> {
        settings.scheme.check().map_err(Refusal::bad_input)?;
        let host = host_name();
        let file = settings.domains.as_deref().map(read_domains).transpose();
        let file = file.map_err(Refusal::bad_input)?;
        let left_out = file.as_ref().is_some_and(|file| file.leaves_out(rank, &host));
        let domain = file.map_or_else(|| host.clone(), |file| file.domain(rank, &host));
        let memory_store = MemoryStore::new(settings.store, &settings.job)
            .map_err(|e| Refusal::new(Exit::NoSharedMemory, e))?;
        Ok(Self { host, domain, left_out, memory_store })
    }
}

pub fn read_domains(path: &Path) -> Result<DomainFile, String> {
    let text = bounded_read::text(path)
        .map_err(|e| format!("the file {} of --domains cannot be read: {e}", path.display()))?;
    DomainFile::parse(&text).map_err(|e| format!("{}: {e}", path.display()))
}
