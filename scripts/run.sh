#!/usr/bin/env bash
# From a fresh clone to a benchmark result: installs what is missing, builds, sizes a problem to this
# machine, runs it once and says what came out and where to go next.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

usage() {
    cat <<'END'
usage: scripts/run.sh [--full | -n N]

  (nothing)   a problem that takes about a minute
  --full      the largest problem that fits into the free memory beside its protection, which takes a bit more than
              half of it; may take hours. For a figure to publish, tune first: docs/TUTORIAL.md
  -n N        a problem of this size
END
}

size=minute
n=
while (($# > 0)); do
    case $1 in
        --full) size=full ;;
        -n)
            [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || { usage >&2; exit 2; }
            size=given n=$2
            shift
            ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
    shift
done

seconds_wanted=60

cd "$root_dir"
step "setup"
scripts/setup.sh --for-run

step "build"
export MPICC
MPICC=$(mpi_tool mpicc openmpi)
cargo build --locked --release

here=$root_dir/target/run
mkdir -p "$here"
# Nothing of an earlier run may pass for a result of this one.
rm -f "$here/HPL.out" "$here/run.json"

step "plan"
skt=$(release_program)
# As many ranks as suit the machine, each with its share of the cores and of the memory, but two at least, so that
# they protect each other. On one node this guards against a process that dies; on several, against nodes. To the
# plan each rank is a node of its own.
read -r ranks _ _ _ threads _ < <("$skt" plan --layout)
cores=$((ranks * threads))
if ((ranks < 2)); then
    ranks=2
    threads=$((cores >= 2 ? cores / 2 : 1))
fi
# Larger groups leave hardly more memory (docs/MODELS.md).
group=$((ranks < 16 ? ranks : 16))
launcher=("$(mpi_tool mpirun openmpi)" --bind-to none)
# Of these MPICH knows none, and needs none.
if "${launcher[0]}" --version 2>/dev/null | grep -Eq 'Open MPI|OpenRTE|PRRTE'; then
    if ((cores < ranks)); then
        launcher+=(--oversubscribe --mca mpi_yield_when_idle 1)
    fi
    if ((EUID == 0)); then
        launcher+=(--allow-run-as-root)
    fi
fi
# The plan takes what is free here: what a container or a job may still take, and what /dev/shm has room for.
plan=("$skt" plan --nodes "$ranks" --nodes-here "$ranks" --ranks-per-node 1 --cores "$threads" --network 4GB/s
    --group "$group" --job run-sh --runs 0 --write "$here" --force)
# The rate is measured, not guessed: what a core can do differs tenfold between machines.
measured=(--launch-command "${launcher[*]} -np {ranks}" --calibrate)
# A plan keeps a tenth of its limit in hand.
case $size in
    minute) plan+=(--time-limit "$((seconds_wanted * 10 / 9))s") ;;
    full) ;;
    given) plan+=(-n "$n") measured=() ;;
esac
plan_with() {
    say "${plan[*]} $*"
    say
    "${plan[@]}" "$@" | tee "$here/plan.txt"
}
if ((${#measured[@]} == 0)); then
    plan_with
elif ! plan_with "${measured[@]}" 8s; then
    # Something else runs here, and measurements contradict each other.
    say "measuring once more, for longer"
    if ! plan_with "${measured[@]}" 20s; then
        say "planning without a measurement: the run may take much more or less time than planned"
        plan_with
    fi
fi
for ((rank = 0; rank < ranks; rank++)); do
    echo "rank:$rank process-$rank"
done >"$here/domains"

step "run"
command=("${launcher[@]}" -np "$ranks" "$skt" --config "$here/skt.toml" --dat "$here/HPL.dat" --threads "$threads"
    --checkpoint 15s --domains "$here/domains" --json "$here/run.json")
say "${command[*]}"
say
say "Kill a rank meanwhile, if you like (pkill -9 -o skt-hpl), and start the last command again: it goes on."
say
status=0
"${command[@]}" | tee "$here/HPL.out" || status=$?

step "result"
if rate=$(awk '/^W[RC]/ { print $7, $6; found = 1 } END { exit !found }' "$here/HPL.out"); then
    read -r gflops seconds <<<"$rate"
    verdict=$(awk '/_oo\// { print $4 }' "$here/HPL.out")
    # In some languages awk writes a comma.
    say "$(LC_ALL=C awk -v g="$gflops" 'BEGIN { printf "%.1f", g }') Gflops in $seconds s, solution ${verdict:-not checked}"
    cat <<END

  the text          target/run/HPL.out
  everything, JSON  target/run/run.json   (docs/JSON.md)
  the input         target/run/HPL.dat, target/run/skt.toml
  what was planned  target/run/plan.txt   (docs/MODELS.md)

Next:
  scripts/run.sh --full                  as large as fits beside the protection
  edit target/run/HPL.dat, then repeat the command above
  ${skt#"$root_dir/"}, followed by
    status                               what a run that was killed left in memory
    check target/run/HPL.dat             explains an input file
    tune                                 good parameters, and all of the memory without protection
    --help-all                           every option
END
else
    say "no result; what went wrong stands above (exit code $status, docs/EXIT-CODES.md)"
    ((status != 0)) || status=1
fi
exit "$status"
