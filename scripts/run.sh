#!/usr/bin/env bash
# From a fresh clone to a benchmark result: installs what is missing, builds, sizes a problem to this
# machine, runs it once and says what came out and where to go next.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

usage() {
    cat <<'END'
usage: scripts/run.sh [--full | -n N] [--new]

  (nothing)   a problem that takes about a minute
  --full      the largest problem that fits into the free memory with its protection, which takes a bit more than
              half of it; may take hours. For a figure to publish, tune first: docs/GUIDE.md
  -n N        a problem of this size
  --new       give up a run that was interrupted; without this, the script continues it
END
}

size=minute
n=
# The words that say which problem.
asked=
new=false
while (($# > 0)); do
    case $1 in
        --full) size=full asked=" --full" ;;
        -n)
            [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || { usage >&2; exit 2; }
            size=given n=$2 asked=" -n $2"
            shift
            ;;
        --new) new=true ;;
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
build_release

skt=$(release_program)
here=$root_dir/target/run
mkdir -p "$here"
# Command that starts the last run again. It is there until that run is over.
again=$here/again

# State of a run of this script in memory: "running", "saved", "begun" (nothing is saved yet), or nothing.
in_memory() {
    (cd "$here" && "$skt" status) | awk '
        /^job / { ours = $2 == "run-sh"; if (ours && /\(running\)/) running = 1 }
        ours && /^  position / { if (/holds no checkpoint yet/) begun = 1; else saved = 1 }
        END { print running ? "running" : saved ? "saved" : begun ? "begun" : "" }'
}

left=$(in_memory)
if [[ $left == running ]]; then
    die "a run that this script has started is computing ($skt status shows it). Wait until it has ended, or end it"
elif [[ $left == begun ]] || { [[ -n $left ]] && $new; }; then
    # Its memory would be missing to the next one.
    "$skt" clean --job run-sh
elif [[ $left == saved ]]; then
    # The program would refuse another problem, and the input of this one would be overwritten.
    [[ -f $again ]] || die "a run that was interrupted (job run-sh) is still in memory, but what starts it again,
$again, is not there: another clone or another command has started it.
Go on with it from there, or give it up:  scripts/run.sh$asked --new"
    started=$(sed -n '2s/^# //p' "$again")
    [[ -z $asked || scripts/run.sh$asked == "$started" ]] ||
        die "a run that was interrupted is still in memory, started by $started.
Go on with it:  scripts/run.sh
Or give it up:  scripts/run.sh$asked --new"
fi

# Nothing of an earlier run may pass for a result of this one.
rm -f "$here/HPL.out" "$here/run.json"

plan_run() {
    rm -f "$again"
    # As many ranks as suit the machine, each with its share of the cores and of the memory, but two at least, so that
    # they protect each other. On one node this guards against a process that dies; on several, against nodes. To the
    # plan each rank is a node of its own.
    read -r ranks _ _ _ threads _ < <("$skt" plan --show-ranks)
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
        # Ranks are bound to nothing, and the cores are counted above. Open MPI counts slots, and a batch job of one task
        # has one. Of itself it would have ranks yield that are more than the slots.
        launcher+=(--oversubscribe --mca mpi_yield_when_idle "$((cores < ranks))")
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

    local command=("${launcher[@]}" -np "$ranks" "$skt" --config "$here/skt.toml" --dat "$here/HPL.dat" --threads "$threads"
        --checkpoint 15s --domains "$here/domains" --json "$here/run.json")
    {
        printf '#!/usr/bin/env bash\n# scripts/run.sh%s\ncd %q\nexec' "$asked" "$root_dir"
        printf ' %q' "${command[@]}"
        echo
    } >"$again"
    chmod +x "$again"
}

step "plan"
if [[ $left == saved ]] && ! $new; then
    say "a run that was interrupted is still in memory, started by $started: continuing it (--new gives it up)"
else
    plan_run
fi

step "run"
sed -n 's/^exec //p' "$again"
say
say "Kill a rank meanwhile, if you like (pkill -9 -o skt-hpl), and start this script again: it resumes."
say
status=0
"$again" | tee "$here/HPL.out" || status=$?
left=$(in_memory) || left=saved
case $left in
    running | saved) ;;
    *) rm -f "$again" ;;
esac

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
  scripts/run.sh --full                  as large as fits with the protection
  edit target/run/HPL.dat, then repeat the command above
  ${skt#"$root_dir/"}, followed by
    status                               what a run that was killed left in memory
    check target/run/HPL.dat             explains an input file
    tune                                 good parameters, and all of the memory without protection
    --help                               every option
END
else
    say "no result; what went wrong stands above (exit code $status, docs/TROUBLESHOOTING.md)"
    if [[ $left == saved ]]; then
        say "what it has saved is kept: scripts/run.sh resumes there; scripts/run.sh --new gives it up"
    fi
    ((status != 0)) || status=1
fi
exit "$status"
