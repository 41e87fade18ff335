//! The remote shell, which runs commands on a node. Commands are argument lists.
//!
//! Agents, probes and the launchers' own daemons are started through the remote shell. The login shell on the other node parses
//! the text of a command again, so every word is quoted. A job directory with a blank in its name thus stays one word.

use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::time::Duration;

/// A way to run a command on a named node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RemoteShell {
    /// `ssh`, or a program with the same arguments: options, host, command text.
    Ssh(Vec<String>),
    /// A job step inside a Slurm allocation.
    Srun { job: String },
    /// LSF's `blaunch`, which takes the arguments of ssh, but not its options. `blaunch` only works with the variables that LSF
    /// has set for the job. These variables are removed from the environment of launchers, so they are set again for `blaunch`
    /// alone.
    Blaunch { shell: Vec<String>, env: Vec<(String, String)> },
}

impl Default for RemoteShell {
    fn default() -> Self {
        Self::Ssh(vec!["ssh".to_owned()])
    }
}

/// Interval at which ssh checks that the other side still answers.
const QUESTION_EVERY: Duration = Duration::from_secs(30);

/// Returns the last part of a path.
fn base_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// Returns ssh's arguments for these options.
fn options(settings: &[&str]) -> Vec<String> {
    settings.iter().flat_map(|s| ["-o".to_string(), s.to_string()]).collect()
}

/// Returns the environment variables that are text. Other variables are ignored, because they would make this program fail.
pub fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Variable with the folders in which programs look for their libraries, such as a site's own MPI or BLAS. It is set on every
/// node, because a remote shell does not pass variables on.
pub const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// Returns the variable with this program's library folders, for other nodes, if it is set.
pub fn library_path() -> Option<(String, String)> {
    variables().find(|(name, value)| name == LIBRARY_PATH && !value.is_empty())
}

impl RemoteShell {
    /// Returns the shell that the text of `--rsh` names, or plain ssh. If the program is ssh, options are added that keep ssh
    /// from asking for input.
    pub fn parse(text: Option<&str>) -> Result<Self, String> {
        Self::parse_in(text, variables())
    }

    /// Parses like [`parse`](Self::parse), with `env` as the environment.
    fn parse_in(
        text: Option<&str>,
        env: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, String> {
        let mut words = split_words(text.unwrap_or("ssh"))?;
        let Some(program) = words.first() else {
            return Err("the remote shell's command is empty".to_string());
        };
        match base_name(program) {
            "ssh" => {
                words.extend(options(&["BatchMode=yes", "ConnectTimeout=4"]));
                Ok(Self::Ssh(words))
            }
            "blaunch" => {
                let of_lsf =
                    |name: &str| ["LSB_", "LS_", "LSF_"].iter().any(|p| name.starts_with(p));
                let mut env: Vec<_> = env.filter(|(name, _)| of_lsf(name)).collect();
                env.sort();
                Ok(Self::Blaunch { shell: words, env })
            }
            // PBS's task manager starts a process without standard input.
            "pbs_tmrsh" | "pbsdsh" => Err(format!(
                "{program} passes no standard input to the command that it starts, but agents need standard input; \
                 use ssh, which PBS sites allow between the nodes of a job"
            )),
            _ => Ok(Self::Ssh(words)),
        }
    }

    /// Returns this shell with ssh options that end a connection if no answer has come for a long time. The supervisor notices an
    /// unresponsive node much sooner. But if the supervisor is killed, its ssh to a node that is cut off would wait a quarter of
    /// an hour or longer for TCP to give up. The time is at least four times `node_timeout`, so a node that is only slow keeps
    /// its connection.
    pub fn noticing_death(self, node_timeout: Duration) -> Self {
        match self {
            Self::Ssh(mut words) if words.first().is_some_and(|w| base_name(w) == "ssh") => {
                let questions = node_timeout
                    .saturating_mul(4)
                    .div_duration_f64(QUESTION_EVERY)
                    .ceil()
                    .clamp(6.0, 1e6);
                words.extend(options(&[
                    &format!("ServerAliveInterval={}", QUESTION_EVERY.as_secs()),
                    &format!("ServerAliveCountMax={questions}"),
                ]));
                Self::Ssh(words)
            }
            other => other,
        }
    }

    /// Returns the local command that runs `argv` on `host`. `found_by` is the variable with the library folders. It is set in
    /// the command if the shell does not pass variables on.
    pub fn command(
        &self,
        host: &str,
        argv: &[String],
        found_by: Option<(String, String)>,
    ) -> Vec<String> {
        let mut words = self.prefix(host);
        match self {
            Self::Ssh(_) | Self::Blaunch { .. } => {
                let set = found_by.map(|(name, value)| ["env".into(), format!("{name}={value}")]);
                words.push(quote_all(&[set.as_slice().concat(), argv.to_vec()].concat()));
            }
            Self::Srun { .. } => words.extend(argv.iter().cloned()),
        }
        words
    }

    fn prefix(&self, host: &str) -> Vec<String> {
        match self {
            Self::Ssh(shell) | Self::Blaunch { shell, .. } => {
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
                // Neither an agent nor the daemon that starts ranks may be bound to a single core.
                "--cpu-bind=none",
                // A job submitted with `--export=NONE` would otherwise not pass its environment to its steps.
                "--export=ALL",
                "--quiet",
                &format!("--nodelist={host}"),
            ]
            .map(str::to_string)
            .to_vec(),
        }
    }

    /// Returns a shell script that launchers call as `SCRIPT [-x] HOST COMMAND...` to start their daemon on a node. The script
    /// puts `env`, with the run id, into the daemon's environment, so that the daemon counts as a process of the run.
    pub fn launcher_script(&self, env: &[(String, String)]) -> String {
        let set = |env: &[(String, String)]| {
            let words: Vec<String> =
                env.iter().map(|(name, value)| format!("{name}={}", quote(value))).collect();
            words.join(" ")
        };
        let settings = set(env);
        let over = |shell: &[String]| {
            let settings = quote(&format!("env {settings} "));
            format!("{} \"$host\" {settings}\"$shell -c '$text'\"", quote_all(shell))
        };
        let call = match self {
            Self::Ssh(shell) => format!("exec {}", over(shell)),
            Self::Blaunch { shell, env } => format!("exec env {} {}", set(env), over(shell)),
            Self::Srun { .. } => {
                let mut words = self.prefix("HOST");
                words.pop();
                format!(
                    "exec {} --nodelist=\"$host\" env {settings} $shell -c \"$*\"",
                    quote_all(&words)
                )
            }
        };
        format!(
            "#!/bin/sh\n\
             # Called by the MPI launcher: start its daemon on a node, marked with this run's id.\n\
             while :; do case $1 in -*) shift ;; *) break ;; esac; done\n\
             host=$1; shift\n\
             # Open MPI writes for the user's own shell.\n\
             case $* in *'set path = ('*) shell=csh ;; *) shell=sh ;; esac\n\
             text=$(printf '%s' \"$*\" | sed \"s/'/'\\\\\\\\''/g\")\n\
             {call}\n"
        )
    }
}

/// Returns whether a variable only tells how to reach Slurm, and nothing about a job or a step.
pub fn leads_to_slurm(name: &str) -> bool {
    ["SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"].contains(&name)
}

/// Returns whether a variable would make `program` start an agent with fewer resources than the job has on the node. srun applies
/// the job's requests for each task to every step.
pub fn misleads(program: &str, name: &OsStr) -> bool {
    let of_a_job = |name: &str| name.starts_with("SLURM_") && !leads_to_slurm(name);
    program == "srun" && name.to_str().is_some_and(of_a_job)
}

/// Returns the word in a form that a POSIX shell reads back unchanged.
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

/// Splits a command text at blanks. Quotes and backslashes have the same meaning as in a shell.
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
    use crate::supervise::talk::processes::script;
    use proptest::prelude::*;
    use std::process::Command;

    fn strings(words: &[&str]) -> Vec<String> {
        words.iter().map(|w| w.to_string()).collect()
    }

    /// A step of Slurm would have only the cores and the memory that the job has requested for each task.
    #[test]
    fn an_agent_is_no_task_of_the_job() {
        let misled = |program, name: &str| misleads(program, name.as_ref());
        for name in ["SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_CPU", "SLURM_TRES_PER_TASK"] {
            assert!(misled("srun", name) && !misled("ssh", name), "{name}");
        }
        for name in ["SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "PATH", "SKT_N"] {
            assert!(!misled("srun", name), "{name}");
        }
    }

    #[test]
    fn ssh_is_kept_from_asking() {
        let shell = RemoteShell::parse(Some("ssh -F 'my config'")).unwrap();
        assert_eq!(
            shell.command("n1", &strings(&["a b", "c"]), None),
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
    fn ssh_ends_a_dead_connection_long_after_the_node_timeout() {
        let asks = |rsh: &str, node_timeout: u64| {
            let shell = RemoteShell::parse(Some(rsh)).unwrap();
            let command = shell.noticing_death(Duration::from_secs(node_timeout)).command(
                "n1",
                &strings(&["c"]),
                None,
            );
            let value = |name: &str| -> Option<u64> {
                command.iter().find_map(|w| w.strip_prefix(name)).map(|v| v.parse().unwrap())
            };
            Some(value("ServerAliveInterval=")? * value("ServerAliveCountMax=")?)
        };
        assert_eq!(asks("ssh", 4), Some(180));
        assert_eq!(asks("/usr/bin/ssh -F f", 600), Some(2400));
        assert_eq!(asks("blaunch", 4), None);
        assert_eq!(asks("./mine", 4), None);
    }

    #[test]
    fn srun_takes_words_as_they_are() {
        let shell = RemoteShell::Srun { job: "7".to_string() };
        let path = (LIBRARY_PATH.to_string(), "/opt".to_string());
        let command = shell.command("n2", &strings(&["a b"]), Some(path));
        assert!(command.contains(&"--nodelist=n2".to_string()));
        assert!(command.contains(&"--cpu-bind=none".to_string()));
        assert_eq!(command.last().unwrap(), "a b");
    }

    /// Runs the launcher's script with `sh -c` instead of ssh. The daemon must get the settings, and the launcher's arguments
    /// unchanged, with quotes.
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

    /// The script behaves like `blaunch`: it needs LSF's variables, ignores unknown options, passes its input on, and has a shell
    /// parse the command.
    #[test]
    fn blaunch_is_given_the_variables_that_launchers_do_not_see() {
        let dir = tempfile::tempdir().unwrap();
        let blaunch = dir.path().join("blaunch");
        let text = "[ -n \"$LSB_JOBID\" ] || { echo 'not in a job' >&2; exit 255; }\n\
                    while :; do case $1 in -n) exec </dev/null; shift ;; -*) shift ;; *) break ;; esac; done\n\
                    echo \"host $1, job $LSB_JOBID\"; shift; exec sh -c \"$*\"";
        script(&blaunch, text);
        let env = [("LSB_JOBID", "8 8"), ("LSF_ENVDIR", "/e"), ("HOME", "/h")];
        let env = env.into_iter().map(|(n, v)| (n.to_string(), v.to_string()));
        let shell = RemoteShell::parse_in(blaunch.to_str(), env).unwrap();
        let run = |command: &mut Command| {
            let out = command.env_remove("LSB_JOBID").output().unwrap();
            let errors = String::from_utf8_lossy(&out.stderr).into_owned();
            (String::from_utf8_lossy(&out.stdout).into_owned(), errors)
        };
        let script = dir.path().join("script");
        std::fs::write(&script, shell.launcher_script(&[("A".into(), "it's".into())])).unwrap();
        let said =
            run(Command::new("sh").arg(&script).args(["-x", "n3", "printf", "'<%s>'", "\"$A\""]));
        assert_eq!(said.0, "host n3, job 8 8\n<it's>", "{}", said.1);
        // The connection to an agent is started by a process that has LSF's variables.
        let words = shell.command("n3", &strings(&["printf", "<%s>", "a b"]), None);
        let mut agent = Command::new(&words[0]);
        let out = agent.args(&words[1..]).env("LSB_JOBID", "9").output().unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout), "host n3, job 9\n<a b>");
    }

    /// A remote shell starts programs with the environment of a login, which may lack the folder of a site's own MPI.
    #[test]
    fn a_program_finds_its_libraries_on_a_node_as_it_does_here() {
        let dir = tempfile::tempdir().unwrap();
        let ssh = dir.path().join("ssh");
        std::fs::write(&ssh, "#!/bin/sh\nshift; exec env -i sh -c \"$*\"\n").unwrap();
        let shell = RemoteShell::Ssh(strings(&["sh", ssh.to_str().unwrap()]));
        let seen = |found_by: Option<&str>| {
            let found_by = found_by.map(|path| (LIBRARY_PATH.to_string(), path.to_string()));
            let argv = strings(&["sh", "-c", "echo \"<$LD_LIBRARY_PATH>\""]);
            let words = shell.command("n1", &argv, found_by);
            let out = Command::new(&words[0]).args(&words[1..]).output().unwrap();
            String::from_utf8_lossy(&out.stdout).trim().to_string()
        };
        assert_eq!(seen(None), "<>");
        assert_eq!(seen(Some("/opt/my mpi/lib:/opt/it's")), "</opt/my mpi/lib:/opt/it's>");
    }

    #[test]
    fn a_shell_without_an_input_is_refused() {
        for text in ["pbs_tmrsh", "/opt/pbs/bin/pbs_tmrsh -n", "pbsdsh"] {
            let why = RemoteShell::parse(Some(text)).unwrap_err();
            assert!(why.contains("use ssh"), "{why}");
        }
    }

    proptest! {
        #[test]
        fn quoted_words_split_back(words in proptest::collection::vec("[ -~]{0,12}", 0..6)) {
            prop_assert_eq!(split_words(&quote_all(&words)).unwrap(), words);
        }
    }
}
