//! Simulates thousands of agents in one process. The messages and `Relay` are the real ones; logins and the network are delayed.
//!
//! The supervisor's remote shell is this benchmark in another role ([`shell`]), which connects the supervisor's pipes to the
//! socket of the simulator. Behind the socket everything is in memory: the simulated agents of the tests of trees, in real time.
//! A node that is off neither receives nor sends anything.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::Shutdown;
use std::ops::Range;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use skt_hpl::base::clock::unix_ms;
use skt_hpl::supervise::remember::events::Event as Logged;
use skt_hpl::supervise::remember::journal;
use skt_hpl::supervise::talk::agent::{Asked, facts};
use skt_hpl::supervise::talk::branch::{Heard, Lines};
use skt_hpl::supervise::talk::progress::{Doing, Progress};
use skt_hpl::supervise::talk::relay::Hands;
use skt_hpl::supervise::talk::wire::{Attend, Beat, Facts, Free, Shm, Which};
use skt_hpl::testkit::simulated_agents::{Manner, Nodes, SimulatedAgents};

const MANNER: Manner = Manner { login_ms: 300, refused_ms: 4000, travel_ms: (1, 5), seed: 1 };

/// Interval at which the simulator reads the journal of the run.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs the role of the remote shell. The arguments are the socket, the host and the command. Copies standard input to the
/// socket, and the answers to standard output.
pub fn shell(words: &[String]) -> std::io::Result<()> {
    let mut socket = UnixStream::connect(&words[0])?;
    writeln!(socket, "{}", words[1])?;
    let mut back = socket.try_clone()?;
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut socket);
        let _ = socket.shutdown(Shutdown::Both);
    });
    let mut chunk = vec![0u8; 1 << 16];
    let mut out = std::io::stdout();
    while let Ok(count @ 1..) = back.read(&mut chunk) {
        out.write_all(&chunk[..count])?;
        out.flush()?;
    }
    Ok(())
}

/// Makes the simulator switch off `nodes` without closing their connections. Returns when this is done.
pub fn cut_power(socket: &Path, nodes: &[String]) -> std::io::Result<()> {
    let mut socket = UnixStream::connect(socket)?;
    writeln!(socket, "!{}", nodes.join(" "))?;
    // The simulator closes the socket after it has switched the nodes off.
    socket.read_to_end(&mut Vec::new()).map(drop)
}

/// Input of the simulator from remote shells: a new connection, a line, or the end of a connection.
enum Outside {
    Connected { number: u64, stream: UnixStream, host: String },
    Line { number: u64, text: String },
    Ended { number: u64 },
}

/// A simulated node and the ranks on it.
struct Node {
    facts: Facts,
    attempt: u32,
    positions: Range<u32>,
    since: Instant,
    ended: Vec<u64>,
}

impl Hands for Node {
    fn attend(&mut self, _: &Attend) {}
    fn beat(&mut self, seq: Option<u64>) -> Beat {
        let time = self.since.elapsed();
        let ranks = self.positions.clone().map(|position| {
            let progress = Progress {
                position,
                pid: 1000 * self.attempt + position - self.positions.start,
                beat: time.as_millis() as u64 / 300,
                iteration: time.as_secs() / 2,
                doing: Doing::Computing,
                busy_us: time.as_micros() as u64 * 8 / 10,
                flops: time.as_micros() as u64 * 1000,
                ..Progress::default()
            };
            Progress { state: 'R', ..progress }
        });
        Beat {
            seq,
            processes: self.positions.len(),
            ranks: ranks.collect(),
            free: self.facts.free,
            ..Beat::default()
        }
    }
    fn end(&mut self, id: u64, _: bool) {
        self.positions = 0..0;
        self.ended.push(id);
    }
    fn end_rank(&mut self, _: Which, _: u32) {}
    fn halt(&mut self, _: bool) {}
    fn orphaned(&mut self, unheard: Duration, limit: Duration) -> bool {
        unheard >= limit
    }
}

/// All simulated nodes by name, with the facts that each node reports.
struct Machine {
    facts: Facts,
    nodes: HashMap<String, Node>,
}

impl Machine {
    fn node(&mut self, name: &str) -> &mut Node {
        if !self.nodes.contains_key(name) {
            let (host, boot) = (name.to_string(), format!("boot of {name}"));
            let facts = Facts { host, boot, ..self.facts.clone() };
            let (since, ended) = (Instant::now(), Vec::new());
            let node = Node { facts, attempt: 0, positions: 0..0, since, ended };
            self.nodes.insert(name.to_string(), node);
        }
        self.nodes.get_mut(name).expect("it has just been put there")
    }
}

impl Nodes for Machine {
    type Hands = Node;
    fn facts(&mut self, name: &str, _: u64) -> Facts {
        Facts { unix_ms: unix_ms(), ..self.node(name).facts.clone() }
    }
    fn hands(&mut self, name: &str) -> &mut Node {
        self.node(name)
    }
    fn ended(node: &mut Node) -> Vec<u64> {
        std::mem::take(&mut node.ended)
    }
}

struct Simulator {
    zero: Instant,
    simulated_agents: SimulatedAgents<Machine>,
    /// Connections to the supervisor, by their numbers.
    outside: HashMap<u64, UnixStream>,
    log: PathBuf,
    log_read: u64,
}

/// Simulates agents until the process is killed. `log` is the journal of the run, which names the nodes of each launch. `digest`
/// identifies the program file.
pub fn simulate(socket: &Path, log: &Path, digest: &str) -> std::io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for (number, stream) in (0..).zip(listener.incoming().flatten()) {
            let sender = sender.clone();
            std::thread::spawn(move || listen(number, stream, &sender));
        }
    });
    let gib = 1 << 30;
    let facts = Facts {
        binary: digest.to_string(),
        cores: 64,
        memory_bytes: 256 * gib,
        free: Free { shm_bytes: 200 * gib, memory_bytes: 250 * gib, ..Free::default() },
        shm: Shm { bytes: 200 * gib, is_memory: true, device: 0 },
        remove_ipc: None,
        ..facts(&Asked::default())
    };
    Simulator {
        zero: Instant::now(),
        simulated_agents: SimulatedAgents::new(Machine { facts, nodes: HashMap::new() }, MANNER),
        outside: HashMap::new(),
        log: log.to_path_buf(),
        log_read: 0,
    }
    .serve(&receiver)
}

fn listen(number: u64, stream: UnixStream, sender: &Sender<Outside>) {
    let Ok(reading) = stream.try_clone() else { return };
    let mut lines = BufReader::new(reading).lines().map_while(Result::ok);
    let Some(host) = lines.next() else { return };
    let _ = sender.send(Outside::Connected { number, stream, host });
    for text in lines {
        let _ = sender.send(Outside::Line { number, text });
    }
    let _ = sender.send(Outside::Ended { number });
}

impl Simulator {
    fn serve(mut self, receiver: &Receiver<Outside>) -> std::io::Result<()> {
        let mut looked = Instant::now();
        loop {
            let left_ms = |at_ms: u64| at_ms.saturating_sub(self.now_ms());
            let next =
                Duration::from_millis(self.simulated_agents.next_ms().map_or(u64::MAX, left_ms));
            let outside = match receiver.recv_timeout(next.min(LOOK_EVERY)) {
                Ok(outside) => Some(outside),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            // Simulates up to now, so that input takes effect now.
            for (line, heard) in self.simulated_agents.play(self.now_ms()) {
                let Some(stream) = self.outside.get_mut(&line) else { continue };
                match heard {
                    Heard::Text(text) => drop(stream.write_all((text + "\n").as_bytes())),
                    Heard::Closed(_) => {
                        let _ = stream.shutdown(Shutdown::Both);
                        self.outside.remove(&line);
                    }
                }
            }
            if let Some(outside) = outside {
                self.outside(outside);
            }
            if looked.elapsed() >= LOOK_EVERY {
                looked = Instant::now();
                self.read_log();
            }
        }
    }

    fn now_ms(&self) -> u64 {
        self.zero.elapsed().as_millis() as u64
    }

    fn outside(&mut self, outside: Outside) {
        match outside {
            Outside::Connected { stream, host, .. } if host.starts_with('!') => {
                self.simulated_agents.switch_off(host[1..].split_whitespace());
                let _ = stream.shutdown(Shutdown::Both);
            }
            Outside::Connected { number, stream, host } => {
                self.outside.insert(number, stream);
                self.simulated_agents.call(number, &host);
            }
            Outside::Line { number, text } => self.simulated_agents.send(number, &text),
            Outside::Ended { number } => {
                self.outside.remove(&number);
                self.simulated_agents.close(number);
            }
        }
    }

    /// Reads new launches and their nodes from the journal of the run.
    fn read_log(&mut self) {
        let Ok(mut file) = std::fs::File::open(&self.log) else { return };
        let mut new = Vec::new();
        // A launch on ten thousand nodes is a long line, so only new text is read.
        let read =
            file.seek(SeekFrom::Start(self.log_read)).and_then(|_| file.read_to_end(&mut new));
        let Some(end) = new.iter().rposition(|b| *b == b'\n').filter(|_| read.is_ok()) else {
            return;
        };
        let text = String::from_utf8_lossy(&new[..=end]).into_owned();
        self.log_read += end as u64 + 1;
        for record in text.lines().filter_map(|line| journal::from_line(line).ok()) {
            if let Logged::Launched { attempt, hosts, .. } = record.event {
                let mut next = 0;
                for host in &hosts {
                    let node = self.simulated_agents.nodes.node(&host.name);
                    node.positions = next..next + host.slots as u32;
                    next = node.positions.end;
                    node.attempt = attempt;
                    node.since = Instant::now();
                }
            }
        }
    }
}
