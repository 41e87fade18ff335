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
  --full      the largest problem that fits into the free memory: the one to publish, may take hours
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

nb=192
seconds_wanted=60

# Whole cores this shell may use: hardware threads of one core share its arithmetic, and a container
# may be given less than it sees.
cores() {
    local seen physical quota period
    seen=$(nproc)
    physical=$(lscpu -b -p=Core,Socket 2>/dev/null | grep -v '^#' | sort -u | wc -l)
    if ((physical > 0 && physical < seen)); then
        seen=$physical
    fi
    if read -r quota period 2>/dev/null </sys/fs/cgroup/cpu.max && [[ $quota != max ]]; then
        quota=$((quota / period))
        ((quota >= 1)) || quota=1
        ((quota < seen)) && seen=$quota
    fi
    echo "$seen"
}

# Bytes that can be taken without swapping, within the container's limit if there is one.
free_bytes() {
    local free limit used
    free=$(awk '$1 == "MemAvailable:" { printf "%.0f", $2 * 1024 }' /proc/meminfo)
    if read -r limit 2>/dev/null </sys/fs/cgroup/memory.max && [[ $limit != max ]]; then
        read -r used </sys/fs/cgroup/memory.current
        ((limit - used < free)) && free=$((limit - used))
    fi
    echo "$free"
}

# What the cores could do at most in a second, in 10^9 operations, from their clock and vector width. Only
# good to choose a size by.
gflops_guess() { # cores
    awk -v cores="$1" -F: '
        /^cpu MHz/ && $2 + 0 > mhz { mhz = $2 + 0 }
        /^flags/ { flags = $2 " " }
        END {
            per_cycle = 4
            if (flags ~ / avx /) per_cycle = 8
            if (flags ~ / avx2 / && flags ~ / fma /) per_cycle = 16
            if (flags ~ / avx512f /) per_cycle = 32
            if (mhz == 0) mhz = 2500
            printf "%.0f", cores * per_cycle * mhz / 1000
        }' /proc/cpuinfo
}

# The largest N whose matrix takes the given part of the free memory, in whole blocks.
n_for_memory() { # part
    awk -v bytes="$(free_bytes)" -v part="$1" -v nb="$nb" \
        'BEGIN { n = int(sqrt(bytes * part / 8)); print (n > nb ? n - n % nb : n) }'
}

n_for_seconds() { # cores seconds
    awk -v gflops="$(gflops_guess "$1")" -v s="$2" -v nb="$nb" \
        'BEGIN { n = int((1.5 * 0.75 * gflops * 1e9 * s) ^ (1 / 3)); print (n > nb ? n - n % nb : n) }'
}

# Ranks, P, Q and threads of a rank. One rank with all cores needs no messages at all; on one node
# nothing has to be sent that its threads can simply read.
choose_grid() { # cores
    ranks=1 p=1 q=1 threads=$1
}

write_hpl_dat() { # file
    cat >"$1" <<END
HPLinpack benchmark input file
written by scripts/run.sh
HPL.out      output file name (if any)
6            device out (6=stdout,7=stderr,file)
1            # of problems sizes (N)
$n           Ns
1            # of NBs
$nb          NBs
0            PMAP process mapping (0=Row-,1=Column-major)
1            # of process grids (P x Q)
$p           Ps
$q           Qs
16.0         threshold
1            # of panel fact
2            PFACTs (0=left, 1=Crout, 2=Right)
1            # of recursive stopping criterium
4            NBMINs (>= 1)
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs (0=left, 1=Crout, 2=Right)
1            # of broadcast
1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1            # of lookahead depth
1            DEPTHs (>=0)
2            SWAP (0=bin-exch,1=long,2=mix)
64           swapping threshold
0            L1 in (0=transposed,1=no-transposed) form
0            U  in (0=transposed,1=no-transposed) form
1            Equilibration (0=no,1=yes)
8            memory alignment in double (> 0)
END
}

cd "$root_dir"
step "setup"
scripts/setup.sh --for-run

step "build"
export MPICC
MPICC=$(mpi_tool mpicc openmpi)
cargo build --locked --release

all_cores=$(cores)
choose_grid "$all_cores"
most=$(n_for_memory 0.80)
case $size in
    minute)
        n=$(n_for_seconds "$all_cores" "$seconds_wanted")
        ((n <= most)) || n=$most
        ;;
    full) n=$most ;;
    given) ;;
esac

here=$root_dir/target/run
mkdir -p "$here"
# Nothing of an earlier run may pass for a result of this one.
rm -f "$here/HPL.out" "$here/run.json"
write_hpl_dat "$here/HPL.dat"

step "run"
say "N = $n, NB = $nb, $p x $q grid, $threads threads a rank: $(awk -v n="$n" 'BEGIN { printf "%.1f", n * n * 8 / 2^30 }') GiB of $(awk -v b="$(free_bytes)" 'BEGIN { printf "%.1f", b / 2^30 }') GiB free"
launcher=("$(mpi_tool mpirun openmpi)" -np "$ranks" --bind-to none)
if ((EUID == 0)); then
    launcher+=(--allow-run-as-root)
fi
command=("${launcher[@]}" "$root_dir/target/release/skt-hpl"
    --dat "$here/HPL.dat" --threads "$threads" --json "$here/run.json")
say "${command[*]}"
say
status=0
"${command[@]}" | tee "$here/HPL.out" || status=$?

step "result"
if rate=$(awk '/^W[RC]/ { print $7, $6; found = 1 } END { exit !found }' "$here/HPL.out"); then
    read -r gflops seconds <<<"$rate"
    verdict=$(awk '/_oo\// { print $4 }' "$here/HPL.out")
    say "$(awk -v g="$gflops" 'BEGIN { printf "%.1f", g }') Gflops in $seconds s, solution ${verdict:-not checked}"
    cat <<END

  the text          target/run/HPL.out
  everything, JSON  target/run/run.json   (docs/JSON.md)
  the input         target/run/HPL.dat

Next:
  scripts/run.sh --full                              as large as the memory allows
  edit target/run/HPL.dat, then repeat the command above
  target/release/skt-hpl check target/run/HPL.dat    explains an input file
  target/release/skt-hpl --help                      every option
END
else
    say "no result; what went wrong stands above (exit code $status, docs/EXIT-CODES.md)"
    ((status != 0)) || status=1
fi
exit "$status"
