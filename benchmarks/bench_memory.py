"""What a large csv file costs in memory: ``steelyard train`` on two million rows, in a process of its own.

Prints the peak of its resident memory, of which pages of memory-mapped files are a part that the system may take back,
and of its own memory alone; for a file of texts and for a table of numbers and categories.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

WORDS = 30_000
TABLE = """\
[target]
name  = "large"
train = "large.csv"
label = "label"
{inputs}

[training]
epochs          = 1
steps_per_epoch = {steps}
"""


def texts(rows: int) -> Iterator[str]:
    """Texts of 5 to 40 words as frequent as words are, each row another."""
    draw = random.Random(0)
    words = [f"word{i}" for i in range(WORDS)]
    weights = list(accumulate(1 / (i + 1) for i in range(WORDS)))
    yield "id,body,label\n"
    for i in range(rows):
        label = draw.randrange(5)
        body = " ".join(draw.choices(words, cum_weights=weights, k=draw.randint(5, 40)))
        yield f'{i},"{body}, topic{label}",c{label}\n'


def numbers(rows: int) -> Iterator[str]:
    """Twelve numbers, and categories of 60 and of 5 values."""
    draw = random.Random(0)
    yield ",".join([*(f"x{i}" for i in range(12)), "city", "plan", "label"]) + "\n"
    for _ in range(rows):
        cells = [draw.gauss(0, 1) for _ in range(12)]
        city, plan = draw.randrange(60), draw.randrange(5)
        label = int(cells[0] + 0.1 * city > 3)
        yield f"{','.join(f'{cell:.4f}' for cell in cells)},city{city},plan{plan},{label}\n"


def status(process: int) -> dict[str, float]:
    """Resident memory of a process in GB: its peak, its own, and that of files."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    cells = [line.split() for line in lines if line.startswith(("VmHWM", "RssAnon", "RssFile"))]
    return {name.rstrip(":"): int(value) / 1e6 for name, value, _ in cells}


def measured(
    make: Callable[[int], Iterator[str]], inputs: str, rows: int, steps: int
) -> tuple[dict[str, float], float]:
    """The peaks, and the seconds, of one training run."""
    with tempfile.TemporaryDirectory() as folder:
        with (Path(folder) / "large.csv").open("w") as file:
            file.writelines(make(rows))
        (Path(folder) / "large.toml").write_text(TABLE.format(inputs=inputs, steps=steps))
        command = [sys.executable, "-m", "steelyard", "train", "large.toml", "--out", "run"]
        environment = {**os.environ, "STEELYARD_CACHE": f"{folder}/cache"}
        peaks: dict[str, float] = {}
        start = time.perf_counter()
        with (Path(folder) / "log").open("w") as log:
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)  # noqa: S603 - our own command
            while process.poll() is None:
                try:
                    found = status(process.pid)
                except (FileNotFoundError, ProcessLookupError):
                    break
                peaks = {name: max(value, peaks.get(name, 0)) for name, value in found.items()} or peaks
                time.sleep(0.1)
        if process.wait():
            raise SystemExit((Path(folder) / "log").read_text()[-2000:])
        return peaks, time.perf_counter() - start


def main() -> None:
    """Measures both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--steps", type=int, default=500)
    arguments = parser.parse_args()
    if not Path("/proc/self/status").exists():
        print("this system has no /proc: nothing is measured")
        return
    columns = [*(f"x{i}" for i in range(12)), "city", "plan"]
    cases = {"texts": (texts, 'text  = "body"'), "numbers": (numbers, f"features = {columns}")}
    print(f"steelyard train on {arguments.rows:,} rows of csv, {arguments.steps} steps, a tenth of the rows as dev")
    print(f"{'rows are':<10}{'peak GB':>10}{'own GB':>10}{'files GB':>10}{'seconds':>10}")
    for name, (make, inputs) in cases.items():
        peaks, seconds = measured(make, inputs, arguments.rows, arguments.steps)
        figures = "".join(f"{peaks[key]:>10.2f}" for key in ("VmHWM", "RssAnon", "RssFile"))
        print(f"{name:<10}{figures}{seconds:>10.0f}", flush=True)


if __name__ == "__main__":
    main()
