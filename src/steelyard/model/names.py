"""What has a name: heads, scopes of parameters, and tasks among a module's children."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from torch import nn

from steelyard.errors import SteelyardError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable

    from steelyard.tasks import HeadFactory

T = TypeVar("T")


def mlp_head(width: int, outputs: int, hidden: int | None = None) -> nn.Module:
    """Linear, ReLU, linear; the hidden layer is as wide as the features unless said otherwise."""
    hidden = hidden or width
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


HEADS: dict[str, HeadFactory] = {"linear": nn.Linear, "mlp": mlp_head, "token": nn.Linear}
"""Heads by name; `steelyard.heads` adds to it. A linear layer works on the last axis, thus on tokens too."""


def build_head(task: str, head: str | HeadFactory, width: int, outputs: int) -> nn.Module:
    """A task's head, by name or by its own factory, on features of the given width."""
    if isinstance(head, str):
        if head not in HEADS:
            raise unknown(f"task {task!r}: head", head, HEADS)
        head = HEADS[head]
    return head(width, outputs)


def given(value: T | None) -> T:
    """What `Task` has filled in."""
    if value is None:
        raise TypeError("a task has no head, loss or outputs")
    return value


def unknown(what: str, name: str, known: Iterable[str]) -> SteelyardError:
    """The error for a name that there is not, with the nearest one that there is."""
    known = list(known)
    hint = " ".join(filter(None, (did_you_mean(name, known), f"there are: {', '.join(known)}")))
    return SteelyardError(f"{what} {name!r} is unknown; {hint}")


def key(task: str) -> str:
    """A task's name as a child's: no dot, not empty, nothing that `ModuleDict` has; names stay different."""
    escaped = task.replace("%", "%25").replace(".", "%2E")
    return escaped + "%" if not escaped or hasattr(nn.ModuleDict(), escaped) else escaped


def scope(model: nn.Module, name: str, trainable: bool) -> dict[str, nn.Parameter]:
    """The parameters that a scope of `SharedModel` names."""
    every = list(model.named_parameters(remove_duplicate=False))
    first: dict[nn.Parameter, str] = {}
    for path, parameter in every:
        first.setdefault(parameter, path)
    prefix = {"shared": "encoder.", "heads": "heads.", "all": ""}.get(name)
    if prefix is not None:
        chosen = {p: path for p, path in first.items() if path.startswith(prefix)}
    else:
        pattern = _pattern(name)
        chosen = {p: first[p] for path, p in every if pattern.search(path)}
    found = {path: p for p, path in chosen.items() if p.requires_grad or not trainable}
    if not found:
        why = "its parameters are all frozen" if chosen else "no parameter's name matches"
        raise SteelyardError(
            f"scope {name!r} is empty ({why}); use shared, heads, all or a regular expression for names "
            f"such as {', '.join(_examples(list(first.values())))}"
        )
    return found


def _pattern(expression: str) -> re.Pattern[str]:
    try:
        return re.compile(expression)
    except re.error as error:
        raise SteelyardError(
            f"scope {expression!r} is not a regular expression ({error}); correct it, or use shared, heads or all"
        ) from None


def _examples(names: list[str]) -> list[str]:
    """A few parameters' names from along the model."""
    return list(dict.fromkeys(names[i * (len(names) - 1) // 3] for i in range(4))) if names else []
