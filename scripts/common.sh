# Functions that the scripts of this folder share. Sourced, never run: sets no shell options, and does not exit on success.

root_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Folders of tools that only root uses. The PATH of a plain `su` lacks them, and dpkg needs them to install packages.
if ! [[ /usr/sbin -ef /usr/bin ]]; then PATH=$PATH:/usr/sbin:/sbin; fi

say() { printf '%s\n' "$*"; }
step() { printf '\n== %s\n' "$*"; }
die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# Prints the oldest Rust that can build the project, from Cargo.toml.
rust_wanted() { sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$root_dir/Cargo.toml"; }

# version_ge A B: tests whether version A is at least B.
version_ge() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

rust_found() {
    have cargo && have rustc || return 1
    rustc --version | awk '{ print $2 }'
}

rust_is_enough() {
    local found
    found=$(rust_found) && version_ge "$found" "$(rust_wanted)"
}

# Adds rustup's folder of cargo, for shells that have not read the profile of rustup: before a Rust that is too old, such as
# Debian's, and after one that is new enough, such as a site's module.
if [[ -d ${HOME:-/nonexistent}/.cargo/bin ]]; then
    if rust_is_enough 2>/dev/null; then PATH=$PATH:$HOME/.cargo/bin; else PATH=$HOME/.cargo/bin:$PATH; fi
fi

# Prints the absolute path of cargo's target folder. A variable or a file of cargo may name another folder than target/; a
# relative path begins in the repository's folder.
target_dir() {
    local told=${CARGO_TARGET_DIR:-${CARGO_BUILD_TARGET_DIR:-}}
    # Without cargo, cargo's files do not matter.
    if [[ -z $told ]] && have cargo; then
        told=$(cd "$root_dir" && cargo metadata --no-deps --offline --format-version 1 2>/dev/null |
            sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p') || true
    fi
    (cd "$root_dir" && realpath -ms -- "${told:-target}")
}

# Prints the program that `cargo build --release` makes.
release_program() { echo "$(target_dir)/release/skt-hpl"; }

# Builds the program with the MPI whose mpicc comes first, or $MPICC. Cargo does not build the MPI crates again when another MPI
# is asked for, so the MPI of the last build is noted in a file.
build_release() {
    local folder note asked
    folder=$(target_dir)/release
    note=$folder/skt-hpl.mpi
    asked=$("${MPICC:-mpicc}" -show 2>/dev/null) || asked=${MPICC:-mpicc}
    if [[ -d $folder/build && $(cat "$note" 2>/dev/null) != "$asked" ]]; then
        # If the build fails, the MPI of the built files is unknown.
        rm -f "$note"
        (cd "$root_dir" && cargo clean --quiet --locked --release -p mpi-sys -p mpi)
    fi
    (cd "$root_dir" && cargo build --locked --release)
    if [[ -d $folder ]]; then printf '%s\n' "$asked" >"$note"; fi
}

# Prints the folder of Open MPI 5 (scripts/setup.sh --with-openmpi5), which is separate from the system's MPI.
openmpi5_dir() { echo "${OPENMPI5_DIR:-${XDG_DATA_HOME:-${HOME:-/root}/.local/share}/skt-hpl/openmpi5}"; }

# NVIDIA's compiler for kernels, where scripts/setup.sh --with-nvrtc puts it.
nvrtc_root() { echo "${NVRTC_DIR:-${HOME:-/root}/.local/share/skt-hpl/nvrtc}"; }
nvrtc_dir() { echo "$(nvrtc_root)/nvidia/cuda_nvrtc/lib"; }

# Rust's library for 64-bit ARM, with which the NEON kernels are built.
neon_target=aarch64-unknown-linux-gnu
neon_library_is_there() { [[ -d $(rustc --print sysroot)/lib/rustlib/$neon_target ]]; }

# Prints the major version of the Open MPI that a launcher belongs to: 5 for `mpirun (Open MPI) 5.0.11`. Prints nothing for other
# launchers.
open_mpi_major() { # mpirun
    { "$1" --version 2>/dev/null || true; } | sed -En '1s/.*\((Open MPI|OpenRTE)\) ([0-9]+)\..*/\2/p'
}

# Debian installs a compiler wrapper and a launcher for each MPI; elsewhere there is one of each.
mpi_tool() { # mpicc|mpirun openmpi|mpich
    if have "$1.$2"; then echo "$1.$2"; else echo "$1"; fi
}
