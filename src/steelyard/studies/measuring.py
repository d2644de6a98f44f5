"""One run of a comparison, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steelyard.studies.contestants import Contestant
from steelyard.studies.subjects import Subject
from steelyard.tasks import Role, Suite
from steelyard.training import Run, fit
from steelyard.training.folder import digest
from steelyard.training.memory import Peak
from steelyard.training.metrics import metric_of

RATE = "training.learning_rate"


def measure(settings: dict[str, Any], *, method: str, seed: int) -> dict[str, Any]:
    """A cell of the comparison: one method with one seed, with the hyper-parameters that were chosen for it."""
    chosen = settings["chosen"].get(method, {})
    kept = Path(settings["runs"]) / f"{method.replace('/', '_')}-{seed}" if settings.get("runs") else None
    return measured(settings["subject"], settings["contestants"][method], seed, chosen, kept)


def measured(
    subject: Subject, contestant: Contestant, seed: int, changes: Mapping[str, Any], kept: Path | None = None
) -> dict[str, Any]:
    """Trains one model, and says what came out.

    Args:
        subject: What is trained on.
        contestant: By which method.
        seed: The seed of rows, order and initial parameters.
        changes: Hyper-parameters by dotted name; ``training.…`` are the loop's.
        kept: The run folder, if it is to be kept.
    """
    peak = Peak()
    suite = subject.suite(seed)
    encoder, options = subject.network(suite, seed)
    loop = {k.removeprefix("training."): v for k, v in changes.items() if k.startswith("training.")}
    own = {k: v for k, v in changes.items() if not k.startswith("training.")}
    training = {**subject.training, **loop, "seed": seed}
    run = fit(
        suite, encoder, contestant.build(own), training=training, encoder_options=options, out=kept, progress=False
    )
    found = {str(role): score(run, role) for role in (Role.DEV_SELECT, Role.TEST) if _judged(run.suite, role)}
    return {
        **found,
        "dev_loss": _mean_loss(run),
        "steps": run.summary["steps"],
        "seconds": run.summary["seconds"],
        "peak_mb": peak.megabytes,
        "best_epoch": run.summary["best_epoch"],
        "rows": digest(suite),
        "tasks": {
            name: {role: values[str(suite[name].metric)] for role, values in roles.items()}
            for name, roles in run.summary["tasks"].items()
        },
        "weights": run.weights,
        "curve": [_point(run, line) for line in run.history],
    }


def judges(suite: Suite) -> list[str]:
    """Whose metric counts: the target's, or, where there is none, the mean over all tasks."""
    return [suite.target] if suite.target else list(suite.tasks)


def score(run: Run, role: Role) -> float:
    """The metric on a role's rows."""
    tasks = [name for name in judges(run.suite) if role in run.suite[name].rows]
    values = [run.summary["tasks"][name][str(role)][str(run.suite[name].metric)] for name in tasks]
    return float(sum(values) / len(values))


def _judged(suite: Suite, role: Role) -> bool:
    return any(role in suite[name].rows for name in judges(suite))


def _mean_loss(run: Run) -> float | None:
    """The dev loss of the model that was kept, which decides between equal metrics."""
    losses = [run.summary["tasks"][name].get(str(Role.DEV_SELECT), {}).get("loss") for name in judges(run.suite)]
    known = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    return sum(known) / len(known) if known else None


def _point(run: Run, line: Mapping[str, Any]) -> dict[str, Any]:
    """A point of the learning curve: dev metric and weights after an epoch."""
    names = [name for name in judges(run.suite) if f"dev_{run.suite[name].metric}" in line["tasks"].get(name, {})]
    values = [line["tasks"][name][f"dev_{run.suite[name].metric}"] for name in names]
    return {
        "phase": line["phase"], "step": line["step"], "dev": sum(values) / len(values) if values else None,
        "weights": line["weights"],
    }  # fmt: skip


def higher_is_better(suite: Suite) -> bool:
    """Whether a larger value of the metric that counts is better."""
    return all(metric_of(suite[name]).higher for name in judges(suite))
