"""The optimiser and its schedule, by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.errors import SteelyardError, did_you_mean
from steelyard.functional import adam_preconditioner
from steelyard.training.settings import Phase, Training


class Optimisation:
    """One phase's optimiser with its schedule and gradient clipping."""

    def __init__(
        self, model: nn.Module, training: Training, phase: Phase, steps_per_epoch: int, accelerator: Any
    ) -> None:
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._named = named
        self._parameters = list(named.values())
        if not named:
            raise SteelyardError("the model has no parameter to train: all are frozen")
        rates: Any = getattr(getattr(model, "encoder", None), "rates", dict)
        optimizer = build_optimizer(named, training, phase.learning_rate, rates())
        self._kind = type(optimizer)
        total = steps_per_epoch * phase.epochs
        self.schedule = build_schedule(optimizer, training, total)
        # Without a loss scale Accelerate's wrapper has nothing to do, and costs as much as a small model's step.
        self.optimizer = optimizer if accelerator.scaler is None else accelerator.prepare_optimizer(optimizer)
        self._accelerator = accelerator
        self._clip = training.clip

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def scaled(self) -> bool:
        """Whether there is a loss scale, under which a step whose gradients overflow is left out."""
        return self._accelerator.scaler is not None

    @property
    def loss_scale(self) -> float:
        """What losses are multiplied with before a backward, and gradients divided by in the step."""
        if self._accelerator.scaler is None:
            return 1.0
        return float(self._accelerator.scaler.scale(torch.ones((), device=self._parameters[0].device)))

    def backward(self, loss: Tensor) -> None:
        """Adds a loss's gradients, under the loss scale where there is one."""
        if self._accelerator.scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self._accelerator.backward(loss)

    def step(self, rate: float = 1.0, advance: bool = True) -> None:
        """Clips, steps, moves the schedule on (with ``advance``), and forgets the gradients.

        ``rate`` multiplies the learning rate of this step.
        """
        if self._clip is not None:
            self._accelerator.clip_grad_norm_(self._parameters, self._clip)
        before = [group["lr"] for group in self.optimizer.param_groups]
        if rate != 1.0:
            for group in self.optimizer.param_groups:
                group["lr"] = group["lr"] * rate
        self.optimizer.step()
        for group, own in zip(self.optimizer.param_groups, before, strict=True):
            group["lr"] = own
        if advance and self.schedule is not None:
            self.schedule.step()
        self.optimizer.zero_grad()

    def metric(self, name: str, ids: Tensor | None = None) -> Tensor | float:
        """P of the last step: how a parameter's move, -rate·P·g, answered to its gradient g, all else held.

        For Adam and AdamW 1/(√v̂ + ε) times what the momentum lets through at once; 1 for plain gradient descent.

        Args:
            name: The parameter's name.
            ids: Rows of the parameter, ``LongTensor[n]``; by default all.
        """
        kind, parameter = self._kind, self._named[name]
        own = self.optimizer.state.get(parameter, {})
        group = next(g for g in self.optimizer.param_groups if any(p is parameter for p in g["params"]))
        if kind is torch.optim.SGD:
            return 1.0 + group["momentum"] if group["nesterov"] else 1.0
        if kind not in (torch.optim.Adam, torch.optim.AdamW):
            raise SteelyardError(
                f"optimizer {kind.__name__}: how its step answers to a gradient is not known; use Adam, AdamW or SGD, "
                "or a method's form for plain gradient descent"
            )
        if not own:
            return 1.0
        second = own["max_exp_avg_sq"] if group["amsgrad"] else own["exp_avg_sq"]
        second = second if ids is None else second[ids]
        return adam_preconditioner(second, int(own["step"]), group["betas"], group["eps"])

    def moments(self) -> dict[str, Tensor]:
        """A copy of what the optimiser keeps per parameter: ``"{its number}.{what}"`` to a tensor."""
        kept = {
            f"{number}.{what}": value
            for number, own in self.optimizer.state_dict()["state"].items()
            for what, value in own.items()
            if value is not None
        }
        if not all(isinstance(value, Tensor) for value in kept.values()):
            raise SteelyardError(
                f"optimizer {type(self.optimizer).__name__} keeps more than tensors, and so cannot take turns; "
                "choose another, such as SGD or AdamW"
            )
        return {key: value.detach().clone() for key, value in kept.items()}

    def restore_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Puts `moments` back; an empty mapping makes the optimiser forget."""
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in moments.items():
            number, what = key.split(".", 1)
            # Counts of steps stay on the CPU, where torch keeps them; it moves all else to the parameter's device.
            own = value.detach().to("cpu" if what == "step" else value.device, copy=True)
            state.setdefault(int(number), {})[what] = own
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": state})

    def state_dict(self) -> dict[str, Any]:
        """Moments, schedule and loss scale."""
        scaler = self._accelerator.scaler
        return {
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts `state_dict` back."""
        self.optimizer.load_state_dict(state["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])
        if state["scaler"] is not None:
            self._accelerator.scaler.load_state_dict(state["scaler"])


def build_optimizer(
    named: dict[str, nn.Parameter],
    training: Training,
    rate: float,
    factors: Mapping[nn.Parameter, float] | None = None,
) -> torch.optim.Optimizer:
    """Any optimiser of ``torch.optim``; a method's own parameters (``method.…``) have no weight decay.

    ``factors`` multiply the learning rate of some parameters. The first group has the rate itself.
    """
    slower: dict[float, list[nn.Parameter]] = {1.0: []}
    own = [p for name, p in named.items() if name.startswith("method.")]
    for name, p in named.items():
        if not name.startswith("method."):
            slower.setdefault((factors or {}).get(p, 1.0), []).append(p)
    parameters: list[Any] = slower.pop(1.0)
    if own or slower:
        parameters = [{"params": parameters}]
        parameters += [{"params": some, "lr": rate * factor} for factor, some in slower.items()]
        parameters += [{"params": own, "weight_decay": 0.0}] if own else []
    kind = getattr(torch.optim, training.optimizer)
    options = {"lr": rate, **_quickest(kind, named, training.optimizer_options), **training.optimizer_options}
    optimizer: torch.optim.Optimizer = _built(kind, f"optimizer {training.optimizer!r}", parameters, options)
    return optimizer


def _quickest(kind: type, named: Mapping[str, nn.Parameter], given: Mapping[str, Any]) -> dict[str, bool]:
    """Adam in one pass over the parameters: torch's own choice on the CPU is a dozen, several times the cost."""
    fits = kind in (torch.optim.Adam, torch.optim.AdamW) and not {"fused", "foreach", "differentiable"} & set(given)
    return {"fused": True} if fits and all(p.device.type == "cpu" for p in named.values()) else {}


def build_schedule(
    optimizer: torch.optim.Optimizer, training: Training, total: int
) -> torch.optim.lr_scheduler.LRScheduler | None:
    """Constant, linear or cosine decay over ``total`` steps, or any scheduler of torch, after a linear warm-up."""
    name, warmup = training.schedule, round(training.warmup * total)
    shapes: dict[str, Callable[[float], float]] = {
        "constant": lambda _: 1.0,
        "linear": lambda done: 1.0 - done,
        "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
    }
    if name in shapes:
        if name == "constant" and not warmup:
            return None

        def factor(step: int) -> float:
            if step < warmup:
                return (step + 1) / (warmup + 1)
            return shapes[name](min(1.0, (step - warmup) / max(1, total - warmup)))

        return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    kind = getattr(torch.optim.lr_scheduler, name, None)
    if not inspect.isclass(kind) or not issubclass(kind, torch.optim.lr_scheduler.LRScheduler):
        known = [
            *shapes,
            *(n for n in dir(torch.optim.lr_scheduler) if n.endswith("LR") and not n.startswith("_")),
        ]
        hint = did_you_mean(name, known) or f"choose {', '.join(known)}"
        raise SteelyardError(f"there is no schedule {name!r}; {hint}")
    schedule: torch.optim.lr_scheduler.LRScheduler = _built(
        kind, f"schedule {name!r}", optimizer, training.schedule_options
    )
    if not warmup:
        return schedule
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / (warmup + 1), 1.0, warmup)
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, schedule], [warmup])


def _built(kind: type[Any], what: str, subject: Any, options: dict[str, Any]) -> Any:
    known = list(inspect.signature(kind).parameters)[1:]
    for option in options:
        if option not in known:
            hint = did_you_mean(option, known) or f"its options are {', '.join(known)}"
            raise SteelyardError(f"{what} has no option {option!r}; {hint}")
    try:
        return kind(subject, **options)
    except (TypeError, ValueError) as error:
        raise SteelyardError(f"{what}: {error}") from error
