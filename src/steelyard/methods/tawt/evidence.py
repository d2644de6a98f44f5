"""What many noisy probes say together: effects, shrunk by how well they are known."""

from __future__ import annotations

import math
from collections.abc import MutableMapping

import torch
from torch import Tensor

State = MutableMapping[str, Tensor]


def begin(state: State, players: int, like: Tensor) -> None:
    """Empty sums for ``players`` signals, in float64."""
    zero = torch.zeros(players, dtype=torch.float64, device=like.device)
    for name in ("total", "squares", "pending"):
        state[name] = zero.clone()
    for name in ("mass", "mass_squares", "pended"):
        state[name] = zero.new_zeros(())


def add(state: State, signal: Tensor, memory: float) -> None:
    """Takes one probe's signals ``[P]`` in.

    What all players have in common (the target's own noise in this probe) does not tell them apart, and is left
    out of the accumulated sums.
    """
    signal = signal.to(state["total"])
    own = signal - signal.mean()
    state["total"] = memory * state["total"] + own
    state["squares"] = memory * state["squares"] + own.square()
    state["mass"] = memory * state["mass"] + 1
    state["mass_squares"] = memory**2 * state["mass_squares"] + 1
    state["pending"] = state["pending"] + signal
    state["pended"] = state["pended"] + 1


def latest(state: State) -> Tensor:
    """The mean of the signals since the last update, ``[P]``; they are then forgotten."""
    mean = state["pending"] / state["pended"].clamp(min=1)
    state["pending"], state["pended"] = torch.zeros_like(mean), torch.zeros_like(state["pended"])
    return mean


def summary(state: State) -> tuple[Tensor, Tensor]:
    """Means of the players' signals relative to each other, and their standard errors: ``[P]`` and ``[P]``.

    With forgetting, the number of probes is (Σm)² / Σm², m being what is left of each probe.
    """
    mass = state["mass"].clamp(min=1)
    count = mass.square() / state["mass_squares"].clamp(min=1)
    mean = state["total"] / mass
    variance = (state["squares"] / mass - mean.square()).clamp(min=0) * count / (count - 1).clamp(min=1e-9)
    return mean, (variance / count).sqrt()


def effects(state: State) -> Tensor:
    """How far each player is from the others by all that was seen: `shrunk` ``[P]``; 0 before a second look."""
    mean, error = summary(state)
    if float(state["mass_squares"]) == 0 or float(state["mass"].square() / state["mass_squares"]) < 2:
        return torch.zeros_like(mean)
    return shrunk(mean, error)


def of_looks(looks: Tensor) -> Tensor:
    """The same from looks that are all there, ``[n, P]``: ``[P]``."""
    own = looks - looks.mean(1, keepdim=True)
    return shrunk(own.mean(0), own.std(0) / math.sqrt(len(own))) if len(own) > 1 else torch.zeros_like(own[0])


def shrunk(mean: Tensor, error: Tensor) -> Tensor:
    """How far each player is from the others, in standard deviations, shrunk by the evidence: ``[P]``.

    e_t = (1 − s²/v)₊ · (m_t − m̄)/√v, with m_t the mean signal, v the variance of the m_t between players and s²
    the mean squared standard error: v is about s² where the players differ by noise alone, and the effects are then
    nothing (positive-part James–Stein).
    """
    if len(mean) < 2:
        return torch.zeros_like(mean)
    spread = mean.var()
    trust = 1 - error.square().mean() / spread
    if not bool(spread > 0) or not bool(trust > 0):
        return torch.zeros_like(mean)
    return trust * (mean - mean.mean()) / spread.sqrt()
