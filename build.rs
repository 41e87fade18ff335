//! Tells the programs where the MPI library they are built for lies, if that is a folder of its own.
//!
//! Open MPI 4 and 5 have the same file name, `libmpi.so.40`: without this a program built for one is given the
//! other by the system, and finds out when it starts. The compiler wrapper knows (`$MPICC`, as for mpi-sys);
//! one that the system finds by itself, as Debian's, names no folder and nothing is added.
//!
//! And tells them what they were built with, for the JSON document.

use std::process::Command;

/// The run-time search paths in a compiler's command line: `-Wl,-rpath -Wl,DIR`, `-Wl,-rpath,DIR`, `-Wl,-rpath=DIR`, and
/// `-Xlinker -rpath -Xlinker DIR`; where they are in quotes, without them.
fn search_paths(command: &str) -> Vec<String> {
    let mut words = command.split_whitespace();
    let mut for_linker = Vec::new();
    while let Some(word) = words.next() {
        match word.strip_prefix("-Wl,") {
            Some(several) => for_linker.extend(several.split(',')),
            None if word == "-Xlinker" => for_linker.extend(words.next()),
            None => {}
        }
    }
    let mut linker = for_linker.into_iter();
    let mut found = Vec::new();
    while let Some(word) = linker.next() {
        match word.split_once('=') {
            Some(("-rpath" | "--rpath", folder)) => found.push(folder.to_owned()),
            _ if word == "-rpath" || word == "--rpath" => {
                found.extend(linker.next().map(str::to_owned))
            }
            _ => {}
        }
    }
    found.iter().map(|folder| folder.trim_matches(['"', '\'']).to_owned()).collect()
}

/// Compiler, target and profile, as variables at compile time.
fn built_how() {
    let told = |name: &str| std::env::var(name).unwrap_or_default();
    let version = Command::new(told("RUSTC")).arg("--version").output();
    let version = version.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    println!("cargo:rustc-env=HPL_BUILT_BY={}", version.unwrap_or_default());
    println!("cargo:rustc-env=HPL_BUILT_FOR={}", told("TARGET"));
    println!("cargo:rustc-env=HPL_BUILT_AS={}", told("PROFILE"));
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=MPICC");
    built_how();
    let mpicc = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".to_owned());
    // mpi-sys says what is wrong where there is no wrapper at all.
    let Ok(shown) = Command::new(mpicc).arg("-show").output() else { return };
    for folder in search_paths(&String::from_utf8_lossy(&shown.stdout)) {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
    }
}
