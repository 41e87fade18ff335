#!/usr/bin/env bash
# Makes a package of skt-hpl, with the tools that Debian has: a .deb, or an .rpm.
# scripts/install.sh decides its content; its dependencies follow from the libraries the program is linked to.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

usage() {
    cat <<'END'
usage: scripts/package.sh deb|rpm [--binary FILE] [--output DIR]

  deb            a package for the Debian this is: its dependencies are this system's libraries
  rpm            a package made with rpmbuild; its dependencies are names of libraries
  --binary FILE  the program to pack [default: build it, with the MPI whose mpicc comes first, or $MPICC]
  --output DIR   where the package goes [default: target/packages]

Prints the path of the package on its last line.
END
}

kind=${1:-}
case $kind in
    deb | rpm) shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
esac
binary=()
output=$root_dir/target/packages
while (($# > 0)); do
    case $1 in
        --binary) binary=(--binary "$(realpath "${2:?--binary FILE}")") ;;
        --output) output=$(realpath -m "${2:?--output DIR}") ;;
        *) usage >&2; exit 2 ;;
    esac
    shift 2
done

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root_dir/Cargo.toml" | head -n 1)
summary=$(sed -n 's/^description = "\(.*\)"$/\1/p' "$root_dir/Cargo.toml")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$output"
staged=$work/staged
# Files of a package have the modes they are given, whatever the builder's umask.
umask 022
"$root_dir/scripts/install.sh" --prefix /usr --root "$staged" "${binary[@]}"
# The package manager knows the files, and removes them.
rm "$staged/usr/share/skt-hpl/uninstall" "$staged/usr/share/skt-hpl/installed-files"
gzip -9n "$staged"/usr/share/man/man1/*.1
program=$staged/usr/bin/skt-hpl
# Debug information is for users who build themselves.
strip --strip-debug "$program"

# The launcher belongs to the MPI library: a library alone starts nothing.
linked() { objdump -p "$program" | awk '$1 == "NEEDED" { print $2 }'; }

deb() {
    local name depends launcher doc=$staged/usr/share/doc/skt-hpl
    have dpkg-shlibdeps && have dpkg-deb || die "a .deb is made with dpkg-deb and dpkg-shlibdeps: apt-get install dpkg-dev"
    mkdir -p "$work/debian"
    printf 'Source: skt-hpl\n\nPackage: skt-hpl\nArchitecture: any\nDescription: x\n' >"$work/debian/control"
    depends=$(cd "$work" && dpkg-shlibdeps -O "$program" 2>"$work/complaint") || die "the program needs libraries that are of no Debian package:
$(cat "$work/complaint")"
    depends=${depends#shlibs:Depends=}
    case $(linked) in
        *libmpi.so*) launcher=openmpi-bin ;;
        *libmpich.so*) launcher=mpich ;;
        *) die "the program is linked to an MPI that Debian does not have: $(linked | xargs)" ;;
    esac
    mkdir -p "$staged/DEBIAN"
    cat >"$staged/DEBIAN/control" <<END
Package: skt-hpl
Version: $version-1
Architecture: $(dpkg --print-architecture)
Section: science
Priority: optional
Maintainer: ${DEBFULLNAME:-skt-hpl} <${DEBEMAIL:-root@localhost}>
Installed-Size: $(du -sk "$staged/usr" | cut -f 1)
Depends: $depends, $launcher
Recommends: openssh-client
Description: $summary
 Measures what a computer or a cluster can do, in place of HPL's xhpl: it takes
 the same HPL.dat, runs under the same mpirun and prints the same lines. A run
 that is protected resumes from memory when a node is lost.
END
    cat "$root_dir/scripts/packaging/copyright" >"$doc/copyright"
    gzip -9nc "$root_dir/CHANGELOG.md" >"$doc/changelog.gz"
    (cd "$staged" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    name=skt-hpl_$version-1_$(dpkg --print-architecture).deb
    dpkg-deb --root-owner-group --build "$staged" "$output/$name" >/dev/null
    say "$output/$name"
}

rpm_package() {
    have rpmbuild || die "an .rpm is made with rpmbuild: apt-get install rpm"
    rpmbuild -bb --quiet --define "_topdir $work/rpm" --define "_rpmdir $work/made" \
        --define "staged $staged" --define "version_wanted $version" --define "summary_wanted $summary" \
        "$root_dir/scripts/packaging/skt-hpl.spec" >"$work/log" 2>&1 || die "rpmbuild failed:
$(tail -n 20 "$work/log")"
    local made
    made=$(find "$work/made" -name '*.rpm')
    mv "$made" "$output/"
    say "$output/$(basename "$made")"
}

case $kind in
    deb) deb ;;
    rpm) rpm_package ;;
esac
