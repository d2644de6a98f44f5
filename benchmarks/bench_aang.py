"""What a step of AANG costs, with all 24 objectives of a task's own text in it, against static multi-tasking.

Four steps on the same rows: static multi-tasking; AANG's, whose meta-gradients come with the step; AANG's with a
forward and a backward per objective for the meta-gradients, as published; and the meta-gradients by a probe of their
own. All have the same held-out rows. Prints processor time per step, as ratios to the static step of the same round
(minimum and median over interleaved rounds); how much dearer the published meta-gradients are without the step itself;
and what of AANG's step the data side is, which cuts the end task's rows and makes those of all objectives.

    python benchmarks/bench_aang.py                     # a small BERT with new weights
    python benchmarks/bench_aang.py --model suite:minilm
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from started import job_of
from torch import Tensor

from steelyard import Ragged, Rows, Suite, Task
from steelyard.methods.aang import AANG
from steelyard.methods.job import Job
from steelyard.tasks import Batch, Part

WORDS, SPECIAL = 30_522, 5


def small_bert(folder: Path) -> str:
    """A BERT of four layers of 256 with as many tokens as BERT has, and its tokenizer."""
    import transformers

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(WORDS - SPECIAL))]
    (folder / "vocab.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
    )
    transformers.BertModel(config).save_pretrained(folder)
    return str(folder)


def texts(length: int, rows: int = 400) -> Suite:
    """Random texts of one length with two classes."""
    generator = torch.Generator().manual_seed(0)

    def draw(n: int) -> Rows:
        ids = [[2, *torch.randint(1000, WORDS, (length - 2,), generator=generator).tolist(), 3] for _ in range(n)]
        return Rows(Ragged.of(ids), torch.arange(n) % 2)

    data = {"train": draw(rows), "dev_select": draw(64), "dev_meta": draw(64)}
    return Suite([Task("end", "classification", data, outputs=2)], "end", vocabulary=WORDS)


def alone(batch: Batch, place: int) -> Batch:
    """One task's rows of a batch."""
    part = batch.parts[0]
    member = part.members[place]
    rows = member.rows
    view = None if part.view is None else part.view.select(rows)
    shifted = type(member)(member.task, slice(0, rows.stop - rows.start), member.labels)
    mask = None if part.mask is None else part.mask[rows]
    return Batch((Part(part.inputs[rows], mask, (shifted,), view),))


def published(job: Job, batch: Batch, weights: Tensor, direction: dict[str, Tensor]) -> list[Tensor]:
    """The static step, and a forward and a backward per objective for ⟨∇L_k, v⟩."""
    body = job.model.scope("shared", trainable=True)
    found = []
    for place in range(len(batch.parts[0].members)):
        loss = job.losses(alone(batch, place)).sum()
        each = torch.autograd.grad(loss, list(body.values()), allow_unused=True)
        pairs = zip(body, each, strict=True)
        found.append(
            torch.stack([(g * direction[n]).sum() for n, g in pairs if g is not None and n in direction]).sum()
        )
    job.descend(batch, weights)
    return found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="", help="a Hugging Face folder or suite:minilm; by default a small BERT")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of all kinds of step")
    parser.add_argument("--batch", type=int, default=32, help="rows of the end task in a step")
    parser.add_argument("--rows", type=int, nargs="*", default=[24, 48, 96], help="rows of all objectives in a step")
    parser.add_argument("--meta", type=int, default=16, help="held-out rows in a meta-gradient")
    parser.add_argument("--length", type=int, default=48, help="tokens per row")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or small_bert(Path(folder))
        names = ("AANG", "published", "probe")
        print(f"{'rows':>5} {'static, ms':>10}", *(f"{name:>15}" for name in names), "published/AANG", "alone", " data")
        for rows in arguments.rows:
            report(measure(arguments, model, rows), rows)


def measure(arguments: Any, model: str, rows: int) -> dict[str, list[float]]:
    """Seconds of each kind of step, by round."""
    method = AANG(auxiliary_rows=rows, meta_rows=arguments.meta)
    job = job_of(texts(arguments.length), model, method, arguments.batch, clip=1.0)
    every = torch.arange(len(method.space))
    weights = method._shared_out(job, every, method._among(every))

    def ours(batch: Batch) -> object:
        method.weights = weights
        return job.descend_along(batch, weights, method._direction(job))

    def probed(batch: Batch) -> object:
        direction = method._direction(job)
        with job.probe(batch) as probe:
            slopes = probe.slopes(direction)
        job.descend(batch, weights)
        return slopes

    kinds: dict[str, Callable[[Batch], object]] = {
        "static": lambda batch: job.descend(batch, weights),
        "ours": ours,
        "published": lambda batch: published(job, batch, weights, method._direction(job)),
        "probe": probed,
    }
    found: dict[str, list[float]] = {name: [] for name in ("data", *kinds)}
    for number in range(arguments.rounds + 1):
        job.step = number * 10 + 1  # no round has a fit of the dev head: it comes with every tenth step
        start = time.process_time()
        batch = method._batch(job, every)
        taken = {"data": time.process_time() - start}
        for name, take in kinds.items():
            start = time.process_time()
            take(batch)
            taken[name] = time.process_time() - start
        for name, seconds in taken.items() if number else ():
            found[name].append(seconds)
    return found


def report(found: dict[str, list[float]], rows: int) -> None:
    """A line of the table: ratios to the static step, minimum by minimum, and the median of the rounds' own."""

    def ratio(a: str, b: str) -> str:
        middle = statistics.median(x / y for x, y in zip(found[a], found[b], strict=True))
        return f"{min(found[a]) / min(found[b]):5.2f} ({middle:5.2f})"

    extra = {name: min(found[name]) - min(found["static"]) for name in ("ours", "published")}
    others = "   ".join(ratio(name, "static") for name in ("ours", "published", "probe"))
    data = min(found["data"]) / (min(found["data"]) + min(found["ours"]))
    last = f"{ratio('published', 'ours')}  {extra['published'] / extra['ours']:.2f}  {data:.1%}"
    print(f"{rows:>5} {1000 * min(found['static']):>10.0f}   {others}   {last}", flush=True)


if __name__ == "__main__":
    main()
