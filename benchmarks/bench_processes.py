"""What a second process is worth: steps per second of two processes with a thread each, and of one, on one model.

    python benchmarks/bench_processes.py --rounds 3

Prints the ratio for uniform weights and for TAWT. Rounds alternate between one process and two, and the best of each is
taken, since whatever else runs on the machine only slows a round down. It needs two free cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

METHODS = ("uniform", "tawt")
TASKS, WIDTH, STEPS = 4, 512, 12


def work(batch_size: int) -> None:
    """Trains with each method and prints the seconds, in one of the processes."""
    import torch

    from steelyard import Rows, Suite, Task, encoders, fit
    from steelyard.tasks import Spec

    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)

    def rows(n: int) -> Rows:
        return Rows(torch.randn(n, WIDTH, generator=draw), torch.randint(0, 2, (n,), generator=draw))

    suite = Suite([Task(f"t{i}", "classification", {"train": rows(2048)}, outputs=2) for i in range(TASKS)], "t0")
    found: dict[str, float] = {}
    for method in METHODS:
        for steps in (2, STEPS):  # the first round warms up
            encoder = encoders.build("mlp", Spec((WIDTH,)), hidden=(2048, 2048))
            began = time.perf_counter()
            fit(suite, encoder, method, epochs=1, steps_per_epoch=steps, batch_size=batch_size, device="cpu",
                progress=False)  # fmt: skip
            found[method] = (time.perf_counter() - began) / steps
    found["parameters"] = sum(p.numel() for p in encoder.parameters())
    if os.environ.get("RANK", "0") == "0":
        print("seconds per step:", json.dumps(found))


def launched(processes: int, batch_size: int) -> dict[str, float]:
    """Seconds per step in so many processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    run = subprocess.run(  # noqa: S603 - this very file
        [*command, Path(__file__), "--work", "--batch-size", str(batch_size)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    line = next(line for line in run.stdout.splitlines() if line.startswith("seconds per step:"))
    found: dict[str, float] = json.loads(line.partition(":")[2])
    return found


def main() -> None:
    """Alternates between one process and two."""
    parser = argparse.ArgumentParser(description="What a second process is worth.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128, help="rows of each task in a step")
    parser.add_argument("--work", action="store_true", help="be one of the processes")
    asked = parser.parse_args()
    if asked.work:
        work(asked.batch_size)
        return
    rounds = [[launched(processes, asked.batch_size) for processes in (1, 2)] for _ in range(asked.rounds)]
    load = os.getloadavg()[0]
    print(
        f"{rounds[0][0]['parameters'] / 1e6:.1f} million parameters, {asked.batch_size} rows of each of {TASKS} tasks"
    )
    for method in METHODS:
        one, two = (min(each[place][method] for each in rounds) for place in (0, 1))
        print(f"{method:8s} one process {one:.3f} s a step, two {two:.3f} s: {one / two:.2f} times the throughput")
    if load > 3:
        print(f"the machine was not quiet (load {load:.1f}): these ratios say little")


if __name__ == "__main__":
    main()
