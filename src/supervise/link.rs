//! Connections to the agents: one remote shell a node, its lines as messages in one queue.
//!
//! The restart loop owns a [`Links`] and receives everything through one channel, so it can sleep until
//! something happens. Each connection has a number: what a closed one still had to say is told apart
//! from the words of its successor.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::shell::RemoteShell;
use super::wire::{FromAgent, ToAgent, from_line, to_line};

/// Something from a connection.
#[derive(Debug)]
pub enum Heard {
    Message(FromAgent),
    /// The remote shell ended: its last words on the error stream.
    Closed(String),
}

struct Link {
    number: u64,
    child: Child,
    stdin: Option<ChildStdin>,
    said: Arc<Mutex<String>>,
    opened: Instant,
    greeted: bool,
}

/// Connections by node.
pub struct Links {
    shell: RemoteShell,
    /// What is run on the node.
    argv: Vec<String>,
    links: Vec<Option<Link>>,
    next: u64,
    sender: Sender<(usize, u64, Heard)>,
    receiver: Receiver<(usize, u64, Heard)>,
    names: Vec<String>,
}

impl Links {
    pub fn new(shell: RemoteShell, argv: Vec<String>, names: Vec<String>) -> Self {
        let (sender, receiver) = channel();
        let links = names.iter().map(|_| None).collect();
        Self { shell, argv, links, next: 0, sender, receiver, names }
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Opens a connection, in place of one there may be, and says the first words on it.
    pub fn open(&mut self, node: usize, first: &[ToAgent]) {
        self.close(node);
        let words = self.shell.command(&self.names[node], &self.argv);
        let number = self.next;
        self.next += 1;
        let spawned = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => {
                let why = format!("cannot start {}: {error}", words[0]);
                let _ = self.sender.send((node, number, Heard::Closed(why)));
                return;
            }
        };
        let said = Arc::new(Mutex::new(String::new()));
        if let Some(errors) = child.stderr.take() {
            let said = Arc::clone(&said);
            thread::spawn(move || {
                for line in BufReader::new(errors).lines().map_while(Result::ok) {
                    let mut said = said.lock().unwrap_or_else(|e| e.into_inner());
                    if said.len() < 2000 {
                        if !said.is_empty() {
                            said.push_str("; ");
                        }
                        said.push_str(line.trim());
                    }
                }
            });
        }
        if let Some(output) = child.stdout.take() {
            let (sender, said) = (self.sender.clone(), Arc::clone(&said));
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if let Some(message) = from_line(&line)
                        && sender.send((node, number, Heard::Message(message))).is_err()
                    {
                        return;
                    }
                }
                // The error stream's last words come a moment later.
                thread::sleep(Duration::from_millis(20));
                let why = said.lock().unwrap_or_else(|e| e.into_inner()).clone();
                let _ = sender.send((node, number, Heard::Closed(why)));
            });
        }
        let stdin = child.stdin.take();
        self.links[node] =
            Some(Link { number, child, stdin, said, opened: Instant::now(), greeted: false });
        for message in first {
            self.send(node, message);
        }
    }

    /// Sends; a connection that is gone shows by its `Closed`.
    pub fn send(&mut self, node: usize, message: &ToAgent) -> bool {
        self.links[node]
            .as_mut()
            .and_then(|link| link.stdin.as_mut())
            .is_some_and(|stdin| stdin.write_all(to_line(message).as_bytes()).is_ok())
    }

    pub fn is_open(&self, node: usize) -> bool {
        self.links[node].is_some()
    }

    /// Whether the agent has said hello on the present connection.
    pub fn is_greeted(&self, node: usize) -> bool {
        self.links[node].as_ref().is_some_and(|l| l.greeted)
    }

    /// For how long the present connection has been waiting for the agent's hello.
    pub fn waiting(&self, node: usize) -> Option<Duration> {
        self.links[node].as_ref().filter(|l| !l.greeted).map(|l| l.opened.elapsed())
    }

    /// Ends a connection without waiting for the other end.
    pub fn close(&mut self, node: usize) {
        if let Some(mut link) = self.links[node].take() {
            drop(link.stdin.take());
            // The agent ends by itself when its input closes; the shell is ours to end. One that cannot
            // reach its node any more would linger for minutes.
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(300));
                let _ = link.child.kill();
                let _ = link.child.wait();
            });
        }
    }

    /// The next thing heard on a present connection, within `patience`.
    pub fn hear(&mut self, patience: Duration) -> Option<(usize, Heard)> {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let (node, number, heard) = match self.receiver.recv_timeout(left) {
                Ok(item) => item,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            };
            match &heard {
                Heard::Closed(_)
                    if self.links[node].as_ref().is_some_and(|l| l.number == number) =>
                {
                    self.close(node);
                    return Some((node, heard));
                }
                // A connection that could not even be started has no entry.
                Heard::Closed(_) if self.links[node].is_none() && number + 1 == self.next => {
                    return Some((node, heard));
                }
                Heard::Message(message) => {
                    if let Some(link) = self.links[node].as_mut().filter(|l| l.number == number) {
                        link.greeted |= matches!(message, FromAgent::Hello(_));
                        return Some((node, heard));
                    }
                }
                Heard::Closed(_) => {}
            }
        }
    }

    /// What the present connection has said on its error stream.
    pub fn complaint(&self, node: usize) -> String {
        self.links[node]
            .as_ref()
            .map(|l| l.said.lock().unwrap_or_else(|e| e.into_inner()).clone())
            .unwrap_or_default()
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        for link in self.links.iter_mut().filter_map(Option::take) {
            let Link { mut child, stdin, .. } = link;
            drop(stdin);
            let until = Instant::now() + Duration::from_millis(300);
            while Instant::now() < until && matches!(child.try_wait(), Ok(None)) {
                thread::sleep(Duration::from_millis(5));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::wire::Beat;

    /// `sh -c` in the place of ssh, a shell script in the place of an agent.
    fn links(script: &str) -> Links {
        let shell = RemoteShell::Ssh(
            ["sh", "-c", "shift; exec sh -c \"$1\"", "x"].map(String::from).to_vec(),
        );
        let argv = ["sh", "-c", script].map(String::from).to_vec();
        Links::new(shell, argv, vec!["n1".to_string()])
    }

    #[test]
    fn messages_come_through_and_noise_does_not() {
        let beat = Beat { seq: Some(4), ..Beat::default() };
        let line = to_line(&FromAgent::Beat(beat.clone()));
        let mut links = links(&format!("echo Welcome; echo '{}'; echo trouble >&2", line.trim()));
        links.open(0, &[]);
        match links.hear(Duration::from_secs(5)) {
            Some((0, Heard::Message(FromAgent::Beat(b)))) => assert_eq!(b, beat),
            other => panic!("{other:?}"),
        }
        match links.hear(Duration::from_secs(5)) {
            Some((0, Heard::Closed(why))) => assert!(why.contains("trouble"), "{why}"),
            other => panic!("{other:?}"),
        }
        assert!(!links.is_open(0));
    }

    #[test]
    fn an_old_connections_end_is_not_the_new_ones() {
        let mut links = links("read line");
        links.open(0, &[]);
        links.open(0, &[]);
        assert!(links.hear(Duration::from_millis(600)).is_none());
        assert!(links.is_open(0));
        assert!(links.send(0, &ToAgent::Beat { seq: 1 }));
        assert!(matches!(links.hear(Duration::from_secs(5)), Some((0, Heard::Closed(_)))));
    }

    #[test]
    fn a_shell_that_is_not_there_is_told() {
        let shell = RemoteShell::Ssh(vec!["/nowhere/ssh".to_string()]);
        let mut links = Links::new(shell, vec!["x".to_string()], vec!["n1".to_string()]);
        links.open(0, &[]);
        match links.hear(Duration::from_secs(5)) {
            Some((0, Heard::Closed(why))) => assert!(why.contains("/nowhere/ssh"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}
