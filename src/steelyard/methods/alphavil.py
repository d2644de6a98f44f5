"""αVIL: how far to go along each task's own update, and so how much the task should count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from steelyard import functional
from steelyard.errors import SteelyardError
from steelyard.methods import base
from steelyard.methods._turns import Round, Turn, begin_turn, drop, end_turn, open_round, put, under, with_dev_meta
from steelyard.methods.base import Job, Method
from steelyard.tasks import Role, Suite

Dev = Callable[[Tensor], tuple[float, Tensor]]
"""α ``[T]`` to the dev loss at θ + Σ α_t δ_t and its slopes ∂L/∂α ``[T]``."""

PUBLISHED: dict[str, Any] = {
    "solver": "sgd", "steps": 10, "accept": False, "acts_on": "loss", "dev_role": "dev_select", "ratio": 1.0,
}  # fmt: skip
"""What the paper does; any of it can be set otherwise."""

_STORED = {"full": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
_BEND = 0.05
"""How far α is moved to see how the slopes change."""


class AlphaVIL(Method):
    """αVIL, Algorithm 1: trains each task alone from one start, and mixes the updates for the target.

    In each round:

    1. every task t, the target too, is trained alone from the same θ to θ_t; δ_t = (w_t/Σw)·(θ_t - θ);
    2. from α = 1, α is moved to lower L_dev(θ + Σ α_t δ_t), the target's loss on held-out rows;
    3. θ ← θ + Σ α_t δ_t and w_t ← max(floor, w_t + α_t - 1).

    A round takes ``ratio`` epochs and shows every task the rows that joint training would. `weights` are w/Σw.
    """

    name = "alphavil"
    summary = "trains each task alone from the same start and mixes the updates for the target's dev loss"
    composes = False
    paper = "Kourdis, Gordon-Hall and Gorinski 2020, αVIL: Learning to Leverage Auxiliary Tasks"
    needs_target = True

    class Options(base.Options):
        """Options of `AlphaVIL`."""

        ratio: float = Field(default=0.25, gt=0, le=1, description="ρ: epochs per round")
        solver: Literal["newton", "sgd"] = Field(default="newton", description="how α is found")
        steps: int = Field(default=1, ge=0, description="s: steps of the solver per round; 0 leaves α and w at 1")
        radius: float = Field(default=0.5, gt=0, description="newton: the longest step of α")
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

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes the state of another run; deltas go where they are kept."""
        super().load_state_dict(state)
        if self.options.delta_device == "cpu":
            self.state |= {key: value.cpu() for key, value in self.state.items() if key.startswith("delta.")}

    def _train(self, job: Job, turn: Turn) -> None:
        """One optimiser step of one task, from the round's start if it is the turn's first."""
        if turn.first:
            begin_turn(self.state, job, turn.task)
        share, acts_on = float(self.weights[turn.task]), self.options.acts_on
        batch = job.alone(job.tasks[turn.task], turn.number)
        job.minimise(
            batch,
            lambda losses: losses[turn.task] * (share if acts_on == "loss" else 1.0),
            self.weights,
            rate=share if acts_on == "rate" else 1.0,
        )
        if turn.last:
            end_turn(self.state, job, turn.task, self.options.moments == "kept")
            self._keep(job, turn.task, share if acts_on == "delta" else 1.0)

    def _keep(self, job: Job, task: int, share: float) -> None:
        """δ_t = share·(θ_t - θ), of the parameters that moved, and the buffers' sum over the tasks."""
        begin, dtype = under(self.state, "start."), _STORED[self.options.delta_precision]
        own = set(job.model.scope("heads")) if self.options.heads == "whole" else set()
        for name, parameter in job.model.named_parameters():
            delta = parameter.detach() - begin[name]
            if name in own and delta.any():
                self.state[f"whole.{name}"] = parameter.detach().clone()
            elif delta.any():
                delta = delta * share
                device = "cpu" if self.options.delta_device == "cpu" else delta.device
                self.state[f"delta.{task}.{name}"] = delta.to(device=device, dtype=dtype or delta.dtype)
        for name, buffer in job.model.named_buffers():
            if name in begin and buffer.dtype != torch.bool:
                wide = buffer.double() if buffer.is_floating_point() else buffer.clone()
                before = self.state.get(f"buffer.{name}")
                self.state[f"buffer.{name}"] = wide if before is None else before + wide

    def _merge(self, job: Job) -> None:
        """Lines 7 to 11: α, then θ and w. Buffers become the tasks' mean."""
        begin, count = under(self.state, "start."), len(job.tasks)
        sums = under(self.state, "buffer.")
        means = {n: (v / count if v.is_floating_point() else v // count).to(begin[n].dtype) for n, v in sums.items()}
        begin = begin | means | under(self.state, "whole.")
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


@torch.no_grad()
def place(
    parameters: Mapping[str, Tensor],
    start: Mapping[str, Tensor],
    deltas: Sequence[Mapping[str, Tensor]],
    alpha: Tensor,
) -> None:
    """Writes θ + Σ α_t δ_t into the parameters, in place.

    Args:
        parameters: What is written to, by name.
        start: θ, by the same names.
        deltas: δ_t of each task: the parameters that it moved, by name.
        alpha: ``[T]``.
    """
    for name in {name: None for delta in deltas for name in delta}:
        value = start[name].clone()
        for factor, delta in zip(alpha.tolist(), deltas, strict=True):
            if name in delta:
                value += delta[name].to(value) * factor
        parameters[name].copy_(value)


def slopes(gradient: Mapping[str, Tensor], deltas: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """∂L/∂α_t = ⟨∇L, δ_t⟩ for each task, ``[T]`` in float64 on the CPU; no double backward.

    Args:
        gradient: ∇L at θ + Σ α_t δ_t, by parameter name.
        deltas: δ_t of each task, by parameter name.
    """
    found = [
        sum(
            (torch.sum(gradient[n] * d.to(gradient[n]), dtype=torch.float64) for n, d in delta.items()), torch.zeros(())
        )
        for delta in deltas
    ]
    return torch.stack([slope.double().cpu() for slope in found])


def tune(
    dev: Dev,
    tasks: int,
    *,
    solver: Literal["newton", "sgd"] = "newton",
    steps: int = 1,
    accept: bool = True,
    radius: float = 0.5,
    damping: float = 0.01,
    rate: float = 0.005,
    momentum: float = 0.5,
) -> Tensor:
    """α that lowers the dev loss (lines 8 and 9), from α = 1.

    ``newton`` takes trust-region steps in the T-dimensional space; the curvature is that of the slopes, by finite
    differences, so a step costs T + 1 gradients of the dev loss. ``sgd`` is as published.

    Args:
        dev: The dev loss and its slopes at an α.
        tasks: T.
        solver: ``newton`` or ``sgd``.
        steps: s, how many steps.
        accept: Whether a step (``newton``) or the whole (``sgd``) is taken back if the dev loss rises by it.
        radius: The longest step, for ``newton``.
        damping: Curvature that is added in every direction, relative to the largest on the diagonal.
        rate: The learning rate, for ``sgd``.
        momentum: Its momentum.

    Returns:
        ``Tensor[T]`` in float64; 1 where the dev loss is not a finite number.
    """
    alpha = torch.ones(tasks, dtype=torch.float64)
    if not steps:
        return alpha
    loss, slope = dev(alpha)
    if solver == "newton":
        for _ in range(steps):
            found = _newton_step(dev, alpha, loss, slope, radius, damping, accept)
            if found is None:
                break
            alpha, loss, slope = found
        return alpha
    first, velocity = loss, torch.zeros_like(alpha)
    for number in range(steps):
        if not bool(slope.isfinite().all()):
            return torch.ones_like(alpha)
        velocity = slope if number == 0 else momentum * velocity + slope
        alpha = alpha - rate * velocity
        if accept or number + 1 < steps:
            loss, slope = dev(alpha)
    return torch.ones_like(alpha) if accept and not loss <= first else alpha


def _newton_step(
    dev: Dev, alpha: Tensor, loss: float, slope: Tensor, radius: float, damping: float, accept: bool
) -> tuple[Tensor, float, Tensor] | None:
    """The next α with its loss and slopes; None if no step of any length is better."""
    unit = _BEND * torch.eye(len(alpha), dtype=alpha.dtype)
    curvature = torch.stack([(dev(alpha + bend)[1] - slope) / _BEND for bend in unit])
    if not bool(slope.isfinite().all() and curvature.isfinite().all()):
        return None
    curvature = (curvature + curvature.T) / 2
    curvature += damping * curvature.diagonal().abs().max() * torch.eye(len(alpha), dtype=alpha.dtype)
    for _ in range(4):
        moved = alpha + functional.trust_region_step(slope, curvature, radius)
        after, slope_after = dev(moved)
        if after <= loss or not accept:
            return moved, after, slope_after
        radius /= 4
    return None
