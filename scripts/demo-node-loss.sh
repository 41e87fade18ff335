#!/usr/bin/env bash
# Pulls the plug on one of five nodes in the middle of a run, and shows that the run ends PASSED.
#
# The nodes are virtual ones on this machine (scripts/vcluster); nothing is left behind. Needs root.
# Takes about half a minute. N, NB and the number of the node to lose can be changed: N=4000 VICTIM=1 ...
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
here=$root_dir
n=${N:-8000} nb=${NB:-64} victim=n${VICTIM:-2}
# The run has a folder of its own, where a path that is not whole would lead elsewhere.
program=$(realpath -m -- "${SKT_HPL:-$(release_program)}")
vcluster=("$here/scripts/vcluster" -c "demo$$")

say() { printf '\n\033[1m## %s\033[0m\n' "$*"; }

[[ $EUID == 0 ]] || { echo "demo: needs root, for network namespaces" >&2; exit 1; }
[[ -x $program ]] || { echo "demo: $program is missing; cargo build --release" >&2; exit 1; }
mkdir -p "$here/target"
work=$(mktemp -d "$here/target/demo.XXXXXX")
cleanup() {
    [[ -z ${run:-} ]] || kill -KILL "$run" 2>/dev/null || true
    "${vcluster[@]}" down
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say "Five nodes: four to work, n5 stands by"
"${vcluster[@]}" up 5 --shm 1g --while $$
"${vcluster[@]}" hosts 1 1 4 >"$work/hosts"
"${vcluster[@]}" hosts 1 5 5 >"$work/spares"
ssh_config=$("${vcluster[@]}" ssh-config)
launcher_args=$("${vcluster[@]}" launcher-args "$program")

say "A supervised run, N = $n, saved every 10 block columns"
cd "$work"
"$program" run --hosts hosts --spares spares --rsh "ssh -F $ssh_config" ${launcher_args:+--launcher-args="$launcher_args"} \
    -n "$n" --nb "$nb" -p 2 -q 2 --threads 1 --checkpoint 10 >output 2>progress &
run=$!
saves() { grep -c '"event":"saved"' skt-hpl.run/events.jsonl 2>/dev/null || true; }
while [[ $(saves) -lt 2 ]]; do
    kill -0 "$run" 2>/dev/null || { cat output progress; echo "demo: the run ended too early; try a larger N" >&2; exit 1; }
    sleep 0.1
done
"$program" status --state skt-hpl.run | sed -n 2p

say "Now $victim loses its power, without a word: no FIN, no RST; mpirun would wait for a quarter of an hour"
"${vcluster[@]}" cut-off "$victim"
code=0
wait "$run" || code=$?
run=
grep '^skt-hpl run' progress
say "The result, and what the fault cost"
grep -E '^WR|^W[RC]|PASSED|FAILED' output || true
sed -n '/^fault/,$p' progress
if [[ $code == 0 ]] && grep -q PASSED output && grep -q FAULT progress; then
    say "PASSED: a node was lost, the run was not"
else
    cat output progress
    say "FAILED (status $code)"
    exit 1
fi
