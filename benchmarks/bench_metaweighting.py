"""What MetaWeighting's step costs: against uniform training on the same rows, with query batches of three sizes.

A TextCNN on random texts of 20 to 60 words. Prints ratios of processor time per step, measured in one interleaved
run (median and minimum over rounds); "bounded" is the first query size with gradient_memory = "bounded".

    python benchmarks/bench_metaweighting.py
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator

import torch
from started import job_of

from steelyard import Ragged, Rows, SharedModel, Suite, Task, encoders
from steelyard.methods import Method, get
from steelyard.tasks import Spec

WORDS, ROWS = 20_000, 600


def suite(tasks: int) -> Suite:
    """Random texts for some tasks."""
    generator = torch.Generator().manual_seed(0)

    def rows() -> Rows:
        lengths = torch.randint(20, 61, (ROWS,), generator=generator).tolist()
        # Words are as unequal as they are in texts: the density of ids falls with their square root.
        texts = [(torch.rand(n, generator=generator).square() * (WORDS - 1)).long() + 1 for n in lengths]
        return Rows(Ragged.of(texts), torch.randint(0, 2, (ROWS,), generator=generator))

    made = [Task(f"t{i}", "classification", {"train": rows()}, outputs=2) for i in range(tasks)]
    return Suite(made, "t0", vocabulary=WORDS)


def steps(data: Suite, method: Method, batch: int) -> Iterator[float]:
    """Processor seconds of each step of a run, one at a time."""
    torch.manual_seed(0)
    model = SharedModel(encoders.build("textcnn", Spec((), WORDS, 0)), data)
    job = job_of(data, model, method, batch)
    for step in itertools.count():
        job.step = step
        start = time.process_time()
        method.step(job)
        yield time.process_time() - start


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="steps of each kind")
    parser.add_argument("--batch", type=int, default=32, help="rows of each task in a step")
    parser.add_argument("--tasks", type=int, nargs="*", default=[4, 14])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    batch = arguments.batch
    print(f"{'T':>3} {'query rows':>12} {'uniform, ms':>12} {'median ratio':>13} {'min ratio':>10}")
    for tasks in arguments.tasks:
        data = suite(tasks)
        sizes = {"uniform": "", "equal": f"{batch}", "quarter": f"{batch // 4}", "bounded": f"{batch}, bounded"}
        runs = {
            "uniform": steps(data, get("uniform")(), batch),
            "equal": steps(data, get("metaweighting")(ratio=0.2), batch),
            "quarter": steps(data, get("metaweighting")(ratio=0.2, query_size=batch // 4), batch),
            "bounded": steps(data, get("metaweighting")(ratio=0.2, gradient_memory="bounded"), batch),
        }
        times: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(arguments.steps + 3):
            for name, run in runs.items():
                spent = next(run)
                if number >= 3:
                    times[name].append(spent)
        for name in list(runs)[1:]:
            pairs = zip(times[name], times["uniform"], strict=True)
            median = statistics.median(own / base for own, base in pairs)
            least = min(times[name]) / min(times["uniform"])
            print(f"{tasks:>3} {sizes[name]:>12} {1000 * min(times['uniform']):>12.1f} {median:>13.2f} {least:>10.2f}")


if __name__ == "__main__":
    main()
