#!/usr/bin/env bash
# Installs a .deb of skt-hpl on a bare Debian, the same release as this one, and runs two ranks there.
# The bare system lies in memory, in a mount namespace that ends with this script. Exit code 77, with the reason, if the test
# cannot be made here.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

usage() {
    cat <<'END'
usage: scripts/try-package.sh PACKAGE.deb

Needs root, debootstrap and Debian's archive. A bare system that was fetched once is kept as target/bare/RELEASE.tar, and
is taken from there the next time.
END
}

cannot() {
    say "not tried: $*"
    exit 77
}

package=${1:-}
case $package in
    -h | --help) usage; exit 0 ;;
    *.deb) package=$(realpath "$package") ;;
    *) usage >&2; exit 2 ;;
esac
[[ -f $package ]] || die "there is no package $package"
((EUID == 0)) || cannot "a bare system can be made by root alone"
if [[ ${SKT_TRY_INSIDE:-} != yes ]]; then
    unshare --mount true 2>/dev/null || cannot "the kernel, or this container, allows no mount namespaces"
    export SKT_TRY_INSIDE=yes
    exec unshare --mount --propagation private "$0" "$package"
fi

release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[[ $(. /etc/os-release && echo "${ID:-}") == debian ]] || cannot "a .deb is made for Debian, and this is another system"
kept=$root_dir/target/bare
base=$kept/$release.tar
mkdir -p "$kept"
work=$(mktemp -d "$kept/try.XXXXXX")
# A file system that is still mounted there belongs to this system and must not be removed.
trap 'umount -R -l "$work/root" 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT
mkdir "$work/root"
# In memory, since the syncs of a package manager would delay other programs.
mount -t tmpfs -o mode=755,size=4g bare "$work/root"
if [[ ! -f $base ]]; then
    have debootstrap || cannot "debootstrap is missing: apt-get install debootstrap"
    step "a bare $release"
    # Takes packages from the archive that this system itself uses.
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
        awk -v release="$release" '$2 == release { print $1; exit }')
    debootstrap --variant=minbase "$release" "$work/root" ${mirror:+"$mirror"} >"$work/log" 2>&1 ||
        cannot "debootstrap failed: $(tail -n 1 "$work/log")"
    tar -C "$work/root" --one-file-system -cf "$work/base.tar" .
    mv "$work/base.tar" "$base"
else
    tar -C "$work/root" -xf "$base"
fi

step "the package on a bare $release"
mount -t proc proc "$work/root/proc"
mount --rbind /sys "$work/root/sys"
mount --rbind /dev "$work/root/dev"
mount -t tmpfs tmpfs "$work/root/tmp"
cp /etc/resolv.conf "$work/root/etc/resolv.conf"
# Packages must not start daemons there.
printf '#!/bin/sh\nexit 101\n' >"$work/root/usr/sbin/policy-rc.d"
chmod +x "$work/root/usr/sbin/policy-rc.d"
cp "$package" "$work/root/package.deb"
inside() {
    local proxy=() name
    for name in http_proxy https_proxy no_proxy; do
        if [[ -n ${!name:-} ]]; then proxy+=("$name=${!name}"); fi
    done
    chroot "$work/root" env -i HOME=/root TERM=dumb LC_ALL=C DEBIAN_FRONTEND=noninteractive \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${proxy[@]}" "$@"
}
inside apt-get update -qq >"$work/log" 2>&1 || cannot "Debian's archive is out of reach: $(tail -n 1 "$work/log")"
inside apt-get install -y -qq --no-install-recommends /package.deb >"$work/log" 2>&1 ||
    die "the package cannot be installed:
$(tail -n 20 "$work/log")"
inside skt-hpl --version
inside test -s /usr/share/man/man1/skt-hpl-run.1.gz -a -s /usr/share/bash-completion/completions/skt-hpl
inside env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    mpirun --oversubscribe --bind-to none -np 2 skt-hpl -n 500 --nb 32 -p 1 -q 2 | tee "$work/out"
grep -q '1 tests completed and passed residual checks' "$work/out" || die "the run there did not pass"
inside apt-get purge -y -qq skt-hpl >"$work/log" 2>&1 || die "the package cannot be removed: $(tail -n 1 "$work/log")"
left=$(inside find / -xdev -path /proc -prune -o -name '*skt-hpl*' -print)
[[ -z $left ]] || die "the removed package has left behind: $left"
say "the package works on a bare $release"
