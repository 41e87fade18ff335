# Functions that the scripts of this folder share. Sourced, never run: no set, no exit on success.

root_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Tools that only root uses: the PATH of a plain `su` has it not, and dpkg installs nothing without.
if ! [[ /usr/sbin -ef /usr/bin ]]; then PATH=$PATH:/usr/sbin:/sbin; fi

say() { printf '%s\n' "$*"; }
step() { printf '\n== %s\n' "$*"; }
die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# The oldest Rust the project builds with, from the one place that says so.
rust_wanted() { sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$root_dir/Cargo.toml"; }

# version_ge A B: is version A at least B?
version_ge() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

rust_found() {
    have cargo && have rustc || return 1
    rustc --version | awk '{ print $2 }'
}

rust_is_enough() {
    local found
    found=$(rust_found) && version_ge "$found" "$(rust_wanted)"
}

# Where rustup puts cargo, for shells that have not read the profile it wrote: before a Rust that is too old, such as
# Debian's, and after one that is new enough, such as a site's module.
if [[ -d ${HOME:-/nonexistent}/.cargo/bin ]]; then
    if rust_is_enough 2>/dev/null; then PATH=$PATH:$HOME/.cargo/bin; else PATH=$HOME/.cargo/bin:$PATH; fi
fi

# Where cargo puts what it builds from the repository's folder: a variable or a file of cargo's own may say another place than
# target/, and a path that is not whole begins in that folder. Always whole.
target_dir() {
    local told=${CARGO_TARGET_DIR:-${CARGO_BUILD_TARGET_DIR:-}}
    # Without cargo no file of it matters.
    if [[ -z $told ]] && have cargo; then
        told=$(cd "$root_dir" && cargo metadata --no-deps --offline --format-version 1 2>/dev/null |
            sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p') || true
    fi
    (cd "$root_dir" && realpath -ms -- "${told:-target}")
}

# The program that `cargo build --release` leaves.
release_program() { echo "$(target_dir)/release/skt-hpl"; }

# Builds the program, with the MPI whose mpicc comes first, or $MPICC. Cargo does not build what it has built of the MPI's own
# because another one is asked for by now: so that MPI is noted next to it.
build_release() {
    local folder note asked
    folder=$(target_dir)/release
    note=$folder/skt-hpl.mpi
    asked=$("${MPICC:-mpicc}" -show 2>/dev/null) || asked=${MPICC:-mpicc}
    if [[ -d $folder/build && $(cat "$note" 2>/dev/null) != "$asked" ]]; then
        # Nothing is known of a build that comes to no end.
        rm -f "$note"
        (cd "$root_dir" && cargo clean --quiet --locked --release -p mpi-sys -p mpi)
    fi
    (cd "$root_dir" && cargo build --locked --release)
    if [[ -d $folder ]]; then printf '%s\n' "$asked" >"$note"; fi
}

# Where scripts/setup.sh --with-openmpi5 puts Open MPI 5, in addition to the system's own MPI.
openmpi5_dir() { echo "${OPENMPI5_DIR:-${XDG_DATA_HOME:-${HOME:-/root}/.local/share}/skt-hpl/openmpi5}"; }

# Rust's library for 64-bit ARM, which the kernels for that are built with.
neon_target=aarch64-unknown-linux-gnu
neon_library_is_there() { [[ -d $(rustc --print sysroot)/lib/rustlib/$neon_target ]]; }

# The version of the Open MPI that a launcher belongs to, its first number: `mpirun (Open MPI) 5.0.11` is 5. Nothing for others.
open_mpi_major() { # mpirun
    { "$1" --version 2>/dev/null || true; } | sed -En '1s/.*\((Open MPI|OpenRTE)\) ([0-9]+)\..*/\2/p'
}

# Debian installs a compiler wrapper and a launcher for each MPI; elsewhere there is one of each.
mpi_tool() { # mpicc|mpirun openmpi|mpich
    if have "$1.$2"; then echo "$1.$2"; else echo "$1"; fi
}
