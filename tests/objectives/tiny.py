"""A tiny BERT on disk with a tokenizer of its own, made for tests; nothing is fetched."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tests.jobs import BAD, GOOD, NEUTRAL, sentences

from steelyard.tasks import Ragged, Rows, Suite, Task

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, *GOOD, *BAD, *NEUTRAL]
SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def write_model(folder: Path, *, mask: bool = True, length: int = 64, dropout: float = 0.1) -> Path:
    """Writes the model and its tokenizer into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = WORDS if mask else [word for word in WORDS if word != "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    tokenizer = transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt"), mask_token="[MASK]" if mask else None)
    if not mask:
        tokenizer.mask_token = None
    tokenizer.save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        config = transformers.BertConfig(
            vocab_size=len(WORDS), max_position_embeddings=length, hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout, **SIZE,
        )  # fmt: skip
        transformers.BertModel(config).save_pretrained(folder)
    return folder


def rows(n: int, seed: int) -> Rows:
    """Sentences as token ids, with 0 and 1 for bad and good."""
    place = {word: number for number, word in enumerate(WORDS)}
    found = sentences(n, ("0", "1"), seed)
    ids = [[place["[CLS]"], *(place[w] for w in text.split()), place["[SEP]"]] for text, _ in found]
    shorter = [row if number % 3 else [*row[:6], row[-1]] for number, row in enumerate(ids)]
    return Rows(Ragged.of(shorter), torch.tensor([int(label) for _, label in found]))


def suite(n: int = 24, *, source: bool = False) -> Suite:
    """A target of a few sentences; with another task where that is wanted."""
    tasks = [Task("mood", "classification", {"train": rows(n, 0), "dev_select": rows(16, 1), "test": rows(16, 2)})]
    if source:
        tasks.append(Task("reviews", "classification", {"train": rows(30, 7)}))
    return Suite(tasks, target="mood", vocabulary=len(WORDS))
