"""What combining gradients costs on tasks with rows of their own: against uniform training, torchjd and LibMTL.

A BERT-shaped encoder (by default 4 layers of width 256), 8 rows of 64 tokens per task. Prints ratios of processor time
to the step of uniform training on the same rows, median and minimum over interleaved rounds. Ours are whole steps of
the training loop, rows collated and all; the rivals get their batch ready-made and one forward of all rows, which is
the best that their interfaces allow. A rival's step takes tens of ours: each takes one, in the first round (about 15
minutes in all on one core, of which ours take two; `--alone` leaves the rivals out).

LibMTL is asked for if it is there (`pip install --no-deps LibMTL==1.1.5`). Its package imports parts of torchvision
that are gone, so that only its module `weighting` is loaded, past the package's own `__init__`, without its trainer.

    python benchmarks/bench_combinations.py [--tasks 8 24] [--rounds 3] [--methods mgda pcgrad cagrad upgrad nash]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import statistics
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from started import job_of
from torch import Tensor, nn

import steelyard
from steelyard import Ragged, Rows, SharedModel, Suite, Task
from steelyard.methods import Job, get

WORDS, LENGTH, ROWS = 5_000, 64, 8
SIZE = {"width": 256, "layers": 4}


def encoder() -> nn.Module:
    """A small BERT without dropout, so that every kind of step does the same work."""
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=SIZE["width"], num_hidden_layers=SIZE["layers"], num_attention_heads=4,
        intermediate_size=4 * SIZE["width"],
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertModel(config, add_pooling_layer=False)


def suite(tasks: int) -> Suite:
    """Random texts of one length, rows of their own for each task."""
    generator = torch.Generator().manual_seed(0)

    def rows() -> Rows:
        texts = [torch.randint(1, WORDS, (LENGTH,), generator=generator) for _ in range(8 * ROWS)]
        return Rows(Ragged.of(texts), torch.randint(0, 2, (8 * ROWS,), generator=generator))

    made = [Task(f"t{i}", "classification", {"train": rows()}, outputs=2) for i in range(tasks)]
    return Suite(made, "t0", vocabulary=WORDS)


def loop(data: Suite, name: str) -> Iterator[None]:
    """Steps of our training loop, one at a time."""
    method = get(name)()
    job = job_of(data, SharedModel(encoder(), data), method, ROWS)
    for step in itertools.count():
        job.step = step
        method.step(job)
        yield


def by_hand(data: Suite, backward: Callable[[Tensor, SharedModel], None]) -> Iterator[None]:
    """Steps of a plain loop: one forward of a ready batch, somebody's backward, the optimiser."""
    model = SharedModel(encoder(), data)
    batches: list[Any] = []
    steelyard.fit(data, model, _Grabbing(batches), batch_size=ROWS, epochs=1, steps_per_epoch=1, progress=False,
                  device="cpu")  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while True:
        backward(model.losses(batches[0]).means, model)
        optimizer.step()
        optimizer.zero_grad()
        yield


class _Grabbing(steelyard.methods.Method):
    """Keeps the batch that a step would see."""

    name = "grabbing"
    summary = "keeps a batch"

    def __init__(self, batches: list[Any]) -> None:
        super().__init__()
        self._batches = batches

    def step(self, job: Job) -> None:
        self._batches.append(job.batch())
        super().step(job)


def torchjd(data: Suite, name: str) -> Iterator[None]:
    """As torchjd's documentation does it for several tasks; its own solvers."""
    from torchjd import aggregation
    from torchjd.autojac import backward, jac_to_grad

    tasks = len(data.tasks)
    make: dict[str, Callable[[], Any]] = {
        "mgda": aggregation.MGDA, "pcgrad": aggregation.PCGrad, "upgrad": aggregation.UPGrad,
        "cagrad": lambda: aggregation.CAGrad(c=0.5), "nash": lambda: aggregation.NashMTL(n_tasks=tasks),
    }  # fmt: skip
    aggregator = make[name]()

    def combined(losses: Tensor, model: SharedModel) -> None:
        shared = list(model.encoder.parameters())
        torch.autograd.backward(losses.sum(), inputs=list(model.heads.parameters()), retain_graph=True)
        backward(list(losses), inputs=shared)
        jac_to_grad(shared, aggregator)

    return by_hand(data, combined)


def libmtl(data: Suite, name: str) -> Iterator[None]:
    """LibMTL's weighting, with what its trainer would have given it."""
    if "LibMTL" not in sys.modules:
        spec = importlib.util.find_spec("LibMTL")
        if spec is None or not spec.submodule_search_locations:
            raise ImportError("LibMTL is not installed")
        sys.modules["LibMTL"] = types.ModuleType("LibMTL")
        sys.modules["LibMTL"].__path__ = list(spec.submodule_search_locations)
    weighting = importlib.import_module("LibMTL.weighting")
    kinds = {"mgda": "MGDA", "pcgrad": "PCGrad"}  # its CAGrad takes three tasks alone; UPGrad and Nash are not in it
    if name not in kinds:
        raise ImportError(f"LibMTL has no {name} for any number of tasks")
    made = getattr(weighting, kinds[name])()
    made.rep_grad, made.task_num, made.device = False, len(data.tasks), torch.device("cpu")
    options = {"mgda_gn": "none"} if name == "mgda" else {}

    def combined(losses: Tensor, model: SharedModel) -> None:
        made.get_share_params = lambda: list(model.encoder.parameters())
        made.zero_grad_share_params = lambda: model.encoder.zero_grad(set_to_none=False)
        made.backward(losses, **options)

    return by_hand(data, combined)


def measure(runs: dict[tuple[str, str], Iterator[None]], rounds: int) -> dict[tuple[str, str], list[float]]:
    """Processor seconds of each kind of step, in turns."""
    times: dict[tuple[str, str], list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            if name[1] != "ours" and number != 1:
                continue
            start = time.process_time()
            next(run)
            if number:
                times[name].append(time.process_time() - start)
    return times


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, nargs="*", default=[8, 24])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--methods", nargs="*", default=["mgda", "pcgrad", "cagrad", "upgrad", "nash"])
    parser.add_argument("--width", type=int, default=SIZE["width"])
    parser.add_argument("--layers", type=int, default=SIZE["layers"])
    parser.add_argument("--alone", action="store_true", help="without the rivals")
    arguments = parser.parse_args()
    SIZE.update(width=arguments.width, layers=arguments.layers)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for tasks in arguments.tasks:
        data = suite(tasks)
        runs = {("uniform", "ours"): loop(data, "uniform")}
        for name in arguments.methods:
            runs[name, "ours"] = loop(data, name)
            for rival in () if arguments.alone else (torchjd, libmtl):
                try:
                    runs[name, rival.__name__] = rival(data, name)
                except ImportError as error:
                    print(f"skipped: {name} of {rival.__name__}: {error}")
        times = measure(runs, arguments.rounds)
        base = times.pop(("uniform", "ours"))
        print(f"\nT = {tasks}: uniform step {1000 * min(base):.0f} ms; ratios to it, median (minimum)")
        print(f"{'':8} {'ours':>14} {'torchjd':>14} {'LibMTL':>14}  ours is faster by")
        for name in arguments.methods:
            cells, best = [], {}
            for who in ("ours", "torchjd", "libmtl"):
                if (name, who) not in times:
                    cells.append("")
                    continue
                own = times[name, who]
                best[who] = min(own)
                ratio = statistics.median(a / b for a, b in zip(own, base, strict=False))
                cells.append(f"{ratio:.2f} ({min(own) / min(base):.2f})")
            gains = [f"{best[who] / best['ours']:.1f} x ({who})" for who in best if who != "ours"]
            print(f"{name:8} " + " ".join(f"{cell:>14}" for cell in cells) + "  " + ", ".join(gains))


if __name__ == "__main__":
    main()
