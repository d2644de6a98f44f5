"""Study ``metaweighting``: MetaWeighting's figures on sentences of four domains, beside its baselines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from steelyard.report import drawing
from steelyard.studies.base import Findings, Settings, Size, Study, Table
from steelyard.studies.results import Key, Results, Value
from steelyard.studies.statistics import Estimate, estimate
from steelyard.studies.subjects import Tables
from steelyard.studies.tables import comparison
from steelyard.tasks import Role, Rows, Suite

DOMAINS = ("amazon", "movies", "editorials", "tweets")
SUPPORT = "uniform, on support rows"
"""Even weights without the query rows: what MetaWeighting would be if its weights did nothing."""

BASELINES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "single": ("uniform", {}),
    "uniform": ("uniform", {}),
    SUPPORT: ("metaweighting", {"alpha": 1e-12, "every": 1_000_000}),
    "uncertainty": ("uncertainty", {}),
    "gradnorm": ("gradnorm", {}),
    "mgda": ("mgda", {}),
    "bandit": ("bandit", {}),
    "tchebycheff": ("tchebycheff", {}),
    "tchebycheff, adversarial": ("tchebycheff", {"adversarial": 0.05}),
    "adversarial": ("adversarial", {}),
    "metaweighting": ("metaweighting", {}),
    "metaweighting, paper's": ("metaweighting", {"as_published": True}),
}
RATIOS = {
    0.05: "metaweighting, ρ = 0.05",
    0.1: "metaweighting",
    0.2: "metaweighting, ρ = 0.2",
    0.4: "metaweighting, ρ = 0.4",
}
ALPHAS = {
    0.02: "metaweighting, α = 0.02",
    0.1: "metaweighting",
    0.5: "metaweighting, α = 0.5",
    2.0: "metaweighting, α = 2",
}
SWEPT: Mapping[str, tuple[str, dict[str, Any]]] = {
    **{label: ("metaweighting", {"ratio": ratio}) for ratio, label in RATIOS.items()},
    **{label: ("metaweighting", {"alpha": alpha}) for alpha, label in ALPHAS.items()},
}
WATCHED = (SUPPORT, "metaweighting")
"""Whose losses on training, query and test rows are looked at after each epoch; that costs half as much as training."""
TRACED = ("metaweighting", "uncertainty", "gradnorm", "mgda", "bandit")
"""Whose weights the paper's Figures 8 and 9 show."""

DIFFERS = (
    "Four domains of short sentences with rows drawn by the seed, where the paper has 14 kinds of product reviews; "
    "word vectors are learned, not GloVe; 32 rows per task in a step, not 256, and 10 epochs (5 if small), not 3000, "
    "and the epoch is the best on dev rows. MetaWeighting's w moves without η and Σw = T; 'paper's' is as printed. The "
    "paper shows figures without numbers: MetaWeighting above all baselines on average, the best ρ near 0.1, little "
    "effect of α between 0.05 and 0.1, query losses nearer to test losses than training losses are."
)


class MetaWeightingFigures(Study):
    """MetaWeighting against its baselines, over ρ and α; losses on training, query and test rows; weights."""

    name = "metaweighting"
    summary = (
        "whether weights by query losses help on four domains of text, and how far query losses are from test losses"
    )
    paper = "MetaWeighting, Figures 1, 2, 4, 5, 6 and 8"
    needs = ("sentiment4",)
    settings: ClassVar[Mapping[Size, Settings]] = {
        "small": {"seeds": 5, "rows": 300, "held_out": 300, "epochs": 5},
        "full": {"seeds": 5, "rows": 1_000, "held_out": 700, "epochs": 10},
    }
    minutes: ClassVar[Mapping[Size, float]] = {"small": 3, "full": 9}

    def keys(self, settings: Settings) -> list[Key]:
        """Every method, ρ and α with every seed."""
        labels = list(dict.fromkeys([*BASELINES, *SWEPT]))
        return [{"method": label, "seed": seed} for seed in range(settings["seeds"]) for label in labels]

    @staticmethod
    def measure(settings: dict[str, Any], **key: Any) -> Value:
        """The tasks' mean test accuracy; weights and, where rows are split, losses by epoch."""
        name, options = {**BASELINES, **SWEPT}[key["method"]]
        data = suite(settings["rows"], settings["held_out"], key["seed"])
        if key["method"] != "single":
            watched = key["method"] in WATCHED
            return _trained(data, name, options, settings["epochs"], key["seed"], watched=watched)
        found = [
            _trained(_suite_of(data, [task]), name, options, settings["epochs"], key["seed"]) for task in data.tasks
        ]
        tasks = {task: value for each in found for task, value in each["tasks"].items()}
        return {"tasks": tasks, "accuracy": sum(tasks.values()) / len(tasks)}

    def findings(self, settings: Settings, results: Results) -> Findings:
        """The paper's figures in its order."""
        del settings
        chosen = Results([cell for cell in results if cell[0]["method"] in BASELINES])
        against = ("uniform", SUPPORT)
        note = f"Chosen by the tasks' mean dev accuracy. MetaWeighting and '{SUPPORT}' hold a tenth of the rows back."
        tables = [comparison("mean test accuracy of the four tasks, %", chosen, "accuracy", against=against, note=note)]
        tables += [_by_domain(chosen), _gaps(results)]
        gain = results.gain("accuracy", {"method": "metaweighting"}, {"method": "uniform"})
        same = results.gain("accuracy", {"method": "metaweighting"}, {"method": SUPPORT})
        answer = (
            f"MetaWeighting against even weights: {gain.signed} points of accuracy where those train on all rows, "
            f"{same.signed} on the same support rows."
        )
        return Findings(answer, tables, _figures(results), DIFFERS)


def suite(rows: int, held_out: int, seed: int) -> Suite:
    """The four domains with so many training and test rows each, drawn by the seed; none of them is the target."""
    first, *others = ({"name": domain, "train": f"suite:sentiment4/{domain}@{rows}"} for domain in DOMAINS)
    found = Tables(first, tuple(others)).read(seed).suite
    generator = torch.Generator().manual_seed(seed)

    def some(rows: Rows, most: int) -> Rows:
        return rows.select(torch.randperm(len(rows), generator=generator)[:most])

    kept = {Role.TRAIN: rows, Role.DEV_SELECT: held_out // 2, Role.TEST: held_out}
    tasks = [
        task.with_rows({role: some(each, kept[role]) for role, each in task.rows.items()})
        for task in found.tasks.values()
    ]
    return Suite(tasks, vocabulary=found.spec.vocabulary, padding=found.spec.padding)


def _suite_of(data: Suite, tasks: list[str]) -> Suite:
    """Some tasks of a suite, without a target."""
    return Suite([data[name] for name in tasks], vocabulary=data.spec.vocabulary, padding=data.spec.padding)


def _trained(
    data: Suite, name: str, options: dict[str, Any], epochs: int, seed: int, *, watched: bool = False
) -> dict[str, Any]:
    from steelyard import fit
    from steelyard.methods import Job, get

    method = get(name)(**options)
    losses: list[list[list[float]]] = []
    after_epoch = method.after_epoch

    def watch(job: Job) -> None:
        after_epoch(job)
        roles = (Role.TRAIN, Role.QUERY, Role.TEST)
        losses.append([[float(job.loss_on(role, task)) for role in roles] for task in job.tasks])

    if watched:
        method.after_epoch = watch  # type: ignore[method-assign]
    run = fit(data, "textcnn", method, progress=False, epochs=epochs, batch_size=32, learning_rate=1e-3, seed=seed,
              encoder_options={"size": 50, "channels": 32, "dropout": 0.3})  # fmt: skip
    tasks = {task: 100 * values["test"]["accuracy"] for task, values in run.summary["tasks"].items()}
    return {
        "tasks": tasks,
        "accuracy": sum(tasks.values()) / len(tasks),
        "losses": losses,
        "weights": [list(line["weights"].values()) for line in run.history],
        "moved": [line.get("method", {}).get("mean_weight_move", 0.0) for line in run.history],
    }


def _by_domain(results: Results) -> Table:
    rows = [
        [label, *(str(results.estimate(_of(domain), method=label)) for domain in DOMAINS)]
        for label in results.levels("method")
    ]
    return Table("test accuracy by domain, %", ("method", *DOMAINS), rows)


def _of(domain: str) -> Any:
    return lambda value: value["tasks"][domain]


def _gaps(results: Results) -> Table:
    """How far training and query losses are from test losses at the end: means over the tasks, by seed."""
    rows = []
    for label in WATCHED:
        last = [value["losses"][-1] for _, value in results.where(method=label)]
        means = [[sum(task[place] for task in tasks) / len(tasks) for place in range(3)] for tasks in last]
        found: list[Estimate] = [estimate([mean[place] for mean in means]) for place in range(3)]
        found += [estimate([mean[2] - mean[place] for mean in means]) for place in (0, 1)]
        rows.append([label, *map(str, found)])
    columns = ("weights", "training loss", "query loss", "test loss", "test − training", "test − query")
    return Table("losses after the last epoch, means over the tasks", columns, rows,
                 "In the paper's Figures 1 and 6 (even weights) test − query is the smaller gap.")  # fmt: skip


def _figures(results: Results) -> dict[str, str]:
    figures = {
        "figure4-ratio": _sweep(results, RATIOS, "ρ, the share of query rows", logarithmic=False),
        "figure5-alpha": _sweep(results, ALPHAS, "α", logarithmic=True),
    }
    for name, label in (("figure6-gap-even", SUPPORT), ("figure6-gap-metaweighting", "metaweighting")):
        values = [value["losses"] for _, value in results.where(method=label)]
        lines = {
            kind: _line([[sum(task[place] for task in epoch) / len(epoch) for epoch in value] for value in values])
            for place, kind in enumerate(("training", "query", "test"))
        }
        if all(lines.values()):
            figures[name] = drawing.curves(lines, "epoch", "loss, mean over the tasks")
    for label in TRACED:
        values = [value["weights"] for _, value in results.where(method=label)]
        traces = {
            domain: _line([[epoch[place] / sum(epoch) for epoch in value] for value in values])
            for place, domain in enumerate(DOMAINS)
        }
        if all(traces.values()):
            figures[f"figure8-{label}"] = drawing.curves(traces, "epoch", "share of the weight")
    return figures


def _line(series: list[list[float]]) -> list[drawing.Point]:
    """Mean and interval over the seeds, by epoch."""
    points = [(epoch, estimate(values)) for epoch, values in enumerate(zip(*series, strict=True), 1)]
    return [(epoch, found.mean, found.low, found.high) for epoch, found in points]


def _sweep(results: Results, labels: Mapping[float, str], x: str, *, logarithmic: bool) -> str:
    found = [(value, results.estimate("accuracy", method=label)) for value, label in labels.items()]
    points = [(value, each.mean, each.low, each.high) for value, each in found]
    return drawing.curves({"metaweighting": points}, x, "mean test accuracy, %", logarithmic=logarithmic)
