"""Task distance: what a target loses on its sources' representation (Chen et al. 2022, Definition 3.1)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import nn

from steelyard.diagnostics._frozen import Features, Fitted, best_head
from steelyard.diagnostics._representations import gradient_of, learned, shared_length
from steelyard.errors import SteelyardError, did_you_mean
from steelyard.methods import get
from steelyard.model import SharedModel
from steelyard.tasks import Role, Suite, carve
from steelyard.training import Training
from steelyard.training.run import resolve, seeded, shared_model

Estimate = Literal["trained", "answers", "gradients"]
"""How a distance is found: by training, or by one of two ways without."""

Mixture = Mapping[str, float]
"""The weights of some sources."""

HELD = 0.2
"""The share of a task's training rows that is held out where it has no dev rows."""


@dataclass(frozen=True)
class Distance:
    """How far some weighted sources are from a target.

    Attributes:
        sources: A task's name, or the mixture's.
        target: The target.
        value: The distance, in the units of the target's loss (for ``gradients``: minus a cosine). Below 0 the
            sources' representation serves the target better than what its own rows teach.
        error: Its standard error over the held-out rows, for the representations as they are.
        loss: L*_0(φ^ω), the target's held-out loss on the sources' representation.
        own: L*_0(φ*_0), the same on its own. These three are NaN for ``gradients``.
        estimate: ``trained``, ``answers`` or ``gradients``.
    """

    sources: str
    target: str
    value: float
    error: float
    loss: float
    own: float
    estimate: Estimate


def task_distances(
    suite: Suite,
    encoder: nn.Module | str,
    targets: Iterable[str] | None = None,
    mixtures: Mapping[str, Mixture] | None = None,
    *,
    estimate: Estimate = "trained",
    training: Training | Mapping[str, Any] | None = None,
    encoder_options: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] | None = None,
    **settings: Any,
) -> list[Distance]:
    """How far sources are from targets: dist(Σ ω_t D_t, D_0) = L*_0(φ^ω) − L*_0(φ*_0), with L*_0(φ) = min_f L_0(φ, f).

    ``trained`` learns φ^ω on the weighted sources and φ*_0 on the target's own rows, from the same initial parameters
    and in as many steps; it then freezes each, fits the target's head to the target's training rows, and compares
    the two losses on its held-out rows: dev_select, or a fifth of train. No test row is read. The distance is not
    symmetric.

    The others train no encoder, but look at it as it is initialised. ``answers`` fits the sources' heads to the frozen
    features; what they answer takes the place of φ^ω, and the features that of φ*_0. ``gradients`` is minus the cosine
    of ∇_φL_0 on held-out rows and Σ ω_t ∇_φL_t, every head being fitted first.

    Args:
        suite: The tasks.
        encoder: A module (it stays as it is), or the name of an encoder.
        targets: The targets; by default the suite's.
        mixtures: Weighted sources, by a name for each mixture: ``{"both": {"reviews": 0.7, "mails": 0.3}}``. By
            default every task alone.
        estimate: ``trained``; or without training, ``answers`` or ``gradients``.
        training: Settings of the loop; single ones can be given as keywords. An epoch is by default as many steps
            for every representation: a pass over a source of mean size.
        encoder_options: Options of a named encoder.
        progress: Called with the name of each task or mixture that is done.
        **settings: Settings of the loop by name.

    Returns:
        The distances, target by target.
    """
    if estimate not in get_args(Estimate):
        raise SteelyardError(f"there is no estimate {estimate!r} of a distance; choose {', '.join(get_args(Estimate))}")
    goals = _goals(suite, targets)
    given = mixtures or {name: {name: 1.0} for name in suite.tasks}
    wanted = [(name, goal) for goal in goals for name, mixture in given.items() if set(mixture) != {goal}]
    used = {name: _checked(suite, name, given[name]) for name in given if name in {each for each, _ in wanted}}
    if not wanted:
        raise SteelyardError("a distance needs at least one source besides the target")
    judged = goals if estimate == "trained" else [*goals, *(task for mixture in used.values() for task in mixture)]
    suite = with_held(suite, judged)
    chosen = resolve(training, get("uniform")(), settings)
    with seeded(chosen.seed):
        start = encoder if isinstance(encoder, str) else copy.deepcopy(encoder)
        model = shared_model(start, suite, encoder_options)
    done = progress or _quiet
    if estimate == "gradients":
        return _by_gradients(suite, model, wanted, used, done)
    if estimate == "answers":
        return _by_answers(suite, model, wanted, used, done)
    return _by_training(suite, model, wanted, used, chosen, done)


Pairs = list[tuple[str, str]]
Done = Callable[[str], None]


def _by_training(
    suite: Suite, start: SharedModel, pairs: Pairs, mixtures: Mapping[str, Mixture], training: Training, done: Done
) -> list[Distance]:
    """One representation per mixture and target; a mixture of one task is that task's own."""
    goals = list(dict.fromkeys(goal for _, goal in pairs))
    needed = {frozenset(mixture.items()): mixture for mixture in mixtures.values()}
    needed |= {frozenset({(goal, 1.0)}): {goal: 1.0} for goal in goals}
    length = shared_length(suite, {task for mixture in mixtures.values() for task in mixture}, training)
    losses: dict[tuple[frozenset[tuple[str, float]], str], Fitted] = {}
    for key, mixture in needed.items():
        model = learned(suite, copy.deepcopy(start), mixture, training, length)
        for goal in goals:
            losses[key, goal] = best_head(Features.of(model, suite, goal))
        done(" + ".join(mixture))
    return [
        compared(name, goal, losses[frozenset(mixtures[name].items()), goal], losses[frozenset({(goal, 1.0)}), goal])
        for name, goal in pairs
    ]


def _by_answers(
    suite: Suite, model: SharedModel, pairs: Pairs, mixtures: Mapping[str, Mixture], done: Done
) -> list[Distance]:
    goals = dict.fromkeys(goal for _, goal in pairs)
    features = {goal: Features.of(model, suite, goal) for goal in goals}
    heads: dict[str, nn.Module] = {}
    for task in dict.fromkeys([task for mixture in mixtures.values() for task in mixture]):
        heads[task] = best_head(Features.of(model, suite, task)).head
        done(task)
    own = {goal: best_head(found) for goal, found in features.items()}
    found = []
    for name, goal in pairs:
        said = [(heads[task], weight) for task, weight in mixtures[name].items()]
        there = best_head(features[goal].answered_by(said, suite[goal].outputs))
        found.append(compared(name, goal, there, own[goal], "answers"))
    return found


def _by_gradients(
    suite: Suite, model: SharedModel, pairs: Pairs, mixtures: Mapping[str, Mixture], done: Done
) -> list[Distance]:
    goals = {goal for _, goal in pairs}
    sources = {task for mixture in mixtures.values() for task in mixture}
    taken, held = {}, {}
    for task in [name for name in suite.tasks if name in goals | sources]:
        head = best_head(Features.of(model, suite, task)).head
        if task in sources:
            taken[task] = gradient_of(model, suite, task, head, Role.TRAIN)
        if task in goals:
            held[task] = gradient_of(model, suite, task, head, Role.DEV_SELECT)
        done(task)
    found = []
    for name, goal in pairs:
        mixed = torch.stack([weight * taken[task] for task, weight in mixtures[name].items()]).sum(0)
        value = -float(torch.cosine_similarity(mixed, held[goal], 0))
        found.append(Distance(name, goal, value, math.nan, math.nan, math.nan, "gradients"))
    return found


def compared(name: str, goal: str, there: Fitted, own: Fitted, estimate: Estimate = "trained") -> Distance:
    """The difference of two mean losses on the same rows, with the standard error of their paired difference."""
    differences, labels = there.values - own.values, own.counts.sum()
    value = differences.sum() / labels
    rows = len(differences)
    spread = (differences - value * own.counts).square().sum() * rows / (rows - 1)
    return Distance(name, goal, float(value), float(spread.sqrt() / labels), there.loss, own.loss, estimate)


def _quiet(part: str) -> None:
    del part


def _goals(suite: Suite, targets: Iterable[str] | None) -> list[str]:
    if targets is None and suite.target is None:
        raise SteelyardError("a distance needs a target; name one: Suite(tasks, target=…), or targets=[…]")
    goals = [str(suite.target)] if targets is None else list(targets)
    for goal in goals:
        _known(suite, goal)
    return goals


def _checked(suite: Suite, name: str, mixture: Mixture) -> dict[str, float]:
    """A mixture with weights that add up to 1, without what weighs nothing."""
    for task in mixture:
        _known(suite, task)
    total = sum(mixture.values())
    if not total > 0 or not math.isfinite(total) or min(mixture.values()) < 0:
        raise SteelyardError(f"mixture {name!r}: weights must be 0 or more, and not all 0: {dict(mixture)}")
    return {task: weight / total for task, weight in mixture.items() if weight > 0}


def _known(suite: Suite, task: str) -> None:
    if task not in suite.tasks:
        hint = did_you_mean(task, suite.tasks) or f"the tasks are {', '.join(suite.tasks)}"
        raise SteelyardError(f"there is no task {task!r}; {hint}")


def with_held(suite: Suite, tasks: Iterable[str]) -> Suite:
    """The suite with held-out rows for these tasks."""
    names = set(tasks)
    suite = carve(suite, Role.DEV_SELECT, Role.TRAIN, HELD, 0, names)
    for name in [name for name in suite.tasks if name in names]:
        task = suite[name]
        if not task.size(Role.TRAIN) or task.size(Role.DEV_SELECT) < 2:
            raise SteelyardError(
                f"task {name!r}: {task.size(Role.TRAIN)} rows to fit a head to and {task.size(Role.DEV_SELECT)} held "
                "out are too few for a distance; give it more rows, or a larger dev_fraction"
            )
    return suite
