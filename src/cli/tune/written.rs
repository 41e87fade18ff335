//! What a search leaves to start the best run with: HPL.dat, settings, a launch command, a job script, a picture.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::jobs::KEPT;
use crate::cli::exit::{Exit, Refusal};
use crate::cli::template;
use crate::model::hpl_dat::hpl_dat;
use crate::supervise::talk::shell::{quote, quote_all};
use crate::tune::picture;
use crate::tune::search::Tuned;
use crate::tune::space::{Candidate, Layout};

/// The command that starts the run, as a shell reads it.
pub fn launch_text(launcher: &str, best: &Candidate, nodes: usize, program: &Path) -> String {
    let Layout { ranks_per_node, threads, blas } = &best.layout;
    let mut words = template::words(launcher, nodes * ranks_per_node, *ranks_per_node);
    words.push(program.to_string_lossy().into_owned());
    words.extend(["--threads".to_owned(), threads.to_string()]);
    words.extend(blas.iter().flat_map(|blas| ["--blas".to_owned(), blas.clone()]));
    quote_all(&words)
}

/// The same as a job of Slurm's, wherever it is handed in: HPL.dat lies in `dir`.
fn job_text(launch: &str, nodes: usize, layout: &Layout, dir: &Path) -> String {
    let Layout { ranks_per_node, threads, .. } = layout;
    format!(
        "#!/bin/bash\n#SBATCH --job-name=hpl\n#SBATCH --nodes={nodes}\n#SBATCH --ntasks-per-node={ranks_per_node}\n\
         #SBATCH --cpus-per-task={threads}\n#SBATCH --exclusive\n#SBATCH --time=UNLIMITED\n\
         # Modules that the launcher needs go here.\ncd {} || exit 1\nexec {launch}\n",
        quote(&dir.to_string_lossy())
    )
}

pub fn dat(tuned: &Tuned, n: usize) -> String {
    hpl_dat(&tuned.best.test, &[n], "found by skt-hpl tune")
}

/// Writes everything that starts the best run, and the picture. The names of the files.
pub fn write(
    dir: &Path,
    tuned: &Tuned,
    n: usize,
    launcher: &str,
    program: &Path,
    nodes: usize,
) -> Result<Vec<&'static str>, Refusal> {
    let Layout { threads, blas, .. } = &tuned.best.layout;
    let mut settings = format!("# Found by skt-hpl tune.\nthreads = {threads}\n");
    if let Some(blas) = blas {
        settings += &format!("blas = {}\n", toml::Value::String(blas.clone()));
    }
    let launch = launch_text(launcher, &tuned.best, nodes, program);
    let script = format!(
        "#!/bin/sh\n# Starts the run that skt-hpl tune found, in this folder.\ncd \"$(dirname \"$0\")\" || exit 1\nexec {launch} \"$@\"\n"
    );
    let whole = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let job = job_text(&launch, nodes, &tuned.best.layout, &whole);
    let files = [
        ("HPL.dat", dat(tuned, n)),
        ("skt.toml", settings),
        ("launch.sh", script),
        ("job.slurm", job),
        ("tune.svg", picture::svg(tuned)),
    ];
    let mut names = Vec::new();
    for (name, text) in files {
        let path = dir.join(name);
        fs::write(&path, text).map_err(|e| {
            Refusal(Exit::Environment, format!("cannot write {}: {e}", path.display()))
        })?;
        names.push(name);
    }
    names.push(KEPT);
    // A script that cannot be made executable can still be started by name.
    let _ = fs::set_permissions(dir.join("launch.sh"), fs::Permissions::from_mode(0o755));
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tune::table::tests::candidate;
    use crate::supervise::talk::shell::split_words;

    #[test]
    fn the_command_has_the_layout_in_it() {
        let layout = candidate(256).layout;
        let blas = Layout { blas: Some("libmkl_rt.so".into()), ..layout };
        let text = launch_text(
            "mpirun -np {ranks}",
            &Candidate { layout: blas, ..candidate(256) },
            1,
            Path::new("/bin/skt-hpl"),
        );
        assert_eq!(text, "mpirun -np 2 /bin/skt-hpl --threads 3 --blas libmkl_rt.so");
    }

    #[test]
    fn a_shell_reads_paths_as_they_are() {
        let layout = candidate(256).layout;
        let blas = Layout { blas: Some("/opt/a b/libx.so".into()), ..layout.clone() };
        let best = Candidate { layout: blas, ..candidate(256) };
        let text = launch_text("mpirun -np {ranks}", &best, 1, Path::new("/home/me/a run/$x"));
        let read = split_words(&text).unwrap();
        assert_eq!(read[3], "/home/me/a run/$x", "{text}");
        assert_eq!(read[7], "/opt/a b/libx.so", "{text}");
        let job = job_text(&text, 1, &layout, Path::new("/home/me/my tuning"));
        assert!(job.contains("\ncd '/home/me/my tuning' || exit 1\nexec mpirun -np 2 '"), "{job}");
    }
}
