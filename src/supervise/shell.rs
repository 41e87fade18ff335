//! The remote shell: how a command gets onto a node, as plain argument lists.
//!
//! Agents, probes and the launchers' own daemons all travel this way. A command for another node is a
//! text that the login shell there will read once more, so every word is quoted; a job directory with a
//! blank in its name must not become two words on 500 nodes.

use serde::{Deserialize, Serialize};

/// How to run a command on a named node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RemoteShell {
    /// `ssh` or something that takes the same arguments: options, host, command text.
    Ssh(Vec<String>),
    /// A step of its own inside a Slurm allocation.
    Srun { job: String },
}

impl RemoteShell {
    /// From the text of `--rsh`, or plain ssh. Options that keep ssh from asking questions nobody would
    /// answer are added where the program is ssh.
    pub fn parse(text: Option<&str>) -> Result<Self, String> {
        let mut words = split_words(text.unwrap_or("ssh"))?;
        let Some(program) = words.first() else {
            return Err("the remote shell's command is empty".to_string());
        };
        if program == "ssh" || program.ends_with("/ssh") {
            for option in ["BatchMode=yes", "ConnectTimeout=4"] {
                words.push("-o".to_string());
                words.push(option.to_string());
            }
        }
        Ok(Self::Ssh(words))
    }

    /// The local command that runs `argv` on `host`.
    pub fn command(&self, host: &str, argv: &[String]) -> Vec<String> {
        let mut words = self.prefix(host);
        match self {
            Self::Ssh(_) => words.push(quote_all(argv)),
            Self::Srun { .. } => words.extend(argv.iter().cloned()),
        }
        words
    }

    fn prefix(&self, host: &str) -> Vec<String> {
        match self {
            Self::Ssh(shell) => {
                let mut words = shell.clone();
                words.push(host.to_string());
                words
            }
            Self::Srun { job } => [
                "srun",
                &format!("--jobid={job}"),
                "--overlap",
                "--nodes=1",
                "--ntasks=1",
                "--mpi=none",
                "--quiet",
                &format!("--nodelist={host}"),
            ]
            .map(str::to_string)
            .to_vec(),
        }
    }

    /// A shell script that launchers call as `SCRIPT [-x] HOST COMMAND...` to start their daemon on a node.
    /// It puts `env` into the daemon's environment: that is how the daemon, too, is found by run id.
    pub fn launcher_script(&self, env: &[(String, String)]) -> String {
        let settings: Vec<String> =
            env.iter().map(|(name, value)| format!("{name}={}", quote(value))).collect();
        let settings = settings.join(" ");
        let call = match self {
            Self::Ssh(shell) => format!(
                "exec {} \"$host\" {}\"sh -c '$text'\"",
                quote_all(shell),
                quote(&format!("env {settings} ")),
            ),
            Self::Srun { .. } => {
                let mut words = self.prefix("HOST");
                words.pop();
                format!(
                    "exec {} --nodelist=\"$host\" env {settings} sh -c \"$*\"",
                    quote_all(&words)
                )
            }
        };
        format!(
            "#!/bin/sh\n\
             # Called by the MPI launcher: start its daemon on a node, marked with this run's id.\n\
             while :; do case $1 in -*) shift ;; *) break ;; esac; done\n\
             host=$1; shift\n\
             text=$(printf '%s' \"$*\" | sed \"s/'/'\\\\\\\\''/g\")\n\
             {call}\n"
        )
    }
}

/// One word as a POSIX shell reads it back unchanged.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

pub fn quote_all<S: AsRef<str>>(words: &[S]) -> String {
    let quoted: Vec<String> = words.iter().map(|w| quote(w.as_ref())).collect();
    quoted.join(" ")
}

/// Splits a command text at blanks, honouring quotes and backslashes as a shell does.
pub fn split_words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            c if c.is_whitespace() => words.extend(word.take()),
            '\'' | '"' => {
                let into = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        None => return Err(format!("{text}: a {c} is not closed")),
                        Some(end) if end == c => break,
                        Some('\\') if c == '"' => match chars.next() {
                            Some(e @ ('"' | '\\' | '$' | '`')) => into.push(e),
                            Some(other) => {
                                into.push('\\');
                                into.push(other);
                            }
                            None => return Err(format!("{text}: a {c} is not closed")),
                        },
                        Some(inner) => into.push(inner),
                    }
                }
            }
            '\\' => match chars.next() {
                Some(next) => word.get_or_insert_default().push(next),
                None => return Err(format!("{text}: ends in a backslash")),
            },
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    fn strings(words: &[&str]) -> Vec<String> {
        words.iter().map(|w| w.to_string()).collect()
    }

    #[test]
    fn ssh_is_kept_from_asking() {
        let shell = RemoteShell::parse(Some("ssh -F 'my config'")).unwrap();
        assert_eq!(
            shell.command("n1", &strings(&["a b", "c"])),
            [
                "ssh",
                "-F",
                "my config",
                "-o",
                "BatchMode=yes",
                "-o",
                "ConnectTimeout=4",
                "n1",
                "'a b' c"
            ]
        );
        assert!(RemoteShell::parse(Some("  ")).is_err());
        assert!(RemoteShell::parse(Some("ssh 'x")).is_err());
    }

    #[test]
    fn srun_takes_words_as_they_are() {
        let shell = RemoteShell::Srun { job: "7".to_string() };
        let command = shell.command("n2", &strings(&["a b"]));
        assert!(command.contains(&"--nodelist=n2".to_string()));
        assert_eq!(command.last().unwrap(), "a b");
    }

    /// Runs the launcher's script with `sh -c` standing in for ssh: what the daemon sees must be what the
    /// launcher said, quotes and all, and the settings with it.
    #[test]
    fn the_launchers_script_brings_command_and_settings_over() {
        let dir = tempfile::tempdir().unwrap();
        let ssh = dir.path().join("fake ssh");
        std::fs::write(&ssh, "#!/bin/sh\necho \"host $1\"; shift; exec sh -c \"$*\"\n").unwrap();
        let script = dir.path().join("script");
        let shell = RemoteShell::Ssh(strings(&["sh", ssh.to_str().unwrap()]));
        let env = [("SKT_RUN_ID".to_string(), "it's".to_string())];
        std::fs::write(&script, shell.launcher_script(&env)).unwrap();
        let out = Command::new("sh")
            .arg(&script)
            .args(["-x", "n3", "A=5;", "printf", "'<%s>'", "\"a b\"", "\"$A\"", "\"$SKT_RUN_ID\""])
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&out.stdout),
            "host n3\n<a b><5><it's>",
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
    }

    proptest! {
        #[test]
        fn what_is_quoted_splits_back(words in proptest::collection::vec("[ -~]{0,12}", 0..6)) {
            prop_assert_eq!(split_words(&quote_all(&words)).unwrap(), words);
        }
    }
}
