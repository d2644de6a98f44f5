"""Study ``tawt-layers``: TAWT's Table 1 on CoNLL-2003, each layer of tags in turn the one that has few sentences."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from steelyard.studies.base import Findings, Settings, Size, Table
from steelyard.studies.results import Key, Results, Value
from steelyard.studies.tawt_tables import ANSWERS, JOINT, OURS, PAPERS, PRETRAIN, PRETRAINING_C, TAWTTable

if TYPE_CHECKING:
    from torch import Tensor

    from steelyard.tasks import Suite

LAYERS = ("pos", "chunk", "ner")
MEAN = "mean"
START = {"pre-training": PRETRAIN, "joint": "joint", "normalised joint": JOINT}
"""The paper's three paradigms, which differ in what is trained and in the weights that it begins with."""
LEARNED: Mapping[str, dict[str, Any]] = {
    PAPERS: {"as_published": True}, OURS: {"signal": "cosine"}, ANSWERS: {},
}  # fmt: skip
TRAINING: Mapping[str, Any] = {"encoder": "lstm", "batch_size": 16, "learning_rate": 6e-3}
HIDDEN = 64


def _way(begun: str, weighed: str) -> str:
    return f"{begun}, {weighed}"


PUBLISHED: Mapping[str, tuple[float, ...]] = {
    "single": (34.37, 43.05, 33.20, 44.22),
    _way("pre-training", "even"): (49.43, 73.15, 41.22, 59.48),
    _way("pre-training", PAPERS): (51.17, 73.41, 46.23, 61.64),
    _way("joint", "even"): (53.83, 75.58, 43.50, 62.08),
    _way("joint", PAPERS): (57.34, 77.78, 53.44, 66.14),
    _way("normalised joint", "even"): (84.14, 88.91, 61.15, 77.80),
    _way("normalised joint", PAPERS): (86.07, 90.62, 63.44, 79.20),
}
"""The paper's Table 1 without predicate detection, which counts in its mean."""
TARGETS_SHARE: Mapping[str, tuple[str, ...]] = {
    "joint": ("0.89", "0.87", "0.87"), "normalised joint": ("0.9986", "0.9987", "0.990"),
}  # fmt: skip
"""What the paper's runs end with (its Table 6)."""

DIFFERS = (
    "Reuters news with machine-made parts of speech and chunks (CoNLL-2003), where the paper has OntoNotes and "
    "CoNLL-2000, and a fourth task, predicate detection, that counts in its mean; a bidirectional LSTM of 64 over "
    "lower-cased GloVe of 50, where the paper has cased BERT; 6,000 sentences of each source (1,000 if small), not "
    "9,000. No sentence is in two tasks; every run, the single task's too, takes the same steps and keeps its best "
    "epoch by 100 dev sentences. Weights move once in each of four epochs, as in the paper; c in pre-training is "
    "the middle one of the five that it tried."
)


class TAWTLayers(TAWTTable):
    """Few sentences with one layer's tags, many with each of the others', under the paper's seven ways and controls."""

    name = "tawt-layers"
    summary = "what weights are worth in the paper's three paradigms, on layers of tags"
    paper = "Chen et al. 2022, Table 1"
    needs = ("tagging", "glove")
    axis = "target layer"
    counted = "score"
    unit = "accuracy (pos) or span F1"
    ways = (
        "single",
        *(_way("pre-training", each) for each in ("even", *LEARNED)),
        *(_way(begun, each) for begun in ("joint", "normalised joint") for each in ("even", "ramp", *LEARNED)),
    )
    compared = (
        *((_way(begun, each), _way(begun, "even")) for begun in START for each in LEARNED),
        *((_way(begun, each), _way(begun, "ramp")) for begun in ("joint", "normalised joint") for each in LEARNED),
        *((_way(begun, "even"), "single") for begun in START),
    )
    settings: ClassVar = {
        "small": {"seeds": 2, "epochs": 4, "steps": 10, "source_rows": 1_000, "test_rows": 500,
                  "target_rows": {"pos": 100, "chunk": 100, "ner": 500}},
        "full": {"seeds": 5, "epochs": 4, "steps": 100, "source_rows": 6_000, "test_rows": 3_453,
                 "target_rows": {"pos": 100, "chunk": 100, "ner": 500}},
    }  # fmt: skip
    minutes: ClassVar[Mapping[Size, float]] = {"small": 1.5, "full": 16}

    def points(self, settings: Settings) -> dict[str, Key]:
        """By the layer that is the target."""
        return {layer: {"target": layer} for layer in settings["target_rows"]}

    def keys(self, settings: Settings) -> list[Key]:
        """Every way with every layer and seed."""
        return [
            {**point, "way": way, "seed": seed}
            for seed in range(settings["seeds"])
            for point in self.points(settings).values()
            for way in self.ways
        ]

    @staticmethod
    def measure(settings: dict[str, Any], **key: Any) -> Value:
        """The target's test score in per cent, and the last weights."""
        from steelyard import fit
        from steelyard.methods import get

        suite = tagged(key["target"], key["seed"], settings)
        paradigm, name, options = _meaning(key["way"])
        training = {
            **TRAINING,
            "paradigm": paradigm,
            "epochs": settings["epochs"],
            "steps_per_epoch": settings["steps"],
        }
        if paradigm == PRETRAIN:  # half of the steps go to the sources, half to the target
            training |= {"finetune_epochs": settings["epochs"], "steps_per_epoch": settings["steps"] // 2}
        run = fit(
            suite, method=get(name)(**options), seed=key["seed"], progress=False,
            encoder_options={"hidden": HIDDEN, "vectors": _read()[1]}, **training,
        )  # fmt: skip
        metric = str(suite[key["target"]].metric)
        return {"score": 100 * run.metrics["test"][metric], "weights": run.weights, "steps": run.summary["steps"]}

    def findings(self, settings: Settings, results: Results) -> Findings:
        """The scores beside the paper's, the paired gains of each layer and of their mean, and the target's weights."""
        own = {label: results.where(**point) for label, point in self.points(settings).items()}
        own[MEAN] = _mean(list(own.values()))
        gains = {begun: self.gain(own[MEAN], (_way(begun, PAPERS), _way(begun, "even"))) for begun in START}
        answer = "TAWT as published against weights that stay, in points, mean of the layers: "
        answer += "; ".join(f"{begun} {gain.signed}" for begun, gain in gains.items()) + "."
        return Findings(answer, [self._beside(own), self.gains_of(own), _shares(own)], differs=DIFFERS)

    def _beside(self, own: Mapping[str, Results]) -> Table:
        table = self.means_of(own)
        theirs = dict(zip((*LAYERS, MEAN), range(len(LAYERS) + 1), strict=True))
        columns = [table.columns[0], *(name for label in own for name in (label, f"{label}, paper"))]
        rows = []
        for way, *cells in table.rows:
            found = PUBLISHED.get(way)
            paper = [f"{found[theirs[label]]:.2f}" if found else "" for label in own]
            rows.append([way, *(cell for pair in zip(cells, paper, strict=True) for cell in pair)])
        return Table(table.title, tuple(columns), rows, "The paper's mean is over four tasks.")


def tagged(target: str, seed: int, settings: Settings) -> Suite:
    """A layer with few sentences, and the two others with many: no sentence is in two tasks."""
    from steelyard.tasks import Role, Rows, Suite

    whole, _ = _read()
    generator = torch.Generator().manual_seed(seed)
    sentences = {role: torch.randperm(len(rows), generator=generator) for role, rows in whole[target].rows.items()}
    few, many = settings["target_rows"][target], settings["source_rows"]
    kept = {Role.TRAIN: few, Role.DEV_SELECT: 100, Role.TEST: settings["test_rows"]}
    rows: dict[Role, Rows] = {
        role: each.select(sentences[role][: kept[role]]) for role, each in whole[target].rows.items()
    }
    tasks = [whole[target].with_rows(rows)]
    sources = [layer for layer in LAYERS if layer != target]
    for layer, own in zip(sources, torch.split(sentences[Role.TRAIN][few:], many), strict=False):
        tasks.append(whole[layer].with_rows({Role.TRAIN: whole[layer].rows[Role.TRAIN].select(own)}))
    return Suite(tasks, target, vocabulary=whole.spec.vocabulary, padding=whole.spec.padding)


@cache
def _read() -> tuple[Suite, Tensor]:
    """All sentences with all layers, and the words' vectors; once for each process."""
    from steelyard import data, encoders

    first, *others = ({"name": layer, "train": f"suite:tagging/{layer}"} for layer in LAYERS)
    found = data.build(
        data.TargetData(**first), [data.SourceData(**each) for each in others],
        features=data.FeatureOptions(vectors="suite:glove"),
    )  # fmt: skip
    vectors = encoders.read_vectors(data.vectors_file("suite:glove", "."), found.recipe.vocabulary or [])
    return found.suite, vectors.values


def _meaning(way: str) -> tuple[str, str, dict[str, Any]]:
    """The paradigm, the method and its options."""
    if way == "single":
        return JOINT, "single", {"matched": True}
    begun, _, weighed = way.partition(", ")
    paradigm = START[begun]
    if weighed == "even":  # of every row, or of every task
        return paradigm, "joint" if begun == "joint" else "uniform", {}
    if weighed == "ramp":
        return paradigm, "ramp", {}
    options = LEARNED[weighed]
    if paradigm == PRETRAIN and options.get("as_published"):
        options = options | {"c": PRETRAINING_C}
    return paradigm, "tawt", options


def _mean(layers: list[Results]) -> Results:
    """The mean over the layers, of the ways and seeds that all of them have."""
    found: dict[tuple[str, int], list[float]] = {}
    for cells in layers:
        for key, value in cells:
            found.setdefault((key["way"], key["seed"]), []).append(value["score"])
    return Results([
        ({"way": way, "seed": seed}, {"score": sum(scores) / len(scores)})
        for (way, seed), scores in found.items() if len(scores) == len(layers)
    ])  # fmt: skip


def _shares(own: Mapping[str, Results]) -> Table:
    """How much of the weight the target ends with, where it has one."""
    rows = []
    for begun, theirs in TARGETS_SHARE.items():
        for weighed in ("ramp", *LEARNED):
            shares = [
                cells.estimate(lambda value, layer=layer: value["weights"][layer], way=_way(begun, weighed))  # type: ignore[misc]
                for layer, cells in own.items() if layer != MEAN
            ]  # fmt: skip
            rows.append([_way(begun, weighed), *map(str, shares)])
        rows.append([f"{begun}, the paper's runs", *theirs])
    return Table("the target's weight at the end", ("way", *(label for label in own if label != MEAN)), rows)
