"""What a second process is worth: rows per second of two processes with a thread each, against one, on one model.

    python benchmarks/bench_processes.py --model bert --rows 8

Prints the ratio for uniform weights and for TAWT, for two models of some 5 million parameters and two sizes of a step
each: processes exchange the same gradients however few rows a step has, so that the ratio falls with the step. Timed is
an epoch of 48 steps, from its fourth to the next one's first, with all that a method and the loop do in between. Rounds
alternate between one process and two, and the best of each is taken, since whatever else runs on the machine only slows
a round down. It needs two free cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from steelyard import Suite
    from steelyard.methods import Method

METHODS = ("uniform", "tawt")
ROWS = {"mlp": (128, 32), "bert": (16, 4)}
"""Rows of each task in a step."""
TASKS, STEPS, WARM, WIDTH, WORDS, LENGTH = 4, 48, 3, 512, 2000, 64


class _Enough(Exception):  # noqa: N818 - it is no error
    """The epoch that is timed is over."""


def job(model: str, rows: int) -> tuple[Suite, nn.Module]:
    """Random rows for an epoch of `STEPS` steps, and a model of some 5 million parameters that reads them."""
    import torch

    from steelyard import Ragged, Rows, Suite, Task, encoders
    from steelyard.tasks import Spec

    draw = torch.Generator().manual_seed(0)

    def inputs(n: int) -> torch.Tensor | Ragged:
        if model == "mlp":
            return torch.randn(n, WIDTH, generator=draw)
        return Ragged.of(list(torch.randint(1, WORDS, (n, LENGTH), generator=draw)))

    def task(number: int) -> Task:
        found = Rows(inputs(rows * STEPS), torch.randint(0, 2, (rows * STEPS,), generator=draw))
        return Task(f"t{number}", "classification", {"train": found}, outputs=2)

    suite = Suite([task(number) for number in range(TASKS)], "t0")
    if model == "mlp":
        return suite, encoders.build("mlp", Spec((WIDTH,)), hidden=(2048, 2048))
    from transformers import BertConfig, BertModel

    shape = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 1024}
    return suite, BertModel(BertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **shape))


def seconds(method: Method, suite: Suite, encoder: nn.Module, rows: int) -> float:
    """Seconds per step of the first epoch, without the first few."""
    from steelyard import fit

    marks: list[float] = []
    own = method.step

    def timed(job: object) -> None:
        marks.append(time.perf_counter())
        if len(marks) > STEPS:
            raise _Enough
        own(job)  # type: ignore[arg-type]

    method.step = timed  # type: ignore[method-assign]
    with contextlib.suppress(_Enough):
        fit(suite, encoder, method, epochs=2, batch_size=rows, device="cpu", progress=False)
    return (marks[STEPS] - marks[WARM]) / (STEPS - WARM)


def work(model: str, rows: int) -> None:
    """Trains with each method and prints the seconds, in one of the processes."""
    import torch

    from steelyard import methods

    torch.set_num_threads(1)
    found: dict[str, float] = {}
    for name in METHODS:
        suite, encoder = job(model, rows)
        found[name] = seconds(methods.build(name), suite, encoder, rows)
    found["parameters"] = sum(p.numel() for p in encoder.parameters())
    if os.environ.get("RANK", "0") == "0":
        print("seconds per step:", json.dumps(found))


def launched(processes: int, model: str, rows: int) -> dict[str, float]:
    """Seconds per step in so many processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    run = subprocess.run(  # noqa: S603 - this very file
        [*command, Path(__file__), "--work", "--model", model, "--rows", str(rows)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if run.returncode:
        raise SystemExit(run.stderr[-2000:])
    line = next(line for line in run.stdout.splitlines() if line.startswith("seconds per step:"))
    found: dict[str, float] = json.loads(line.partition(":")[2])
    return found


def main() -> None:
    """Alternates between one process and two."""
    parser = argparse.ArgumentParser(description="What a second process is worth.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", choices=list(ROWS), help="by default both")
    parser.add_argument("--rows", type=int, help="rows of each task in a step; by default two sizes")
    parser.add_argument("--work", action="store_true", help="be one of the processes")
    asked = parser.parse_args()
    if asked.work:
        work(asked.model, asked.rows)
        return
    for model in [asked.model] if asked.model else ROWS:
        for rows in [asked.rows] if asked.rows else ROWS[model]:
            rounds = [[launched(processes, model, rows) for processes in (1, 2)] for _ in range(asked.rounds)]
            size, text = rounds[0][0]["parameters"] / 1e6, f" of {LENGTH} words" if model == "bert" else ""
            print(f"{model}, {size:.1f} million parameters, {TASKS} x {rows} rows{text} in a step")
            for method in METHODS:
                one, two = (min(each[place][method] for each in rounds) for place in (0, 1))
                print(f"  {method:8s} one process {one:.3f} s a step, two {two:.3f} s: {one / two:.2f} times the rows")
    if (load := os.getloadavg()[0]) > 3:
        print(f"the machine was not quiet (load {load:.1f}): these ratios say little")


if __name__ == "__main__":
    main()
