"""TAWT: target-aware weighted training (Chen, Crammer, He, Roth and Su, ICLR 2022)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from steelyard.errors import SteelyardError
from steelyard.functional import mirror_descent
from steelyard.methods._turns import put, under
from steelyard.methods.base import Method, Search
from steelyard.methods.job import Job
from steelyard.methods.tawt import answers, evidence
from steelyard.methods.tawt.heads import fit_head
from steelyard.methods.tawt.layout import Layout, goal_of, known_tasks
from steelyard.methods.tawt.options import TAWTOptions
from steelyard.methods.tawt.rows import Units, accumulated, begin, updated
from steelyard.methods.tawt.signals import Vector, inner, length_of, of_step, signals, target_gradient
from steelyard.tasks import Role, Suite, carve

HEAD_STEPS = 20


class TAWT(Method):
    """A source counts for as much as it has to say about the target.

    By default weights are set once, before training, by what the sources' answers say of the target's labels
    (`answers`). With any other ``signal`` a source counts for as much as its gradient agrees with the target's. One
    round (an epoch, unless ``update_every`` says otherwise):

    1. descend on Σ_t ω_t L_t;
    2. in pre-training, train the target's head with φ frozen;
    3. probe: g_t = −c·cos(∇_φ L_0, ∇_φ L_t), in place of −∇_φL_0ᵀ [Σ_s ω_s H_s]⁻¹ ∇_φL_t   (Eq. 2.7);
    4. ω_t ← ω_t·exp(−η g_t) / Σ_s ω_s·exp(−η g_s)   (Eq. 2.8), or ω from all probes so far (`evidence`).
    """

    name = "tawt"
    search: ClassVar[Search] = {"strength": (0.5, 1.5, 3.0), "share": ("constant", "ramp", 0.5, 0.8)}
    summary = "sources count by what they have to say about the target: in their answers, or in their gradients"
    paper = "Chen et al. 2022, Weighted Training for Cross-Task Learning"
    needs_target = True
    cost = f"1 step; before the first, a forward of up to {answers.ROWS} rows of each task"
    Options = TAWTOptions

    options: TAWTOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._goal: dict[str, float] = {}
        self._units: Units | None = None

    def prepare(self, suite: Suite, seed: int) -> Suite:
        """Notes the targets, carves dev_meta if it is needed, and numbers what has a weight."""
        options = self.options
        self._goal = goal_of(suite, options.targets)
        known_tasks(suite, options.weights or {}, "weights")
        known_tasks(suite, options.groups or {}, "groups")
        if options.needs_dev_meta:
            suite = carve(suite, Role.DEV_META, Role(options.dev_from), options.dev_fraction, seed, self._goal)
            for name in self._goal:
                if Role.DEV_META not in suite[name].rows:
                    raise SteelyardError(
                        f"method 'tawt' needs dev_meta rows of {name!r}, and it has no two {options.dev_from} rows "
                        "to carve them from; give it some, or set dev_from"
                    )
        if options.level != "task":
            sources = tuple(name for name in suite.tasks if name not in self._goal)
            self._units = Units.make(suite, sources, options)
        return suite

    def start(self, job: Job) -> None:
        """ω is the paradigm's: 1/T in pre-training and normalised joint, n_t/Σn in joint training."""
        layout = self._layout(job)
        given = self._given(job)
        mixture = given[list(layout.players)]
        share = given[list(layout.targets)].sum()
        if isinstance(self.options.share, float) and layout.targets:
            share = torch.full_like(share, self.options.share)
        if not bool(mixture.sum() > 0):
            mixture = torch.ones_like(mixture)
        self.state["mixture"] = self.state["prior"] = self._first_mixture(job, mixture / mixture.sum())
        self.state["share"] = share
        evidence.begin(self.state, len(layout.players), given)
        if self._units is not None and self._has_sources(job):
            begin(self.state, self._units.start(self.state["mixture"], given.device))
        self._compose(job)

    def _first_mixture(self, job: Job, mixture: Tensor) -> Tensor:
        """The paradigm's, or what a look before training makes of it."""
        if self.options.signal != "answers" or not self._learns(job):
            return mixture
        found = answers.effects(job, self._goal, self._layout(job).names(job), Role(self.options.role))
        return mirror_descent(mixture, found.to(mixture), self.options.strength, self.options.floor / len(mixture))

    def step(self, job: Job) -> None:
        """Descends; then probes and updates if it is time."""
        if self._sees_steps(job):
            self._descend_and_observe(job)
        else:
            self.descend(job, job.batch(), self.weights, self.row_weights() or None)
        if not self._learns(job):
            return
        if _due(self.options.probe_every, job.step):
            self._observe(job)
        if _due(self.options.update_every, job.step):
            self._update(job)

    def after_epoch(self, job: Job) -> None:
        """Probes and updates, unless that happens every so many steps; the share moves on."""
        if not self._learns(job):
            return
        if self.options.update_every is None:
            self._update(job)
        if self.options.share == "ramp" and self._layout(job).targets:
            odds = self.state["share"].logit() + self.options.growth
            self.state["share"] = odds.sigmoid()
            self._compose(job)

    def _update(self, job: Job) -> None:
        """The weights of rows, or of sources; and the target's share, if it is learned."""
        if "units" in self.state:
            self._update_units(job)
        elif self.options.signal != "answers":
            self._update_mixture(job)
        if self.options.share == "learned" and self._layout(job).targets:
            self._learn_share(job)
        self._compose(job)

    def _update_mixture(self, job: Job) -> None:
        """Eq. 2.8, on the newest signals or on all of them."""
        options = self.options
        if self._sees_steps(job):
            self._aim(job)
        elif options.probe_every is None:
            self._observe(job)
        floor = options.floor / len(self.state["mixture"])
        newest = evidence.latest(self.state)
        if options.evidence == "latest":
            self.state["mixture"] = mirror_descent(
                self.state["mixture"], newest.to(self.state["mixture"]), options.eta, floor
            )
        else:
            gradient = evidence.effects(self.state).to(self.state["prior"])
            self.state["mixture"] = mirror_descent(self.state["prior"], gradient, options.strength, floor)

    def _observe(self, job: Job) -> None:
        """One probe of every player's signal."""
        if "units" in self.state or self.options.signal == "answers":
            return
        names = self._layout(job).names(job)
        with self._fitted_heads(job):
            found = signals(job, self._goal, names, self.options, self.weights)
        evidence.add(self.state, found, self.options.memory)

    def _descend_and_observe(self, job: Job) -> None:
        """A step, and what the gradients that it is made of say; it costs little more than the step."""
        if job.step == 0:
            self._aim(job)
        _, taken = job.dissect(job.batch(), self.weights, self.options.scope)
        direction = under(self.state, "direction.")
        if not direction:
            goal = torch.tensor([self._goal.get(name, 0.0) for name in job.tasks])
            direction = taken.combine(goal.to(self.weights))
        found = of_step(job, taken, direction, self._layout(job).names(job), self.options)
        evidence.add(self.state, found, self.options.memory)

    def _aim(self, job: Job) -> None:
        """The target's gradient, for the steps until the next update, where the steps themselves do not have it."""
        if self.options.role == "train" and all(name in job.tasks for name in self._goal):
            return
        put(self.state, "direction.", self._direction(job))

    def _direction(self, job: Job) -> Vector:
        """∇_φ of the targets' losses on rows drawn for it."""
        with self._fitted_heads(job):
            rows = {name: job.draw(Role(self.options.role), self.options.probe_size, (name,)) for name in self._goal}
            return target_gradient(job, rows, self._goal, self.options.scope)

    def _update_units(self, job: Job) -> None:
        """Row by row or group by group; a source's weight is the sum of its rows'."""
        if self._units is None:
            return
        direction, options = self._direction(job), self.options
        if options.evidence == "latest":
            self.state["units"] = updated(job, self.state["units"], self._units, direction, options)
        else:
            self.state["units"] = accumulated(job, self.state, self._units, direction, options)
        self.state["mixture"] = self._units.mixture(self.state["units"])

    def _learn_share(self, job: Job) -> None:
        """(share, 1 − share) by Eq. 2.8: does dev_meta agree more with the target's rows, or with the sources?"""
        options, size = self.options, self.options.probe_size
        held = {name: job.draw(Role.DEV_META, size, (name,)) for name in self._goal}
        own = {name: job.draw(Role.TRAIN, size, (name,)) for name in self._goal}
        judge = target_gradient(job, held, self._goal, options.scope)
        names = self._layout(job).names(job)
        with job.probe(job.draw(Role.TRAIN, size, names), options.scope, names) as probe:
            sources = probe.task_gradients().combine(self.state["mixture"])
        sides = (target_gradient(job, own, self._goal, options.scope), sources)
        lengths = [length_of(judge) * length_of(side) for side in sides]
        cosines = [
            inner(judge, side) / length if length > 0 else 0.0 for side, length in zip(sides, lengths, strict=True)
        ]
        share = self.state["share"]
        both = mirror_descent(
            torch.stack([share, 1 - share]),
            -options.c * torch.tensor(cosines).to(share),
            options.eta,
            options.floor / 2,
        )
        self.state["share"] = both[0]

    @contextmanager
    def _fitted_heads(self, job: Job) -> Iterator[None]:
        """Step 2: the target's head follows φ where it is not trained with it; else for the length of a probe."""
        before = {}
        for name in self._goal:
            trained = name in job.tasks
            steps = self.options.head_steps if self.options.head_steps is not None else 0 if trained else HEAD_STEPS
            if steps and trained:
                before[name] = copy.deepcopy(job.model.head(name).state_dict())
            if steps:
                fit_head(job, name, steps, self.options.head_rate)
        yield
        for name, head in before.items():
            job.model.head(name).load_state_dict(head)

    def _compose(self, job: Job) -> None:
        self.weights = self._layout(job).compose(self.state["mixture"], self.state["share"])

    def _layout(self, job: Job) -> Layout:
        return Layout.of(job.tasks, self._goal, self.options.share == "paper")

    def _has_sources(self, job: Job) -> bool:
        return any(name not in self._goal for name in job.tasks)

    def _sees_steps(self, job: Job) -> bool:
        """Whether every step is looked at: not where it holds one task alone, or its gradients are combined."""
        whole = job.tasks_per_step == len(job.tasks) and self.combination is None
        return self.options.observe == "step" and whole and self._learns(job)

    def _learns(self, job: Job) -> bool:
        """Whether there is anything to learn: not with given weights, and not without a source."""
        return self.options.weights is None and self._has_sources(job)

    def _given(self, job: Job) -> Tensor:
        """The first weights ``[T]``: the paradigm's, or the user's."""
        given = self.options.weights
        if given is None:
            return job.initial_weights.clone()
        weights = torch.tensor([given.get(name, 0.0) for name in job.tasks]).to(job.initial_weights)
        if not bool(weights.sum() > 0):
            raise SteelyardError(f"method 'tawt', option 'weights': nothing for {', '.join(job.tasks)}")
        return weights / weights.sum()

    def row_weights(self) -> Mapping[str, Tensor]:
        """The weights of rows within their sources, where rows or groups of them have weights."""
        units = self.state.get("units")
        return {} if units is None or self._units is None else self._units.row_weights(units)


def _due(every: int | None, step: int) -> bool:
    return every is not None and (step + 1) % every == 0
