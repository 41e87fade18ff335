//! Machines for tests, described by files as the Linux kernel describes a machine.

use std::fs;

use crate::base::topology::Topology;

/// A machine for tests. Files describe it as the kernel's files would, as far as the program reads them.
pub struct Machine {
    pub sockets: usize,
    pub memories_a_socket: usize,
    /// Number of caches of the highest level in each NUMA node.
    pub caches_a_memory: usize,
    pub cores_a_cache: usize,
    pub threads_a_core: usize,
    /// True if successive core numbers are in different NUMA nodes.
    pub scattered: bool,
}

impl Machine {
    pub const PLAIN: Machine = Machine {
        sockets: 1,
        memories_a_socket: 1,
        caches_a_memory: 1,
        cores_a_cache: 1,
        threads_a_core: 1,
        scattered: false,
    };

    pub fn cores(&self) -> usize {
        self.sockets * self.memories_a_socket * self.caches_a_memory * self.cores_a_cache
    }

    /// Returns the numbers of the cores that share each cache. The second hardware threads of cores have numbers after all first
    /// hardware threads.
    fn caches(&self) -> Vec<Vec<usize>> {
        let caches = self.cores() / self.cores_a_cache;
        let number = |cache: usize, core: usize| {
            if self.scattered { core * caches + cache } else { cache * self.cores_a_cache + core }
        };
        let cores = |cache| (0..self.cores_a_cache).map(|core| number(cache, core)).collect();
        (0..caches).map(cores).collect()
    }

    pub fn tree(&self) -> tempfile::TempDir {
        // The folder has thousands of files, so it is in shared memory if possible.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let put = |path: String, text: String| {
            let path = dir.path().join("sys/devices/system").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let list = |cores: &[usize]| -> String {
            let threads = 0..self.threads_a_core;
            let all = threads.flat_map(|t| cores.iter().map(move |c| c + t * self.cores()));
            all.map(|cpu| cpu.to_string()).collect::<Vec<_>>().join(",") + "\n"
        };
        let caches = self.caches();
        for (node, caches) in caches.chunks(self.caches_a_memory).enumerate() {
            let all: Vec<usize> = caches.concat();
            put(format!("node/node{node}/cpulist"), list(&all));
        }
        for (at, cores) in caches.iter().enumerate() {
            let socket = at / (self.memories_a_socket * self.caches_a_memory);
            for (core, thread) in
                cores.iter().flat_map(|c| (0..self.threads_a_core).map(move |t| (c, t)))
            {
                let cpu = format!("cpu/cpu{}", core + thread * self.cores());
                put(format!("{cpu}/topology/thread_siblings_list"), list(&[*core]));
                put(format!("{cpu}/topology/physical_package_id"), format!("{socket}\n"));
                for (index, level, kind, shared) in [
                    (2, 2, "Unified", list(&[*core])),
                    (3, 3, "Unified", list(cores)),
                    (4, 4, "Instruction", list(&[*core])),
                ] {
                    let index = format!("{cpu}/cache/index{index}");
                    put(format!("{index}/level"), format!("{level}\n"));
                    put(format!("{index}/type"), format!("{kind}\n"));
                    put(format!("{index}/shared_cpu_list"), shared);
                }
            }
        }
        put("cpu/cpufreq/x".into(), String::new());
        put("cpu/cpu900/online".into(), "0\n".into());
        dir
    }

    pub fn topology(&self) -> Topology {
        Topology::under(self.tree().path())
    }
}
