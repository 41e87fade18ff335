#!/usr/bin/env bash
# Installs skt-hpl: the program, man pages, completions, example inputs and docs; and removes them again.
# scripts/package.sh stages its packages with it, so that a package and an installation hold the same.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

usage() {
    cat <<'END'
usage: scripts/install.sh [--prefix DIR] [--root DIR] [--binary FILE] [--uninstall]

  --prefix DIR   install below DIR [default: /usr/local for root, ~/.local for anybody else]
  --root DIR     put the files below DIR instead of /, to make a package of them
  --binary FILE  install this program [default: build it, with the MPI whose mpicc comes first, or $MPICC]
  --uninstall    remove what was installed below the prefix
END
}

prefix=
root=
binary=
uninstall=false
while (($# > 0)); do
    case $1 in
        --prefix | --root | --binary)
            [[ -n ${2:-} ]] || { usage >&2; exit 2; }
            declare "${1#--}=$2"
            shift
            ;;
        --uninstall) uninstall=true ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
    shift
done
if [[ -z $prefix ]]; then
    if ((EUID == 0)); then
        prefix=/usr/local
    else
        prefix=${HOME:?there is no home folder; give --prefix DIR}/.local
    fi
fi
prefix=$(realpath -ms "$prefix")
target=${root:+$(realpath -ms "$root")}$prefix

# The installation lists its own files; --uninstall goes by that list.
list=share/skt-hpl/installed-files
if $uninstall; then
    [[ -f $target/$list ]] || die "nothing of skt-hpl is installed below $target: $target/$list is not there"
    exec "$target/share/skt-hpl/uninstall"
fi

if [[ -z $binary ]]; then
    have cargo || die "building needs Rust, and there is no cargo. scripts/setup.sh --for-run installs what is missing"
    have "${MPICC:-mpicc}" || die "building needs MPI, and there is no ${MPICC:-mpicc}. scripts/setup.sh --for-run installs one, or set MPICC"
    build_release
    binary=$(release_program)
fi
[[ -x $binary ]] || die "there is no program $binary"
# By a whole path it is the file, not a program of that name in PATH.
binary=$(realpath -s -- "$binary")
"$binary" --version >/dev/null || die "$binary does not run here"

mkdir -p "$target" || die "cannot make $target; give another --prefix, or be root"
[[ -w $target ]] || die "cannot write into $target; give another --prefix, or be root"
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
# The program may be the installed one itself, which is removed now and is there again once this copy is put there.
cp "$binary" "$made/program"
# An older version may have had files that this one has not.
if [[ -x $target/share/skt-hpl/uninstall ]]; then
    "$target/share/skt-hpl/uninstall" >/dev/null
fi

installed=()
put() { # MODE FILE PLACE: one file, below the prefix
    install -D -m "$1" "$2" "$target/$3"
    installed+=("$3")
}

put 755 "$made/program" bin/skt-hpl
"$binary" man --dir "$made/man"
for page in "$made"/man/*.1; do
    put 644 "$page" "share/man/man1/$(basename "$page")"
done
completion() { # SHELL PLACE
    "$binary" completions "$1" >"$made/$1"
    put 644 "$made/$1" "$2"
}
completion bash share/bash-completion/completions/skt-hpl
completion zsh share/zsh/site-functions/_skt-hpl
completion fish share/fish/vendor_completions.d/skt-hpl.fish
for file in "$root_dir"/hpl-configs/*; do
    # ReFrame leaves a folder of compiled Python.
    [[ -f $file ]] || continue
    mode=644
    if [[ -x $file ]]; then mode=755; fi
    put "$mode" "$file" "share/skt-hpl/hpl-configs/$(basename "$file")"
done
# In the folders they have here, since they link to each other.
for file in README.md CHANGELOG.md CONTRIBUTING.md LICENSE-APACHE LICENSE-MIT docs/*.md docs/dev/*.md docs/figures/* benches/NOTEBOOK.md; do
    for found in "$root_dir"/$file; do
        put 644 "$found" "share/doc/skt-hpl/${found#"$root_dir/"}"
    done
done

cat >"$made/uninstall" <<'END'
#!/bin/sh
# Removes the installation of skt-hpl that this file is part of: every file of its list, and folders left empty.
set -eu
cd "$(dirname "$0")/../.."
list=share/skt-hpl/installed-files
while IFS= read -r file; do
    rm -f "./$file"
    # Up to the prefix, as long as nothing else is there.
    rmdir -p --ignore-fail-on-non-empty "$(dirname "$file")" 2>/dev/null || true
done <"$list"
echo "skt-hpl is removed from $(pwd)"
END
# The list is the last of its files: the removal reads it to its end.
put 755 "$made/uninstall" share/skt-hpl/uninstall
printf '%s\n' "${installed[@]}" "$list" >"$made/list"
put 644 "$made/list" "$list"

if [[ -z $root ]]; then
    say "skt-hpl is installed below $prefix; $prefix/share/skt-hpl/uninstall removes it"
    if [[ ":$PATH:" != *":$prefix/bin:"* ]]; then
        say "$prefix/bin is not in PATH: export PATH=$prefix/bin:\$PATH"
    fi
fi
