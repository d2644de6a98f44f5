"""Studies ``tawt-ratio``, ``tawt-size`` and ``tawt-fixed``: TAWT's Tables 4, 5 and 7, on digits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from steelyard.report import drawing
from steelyard.studies.base import Findings, Settings, Size, Study, Table
from steelyard.studies.results import Key, Results, Value
from steelyard.studies.signals import TRAINING
from steelyard.studies.statistics import Estimate, holm, paired
from steelyard.studies.tables import probability

if TYPE_CHECKING:
    from steelyard.tasks import Suite

JOINT, PRETRAIN = "normalised_joint", "pretrain"
PAPERS, OURS, ANSWERS, HELD = "tawt, paper's", "tawt, ours", "tawt, answers", ", held fixed"
"""The published form; probes that add up; the default, which looks at answers before training."""
WAYS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "single": ("single", {"matched": True}),
    "uniform": ("uniform", {}),
    "ramp": ("ramp", {}),
    PAPERS: ("tawt", {"as_published": True}),
    OURS: ("tawt", {"signal": "cosine"}),
    ANSWERS: ("tawt", {}),
}
PRETRAINING_C = 10.0
"""In pre-training the paper takes the best of 0.3, 1, 10, 30 and 100 for c; this is the middle one."""

DIFFERS = (
    "8x8 digits, an MLP, and a helpful, an irrelevant and a shuffled source, each with the ratio's rows, where the "
    "paper has tagged sentences, BERT and sources that all help; every run takes as many steps as the others, and "
    "keeps its best epoch by 96 dev rows."
)

Comparison = tuple[str, str]
"""A way, and the way that it is compared with."""


class TAWTTable(Study):
    """A target of few digits under weights that learn and weights that do not, at several points."""

    axis: ClassVar[str]
    """What tells the points apart."""
    ways: ClassVar[tuple[str, ...]] = tuple(WAYS)
    compared: ClassVar[tuple[Comparison, ...]] = (
        (PAPERS, "uniform"), (PAPERS, "ramp"), (PAPERS, "single"), (OURS, "uniform"), (OURS, "ramp"),
        (ANSWERS, "uniform"), (ANSWERS, "ramp"), (ANSWERS, "single"),
    )  # fmt: skip
    """The gains that are shown; the first is the paper's claim."""
    published: ClassVar[Mapping[str, str]] = {}
    """The paper's gains, by point."""
    theirs: ClassVar[str] = "F1 of names, uniform → weighted"
    """What those figures are."""
    counted: ClassVar[str] = "accuracy"
    """The number that is compared, by its name in the cells."""
    unit: ClassVar[str] = "accuracy"
    """What tables call it."""
    minutes: ClassVar[Mapping[Size, float]] = {"small": 0.2, "full": 0.6}

    @abstractmethod
    def points(self, settings: Settings) -> dict[str, Key]:
        """The target's rows, each source's rows for one of the target's, and the paradigm of each point."""

    def keys(self, settings: Settings) -> list[Key]:
        """Every way with every seed at every point; `ramp` raises the target's weight, which pre-training has not."""
        return [
            {**point, "way": way, "seed": seed}
            for point in self.points(settings).values()
            for seed in range(settings["seeds"])
            for way in self.ways
            if point["paradigm"] == JOINT or way != "ramp"
        ]

    @staticmethod
    def measure(settings: dict[str, Any], **key: Any) -> Value:
        """The target's test accuracy in per cent, and the first and last weights."""
        from steelyard.studies import three_sources

        suite = three_sources.digits(key["seed"], key["rows"], key["rows"] * key["ratio"])
        training = TRAINING["digits"] | {
            "paradigm": key["paradigm"], "epochs": settings["epochs"], "steps_per_epoch": settings["steps"],
            "learning_rate": 3e-3, "seed": key["seed"],
        }  # fmt: skip
        return _trained(suite, key["way"], training)

    def findings(self, settings: Settings, results: Results) -> Findings:
        """The accuracies; the paired gains beside the paper's figures."""
        own = {label: results.where(**point) for label, point in self.points(settings).items()}
        first = {label: self.gain(each, self.compared[0]) for label, each in own.items()}
        way, control = self.compared[0]
        answer = f"{way} against {control}, in points of accuracy, by {self.axis}: "
        answer += "; ".join(f"{label}: {gain.signed}" for label, gain in first.items()) + "."
        return Findings(answer, [self.means_of(own), self.gains_of(own)], differs=DIFFERS)

    def gain(self, results: Results, pair: Comparison) -> Estimate:
        """The paired difference between two ways."""
        return results.gain(self.counted, {"way": pair[0]}, {"way": pair[1]})

    def means_of(self, own: Mapping[str, Results]) -> Table:
        """What each way reaches at each point."""
        found = {way: [each.estimate(self.counted, way=way) for each in own.values()] for way in self.ways}
        rows = [[way, *(str(each) if each.count else "" for each in line)] for way, line in found.items()]
        return Table(f"test {self.unit} of the target, %, by {self.axis}", ("way", *own), rows)

    def gains_of(self, own: Mapping[str, Results]) -> Table:
        """The gains that are shown, at each point, and the paper's below."""
        gains = {(pair, label): self.gain(each, pair) for pair in self.compared for label, each in own.items()}
        corrected = dict(zip(gains, holm([gain.p for gain in gains.values()]), strict=True))
        cells = {
            place: f"{gain.signed} (p {probability(corrected[place])})" if gain.count else ""
            for place, gain in gains.items()
        }
        rows = [[f"{way} against {by}", *(cells[(way, by), label] for label in own)] for way, by in self.compared]
        if self.published:
            rows.append([f"the paper's {self.theirs}", *(self.published.get(label, "") for label in own)])
        note = "95 % intervals over seeds; p: Holm, over the whole table."
        return Table(f"paired gains, points of {self.unit}, by {self.axis}", ("gain", *own), rows, note)


class _Curve(TAWTTable):
    """Points in an order, along which the paper says that the gain from weighting shrinks."""

    def findings(self, settings: Settings, results: Results) -> Findings:
        """With the change of the gain from the first point to the last, by seed, and the paper's figure."""
        found = super().findings(settings, results)
        points = self.points(settings)
        series = [_by_seed(results.where(**point), self.compared[0]) for point in points.values()]
        change = paired(series[-1], series[0])
        answer = f"{found.answer} From the first to the last that gain changes by {change.signed}."
        lines = {
            f"{way} against {control}": [
                (float(label), gain.mean, gain.low, gain.high)
                for label, point in points.items()
                if (gain := self.gain(results.where(**point), (way, control))).count
            ]
            for way, control in self.compared[:2]
        }
        figures = {"gain": drawing.curves(lines, self.axis, "gain, points of accuracy", zero=True, logarithmic=True)}
        return Findings(answer, found.tables, figures, found.differs)


class TAWTRatio(_Curve):
    """Table 4: ever more rows of the sources for the same few rows of the target."""

    name = "tawt-ratio"
    summary = "does weighting gain less the more rows the sources have for each of the target's?"
    paper = "Chen et al. 2022, Table 4"
    axis = "source rows per target row"
    published: ClassVar = {
        "1": "38.55 → 42.31", "2": "36.53 → 42.13", "4": "42.37 → 51.64", "8": "54.18 → 59.08", "16": "62.08 → 63.46",
    }  # fmt: skip
    settings: ClassVar = {
        "small": {"seeds": 5, "ratios": [1, 4, 16], "rows": 20, "epochs": 4, "steps": 50},
        "full": {"seeds": 10, "ratios": [1, 2, 4, 8, 16], "rows": 20, "epochs": 4, "steps": 50},
    }

    def points(self, settings: Settings) -> dict[str, Key]:
        """By ratio."""
        return {str(r): {"rows": settings["rows"], "ratio": r, "paradigm": JOINT} for r in settings["ratios"]}


class TAWTSize(_Curve):
    """Table 5: a target that grows, and sources that grow with it."""

    name = "tawt-size"
    summary = "does weighting gain less the more rows the target has?"
    paper = "Chen et al. 2022, Table 5"
    axis = "target rows"
    published: ClassVar = {
        "10": "500 rows: 54.18 → 59.08", "20": "1000: 64.69 → 66.00", "40": "2000: 71.33 → 72.30",
        "80": "4000: 76.95 → 76.95",
    }  # fmt: skip
    settings: ClassVar = {
        "small": {"seeds": 5, "rows": [10, 80], "ratio": 4, "epochs": 4, "steps": 50},
        "full": {"seeds": 10, "rows": [10, 20, 40, 80], "ratio": 4, "epochs": 4, "steps": 50},
    }

    def points(self, settings: Settings) -> dict[str, Key]:
        """By the target's rows."""
        return {str(n): {"rows": n, "ratio": settings["ratio"], "paradigm": JOINT} for n in settings["rows"]}


class TAWTFixed(TAWTTable):
    """Table 7: the weights that a run ends with, held fixed in another run of the same seed."""

    name = "tawt-fixed"
    summary = "do weights that move do better than the weights that they end at, held fixed?"
    paper = "Chen et al. 2022, Table 7"
    axis = "paradigm"
    ways = (*WAYS, PAPERS + HELD, OURS + HELD)
    compared: ClassVar = (
        (PAPERS, PAPERS + HELD), (OURS, OURS + HELD), (PAPERS, "uniform"), (PAPERS, "ramp"), (OURS, "uniform"),
        (OURS, "ramp"), (ANSWERS, "uniform"), (ANSWERS, "ramp"),
    )  # fmt: skip
    theirs = "mean of four tasks, held fixed → moving"
    published: ClassVar = {"normalised joint": "78.89 → 79.20", "pre-training": "59.08 → 61.64"}
    settings: ClassVar = {
        "small": {"seeds": 5, "rows": 20, "ratio": 8, "epochs": 4, "steps": 50},
        "full": {"seeds": 10, "rows": 20, "ratio": 8, "epochs": 4, "steps": 50},
    }

    def points(self, settings: Settings) -> dict[str, Key]:
        """By paradigm."""
        sizes = {"rows": settings["rows"], "ratio": settings["ratio"]}
        return {"normalised joint": sizes | {"paradigm": JOINT}, "pre-training": sizes | {"paradigm": PRETRAIN}}


def _trained(suite: Suite, way: str, training: dict[str, Any]) -> dict[str, Any]:
    """One run; weights that are held fixed come from a run that learns them on the same seed."""
    from steelyard import fit
    from steelyard.methods import get

    name, options = WAYS[way.removesuffix(HELD)]
    if training["paradigm"] == PRETRAIN and options.get("as_published"):
        options = options | {"c": PRETRAINING_C}
    if training["paradigm"] == PRETRAIN and name == "single":
        training = training | {"epochs": 2 * training["epochs"]}  # the others fine-tune as long as they pre-train
    if way.endswith(HELD):
        learned = _trained(suite, way.removesuffix(HELD), training)["weights"]
        options = {"weights": learned}
    run = fit(suite, method=get(name)(**options), progress=False, **training)
    accuracy = 100 * run.metrics["test"]["accuracy"]
    return {"accuracy": accuracy, "first_weights": run.history[0]["weights"], "weights": run.weights}


def _by_seed(results: Results, pair: Comparison) -> dict[Any, float]:
    treated, control = (results.series("accuracy", way=way) for way in pair)
    return {seed: value - control[seed] for seed, value in treated.items() if seed in control}
