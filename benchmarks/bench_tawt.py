"""What TAWT's epoch costs: against uniform training on the same rows, in seven ways of looking at the sources.

A TextCNN on random texts of 20 to 60 words, and a multilayer perceptron on numbers. Prints ratios of processor time
per epoch, probes and updates included, measured in one interleaved run (minimum and median over epochs), and of what
comes before the first step, in uniform epochs.

    python benchmarks/bench_tawt.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from started import job_of

from steelyard import Ragged, Rows, SharedModel, Suite, Task, encoders
from steelyard.methods import Job, Method, get

WORDS = 5_000
WAYS: dict[str, dict[str, Any]] = {
    "answers, at the start": {},
    "a probe per epoch": {"signal": "cosine"},
    "a probe per epoch, hypergradient": {"signal": "hypergradient"},
    "every step": {"observe": "step"},
    "weights per example": {"level": "example"},
    "weights per example, all rows": {"level": "example", "fresh": 1.0},
    "weights per group": {"level": "group"},
}


def suite(tasks: int, rows: int, text: bool) -> Suite:
    """Random rows for some tasks."""
    generator = torch.Generator().manual_seed(0)

    def draw() -> Rows:
        labels = torch.randint(0, 2, (rows,), generator=generator)
        if not text:
            return Rows(torch.randn(rows, 200, generator=generator), labels)
        lengths = torch.randint(20, 61, (rows,), generator=generator).tolist()
        # Words are as unequal as they are in texts: the density of ids falls with their square root.
        texts = [(torch.rand(n, generator=generator).square() * (WORDS - 1)).long() + 1 for n in lengths]
        return Rows(Ragged.of(texts), labels)

    made = [Task(f"t{i}", "classification", {"train": draw()}, outputs=2) for i in range(tasks)]
    return Suite(made, "t0", vocabulary=WORDS if text else None)


def begun(
    data: Suite, encoder: str, options: dict[str, Any], method: Method, batch: int
) -> tuple[float, Iterator[float]]:
    """Processor seconds of what a method does before the first step, and of each epoch of a run, one at a time."""
    torch.manual_seed(0)
    model = SharedModel(encoders.build(encoder, data.spec, **options), data)
    job = job_of(data, model, method, batch)
    start = time.process_time()
    method.start(job)
    return time.process_time() - start, epochs(job, method)


def epochs(job: Job, method: Method) -> Iterator[float]:
    """Processor seconds of each epoch."""
    while True:
        start = time.process_time()
        for _ in range(job.steps_per_epoch):
            method.step(job)
            job.step += 1
        method.after_epoch(job)
        yield time.process_time() - start


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6, help="epochs of each kind")
    parser.add_argument("--batch", type=int, default=32, help="rows of each task in a step")
    parser.add_argument("--rows", type=int, default=2000, help="training rows of each task")
    parser.add_argument("--tasks", type=int, default=4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{arguments.tasks} tasks of {arguments.rows} rows")
    print(f"{'encoder':<8} {'':<34} {'s per epoch':>11} {'min ratio':>10} {'median ratio':>13} {'before, epochs':>15}")
    for encoder, options in (("textcnn", {"size": 50, "channels": 32}), ("mlp", {"hidden": [256, 256]})):
        data = suite(arguments.tasks, arguments.rows, encoder == "textcnn")
        methods = {"uniform": get("uniform")(), **{name: get("tawt")(**way) for name, way in WAYS.items()}}
        runs, before = {}, {}
        for name, method in methods.items():
            before[name], runs[name] = begun(data, encoder, options, method, arguments.batch)
        times: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(arguments.epochs + 1):
            for name, run in runs.items():
                spent = next(run)
                if number:
                    times[name].append(spent)
        for name, own in times.items():
            least = min(own) / min(times["uniform"])
            median = statistics.median(a / b for a, b in zip(own, times["uniform"], strict=True))
            first = before[name] / min(times["uniform"])
            print(
                f"{encoder:<8} {name:<34} {min(own):>11.2f} {least:>10.2f} {median:>13.2f} {first:>15.2f}", flush=True
            )


if __name__ == "__main__":
    main()
