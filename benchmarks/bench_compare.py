"""How busy a comparison keeps two cores: twelve methods with five seeds on the smallest packaged suite, the digits.

    python benchmarks/bench_compare.py

Prints the seconds that it took, how long its processes were on a core, and the second over what two cores have in
the first. Start-up, the choice of rows, the tables and the page are in it. It needs two free cores.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = Path(__file__).parents[1] / "examples" / "digits.toml"
METHODS = "tawt,alphavil,diw,metaweighting,pcgrad,cagrad,tawt+pcgrad"
"""With the five controls they are twelve."""


def main() -> None:
    """Compares once, in a process of its own, as a user does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--budget", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "steelyard", "compare", CONFIG, "--methods", asked.methods, "--json", "--seeds",
            asked.seeds, "--jobs", asked.jobs, "--budget", asked.budget, "--out", Path(folder) / "out",
        ]  # fmt: skip
        began, before = time.perf_counter(), _busy()
        run = subprocess.run(  # noqa: S603 - our own command
            list(map(str, command)), stdout=subprocess.PIPE, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        seconds, busy = time.perf_counter() - began, _busy() - before
    found = json.loads(run.stdout)
    training = sum(each["seconds"] for each in found["runs"])
    print(f"{len(found['methods'])} methods and controls, {asked.seeds} seeds: {len(found['runs'])} runs")
    print(f"{seconds:.1f} s; on a core {busy:.1f} s, of which training {training:.1f} s")
    print(f"{asked.jobs} cores were busy for {busy / (asked.jobs * seconds):.1%} of the time")


def _busy() -> float:
    """Seconds on a core of all processes below this one that have ended, and of those below them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
