#!/usr/bin/env bash
# Every check and every test: format, lints, and the tests under each BLAS and each MPI.
# The last line is "N passed, N failed" over all of it, a check counting as one; exit 0 if none failed.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"
cd "$root_dir"

scripts/setup.sh

log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0
failed=0
failures=()
skipped=()

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

# Runs all tests in one configuration and adds up what the runner's closing lines say.
tests() { # name command...
    local name=$1 status=0 run_passed run_failed
    shift
    step "$name"
    # A test that hangs must not hold the machine for ever.
    timeout --kill-after=30 1800 "$@" 2>&1 | tee "$log" || status=$?
    read -r run_passed run_failed < <(awk '
        /^test result:/ { for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) p += $(i-1); if ($i ~ /^failed/) f += $(i-1) } }
        END { print p + 0, f + 0 }' "$log")
    # It did not build, crashed or was cut off: no closing line counts that.
    if ((status != 0 && run_failed == 0)); then
        run_failed=1
    fi
    passed=$((passed + run_passed))
    failed=$((failed + run_failed))
    if ((run_failed > 0)); then
        failures+=("$name")
    fi
}

export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
# The tests start more ranks than a small machine has cores, and in a container they are root.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_mpi_yield_when_idle=1

openblas=(--no-default-features --features openblas)

open_mpi=(env "MPICC=$(mpi_tool mpicc openmpi)" "SKT_TEST_MPIRUN=$(mpi_tool mpirun openmpi)")
# One target folder for each MPI: nothing is built again because MPICC has changed.
mpich=(env "MPICC=$(mpi_tool mpicc mpich)" "SKT_TEST_MPIRUN=$(mpi_tool mpirun mpich)" CARGO_TARGET_DIR=target/mpich)

# Virtual nodes need root and network namespaces; where there are none, this says why.
nodes_missing() {
    if ((EUID != 0)); then
        echo "not root"
    elif ! unshare --net --ipc --uts --mount --pid --fork true 2>/dev/null; then
        echo "the kernel, or this container, allows no namespaces"
    elif ! unshare --net ip link add probe type bridge 2>/dev/null; then
        echo "no network devices can be made in a namespace"
    fi
}

# The suite that loses nodes, under one MPI.
node_loss() { # name environment...
    local name="tests: node loss, $1" missing
    shift
    missing=$(nodes_missing)
    if [[ -n $missing ]]; then
        step "$name"
        say "SKIPPED: $missing"
        skipped+=("$name: $missing")
    else
        local leave_out=()
        if ! PATH=$PATH:/usr/sbin have slurmctld; then
            leave_out=(--skip slurm::)
            skipped+=("$name, inside a Slurm allocation: Slurm is not installed; scripts/setup.sh --with-slurm")
        fi
        tests "$name" "$@" cargo test --locked --no-fail-fast --test node_loss -- \
            --ignored --test-threads 4 "${leave_out[@]}"
    fi
}

scripts_parse() {
    local script
    for script in scripts/*.sh .ci/run; do
        bash -n "$script" || return 1
    done
}

check "scripts" scripts_parse
check "format" cargo fmt --check
check "lints, BLIS" "${open_mpi[@]}" cargo clippy --locked --all-targets -- -D warnings
check "lints, OpenBLAS" "${open_mpi[@]}" cargo clippy --locked --all-targets "${openblas[@]}" -- -D warnings
# The sweep over all combinations of the solver's options is spread over the three: a third each. Crash
# points are struck one and all under the first, and in a sample under the others.
tests "tests: Open MPI, BLIS" "${open_mpi[@]}" SKT_TEST_SHARE=1/3 cargo test --locked --no-fail-fast
# The tests of checkpoints must fail without what they are there to hold.
tests "tests: a safeguard left out" "${open_mpi[@]}" cargo test --locked --features sabotage \
    --test checkpoint_threads --test crash -- negative:: without_
tests "tests: Open MPI, OpenBLAS" "${open_mpi[@]}" SKT_TEST_SHARE=2/3 SKT_TEST_SAMPLE=1 cargo test --locked --no-fail-fast "${openblas[@]}"
tests "tests: MPICH, BLIS" "${mpich[@]}" SKT_TEST_SHARE=3/3 SKT_TEST_SAMPLE=1 cargo test --locked --no-fail-fast

node_loss "Open MPI" "${open_mpi[@]}"
if [[ -z $(nodes_missing) ]]; then
    tests "tests: unfit nodes" "${open_mpi[@]}" cargo test --locked --no-fail-fast --test fit_nodes -- --ignored --test-threads 1
else
    skipped+=("tests: unfit nodes: $(nodes_missing)")
fi
node_loss "MPICH" "${mpich[@]}"

step "result"
for name in "${skipped[@]}"; do
    say "SKIPPED: $name"
done
for name in "${failures[@]}"; do
    say "FAILED: $name"
done
say "$passed passed, $failed failed"
((failed == 0))
