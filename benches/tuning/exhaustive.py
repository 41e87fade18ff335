#!/usr/bin/env python3
"""Compares what `skt-hpl tune` finds with the best of an exhaustive search on this machine.

usage: benches/tuning/exhaustive.py [-n N] [--repeat R] [--budget TIME] [--tries T] [--program PATH] [--launch-command WORDS]

Solves the whole problem with every combination of block size, grid, lookahead and NBMIN, R times in turn, and keeps
the median of each. Then tunes T times, each in a folder of its own. The result of each try is run with the best of the
exhaustive search, one after the other, five times: the ratio of the medians says how much slower it is. Wants the
machine for itself. Exit status 0 if every try is within 2 % of the best in at most a tenth of the time.
"""
import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

NBS = [128, 192, 256, 320, 384]
DEPTHS = [0, 1]
NBMINS = [4, 8]
PAIRS = 5
WITHIN, PART = 1.02, 0.1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=12000)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--budget", default="3min")
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--program", default="target/release/skt-hpl")
    parser.add_argument("--launch-command", default="mpirun -np {ranks} --bind-to none")
    return parser.parse_args()


def layouts(cores):
    """Ranks, threads and grids: one rank, and one for each core, in a row and in a column."""
    found = [(1, cores, (1, 1))]
    if cores > 1:
        found += [(cores, 1, (1, cores)), (cores, 1, (cores, 1))]
    return found


class Machine:
    def __init__(self, flags):
        self.flags = flags
        self.program = str(pathlib.Path(flags.program).resolve())
        self.env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")

    def solve(self, ranks, threads, words):
        """Seconds of each test of one job, in order."""
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "run.json"
            launcher = self.flags.launch_command.replace("{ranks}", str(ranks)).replace("{per_node}", str(ranks)).split()
            command = launcher + [self.program, "--threads", str(threads), "--json", str(out), "--threshold", "-1"] + words
            ran = subprocess.run(command, cwd=folder, env=self.env, capture_output=True, text=True)
            if ran.returncode != 0:
                sys.exit(f"{' '.join(command)}: status {ran.returncode}\n{ran.stderr}")
            return [(test["params"], test["outcome"]["seconds"]) for test in json.loads(out.read_text())["tests"]]

    def cores(self):
        """Cores, as the program counts them: hardware threads of one are no places for two ranks."""
        ran = subprocess.run([self.program, "plan", "--show-ranks"], env=self.env, capture_output=True, text=True, check=True)
        ranks, _, _, _, threads, *_ = ran.stdout.split()
        return int(ranks) * int(threads)

    def one(self, found):
        ranks, threads, words = found
        return self.solve(ranks, threads, words)[0][1]


def words(n, nb, grid, depth, nbmin):
    return ["-n", str(n), "--nb", str(nb), "-p", str(grid[0]), "-q", str(grid[1]), "--depth", str(depth),
            "--nbmin", str(nbmin), "--bcast", "1ringM", "--pfact", "right", "--rfact", "crout", "--ndiv", "2",
            "--swap", "mix", "--swap-threshold", "64"]


def exhaustive(machine, cores):
    n, seconds = machine.flags.n, {}
    for turn in range(machine.flags.repeat):
        for ranks, threads, grid in layouts(cores):
            lists = words(n, ",".join(map(str, NBS)), grid, ",".join(map(str, DEPTHS)), ",".join(map(str, NBMINS)))
            for params, took in machine.solve(ranks, threads, lists):
                key = (ranks, threads, grid, params["nb"], params["depth"], params["nbmin"])
                seconds.setdefault(key, []).append(took)
        print(f"exhaustive: round {turn + 1} of {machine.flags.repeat} done", file=sys.stderr)
    return {key: statistics.median(all_) for key, all_ in seconds.items()}


def tuned(machine, folder):
    """The result of a try, as a job, and the seconds it took."""
    began = time.monotonic()
    command = [machine.program, "tune", "-n", str(machine.flags.n), "--budget", machine.flags.budget, "--write", folder,
               "--launch-command", machine.flags.launch_command]
    ran = subprocess.run(command, env=machine.env, capture_output=True, text=True)
    took = time.monotonic() - began
    if ran.returncode != 0:
        sys.exit(f"{' '.join(command)}: status {ran.returncode}\n{ran.stderr}")
    print(ran.stdout.split("\n\n")[0])
    best = json.loads((pathlib.Path(folder) / "tune.json").read_text())["tuned"]["best"]
    dat = str(pathlib.Path(folder).resolve() / "HPL.dat")
    ranks = best["test"]["p"] * best["test"]["q"]
    return (ranks, best["layout"]["threads"], ["--dat", dat]), took


def main():
    flags = arguments()
    machine = Machine(flags)
    cores = machine.cores()
    began = time.monotonic()
    seconds = exhaustive(machine, cores)
    whole = time.monotonic() - began
    order = sorted(seconds, key=seconds.get)
    flops = flags.n**2 * (2 / 3 * flags.n + 1.5)
    print(f"exhaustive: {len(seconds)} combinations of N = {flags.n}, {flags.repeat} times each, in {whole:.0f} s")
    for key in order[:5] + order[-1:]:
        ranks, threads, grid, nb, depth, nbmin = key
        print(f"  NB {nb}, {grid[0]} x {grid[1]}, {threads} thread(s), DEPTH {depth}, NBMIN {nbmin}: "
              f"{flops / seconds[key] / 1e9:.1f} Gflop/s")
    ranks, threads, grid, nb, depth, nbmin = order[0]
    best = (ranks, threads, words(flags.n, nb, grid, depth, nbmin))
    good = True
    for attempt in range(flags.tries):
        with tempfile.TemporaryDirectory() as folder:
            found, took = tuned(machine, folder)
            pairs = [(machine.one(found), machine.one(best)) for _ in range(PAIRS)]
        ratio = statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)
        good &= ratio <= WITHIN and took <= PART * whole
        print(f"try {attempt + 1}: {ratio:.3f} of the best's time, found in {took:.0f} s, {took / whole:.3f} of the exhaustive search's")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
