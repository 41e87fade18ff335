//! Files with which the best run of a search starts: HPL.dat, settings, a launch script and a job script. A picture is written,
//! too.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::unistd::geteuid;

use super::kept::KEPT;
use crate::base::exit::Refusal;
use crate::base::params::Device;
use crate::cli::json_flag;
use crate::cli::template;
use crate::comm::World;
use crate::model::hpl_dat::hpl_dat;
use crate::supervise::start::launcher::Launcher;
use crate::supervise::talk::shell::{quote, quote_all};
use crate::tune::picture;
use crate::tune::search::Tuned;
use crate::tune::space::{Candidate, Layout};

/// Returns the shell command that starts the run of the best candidate, with the user's `launcher` words.
pub fn launch_text(launcher: &str, best: &Candidate, nodes: usize, program: &Path) -> String {
    let Layout { ranks_per_node, threads, blas, device } = &best.layout;
    let mut words = template::words(launcher, nodes * ranks_per_node, *ranks_per_node, *threads);
    if let Some(first) = words.first_mut() {
        *first = template::from_any_folder(first);
    }
    // If root runs this program, root also ran the jobs that measured. A variable allowed that, which is set only for these jobs.
    if geteuid().is_root() && Launcher::of_library(&World::library()) == Some(Launcher::Openmpi) {
        words = template::for_root(words);
    }
    words.push(template::from_any_folder(&program.to_string_lossy()));
    words.extend(["--threads".to_owned(), threads.to_string()]);
    words.extend(
        blas.iter().flat_map(|blas| ["--blas".to_owned(), template::from_any_folder(blas)]),
    );
    words.extend(device_flag(*device));
    quote_all(&words)
}

/// Returns the flag that selects a device; nothing for none.
pub fn device_flag(device: Device) -> Option<String> {
    (device != Device::None).then(|| format!("--device={}", device.name()))
}

/// Returns lines of a shell script with which srun gives each rank a core for each of its threads. Returns an empty text for
/// other launchers.
fn cores_text(launcher: &str, threads: usize) -> String {
    let words: Vec<String> = launcher.split_whitespace().map(str::to_owned).collect();
    let cores = template::cores_of_ranks(&words, threads);
    if cores.is_empty() {
        return String::new();
    }
    let set: String =
        cores.iter().map(|(name, value)| format!("export {name}={value}\n")).collect();
    let why = "# Without these lines srun gives each rank a single core within a job.";
    format!("{why}\n{set}unset {}\n", template::WISH_OF_THE_JOB)
}

/// Returns the minutes that a batch job needs for a run of order `n`: one and a half times the expected time of the
/// factorisation, and ten minutes for everything else.
fn minutes(tuned: &Tuned, n: usize) -> u64 {
    let larger = (n as f64 / tuned.best.test.n as f64).powi(3);
    (1.5 * tuned.seconds * larger / 60.0 + 10.0).ceil() as u64
}

/// Returns a Slurm job script with the command `launch`, which can be submitted from any folder: HPL.dat is in `dir`. The script
/// states a time, because some partitions refuse a job without a time. The script asks for all memory, because otherwise some
/// partitions give a job only a part of it.
fn job_text(
    launch: &str,
    cores: &str,
    hint: Option<&str>,
    nodes: usize,
    layout: &Layout,
    dir: &Path,
    minutes: u64,
) -> String {
    let Layout { ranks_per_node, threads, .. } = layout;
    let mut hint = hint.map_or_else(String::new, |hint| format!("#SBATCH --hint={hint}\n"));
    if layout.device == Device::Cuda {
        hint += &format!("#SBATCH --gpus-per-node={ranks_per_node}\n");
    }
    format!(
        "#!/bin/bash\n#SBATCH --job-name=hpl\n#SBATCH --nodes={nodes}\n#SBATCH --ntasks-per-node={ranks_per_node}\n\
         #SBATCH --cpus-per-task={threads}\n{hint}#SBATCH --exclusive\n#SBATCH --mem=0\n\
         # In minutes: one and a half times the time that tune expects, plus ten minutes.\n#SBATCH --time={minutes}\n\
         {cores}\
         # Modules that the launcher needs go here.\ncd {} || exit 1\nexec {launch}\n",
        quote(&dir.to_string_lossy())
    )
}

pub fn dat(tuned: &Tuned, n: usize) -> String {
    hpl_dat(&tuned.best.test, &[n], "found by skt-hpl tune")
}

/// Names of the files that [`write()`] writes to the folder of a search, in this order.
pub const FILES: [&str; 5] = ["HPL.dat", "skt.toml", "launch.sh", "job.slurm", "tune.svg"];

/// Writes the files that start the best run, and the picture, to `dir`. Returns the names of all files of the search in `dir`.
pub fn write(
    dir: &Path,
    tuned: &Tuned,
    n: usize,
    launcher: &str,
    program: &Path,
    nodes: usize,
) -> Result<Vec<&'static str>, Refusal> {
    let Layout { threads, blas, device, .. } = &tuned.best.layout;
    let mut settings = format!("# Found by skt-hpl tune.\nthreads = {threads}\n");
    if let Some(blas) = blas {
        settings += &format!("blas = {}\n", toml::Value::String(template::from_any_folder(blas)));
    }
    if *device != Device::None {
        settings += &format!("device = \"{}\"\n", device.name());
    }
    let launch = launch_text(launcher, &tuned.best, nodes, program);
    let cores = cores_text(launcher, *threads);
    let script = format!(
        "#!/bin/sh\n# Starts the run that skt-hpl tune found, in this folder.\ncd \"$(dirname \"$0\")\" || exit 1\n\
         {cores}exec {launch} \"$@\"\n"
    );
    let whole = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let words: Vec<String> = launcher.split_whitespace().map(str::to_owned).collect();
    let hint = template::hint(&words);
    let minutes = minutes(tuned, n);
    let job = job_text(&launch, &cores, hint, nodes, &tuned.best.layout, &whole, minutes);
    let texts = [dat(tuned, n), settings, script, job, picture::svg(tuned)];
    for (name, text) in FILES.into_iter().zip(texts) {
        json_flag::overwrite(&dir.join(name), &text)?;
    }
    // If the script cannot be made executable, users can still start it with `sh launch.sh`.
    let _ = fs::set_permissions(dir.join("launch.sh"), fs::Permissions::from_mode(0o755));
    Ok(FILES.into_iter().chain([KEPT]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tune::table::{candidate, tuned};
    use crate::supervise::talk::shell::split_words;

    #[test]
    fn the_command_has_the_layout_in_it() {
        let layout = candidate(256).layout;
        let blas = Layout { blas: Some("libmkl_rt.so".into()), ..layout };
        let text = launch_text(
            "/own/launcher -np {ranks}",
            &Candidate { layout: blas, ..candidate(256) },
            1,
            Path::new("/bin/skt-hpl"),
        );
        assert_eq!(text, "/own/launcher -np 2 /bin/skt-hpl --threads 3 --blas libmkl_rt.so");
    }

    /// Users may start the written command in another folder, so its paths are absolute.
    #[test]
    fn paths_of_the_folder_in_which_it_was_searched_are_whole() {
        let layout = candidate(256).layout;
        let layout = Layout { blas: Some("lib/libx.so".into()), ..layout };
        let best = Candidate { layout, ..candidate(256) };
        let here = std::env::current_dir().unwrap();
        let here = here.display();
        let text = launch_text("bin/mpirun -np {ranks}", &best, 1, Path::new("./skt-hpl"));
        let wanted =
            format!("{here}/bin/mpirun -np 2 {here}/skt-hpl --threads 3 --blas {here}/lib/libx.so");
        assert_eq!(text.replace("--allow-run-as-root ", ""), wanted);
    }

    #[test]
    fn srun_is_told_of_the_cores_in_words_of_every_version() {
        let text = cores_text("srun -n {ranks}", 3);
        let wanted = "export SRUN_CPUS_PER_TASK=3\nexport SLURM_CPUS_PER_TASK=3\nexport SLURM_HINT=nomultithread\n\
                      unset SLURM_TRES_PER_TASK\n";
        assert!(text.ends_with(wanted), "{text}");
        assert!(!cores_text("srun --hint=compute_bound -n {ranks}", 3).contains("SLURM_HINT"));
        assert_eq!(cores_text("mpirun -np {ranks}", 3), "");
    }

    #[test]
    fn a_job_asks_for_the_time_it_takes_and_some_more() {
        let found = Tuned { seconds: 600.0, ..tuned() };
        let n = found.best.test.n;
        assert_eq!(minutes(&found, n), 25);
        assert_eq!(minutes(&found, 2 * n), 130);
    }

    #[test]
    fn a_shell_reads_paths_as_they_are() {
        let layout = candidate(256).layout;
        let blas = Layout { blas: Some("/opt/a b/libx.so".into()), ..layout.clone() };
        let best = Candidate { layout: blas, ..candidate(256) };
        let text = launch_text("launcher -np {ranks}", &best, 1, Path::new("/home/me/a run/$x"));
        let read = split_words(&text).unwrap();
        assert_eq!(read[3], "/home/me/a run/$x", "{text}");
        assert_eq!(read[7], "/opt/a b/libx.so", "{text}");
        let dir = Path::new("/home/me/my tuning");
        let job = job_text(&text, "", Some("nomultithread"), 1, &layout, dir, 25);
        assert!(
            job.contains("\ncd '/home/me/my tuning' || exit 1\nexec launcher -np 2 '"),
            "{job}"
        );
        assert!(job.contains("\n#SBATCH --time=25\n") && !job.contains("UNLIMITED"), "{job}");
        // HPL.dat needs four fifths of the node's memory, and the layout counts cores.
        assert!(job.contains("\n#SBATCH --exclusive\n#SBATCH --mem=0\n"), "{job}");
        let cores = "\n#SBATCH --cpus-per-task=3\n#SBATCH --hint=nomultithread\n";
        assert!(job.contains(cores), "{job}");
        let own = job_text(&text, "", None, 1, &layout, dir, 25);
        assert!(!own.contains("--hint") && own.contains(" --cpus-per-task=3\n"), "{own}");
    }
}
