"""Study ``aang``: objectives from a task's own text on two targets with few labels, as in AANG's Table 2."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from steelyard.studies.base import Findings, Settings, Size, Study, Table
from steelyard.studies.results import Key, Results, Value
from steelyard.studies.tables import comparison
from steelyard.tasks import Ragged, Role, Suite

TASKS = {"trec": "kinds of questions", "movies": "sentiment of film reviews"}

TABLES = {"trec": "lowtext/trec", "movies": "pairs/movies"}
"""The packaged rows."""

WARMING = ("lowtext/editorials", "lowtext/disaster")
"""Whose texts the encoder's masked-language head is trained on."""

METHODS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "fine-tuning": ("single", {}),
    "TAPT": ("tartan", {"objectives": ["TAPT"], "static": True}),
    "BERT-style": ("tartan", {"objectives": ["BERT-style"]}),
    "GPT-style": ("tartan", {"objectives": ["GPT-style"]}),
    "XLNet-style": ("tartan", {"objectives": ["XLNet-style"]}),
    "static": ("aang", {"static": True}),
    "aang": ("aang", {}),
}
"""TAPT comes before the end task; the others train with it."""

RATE, LOGIT_RATE = 3e-4, 1.0
"""The learning rates of the model and of the objectives' logits (the paper's larger one), the same for all methods."""

META_ROWS = 8
"""Held-out rows in the meta-gradient of a step."""

PAPER = {
    "fine-tuning": "77.97", "TAPT": "78.72", "GPT-style": "79.84", "XLNet-style": "80.51", "static": "81.07",
    "BERT-style": "81.12", "aang": "82.21",
}  # fmt: skip
"""Table 2: the mean over five tasks, of which these two are none, on RoBERTa-base, selected on test."""

OTHERS = "Paper: five other tasks, RoBERTa-base, three seeds."

DIFFERS = (
    "The tasks; the encoder, a sentence encoder of six layers, whose masked-language head was trained here for 300 "
    "steps on texts of other tasks (the paper has RoBERTa-base with its own); few steps at one learning rate for all "
    "methods; all 24 objectives in each step, where the paper samples three or six; epochs chosen on dev, where the "
    "paper's configurations were chosen on test. Every run puts the same number of rows through the encoder in "
    "training. Those of meta-gradients are counted: methods without have more epochs of the end task alone at the end."
)


class AANGTable(Study):
    """Fine-tuning, TAPT, three single objectives, all 24 with even weights, and AANG."""

    name = "aang"
    summary = "whether objectives from a target's own text help where labels are few, and whether to weigh them"
    paper = "AANG, Table 2 and Figure 5"
    needs = ("lowtext", "pairs", "minilm")
    settings: ClassVar[Mapping[Size, Settings]] = {
        "small": {"seeds": 2, "rows": 32, "dev": 64, "test": 100, "batch": 16, "auxiliary": 24, "steps": 4, "joint": 2},
        "full": {"seeds": 5, "rows": 64, "dev": 128, "test": 300, "batch": 16, "auxiliary": 24, "steps": 8, "joint": 2},
    }
    minutes: ClassVar[Mapping[Size, float]] = {"small": 5, "full": 20}

    def keys(self, settings: Settings) -> list[Key]:
        """Every method with every seed, on each task."""
        seeds = range(settings["seeds"])
        return [{"task": t, "method": m, "seed": seed} for seed in seeds for t in TASKS for m in METHODS]

    @staticmethod
    def measure(settings: dict[str, Any], **key: Any) -> Value:
        """One run: test accuracy, and what AANG's primitives counted for early and late."""
        from steelyard import fit
        from steelyard.methods import get

        name, options = METHODS[key["method"]]
        size = {"auxiliary_rows": settings["auxiliary"], "meta_rows": META_ROWS, "rate": LOGIT_RATE}
        chosen = get(name)(**options, **({} if name == "single" else size))
        run = fit(
            target(key["task"], settings, key["seed"]), str(encoder()), chosen, progress=False,
            training=schedule(key["method"], settings, key["seed"]), encoder_options={"pooling": "mean"},
        )  # fmt: skip
        notes = [line["method"] for line in run.history if "lambda_e" in line.get("method", {})]
        value: dict[str, Any] = {
            "accuracy": run.metrics["test"]["accuracy"],
            "dev": run.metrics["dev_select"]["accuracy"],
            "seconds": run.summary["seconds"],
            "best_epoch": run.summary["best_epoch"],
        }
        if key["method"] == "aang":
            stages = [name for name in notes[0] if ": " in name]
            value["early"] = {name: notes[0][name] for name in stages}
            late = notes[len(notes) // 2 :]
            value["late"] = {name: sum(note[name] for note in late) / len(late) for name in stages}
            value["lambda_e"] = notes[-1]["lambda_e"]
        return value

    def findings(self, settings: Settings, results: Results) -> Findings:
        """A table per task, one over both, and what mattered."""
        note = f"target of {settings['rows']} labelled rows; 'static' is all 24 objectives with even weights"
        against = ("static", "fine-tuning")
        tables = [
            comparison(f"test accuracy: {TASKS[task]}", results, points, against=against, note=note, task=task)
            for task in results.levels("task")
        ]
        both = _averaged(results)
        tables.append(comparison("mean over the tasks", both, points, against=against, published=PAPER, note=OTHERS))
        tables += _mattered(results)
        gain = both.gain(points, {"method": "aang"}, {"method": "static"})
        over = both.gain(points, {"method": "aang"}, {"method": "fine-tuning"})
        answer = (
            f"Learned weights change test accuracy by {gain.signed} points over even weights, and by {over.signed} "
            f"over fine-tuning alone, in the mean over {len(results.levels('task'))} tasks."
        )
        return Findings(answer, tables, differs=DIFFERS)


def points(value: Value) -> float:
    """Test accuracy in percent, as the paper has it."""
    return 100 * float(value["accuracy"])


def target(name: str, settings: Mapping[str, Any], seed: int) -> Suite:
    """The target with few labelled rows, few dev rows, and a test set; a seed draws them."""
    suite = _read(name, settings["rows"], seed)
    task = suite[name]
    rows = dict(task.rows)
    for role, count in ((Role.DEV_SELECT, settings["dev"]), (Role.TEST, settings["test"])):
        # The same test rows for every seed; other dev rows for each. Tables may stand in the order of their classes.
        draw = torch.Generator().manual_seed(0 if role is Role.TEST else seed)
        order = torch.randperm(len(rows[role]), generator=draw)
        rows[role] = rows[role].select(order[:count].sort().values)
    return suite.with_tasks([task.with_rows(rows)])


@lru_cache(maxsize=1)
def _read(name: str, rows: int, seed: int) -> Suite:
    """Runs of one seed follow each other on the same rows."""
    from steelyard import data

    table = data.TargetData(name=name, train=f"suite:{TABLES[name]}@{rows}")
    return data.build(table, seed=seed, features=data.FeatureOptions(tokenizer="suite:minilm", max_length=24)).suite


def encoder() -> Path:
    """MiniLM with a masked-language head, which it comes without: trained once, on texts of no task of this study."""
    from steelyard import objectives
    from steelyard.data import cache, suites

    def make(folder: Path) -> None:
        values = [_texts(name) for name in WARMING]
        objectives.warm_up(str(suites.minilm()), Ragged.of([row for rows in values for row in rows]), folder)

    return cache.made_once(cache.directory() / "models" / f"minilm-language-{cache.digest(WARMING, 1)[:16]}", make)


def _texts(name: str) -> list[Tensor]:
    """The training texts of a packaged table, as tokens."""
    from steelyard import data

    table = data.TargetData(name="texts", train=f"suite:{name}")
    features = data.FeatureOptions(tokenizer="suite:minilm", max_length=32)
    inputs = data.build(table, features=features).suite["texts"].rows[Role.TRAIN].inputs
    if not isinstance(inputs, Ragged):
        raise TypeError(f"{name} is no text")
    return list(torch.split(inputs.values, inputs.lengths.tolist()))


def schedule(method: str, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The loop's settings, so that each run puts as many rows through the encoder, those of meta-gradients too.

    As in the paper the end task is trained alone at the end, for as long as the other rows leave over.
    """
    batch, joint = settings["batch"], settings["joint"]
    # In epochs of the end task: what the rows of objectives and those of meta-gradients come to.
    objectives, meta = joint * settings["auxiliary"] // batch, joint * META_ROWS // batch
    alone = 2 * joint  # so long that the end task's dev accuracy has stopped to rise
    phases: dict[str, dict[str, Any]] = {
        "fine-tuning": {"epochs": joint + alone + objectives, "paradigm": "single"},
        "TAPT": {"epochs": joint, "finetune_epochs": joint + alone, "paradigm": "pretrain"},
        "static": {"epochs": joint, "finetune_epochs": alone},
    }
    return {
        "batch_size": batch, "steps_per_epoch": settings["steps"], "learning_rate": RATE, "schedule": "linear",
        "warmup": 0.1, "clip": 1.0, "seed": seed, "device": "cpu",
    } | phases.get(method, {"epochs": joint, "finetune_epochs": alone - meta})  # fmt: skip


def _averaged(results: Results) -> Results:
    """Each method's mean over the tasks, by seed, where all tasks were measured."""
    found: dict[tuple[str, int], list[float]] = {}
    for key, value in results:
        found.setdefault((key["method"], key["seed"]), []).append(float(value["accuracy"]))
    count = len(results.levels("task"))
    return Results(
        [
            ({"method": method, "seed": seed}, {"accuracy": sum(each) / count})
            for (method, seed), each in found.items()
            if len(each) == count
        ]
    )


def _mattered(results: Results) -> list[Table]:
    """What AANG's primitives counted for, early and late, in the mean over seeds."""
    made = []
    for task in results.levels("task"):
        cells = [value for _, value in results.where(method="aang", task=task)]
        if not cells:
            continue
        rows = []
        for name in cells[0]["early"]:
            means = [sum(float(c[part][name]) for c in cells) / len(cells) for part in ("early", "late")]
            rows.append([name, *(f"{mean:.3f}" for mean in means)])
        end = sum(float(c["lambda_e"]) for c in cells) / len(cells)
        note = f"λ_e at the end: {end:.2f}"
        made.append(Table(f"what mattered: {TASKS[task]}", ("primitive", "first epoch", "second half"), rows, note))
    return made
