"""αVIL: how far to go along each task's own update, and so how much the task should count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from steelyard.errors import SteelyardError
from steelyard.methods import base
from steelyard.methods._turns import Round, Turn, begin_turn, drop, end_turn, open_round, put, under, with_dev_meta
from steelyard.methods.alphavil.mixing import keep, mean_buffers, place, slopes, tune
from steelyard.methods.base import Method, Search
from steelyard.methods.job import Job
from steelyard.tasks import Role, Suite

PUBLISHED: dict[str, Any] = {
    "solver": "sgd", "steps": 10, "accept": False, "acts_on": "loss", "dev_role": "dev_select", "ratio": 1.0,
}  # fmt: skip
"""What the paper does; any of it can be set otherwise."""


class AlphaVIL(Method):
    """αVIL, Algorithm 1: trains each task alone from one start, and mixes the updates for the target.

    In each round:

    1. every task t, the target too, is trained alone from the same θ to θ_t; δ_t = (w_t/Σw)·(θ_t - θ);
    2. from α = 1, α is moved to lower L_dev(θ + Σ α_t δ_t), the target's loss on held-out rows;
    3. θ ← θ + Σ α_t δ_t and w_t ← max(floor, w_t + α_t - 1).

    A round takes ``ratio`` epochs and shows every task the rows that joint training would. `weights` are w/Σw.
    """

    name = "alphavil"
    search: ClassVar[Search] = {"ratio": (0.1, 0.25, 1.0), "radius": (0.03, 0.1, 0.3)}
    summary = "trains each task alone from the same start and mixes the updates for the target's dev loss"
    composes = False
    paper = "Kourdis, Gordon-Hall and Gorinski 2020, αVIL: Learning to Leverage Auxiliary Tasks"
    needs_target = True
    cost = "1 step, cut into one per task; T + 2 gradients of the target's held-out rows per round"

    class Options(base.Options):
        """Options of `AlphaVIL`."""

        ratio: float = Field(default=0.25, gt=0, le=1, description="ρ: epochs per round")
        solver: Literal["newton", "sgd"] = Field(default="newton", description="how α is found")
        steps: int = Field(default=1, ge=0, description="s: steps of the solver per round; 0 leaves α and w at 1")
        radius: float = Field(default=0.1, gt=0, description="newton: the longest step of α")
        damping: float = Field(default=0.01, ge=0, description="newton: added curvature, relative to the largest")
        alpha_rate: float = Field(default=0.005, gt=0, description="sgd: the learning rate of α")
        alpha_momentum: float = Field(default=0.5, ge=0, lt=1, description="sgd: its momentum")
        accept: bool = Field(default=True, description="keep α = 1 where the dev loss would rise")
        acts_on: Literal["delta", "rate", "loss"] = Field(
            default="delta", description="what w_t/Σw multiplies; Adam ignores factors of the loss"
        )
        heads: Literal["whole", "mixed"] = Field(
            default="mixed", description="whether α and w reach what only one task moves, its head"
        )
        floor: float = Field(default=1e-6, gt=0, description="the smallest w_t")
        joint_step: bool = Field(default=False, description="a step on all tasks with the new w after each round")
        moments: Literal["kept", "fresh"] = Field(default="kept", description="a task's optimiser state between turns")
        dev_role: Literal["dev_meta", "dev_select"] = Field(default="dev_meta", description="the rows that tune α")
        dev_fraction: float = Field(default=0.5, gt=0, lt=1, description="dev_meta's share of dev, if it has to be cut")
        train_fraction: float = Field(default=0.2, gt=0, lt=1, description="the same of train, where there is no dev")
        delta_device: Literal["same", "cpu"] = Field(default="same", description="where deltas are kept")
        delta_precision: Literal["full", "bfloat16", "float16"] = Field(default="full", description="and how exactly")
        as_published: bool = Field(default=False, description="other defaults: the paper's")

        @model_validator(mode="before")
        @classmethod
        def _published(cls, given: Any) -> Any:
            return PUBLISHED | given if isinstance(given, dict) and given.get("as_published") else given

    options: Options

    def prepare(self, suite: Suite, seed: int) -> Suite:
        """Cuts ``dev_meta`` from the target's dev rows, so that α is not tuned on the rows that choose the model."""
        if Role(self.options.dev_role) is Role.DEV_META:
            return with_dev_meta(suite, self.name, self.options.dev_fraction, self.options.train_fraction, seed)
        if Role.DEV_SELECT not in suite[str(suite.target)].rows:
            raise SteelyardError(f"task {suite.target!r} has no dev rows to tune α on; use dev_role = 'dev_meta'")
        return suite

    def start(self, job: Job) -> None:
        """Every task starts at w = 1."""
        if job.target is None:
            raise SteelyardError("method 'alphavil' tunes on the target's head: train it jointly, not by pre-training")
        self.state["importance"] = torch.ones(len(job.tasks), dtype=torch.float64, device=job.initial_weights.device)
        self.state["alpha"] = torch.ones_like(self.state["importance"])
        self._share(job)

    def step(self, job: Job) -> None:
        """The next turns of the round (lines 3 to 6); after the last of them, α and the merge (lines 7 to 11)."""
        now = Round.of(job, self.options.ratio)
        if job.step == now.first:
            open_round(self.state, job)
        for turn in now.turns(job.step):
            self._train(job, turn)
        if job.step + 1 == now.end:
            self._merge(job)

    def notes(self) -> dict[str, float]:
        """The last round's α of each task, in the tasks' order."""
        return {f"alpha/{task}": alpha for task, alpha in enumerate(self.state["alpha"].tolist())}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes the state of another run; deltas go where they are kept."""
        super().load_state_dict(state)
        if self.options.delta_device == "cpu":
            self.state |= {key: value.cpu() for key, value in self.state.items() if key.startswith("delta.")}

    def _train(self, job: Job, turn: Turn) -> None:
        """One optimiser step of one task, from the round's start if it is the turn's first."""
        if turn.first:
            begin_turn(self.state, job, turn.task)
        acts_on = self.options.acts_on
        share = 1.0 if acts_on == "delta" else float(self.weights[turn.task])
        job.minimise(
            job.alone(job.tasks[turn.task], turn.number),
            lambda losses: losses[turn.task] * (share if acts_on == "loss" else 1.0),
            self.weights,
            rate=share if acts_on == "rate" else 1.0,
        )
        if turn.last:
            end_turn(self.state, job, turn.task, self.options.moments == "kept")
            o = self.options
            keep(
                self.state, job.model, turn.task, float(self.weights[turn.task]) if acts_on == "delta" else 1.0,
                whole=set(job.model.scope("heads")) if o.heads == "whole" else set(),
                on_cpu=o.delta_device == "cpu", precision=o.delta_precision,
            )  # fmt: skip

    def _merge(self, job: Job) -> None:
        """Lines 7 to 11: α, then θ and w. Buffers become the tasks' mean."""
        count = len(job.tasks)
        begin = under(self.state, "start.") | mean_buffers(self.state, count) | under(self.state, "whole.")
        job.restore(begin)
        deltas = [under(self.state, f"delta.{task}.") for task in range(count)]
        parameters = dict(job.model.named_parameters())

        def dev(alpha: Tensor) -> tuple[float, Tensor]:
            place(parameters, begin, deltas, alpha)
            loss, gradient = job.gradient_on(Role(self.options.dev_role), job.tasks[job.target or 0])
            return float(loss), slopes(gradient, deltas)

        o = self.options
        alpha = tune(
            dev, count, solver=o.solver, steps=o.steps, accept=o.accept, radius=o.radius, damping=o.damping,
            rate=o.alpha_rate, momentum=o.alpha_momentum,
        )  # fmt: skip
        place(parameters, begin, deltas, alpha)
        drop(self.state, "start.", "delta.", "whole.", "buffer.", "random.")
        self.state["alpha"] = alpha.to(self.state["importance"])
        self.state["importance"] = (self.state["importance"] + self.state["alpha"] - 1).clamp_min(o.floor)
        self._share(job)
        if o.joint_step:
            self._descend_jointly(job)

    def _share(self, job: Job) -> None:
        importance = self.state["importance"]
        self.weights = (importance / importance.sum()).to(job.initial_weights)

    def _descend_jointly(self, job: Job) -> None:
        job.restore_moments(under(self.state, "joint."))
        job.descend(job.batch(), self.weights)
        if self.options.moments == "kept":
            put(self.state, "joint.", job.moments())
