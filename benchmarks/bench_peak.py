"""How near `advise` comes to the memory that a training takes: predicted, measured and their ratio, in MB.

    python benchmarks/bench_peak.py --methods uniform alphavil --encoders bert

Each figure comes from a process of its own. What is predicted is `diagnostics.cost`, which `steelyard advise` prints;
what is measured is ``peak_memory_mb`` of a run's ``summary.json``: without a run folder, and with one into which it
writes a checkpoint of all that it has every second. It needs ``steelyard[text]``.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

from steelyard import Ragged, Rows, SteelyardError, Suite, Task, Training, fit
from steelyard.diagnostics.cost import cost

METHODS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in ("uniform", "tawt", "metaweighting", "alphavil")},
    "alphavil-bounded": {"name": "alphavil", "delta_precision": "bfloat16", "moments": "fresh"},
    **{name: {"name": name} for name in ("pcgrad", "aang")},
}
ENCODERS: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": (2048, 2048)},
    "textcnn": {"size": 300, "channels": 128},
    "lstm": {"size": 300, "hidden": 256},
    "bert": {},
}
TASKS, STEPS, DEV, WIDTH, WORDS, LENGTH = 4, 16, 64, 512, 15_000, 64


def settings(encoder: str) -> dict[str, Any]:
    """What is trained with; few rows in a step where each takes long."""
    return {"epochs": 3, "batch_size": 4 if encoder == "bert" else 16, "device": "cpu"}


def bert(folder: Path) -> str:
    """Writes a BERT-shaped model of 8 million parameters with a tokenizer."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(WORDS - 5))]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    shape = {"hidden_size": 256, "num_hidden_layers": 5, "num_attention_heads": 4, "intermediate_size": 1024}
    BertModel(BertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **shape)).save_pretrained(folder)
    return str(folder)


def job(encoder: str, folder: Path) -> tuple[Any, str, dict[str, Any]]:
    """A suite of random rows, texts of 5 to 64 words for all but the mlp; and the encoder that reads them."""
    draw = torch.Generator().manual_seed(0)

    def rows(n: int) -> Rows:
        labels = torch.randint(0, 2, (n,), generator=draw)
        if encoder == "mlp":
            return Rows(torch.randn(n, WIDTH, generator=draw), labels)
        lengths = torch.randint(5, LENGTH + 1, (n,), generator=draw).tolist()
        return Rows(Ragged.of([torch.randint(5, WORDS, (length,), generator=draw) for length in lengths]), labels)

    roles = {"train": STEPS * settings(encoder)["batch_size"], "dev_select": DEV}
    tasks = [
        Task(f"t{i}", "classification", {role: rows(n) for role, n in roles.items()}, outputs=2) for i in range(TASKS)
    ]
    suite = Suite(tasks, "t0", vocabulary=None if encoder == "mlp" else WORDS)
    return suite, bert(folder) if encoder == "bert" else encoder, ENCODERS[encoder]


def work(what: str, method: str, encoder: str) -> float:
    """A figure in MB."""
    with tempfile.TemporaryDirectory() as folder:
        suite, name, options = job(encoder, Path(folder))
        if what == "predict":
            return cost(suite, name, METHODS[method], Training(**settings(encoder)), options).peak_mb
        kept = {"out": f"{folder}/run", "checkpoint_seconds": 1.0} if what == "kept" else {}
        run = fit(suite, name, METHODS[method], encoder_options=options, progress=False, **settings(encoder), **kept)
        return float(run.summary["peak_memory_mb"])


def figure(what: str, method: str, encoder: str) -> float:
    """A figure from a process of its own, forked from this one, which has everything imported."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.write(writer, f"{work(what, method, encoder)}".encode())
            status = 0
        except SteelyardError as error:
            sys.stderr.write(f"{method}, {encoder}: {error}\n")
        finally:
            os._exit(status)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"{what} {method} {encoder}: the process ended with {os.waitstatus_to_exitcode(status)}")
    with os.fdopen(reader, "rb") as pipe:
        return float(pipe.read())


def main() -> None:
    """Goes over the grid; a method that does not train an encoder's kind has no cell."""
    parser = argparse.ArgumentParser(description="What advise says of memory, and what a training takes.")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--encoders", nargs="+", choices=list(ENCODERS), default=list(ENCODERS))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| encoder | method | predicted | measured | ratio | with a run folder | ratio |\n|---|---|---|---|---|---|---|"
    )
    for encoder in asked.encoders:
        for method in asked.methods:
            if method == "aang" and encoder != "bert":
                continue  # it asks of its encoder what masked words were
            told, plain, kept = (figure(what, method, encoder) for what in ("predict", "train", "kept"))
            cells = f"{told:.0f} | {plain:.0f} | {told / plain:.2f} | {kept:.0f} | {told / kept:.2f}"
            print(f"| {encoder} | {method} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
