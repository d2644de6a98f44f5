"""What the data side costs: its share of a training step, and how long packaged suites take to be ready.

Prints processor time of cutting a step's rows out of the features, against that of the whole step of a TextCNN, in
interleaved rounds; and the seconds until suites are ready to train on, prepared for the first time and from the cache.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from steelyard import Ragged, Rows, SharedModel, Suite, Task, data, encoders, methods
from steelyard.data import cache, suites
from steelyard.errors import SteelyardError
from steelyard.tasks import Spec
from steelyard.training import Training, fit
from steelyard.training.batching import Batcher

TASKS, ROWS, WORDS = 4, 20_000, 20_000
READY = {
    "sentiment4": [f"suite:sentiment4/{domain}" for domain in ("amazon", "movies", "editorials", "tweets")],
    "newsgroups": [f"suite:newsgroups/{group}" for group in ("comp", "rec", "sci", "talk")],
    "multimnist": ["suite:multimnist/left", "suite:multimnist/right"],
}


def text_suite() -> Suite:
    """Random texts of 10 to 40 words for four tasks."""
    generator = torch.Generator().manual_seed(0)

    def rows() -> Rows:
        lengths = torch.randint(10, 41, (ROWS,), generator=generator)
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        words = torch.randint(2, WORDS, (int(offsets[-1]),), generator=generator)
        return Rows(Ragged(words, offsets), torch.randint(0, 2, (ROWS,), generator=generator))

    tasks = [Task(f"t{i}", "classification", {"train": rows()}, outputs=2) for i in range(TASKS)]
    return Suite(tasks, "t0", vocabulary=WORDS)


def step_seconds(suite: Suite, training: Training, steps: int) -> tuple[float, float]:
    """Processor seconds per step: of the data side alone, and of the whole step."""
    batcher = Batcher(suite, tuple(suite.tasks), training)
    start = time.process_time()
    for step in range(steps):
        batcher.batch(step)
    cut = (time.process_time() - start) / steps

    def trained(count: int) -> float:
        model = SharedModel(encoders.build("textcnn", Spec((), WORDS, 0)), suite)
        start = time.process_time()
        fit(suite, model, methods.get("uniform")(), training=training, steps_per_epoch=count, progress=False)
        return time.process_time() - start

    return cut, (trained(steps + 1) - trained(1)) / steps


def share(rounds: int, steps: int) -> None:
    """Prints the share of the data side in a step, with and without texts of like length together."""
    suite = text_suite()
    print(
        f"a step of a TextCNN: {TASKS} tasks × 32 texts of 10 to 40 words; minima of {rounds} rounds of {steps} steps"
    )
    print(f"{'length_pool':>12}{'data ms':>10}{'step ms':>10}{'share':>8}")
    found: dict[int, list[tuple[float, float]]] = {1: [], 50: []}
    for _ in range(rounds):
        for pool, kept in found.items():
            kept.append(step_seconds(suite, Training(epochs=1, length_pool=pool), steps))
    for pool, kept in found.items():
        cut, whole = min(c for c, _ in kept), min(w for _, w in kept)
        print(f"{pool:>12}{1000 * cut:>10.3f}{1000 * whole:>10.3f}{cut / whole:>8.1%}")


def ready(name: str) -> float:
    """Seconds until a suite's tasks can be trained on, in this process."""
    target, *sources = READY[name]
    start = time.perf_counter()
    data.build(
        data.TargetData(name="t", train=target),
        [data.SourceData(name=f"s{i}", train=source) for i, source in enumerate(sources)],
    )
    return time.perf_counter() - start


def preparation() -> None:
    """Prints how long each suite takes to be ready, each time in a new process: first, and from the cache."""
    print("\nready to train on, in a new process: seconds (of the processor), beyond the download")
    print(f"{'suite':<12}{'first':>16}{'cached':>16}")
    for name in READY:
        try:
            packages = [*{p.name: p for part in suites.get(name).packages.values() for p in part}.values()]
            files = [package.fetch() for package in packages]
        except SteelyardError as error:
            print(f"{name:<12} {error}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "packages").mkdir()
            for file in files:
                (Path(folder) / "packages" / file.name).symlink_to(file.resolve())
            seconds = [_in_new_process(name, folder) for _ in range(2)]
        print(f"{name:<12}" + "".join(f"{f'{wall:.1f} ({own:.1f})':>16}" for wall, own in seconds), flush=True)


def _in_new_process(name: str, folder: str) -> tuple[float, float]:
    """Seconds on the clock, and of the processor."""
    start, before = time.perf_counter(), os.times()
    environment = {**os.environ, cache.VARIABLE: folder}
    subprocess.run([sys.executable, __file__, "--ready", name], env=environment, check=True)  # noqa: S603 - itself
    after = os.times()
    own = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - start, own


def main() -> None:
    """Measures the share of a step, then the suites."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--ready", choices=list(READY), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.ready:
        ready(arguments.ready)
        return
    share(arguments.rounds, arguments.steps)
    preparation()


if __name__ == "__main__":
    main()
