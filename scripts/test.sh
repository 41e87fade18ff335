#!/usr/bin/env bash
# Runs the tests, in three extents. The last line is "N passed, N failed"; a check counts as one test. Exit code 0 if none failed.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"
cd "$root_dir"

usage() {
    echo "usage: scripts/test.sh [--ci | --all]
Runs the tests that matter, under the MPI at hand. One test or one kind of test: CONTRIBUTING.md
  --ci   what continuous integration runs: formatting, lints, all suites, a sample of each under the other MPIs
  --all  all of that under each MPI, random faults and many ranks as well: hours"
}

extent=quick
case ${1:-} in
    '') ;;
    --ci) extent=ci ;;
    --all) extent=all ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
esac
# Number of seconds after which no further suite starts; suites that were left out are listed at the end.
deadline=$((${SKT_TEST_MINUTES:-75} * 60))
[[ $extent != all ]] || deadline=$((1 << 40))

# Tests that lose ranks need up to 150 MB each in /dev/shm, and several run at once. A container has 64 MiB by default.
shm_is_short() {
    local kib
    kib=$(df --output=size -k /dev/shm | tail -n 1)
    ((${kib:-0} < 1 << 20))
}

# If /dev/shm is small and the user is root, runs all of this again in a mount namespace with a larger one, which takes only used
# memory.
with_room_in_shm() { # command that begins all of this again
    local larger='mount -t tmpfs -o size=2g tmpfs /dev/shm'
    if shm_is_short && ((EUID == 0)) && [[ -z ${SKT_TEST_OWN_SHM:-} ]] && unshare --mount sh -c "$larger" 2>/dev/null; then
        say "/dev/shm has less than 1 GiB: a larger one lies over it for these tests"
        SKT_TEST_OWN_SHM=1 exec unshare --mount sh -c "$larger && exec \"\$@\"" sh "$@"
    fi
}
with_room_in_shm "$root_dir/scripts/test.sh" "$@"

scripts/setup.sh

log=$(mktemp)
ahead_log=$(mktemp)
package_log=$(mktemp)
notes_log=$(mktemp)
# A process in the background, and the tests that it leaves for later.
ahead=
ahead_tests=$(mktemp -d)
# Processes in the background have sessions of their own, which no Ctrl-C reaches.
end_ahead() {
    local children child
    children=$(pgrep -P "$ahead") || true
    kill "$ahead" 2>/dev/null || true
    for child in $children; do
        pkill -s "$child" || kill "$child" 2>/dev/null || true
    done
}
trap 'rm -rf "$log" "$ahead_log" "$package_log" "$notes_log" "$ahead_tests"; [[ -z $ahead ]] || end_ahead' EXIT
passed=0
failed=0
failures=()
skipped=()
retried=()
times=()

skip() { # name why
    step "$1"
    say "SKIPPED: $2"
    skipped+=("$1: $2")
}

check() { # name command...
    local name=$1
    shift
    step "$name"
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        failures+=("$name")
    fi
}

# Prints the first and last lines of the output of each failed test, for readers of the end of the log. If no test has ended,
# prints the last lines of the log.
what_failed() { # log
    if ! grep -q '^---- .* stdout ----$' "$1"; then
        tail -n 15 "$1" | cut -c 1-400 | sed 's/^/    /'
        return
    fi
    # At most 200 lines. `head` would end awk with a signal, and under pipefail this script, too.
    awk 'function tell(i) {
             for (i = 1; i <= n; i++) if ((i <= 5 || i > n - 25) && told++ < 200) print "    " substr(line[i], 1, 400)
             n = 0
         }
         /^---- .* stdout ----$/ { tell(); inside = 1 }
         /^failures:$/ { tell(); inside = 0 }
         inside && NF { line[++n] = $0 }' "$1"
}

# Runs tests in one configuration. A test that leaves something out passes, and writes this to a file.
export SKT_TEST_NOTES=$notes_log
tests() { # name command...
    local name=$1 status=0 began=$SECONDS limit=$((deadline - SECONDS))
    shift
    if ((limit < 60)); then
        skip "$name" "NO TIME LEFT, not run"
        return
    fi
    # A test that hangs must not block the machine for ever.
    if ((limit > 3000)); then limit=3000; fi
    step "$name"
    timeout --kill-after=30 "$limit" "$@" 2>&1 | tee "$log" || status=$?
    count "$name" "$log" "$notes_log" "$status" $((SECONDS - began))
}

# Adds up the runner's closing lines. A suite that the deadline ended has no closing line: its finished tests count, the others
# are skipped.
count() { # name log notes status seconds
    local name=$1 run_passed run_failed line
    read -r run_passed run_failed < <(awk '
        /^test .* ok$/ { ok++ }
        /^test .* FAILED$/ { bad++ }
        /^test result:/ { for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) p += $(i-1); if ($i ~ /^failed/) f += $(i-1) }; ok = bad = 0 }
        END { print p + ok, f + bad }' "$2")
    if (($4 == 124 && SECONDS >= deadline)); then
        skipped+=("$name: NO TIME LEFT after $run_passed of its tests, the others not run")
    # Without a closing line, the suite did not build, crashed or hung: this counts as a failure. So does a suite in which no test
    # ran.
    elif ((run_failed == 0 && ($4 != 0 || run_passed == 0))); then
        run_failed=1
    fi
    passed=$((passed + run_passed))
    failed=$((failed + run_failed))
    if ((run_failed > 0)); then
        failures+=("$name"$'\n'"$(what_failed "$2")")
    fi
    while IFS= read -r line; do
        case $line in
            RETRIED:*) retried+=("$name: ${line#RETRIED: }") ;;
            *) skipped+=("$name: $line") ;;
        esac
    done < <(sort -u "$3")
    : >"$3"
    times+=("$5 s: $name")
}

# The seed of random faults comes from the commit: each commit has other faults, and a run of a commit can be repeated.
seed=$(git rev-parse --short=12 HEAD 2>/dev/null) || seed=1
export SKT_TEST_SEED=${SKT_TEST_SEED:-$((16#$seed))}
say "seed of random faults: SKT_TEST_SEED=$SKT_TEST_SEED"

# Each build below names its target folder or uses this one, whatever a variable or a file of cargo says. Programs that look for a
# built program look there.
unset CARGO_BUILD_TARGET_DIR
export CARGO_TARGET_DIR=$root_dir/target
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
# The tests start more ranks than a small machine has cores, and in a container they are root.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_mpi_yield_when_idle=1
# The same settings in the names of version 5.
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
# A job of a few ranks leaves cores idle while it starts and ends, so more tests run at once than there are cores.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc) + 2))}

# Builds for tests only: without debug information (a panic still prints its line), without incremental compilation, and linked by
# mold if it is installed and the compiler knows it.
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0
if have mold && echo 'int main(void) { return 0; }' | cc -fuse-ld=mold -x c - -o /dev/null 2>/dev/null; then
    export RUSTFLAGS="${RUSTFLAGS:-} -Clink-arg=-fuse-ld=mold"
fi

# Where a test looks for NVIDIA's compiler for kernels.
LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$(nvrtc_dir)
export LD_LIBRARY_PATH

open_mpi=(env "MPICC=$(mpi_tool mpicc openmpi)" "SKT_TEST_MPIRUN=$(mpi_tool mpirun openmpi)")
# One target folder for each MPI, so that a change of MPICC rebuilds nothing. The other MPI and the other BLAS share one
# configuration, which saves a build. MPICH's ranks keep their core while they wait, so fewer tests run at once.
mpich=(env "MPICC=$(mpi_tool mpicc mpich)" "SKT_TEST_MPIRUN=$(mpi_tool mpirun mpich)" CARGO_TARGET_DIR=target/mpich
    "RUST_TEST_THREADS=$(($(nproc) + 1))")
openblas=(--no-default-features --features openblas)

# Open MPI 5, whose launcher has other options, in the folder of scripts/setup.sh.
open_mpi_5=(env "MPICC=$(openmpi5_dir)/bin/mpicc" "SKT_TEST_MPIRUN=$(openmpi5_dir)/bin/mpirun" CARGO_TARGET_DIR=target/openmpi5)

# From version 5 on, Open MPI continues after the loss of a process. The system's own Open MPI may have this version.
open_mpi_version=$(open_mpi_major "$(mpi_tool mpirun openmpi)")
open_mpi_goes_on() {
    ((${open_mpi_version:-0} >= 5))
}

no_room_in_shm="/dev/shm has less than 1 GiB: begin this as a user who may mount a larger one, or the container with --shm-size=2g"

# Programs under tests/ that start several ranks have suites of their own below. All others need no ranks, and run once.
alone=(--lib --bins)
for program in tests/*.rs tests/*/main.rs; do
    program=${program%/main.rs} program=$(basename "${program%.rs}")
    case $program in
        crash | fit_nodes | mpi | node_loss | nonstop | protocol_model) ;;
        *) alone+=(--test "$program") ;;
    esac
done

# Samples, for the quick extent and for other MPIs: tests of each kind that depend on ranks, launchers or messages.
mpi_sample=(contract:: dat:: faults:: oracle::x_is_lapacks options::every_option_on_one_rank output::)
# The other MPI is tested with the other BLAS, and runs a share of the sweep over the solver's options.
mpich_sample=("${mpi_sample[@]}" binding:: blas:: halves:: options::the_sweep oracle:: unequal::)
crash_sample=(aside::groups_of_six choices::column_mapping damage::memory_that disk::all_nodes_off jobs::a_sweep_goes_on
    jobs::stopped_on_request layouts::a_loss_in_each_line level2::all_memory_gone level2::a_stop_ends_on_storage
    limits::any_two_of_six limits::one_more points::on_six windows::w5 windows::w10 windows::w12 windows::w13)
node_loss_sample=(halting::a_batch_systems kinds::a_hung_rank_is_ended kinds::a_silent_power_off kinds::an_undisturbed
    outages::results_that_did_not_fit slurm::under_the_mpis supervisor::a_killed_launcher supervisor::a_successor_takes
    windows::during_the_first_save without_ulfm::)
# The quick extent runs all of the protocol model but the two largest searches.
not_in_quick_protocol=(--skip three_crashes --skip clock_goes_back)
# Left out without --all: tests whose faults the simulation also finds, long tests, random kills, and more ranks than cores.
rest=(--skip rest::)
not_in_crash=("${rest[@]}" --skip soak:: --skip many::)
not_in_nonstop=("${rest[@]}" --skip peers::member --skip chance:: --skip any_rank_dies_at_any_time)
if [[ $extent == all ]]; then
    export SKT_TEST_WHOLE=1
    mpi_sample=() mpich_sample=() crash_sample=() node_loss_sample=() not_in_crash=() not_in_nonstop=(--skip peers::member) rest=()
fi

# Prints why virtual nodes cannot be made; prints nothing if they can. They need root and network namespaces.
nodes_missing() {
    if ((EUID != 0)); then
        echo "not root"
    elif ! unshare --net --ipc --uts --mount --pid --fork true 2>/dev/null; then
        echo "the kernel, or this container, allows no namespaces"
    elif ! unshare --net ip link add probe type bridge 2>/dev/null; then
        echo "no network devices can be made in a namespace"
    fi
}

# Number of clusters of virtual nodes at once.
clusters=$((2 * $(nproc) + 2))

# Runs the suite that loses nodes, under one MPI. Needs root.
node_loss() { # name command... -- tests...
    local name="tests: node loss, $1" missing command=()
    shift
    while [[ $1 != -- ]]; do
        command+=("$1")
        shift
    done
    shift
    missing=$(nodes_missing)
    if [[ -n $missing ]]; then
        skip "$name" "$missing"
        return
    fi
    local which=("${rest[@]}" "$@")
    if ! have slurmctld; then
        which+=(--skip slurm::)
        skipped+=("$name, inside a Slurm allocation: Slurm is not installed; scripts/setup.sh --with-slurm")
    fi
    tests "$name" "${command[@]}" cargo test --locked --no-fail-fast "${blas[@]}" --test node_loss -- \
        --ignored --test-threads "$clusters" "${which[@]}"
}

# Runs tests/mpi, tests/crash or tests/nonstop.
ranks() { # name program command... -- tests...
    local name=$1 program=$2 command=()
    shift 2
    while [[ $1 != -- ]]; do
        command+=("$1")
        shift
    done
    if shm_is_short && [[ $program != mpi ]]; then
        skip "$name" "$no_room_in_shm"
    else
        tests "$name" "${command[@]}" cargo test --locked --no-fail-fast "${blas[@]}" --test "$program" "$@"
    fi
}

# Runs the tests that mount small file systems.
no_room() { # command...
    local name="tests: no room in memory or on storage"
    if ((EUID == 0)) && unshare --mount true 2>/dev/null; then
        ranks "$name" crash "$@" -- --ignored --test-threads 1
    else
        skip "$name" "not root, or no mount namespace is available"
    fi
}

scripts_parse() {
    local script
    for script in scripts/*.sh .ci/run hpl-configs/job.* hpl-configs/burnin.slurm hpl-configs/flux-rsh; do
        bash -n "$script" || return 1
    done
}

# Makes a package of the program that the tests use, and installs it on a bare system. The last line of the log is the exit code.
try_package() {
    local package status=0
    {
        package=$(scripts/package.sh deb --binary target/debug/skt-hpl --output target/packages | tail -n 1) &&
            timeout --kill-after=10 600 scripts/try-package.sh "$package"
    } >"$package_log" 2>&1 || status=$?
    printf '%s\n' "$status" >>"$package_log"
}

# Most crates do not depend on MPI and are the same in every target folder. These are copied from the first folder; crates that
# are built for an MPI, and crates that use them, are not copied.
take_over() { # folder
    local folder=$1/debug
    [[ ! -d $folder ]] || return 0
    mkdir -p "$folder/deps"
    cp -a target/debug/.fingerprint target/debug/build "$folder"
    find target/debug/deps -maxdepth 1 -type f \( -name '*.rlib' -o -name '*.rmeta' -o -name '*.so' -o -name '*.d' \) \
        ! -name 'lib*skt_hpl-*' -exec cp -a -t "$folder/deps" {} +
    rm -rf "$folder"/{.fingerprint,build}/{mpi,mpi-sys,skt-hpl}-* "$folder"/deps/lib{mpi,mpi_sys}-*
}

# Ranks that wait for a message keep a core busy. Most kernels divide processor time among sessions, and tens of ranks would leave
# a build almost no time, at any nice value. So the build gets a session of its own, with nine times the weight. If this is not
# possible, it gets the remaining time.
at_low_priority() { # command...
    setsid --wait nice -n 19 bash -c 'echo -10 2>/dev/null >/proc/self/autogroup || true; exec "$@"' sh "$@"
}

# Tests that lose nodes spend much of their time waiting. Meanwhile the later configurations are built, and tests without MPI run.
# If a build fails, its tests report this.
build_ahead() {
    at_low_priority bash -c "$(declare -f try_package); package_log='$package_log'; try_package"
    take_over target/mpich
    at_low_priority "${mpich[@]}" cargo test --locked --no-run "${openblas[@]}" --test mpi --test crash --test node_loss || true
    if [[ -x $(openmpi5_dir)/bin/mpicc ]]; then
        take_over target/openmpi5
        at_low_priority "${open_mpi_5[@]}" cargo test --locked --no-run --test mpi --test nonstop --test node_loss || true
    fi
}

# Runs the kernels for another processor in an emulator. Only the kernels and the loops around them are built for it. A process in
# the emulator cannot start a second emulated process, which the test of new threads does.
neon="tests: NEON kernels, emulated"
neon_missing() {
    have aarch64-linux-gnu-gcc && have qemu-aarch64 || { echo "no compiler or no emulator"; return; }
    neon_library_is_there || echo "no library of Rust's for it"
}
with_neon=(env RUSTFLAGS= CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
    cargo test --locked --lib --manifest-path tests/other_processors/Cargo.toml --target-dir target/neon
    --target "$neon_target" -- --skip new_thread::)

# Processors before AVX2, for which the program has no kernels: one without fused multiply-adds, and one with them.
before_avx2="tests: processors before AVX2, emulated"

# Runs tests in the background without output. Their output, exit code and time go to files that `come` reads.
go_ahead() { # name command...
    local at=$ahead_tests/${1//[^a-zA-Z0-9]/-} status=0 began=$SECONDS
    shift
    : >"$at.notes"
    SKT_TEST_NOTES=$at.notes at_low_priority timeout --kill-after=30 1800 "$@" >"$at.log" 2>&1 || status=$?
    echo "$status $((SECONDS - began))" >"$at.end"
}
come() { # name
    local at=$ahead_tests/${1//[^a-zA-Z0-9]/-} status seconds
    step "$1 (run meanwhile)"
    # A suite that did not end or start counts as failed.
    [[ -e $at.end ]] || echo "1 0" >"$at.end"
    touch "$at.log" "$at.notes"
    read -r status seconds <"$at.end"
    cat "$at.log"
    count "$1" "$at.log" "$at.notes" "$status" "$seconds"
}

# Names of the background suites of this extent, and their commands.
protocol="tests: every interleaving of the protocol"
in_background=("$protocol")
largest_searches() {
    local parts=(src/checkpoint/{protocol,recall,placement}.rs src/checkpoint/storage src/shm/header.rs
        src/parity/code.rs tests/protocol_model)
    if [[ $extent != all ]] && ! changed_lately "${parts[@]}"; then
        skipped+=("the two largest searches of the protocol: no commit of the last day changes it")
        protocol_share=("${not_in_quick_protocol[@]}")
    fi
}
protocol_share=()
emulate() {
    if [[ $extent != all ]] && ! changed_lately src/kernels src/lu/factor src/lu/solve.rs tests/other_processors; then
        skipped+=("emulated processors: no commit of the last day changes a kernel")
        return
    fi
    if [[ -z $(neon_missing) ]]; then
        in_background+=("$neon")
    else
        skip "$neon" "$(neon_missing); scripts/setup.sh --with-neon"
    fi
    if [[ $(uname -m) != x86_64 ]]; then
        skipped+=("$before_avx2: this processor is of another kind")
    elif have qemu-x86_64; then
        in_background+=("$before_avx2: Nehalem" "$before_avx2: Opteron_G5")
    else
        skip "$before_avx2" "no emulator; scripts/setup.sh --with-neon"
    fi
}
# Outside of a git checkout every file counts as changed.
changed_lately() { # path...
    git rev-parse --verify --quiet HEAD >/dev/null || return 0
    [[ -n $(git log -1 --since='1 day ago' --format=%h -- "$@")$(git status --porcelain -- "$@") ]]
}
if [[ $extent != quick ]]; then
    emulate
    largest_searches
fi
tests_ahead() {
    local name
    for name in "${in_background[@]}"; do
        case $name in
            "$protocol") go_ahead "$name" "${open_mpi[@]}" cargo test --locked --no-fail-fast --test protocol_model -- \
                "${protocol_share[@]}" ;;
            "$neon") go_ahead "$name" "${with_neon[@]}" ;;
            *)
                go_ahead "$name" "${open_mpi[@]}" CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="qemu-x86_64 -cpu ${name##*: }" \
                    cargo test --locked --lib -- kernels:: lu::factor lu::solve
                ;;
        esac
    done
}

check_all() {
    check "scripts" scripts_parse
    check "format" cargo fmt --check
    check "lints, BLIS" "${open_mpi[@]}" cargo clippy --locked --all-targets -- -D warnings
    # The kernels are built for another processor below, if this is possible. Whether they build alone is checked on any machine.
    check "lints, the kernels alone" cargo clippy --locked --all-targets --manifest-path tests/other_processors/Cargo.toml \
        --target-dir target/neon -- -D warnings
}

# Reports the package that `try_package` has made and installed.
package_came() {
    local name="a package on a bare Debian" status words
    step "$name"
    status=$(tail -n 1 "$package_log")
    words=$(tail -n 2 "$package_log" | head -n 1)
    case $status in
        0) passed=$((passed + 1)) ;;
        77) skipped+=("$name: $words") ;;
        *)
            cat "$package_log"
            failed=$((failed + 1))
            failures+=("$name")
            ;;
    esac
    say "$words"
}

no_warnings() { ! grep -A 20 '^warning' "$ahead_log"; }

quick_tests() {
    check "build" "${open_mpi[@]}" cargo test --locked --no-run
    tests "tests: units, and programs without ranks" "${open_mpi[@]}" cargo test --locked --no-fail-fast "${alone[@]}"
    tests "$protocol" "${open_mpi[@]}" cargo test --locked --test protocol_model -- "${not_in_quick_protocol[@]}"
    ranks "tests: the solver, a sample" mpi "${open_mpi[@]}" SKT_TEST_SHARE=1/16 -- "${mpi_sample[@]}"
    ranks "tests: lost ranks, a sample" crash "${open_mpi[@]}" -- "${crash_sample[@]}"
    node_loss "a sample" "${open_mpi[@]}" -- kinds::a_killed_rank kinds::a_silent_power_off windows::during_the_first_save
}

# Some tests need an MPI that continues after the loss of a process, others need one that does not.
node_loss_with_open_mpi() {
    local not_here=in_place::
    if open_mpi_goes_on; then not_here=without_ulfm::; fi
    node_loss "Open MPI" "${open_mpi[@]}" -- --skip "$not_here"
}

# Without our build of Open MPI 5, the system's Open MPI of version 5 or later runs the recovery in place; it has run all other
# tests before.
with_open_mpi_5() {
    local recovery="tests: recovery in place"
    if [[ -x $(openmpi5_dir)/bin/mpicc ]]; then
        ranks "tests: the solver, Open MPI 5" mpi "${open_mpi_5[@]}" SKT_TEST_SHARE=3/3 -- \
            binding:: output:: faults:: options::the_sweep
        ranks "$recovery" nonstop "${open_mpi_5[@]}" -- --ignored "${not_in_nonstop[@]}"
        node_loss "Open MPI 5" "${open_mpi_5[@]}" -- power_off during_the_first_save in_place::
    elif open_mpi_goes_on; then
        ranks "$recovery" nonstop "${open_mpi[@]}" -- --ignored "${not_in_nonstop[@]}"
    else
        skip "$recovery, and the samples with Open MPI 5" "it is not installed; scripts/setup.sh --with-openmpi5"
    fi
}

# The algorithms are the same under each MPI. So all suites run under the first MPI, and under each other MPI a sample of tests in
# which ranks start, end, are bound and are lost.
all_tests() {
    check_all
    check "build: Open MPI, BLIS" "${open_mpi[@]}" cargo test --locked --no-run
    tests "tests: units, and programs without ranks" "${open_mpi[@]}" cargo test --locked --no-fail-fast "${alone[@]}"

    { build_ahead && tests_ahead; } >"$ahead_log" 2>&1 &
    ahead=$!
    node_loss_with_open_mpi
    if [[ -z $(nodes_missing) ]]; then
        tests "tests: unfit nodes" "${open_mpi[@]}" cargo test --locked --no-fail-fast --test fit_nodes -- --ignored --test-threads 3 "${rest[@]}"
    else
        skip "tests: unfit nodes" "$(nodes_missing)"
    fi
    step "the builds of the other configurations, and tests that start no MPI, begun meanwhile"
    wait "$ahead" || true
    ahead=
    tail -n 1 "$ahead_log"
    check "no warnings from the compiler in any of them" no_warnings
    package_came
    for name in "${in_background[@]}"; do
        come "$name"
    done

    # The MPIs share the sweep over the solver's options: a third each, or half.
    local shares=2
    [[ ! -x $(openmpi5_dir)/bin/mpicc ]] || shares=3
    ranks "tests: the solver, Open MPI, BLIS" mpi "${open_mpi[@]}" SKT_TEST_SHARE=1/$shares --
    ranks "tests: lost ranks, Open MPI, BLIS" crash "${open_mpi[@]}" -- "${not_in_crash[@]}"
    no_room "${open_mpi[@]}"

    with_open_mpi_5

    blas=("${openblas[@]}")
    ranks "tests: the solver, MPICH, OpenBLAS" mpi "${mpich[@]}" SKT_TEST_SHARE=2/$shares -- "${mpich_sample[@]}" --skip report:: --skip tune::
    ranks "tests: lost ranks, MPICH, OpenBLAS" crash "${mpich[@]}" -- "${crash_sample[@]}" "${not_in_crash[@]}"
    node_loss "MPICH" "${mpich[@]}" -- --skip in_place:: "${node_loss_sample[@]}"
}

# Features of cargo for another BLAS than the default.
blas=()
case $extent in
    quick) quick_tests ;;
    *) all_tests ;;
esac

step "result"
for name in "${times[@]}"; do
    say "$name"
done
case $extent in
    quick) say "a sample under one MPI: all suites, lints and the other MPIs with --ci" ;;
    ci) say "left out: rest:: (shown by the simulation, or long), soak::, many:: and chance:: (random faults, many ranks), and but for a sample MPICH and Open MPI 5: --all" ;;
esac
say "repeat with SKT_TEST_SEED=$SKT_TEST_SEED"
for name in "${retried[@]}"; do
    say "RETRIED: $name"
done
for name in "${skipped[@]}"; do
    say "SKIPPED: $name"
done
for name in "${failures[@]}"; do
    say "FAILED: $name"
done
say "$passed passed, $failed failed"
((failed == 0))
