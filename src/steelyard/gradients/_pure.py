"""Probing without a trace: what a forward and its gradients leave behind is put back, bitwise."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from steelyard.gradients._errors import GradientError

if TYPE_CHECKING:
    from collections.abc import Iterator

Mode = Literal["eval", "train", "keep"]


@contextmanager
def pure(module: nn.Module, mode: Mode = "eval") -> Iterator[None]:
    """Run forwards and take gradients inside the block; afterwards the module and the generators are as before.

    Put back are: which layers train, buffers (BatchNorm statistics and counters), every parameter's `.grad`, and the
    states of torch's random generators. `.grad` is None inside. Parameters must not be changed: that is refused at
    the end of the block, because only a copy of the whole model could put them back.

    Args:
        module: the module to leave as it is.
        mode: "eval" or "train" for all its layers, or "keep" for each layer's own.

    Raises:
        GradientError: if the block changed a parameter.
    """
    training = [(layer, layer.training) for layer in module.modules()]
    buffers = [(value, value.detach().clone()) for value in module.buffers()]
    slots = [(layer, name, value) for layer in module.modules() for name, value in layer._buffers.items()]
    parameters = list(module.named_parameters())
    versions = [(name, value, value._version) for name, value in parameters]
    grads = [(value, value.grad) for _, value in parameters]
    cpu, devices = torch.get_rng_state(), _device_states()
    for value, _ in grads:
        value.grad = None
    if mode != "keep":
        module.train(mode == "train")
    try:
        yield
    finally:
        for layer, was in training:
            layer.training = was
        _put_back(buffers, slots)
        for value, grad in grads:
            value.grad = grad
        torch.set_rng_state(cpu)
        for device, state in enumerate(devices):
            torch.cuda.set_rng_state(state, device)
    changed = [name for name, value, version in versions if value._version != version]
    if changed:
        raise GradientError(
            f"the probe changed parameters: {', '.join(changed)}. Do the update outside gradients.pure(...), or a copy"
        )


def _device_states() -> list[Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


@torch.no_grad()
def _put_back(buffers: list[tuple[Tensor, Tensor]], slots: list[tuple[nn.Module, str, Tensor | None]]) -> None:
    for layer, name, value in slots:
        layer._buffers[name] = value
    for value, before in buffers:
        value.copy_(before)
