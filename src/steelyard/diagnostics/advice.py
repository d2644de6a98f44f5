"""Advice before training: which sources look as if they help, what to start with and why, and how long it will take."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from steelyard.data.generators import with_sizes
from steelyard.diagnostics._frozen import Features, Fitted, best_head
from steelyard.diagnostics.cost import Asked, Cost, cost
from steelyard.diagnostics.covariance import covariance_similarity
from steelyard.diagnostics.distance import compared, with_held
from steelyard.errors import SteelyardError
from steelyard.methods import build
from steelyard.tasks import Suite, Task
from steelyard.training import Paradigm, Training
from steelyard.training.run import resolve, seeded, shared_model

ROWS = 1_000
"""At most so many training rows of each task are looked at."""

CERTAIN = 2.8
"""Standard errors above its shuffled labels by which a source is called a help: Student's t for five shuffles."""

SHUFFLES = 5
"""How often a source's labels are shuffled, to see what it would tell by chance."""

Expected = Literal["help", "unclear", "harm"]


@dataclass(frozen=True)
class SourceAdvice:
    """What one source looks like before training.

    Attributes:
        source: Its name.
        rows: Training rows.
        labels: The share of the classes of both that they have in common, by name; NaN where classes have no names.
        similarity: Covariance similarity to the target at the encoder's embeddings; 1 for equal covariances.
        distance: The task distance without training (``answers``); 0 says as much as the target's own rows teach.
        error: Its standard error.
        told: By how much its answers lower the target's loss, compared with answers after its labels were shuffled.
        told_error: The standard error of that.
        expected: ``help`` where it tells more by `CERTAIN` standard errors, ``harm`` where it does not by one: such a
            source can only cost; else ``unclear``.
    """

    source: str
    rows: int
    labels: float
    similarity: float
    distance: float
    error: float
    told: float
    told_error: float
    expected: Expected


@dataclass(frozen=True)
class Advice:
    """What to start with, and what it will cost.

    Attributes:
        target: The target's name.
        rows: Its training rows.
        sources: The sources, the most promising first.
        method: The method to start with.
        paradigm: The paradigm.
        reasons: Why, in sentences.
        costed: The method whose cost is told: the one that is advised, unless another was asked for.
        steps: Steps of its whole training.
        seconds: About how long it takes here, from a few steps that were timed.
        peak_mb: The process's memory at its peak while it trains, Python, torch and the data included.
    """

    target: str
    rows: int
    sources: list[SourceAdvice]
    method: str
    paradigm: str
    reasons: list[str] = field(default_factory=list)
    costed: str = ""
    steps: int = 0
    seconds: float = math.nan
    peak_mb: float = math.nan

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def advise(
    suite: Suite,
    encoder: nn.Module | str,
    *,
    training: Training | Mapping[str, Any] | None = None,
    encoder_options: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] | None = None,
    timed: bool = True,
    method: Asked | None = None,
    **settings: Any,
) -> Advice:
    """Looks at a suite before training.

    Nothing is trained but heads on an encoder as it is initialised, and a few steps that are timed and thrown away. The
    study ``advice`` measures how well such a look foretells what a source is worth.

    Args:
        suite: The tasks, one of them the target.
        encoder: A module (it stays as it is), or the name of an encoder.
        training: Settings of the loop that the time is told for; single ones can be given as keywords.
        encoder_options: Options of a named encoder.
        progress: Called with the name of each part of the look that is done.
        timed: Whether to time some steps.
        method: The method whose cost is told; by default the one that is advised.
        **settings: Settings of the loop by name.
    """
    if suite.target is None:
        raise SteelyardError("advice needs a target; name one: Suite(tasks, target=…)")
    chosen, done = resolve(training, build(method or "uniform"), settings), progress or _quiet
    asked = method if method is None else build(method)
    looked = with_sizes(suite, {name: min(ROWS, task.size()) for name, task in suite.tasks.items()}, chosen.seed)
    looked = with_held(looked, looked.tasks) if suite.sources else looked
    sources = _sources(suite, looked, encoder, chosen, encoder_options, done) if suite.sources else []
    start, paradigm, reasons = _start(suite, sources)
    told = Cost("", 0, math.nan, math.nan)
    if timed:
        plan = chosen if asked else chosen.model_copy(update={"paradigm": Paradigm(paradigm)})
        told = cost(suite, encoder, asked or start, plan, encoder_options)
        done("time")
    return Advice(
        suite.target, suite[suite.target].size(), sources, start, paradigm, reasons, told.method, told.steps,
        told.seconds, told.peak_mb,
    )  # fmt: skip


def _sources(
    suite: Suite,
    looked: Suite,
    encoder: nn.Module | str,
    training: Training,
    options: Mapping[str, Any] | None,
    done: Callable[[str], None],
) -> list[SourceAdvice]:
    """What each source looks like, the most promising first."""
    target = str(suite.target)
    with seeded(training.seed):
        model = shared_model(copy.deepcopy(encoder), looked, options)
    alike = covariance_similarity(looked, model, normalized=True)
    goal = Features.of(model, looked, target)
    own = best_head(goal)
    done(target)
    found = []
    for name in suite.sources:
        near, told, error = _told(Features.of(model, looked, name), goal, suite[target].outputs or 1, training.seed)
        there = compared(name, target, near, own, "answers")
        found.append(SourceAdvice(
            name, suite[name].size(), _in_common(suite[target], suite[name]), alike[target, name], there.value,
            there.error, told, error, _expected(told, error),
        ))  # fmt: skip
        done(name)
    return sorted(found, key=lambda each: -each.told)


def _told(source: Features, goal: Features, outputs: int, seed: int) -> tuple[Fitted, float, float]:
    """What a source's answers tell of the target, and how much more than they do when its labels are shuffled.

    Answers to any question at all say something of an input. What its *labels* are worth is what is left against the
    same source with its labels in random order.

    Returns:
        The target's losses by the source's answers; by how much these are less than by shuffled answers; the standard
        error of that, over held-out rows and over shuffles.
    """
    near = best_head(goal.answered_by([(best_head(source).head, 1.0)], outputs))
    generator = torch.Generator().manual_seed(seed)
    by_chance = [
        best_head(goal.answered_by([(best_head(source.shuffled(generator)).head, 1.0)], outputs))
        for _ in range(SHUFFLES)
    ]
    labels = near.counts.sum()
    losses = torch.stack([each.values.sum() / labels for each in by_chance])
    differences = torch.stack([each.values for each in by_chance]).mean(0) - near.values
    told = differences.sum() / labels
    rows = len(differences)
    over_rows = (differences - told * near.counts).square().sum() * rows / (rows - 1) / labels**2
    over_shuffles = losses.var() * (1 + 1 / SHUFFLES)
    return near, float(told), float((over_rows + over_shuffles).sqrt())


def _expected(told: float, error: float) -> Expected:
    if told > CERTAIN * error:
        return "help"
    return "harm" if told < error else "unclear"


def _start(suite: Suite, sources: list[SourceAdvice]) -> tuple[str, str, list[str]]:
    """The method and the paradigm to start with, and why."""
    if not sources:
        return "single", "single", ["there is no source: the target is trained alone"]
    others = [each.source for each in sources if each.expected != "help"]
    ratio = max(each.rows for each in sources) / max(1, suite[str(suite.target)].size())
    sizes = (
        f"normalised_joint: the largest source has {ratio:.1f} times the target's rows, and so each task counts the "
        "same, whatever its size"
    )
    if not others:
        return "uniform", "normalised_joint", [
            "uniform: every source looks like a help, and even weights are hard to beat then", sizes
        ]  # fmt: skip
    reasons = [
        f"tawt: {', '.join(others)} may tell no more than with shuffled labels, and it takes weight from such sources",
        sizes,
    ]
    if len(others) == len(sources):
        reasons.append("no source looks like a help: compare with single before you believe in any of them")
    return "tawt", "normalised_joint", reasons


def _in_common(target: Task, source: Task) -> float:
    """The share of two tasks' classes that have the same names."""
    if not target.classes or not source.classes:
        return math.nan
    first, second = ({str(name).casefold() for name in task.classes or ()} for task in (target, source))
    return len(first & second) / len(first | second)


def _quiet(part: str) -> None:
    del part
