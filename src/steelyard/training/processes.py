"""What several processes have to agree on: who writes, when to stop, and that they have not drifted apart."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from steelyard.errors import SteelyardError

T = TypeVar("T")


class ToldElsewhereError(SteelyardError):
    """An error of the first process, as the others raise it; it has been told once."""


class LostProcessError(SteelyardError):
    """Another process of the run has ended."""


def leads() -> bool:
    """Whether this is the only process, or the first of those that were launched together."""
    return int(os.environ.get("RANK", "0")) == 0


def launched() -> int:
    """How many processes were launched together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def first_does(accelerator: Any, action: Callable[[], T]) -> T:
    """What an action of the first process gives, in every process; what it refuses, all refuse."""
    if accelerator.num_processes == 1:
        return action()
    answer: list[Any] = [None, None]
    refused: SteelyardError | None = None
    if accelerator.is_main_process:
        try:
            answer[0] = action()
        except SteelyardError as error:
            refused, answer[1] = error, (type(error).__name__, str(error))
    dist.broadcast_object_list(answer, src=0)
    if refused is not None:
        raise refused
    if answer[1] is not None:
        raise ToldElsewhereError(answer[1][1])
    found: T = answer[0]
    return found


def agreed(accelerator: Any, due: bool, stop: bool) -> tuple[bool, bool]:
    """Whether to write a checkpoint, as the first process says, and whether to stop, as any of them says."""
    votes = torch.tensor([float(due and accelerator.is_main_process), float(stop)], device=accelerator.device)
    due, stop = (bool(vote > 0) for vote in accelerator.reduce(votes, "sum").tolist())
    return due, stop


def share_buffers(model: nn.Module) -> None:
    """Buffers become what the first process has: each has seen its own rows (BatchNorm's statistics)."""
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)


def must_agree(accelerator: Any, model: nn.Module, weights: Tensor, step: int) -> None:
    """Refuses to go on where parameters or weights are not bitwise the first process's own."""
    sums = [p.detach().double().sum() for p in model.parameters()]
    mine = torch.cat([torch.stack(sums), weights.detach().double().to(sums[0])]).nan_to_num()
    first = mine.clone()
    dist.broadcast(first, src=0)
    apart = torch.tensor([float(not torch.equal(mine, first))], device=accelerator.device)
    if float(accelerator.reduce(apart, "sum")) > 0:
        raise SteelyardError(
            f"the processes have drifted apart by step {step}: their parameters or weights differ. Is there a method "
            "or an encoder that draws from a randomness of its own, or sums nothing over processes? Train in one"
        )


@contextmanager
def together(accelerator: Any, kept: Callable[[], str]) -> Iterator[None]:
    """Says in one line that another process has ended, where a sum over processes fails; ``kept`` says what is left."""
    if accelerator.num_processes == 1:
        yield
        return
    try:
        yield
    except RuntimeError as error:
        if not _is_loss_of_a_peer(error):
            raise
        raise LostProcessError(
            f"another process of this run has ended, and so does this one (rank {accelerator.process_index}): {kept()}"
        ) from error


def _is_loss_of_a_peer(error: RuntimeError) -> bool:
    signs = ("gloo", "nccl", "connection closed", "connection reset", "broken pipe", "socket", "peer", "store")
    return isinstance(error, dist.DistError) or any(sign in str(error).lower() for sign in signs)
