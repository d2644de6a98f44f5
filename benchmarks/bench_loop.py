"""What the training loop costs: the same steps on the same model, by Steelyard and by a hand-written loop.

Prints ratios of processor time measured in one interleaved run (median and minimum over rounds).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import steelyard
from steelyard import Ragged, Rows, SharedModel, Suite, Task, encoders
from steelyard.tasks import Spec

TASKS, ROWS, BATCH = 4, 1024, 32


def text_suite() -> Suite:
    """Random texts of 10 to 40 words for four tasks."""
    generator = torch.Generator().manual_seed(0)

    def rows(n: int) -> Rows:
        lengths = torch.randint(10, 41, (n,), generator=generator).tolist()
        texts = [torch.randint(1, 2000, (length,), generator=generator) for length in lengths]
        return Rows(Ragged.of(texts), torch.randint(0, 2, (n,), generator=generator))

    return Suite([Task(f"t{i}", "classification", {"train": rows(ROWS)}, outputs=2) for i in range(TASKS)], "t0")


def dense_suite() -> Suite:
    """Random rows of 64 numbers for four tasks."""
    generator = torch.Generator().manual_seed(0)

    def rows(n: int) -> Rows:
        return Rows(torch.randn(n, 64, generator=generator), torch.randint(0, 2, (n,), generator=generator))

    return Suite([Task(f"t{i}", "classification", {"train": rows(ROWS)}, outputs=2) for i in range(TASKS)], "t0")


def by_hand(suite: Suite, encoder: nn.Module, epochs: int) -> None:
    """What one would write without a library: shuffle, pad, one encoder call, heads, losses, step."""
    heads = nn.ModuleList([nn.Linear(encoder.width, 2) for _ in suite.tasks])  # type: ignore[arg-type]
    parameters = [*encoder.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    data = [task.rows["train"] for task in suite.tasks.values()]  # type: ignore[index]
    text = isinstance(data[0].inputs, Ragged)
    texts = [list(d.inputs.values.split(d.inputs.lengths.tolist())) if text else d.inputs for d in data]  # type: ignore[union-attr]
    for _ in range(epochs):
        orders = [torch.randperm(len(d)) for d in data]
        total = 0.0
        for start in range(0, ROWS, BATCH):
            chosen = [order[start : start + BATCH] for order in orders]
            if text:
                rows = [texts[t][i] for t, index in enumerate(chosen) for i in index.tolist()]
                ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
                lengths = torch.tensor([len(row) for row in rows])
                features = encoder(ids, torch.arange(ids.shape[1]) < lengths[:, None])
                features = encoder.pool(features, torch.arange(ids.shape[1]) < lengths[:, None])  # type: ignore[operator]
            else:
                features = encoder(torch.cat([texts[t][index] for t, index in enumerate(chosen)]))
            losses = [
                nn.functional.cross_entropy(head(block), d.labels[index])  # type: ignore[index]
                for head, block, d, index in zip(heads, features.split(BATCH), data, chosen, strict=True)
            ]
            loss = torch.stack(losses).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss)


def by_steelyard(suite: Suite, encoder: nn.Module, epochs: int) -> None:
    """The library's loop."""
    steelyard.fit(SUITE_OF[id(suite)], SharedModel(encoder, suite), "uniform", epochs=epochs, progress=False)


SUITE_OF: dict[int, Suite] = {}


def cost(run: Callable[[int], None], epochs: int) -> float:
    """Processor seconds of the epochs alone: a short run is taken off, so that setting up does not count."""

    def seconds(n: int) -> float:
        start = time.process_time()
        run(n)
        return time.process_time() - start

    return seconds(epochs + 1) - seconds(1)


def main() -> None:
    """Measures each model in interleaved rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cases = {
        "textcnn": (text_suite(), lambda: encoders.build("textcnn", Spec((), 2000, 0))),
        "mlp": (dense_suite(), lambda: encoders.build("mlp", Spec((64,)))),
    }
    print(f"{TASKS} tasks × {BATCH} rows, {arguments.rounds} rounds of {arguments.epochs} epochs, one thread")
    print(f"{'model':<10}{'by hand ms/step':>17}{'steelyard ms/step':>19}{'ratio (median)':>16}{'ratio (min)':>13}")
    for name, (suite, make) in cases.items():
        SUITE_OF[id(suite)] = suite
        hand, ours = [], []
        for _ in range(arguments.rounds):
            hand.append(cost(lambda n, s=suite, m=make: by_hand(s, m(), n), arguments.epochs))
            ours.append(cost(lambda n, s=suite, m=make: by_steelyard(s, m(), n), arguments.epochs))
        steps = arguments.epochs * ROWS // BATCH
        ratio = statistics.median(o / h for o, h in zip(ours, hand, strict=True))
        print(
            f"{name:<10}{1000 * min(hand) / steps:>17.2f}{1000 * min(ours) / steps:>19.2f}"
            f"{ratio:>16.3f}{min(ours) / min(hand):>13.3f}"
        )


if __name__ == "__main__":
    main()
