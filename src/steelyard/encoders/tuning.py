"""What of a Hugging Face encoder is trained, and how fast: frozen layers, rates per layer, low-rank changes."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

from pydantic import Field
from torch import nn

from steelyard.errors import SteelyardError

Freeze = bool | Annotated[int, Field(ge=0)]
"""Everything, nothing, or the embeddings and so many of the first layers."""

Share = Annotated[float, Field(gt=0, le=1)]
"""A factor."""

Rank = Annotated[int, Field(ge=0)]
"""The rank of a matrix; 0 for none."""


def layers_of(model: nn.Module) -> list[nn.Module]:
    """A transformer's layers, the first first: the longest list of modules in it."""
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=_length, default=[])


def _length(modules: list[nn.Module]) -> int:
    return len(modules)


def depths(model: nn.Module, layers: list[nn.Module]) -> dict[nn.Parameter, int]:
    """The layer of each parameter, from 0; -1 for what comes before the first, such as embeddings."""
    owner = {p: depth for depth, layer in enumerate(layers) for p in layer.parameters()}
    found: dict[nn.Parameter, int] = {}
    depth = -1
    for parameter in model.parameters():
        depth = found[parameter] = owner.get(parameter, depth)
    return found


def freeze(model: nn.Module, layers: list[nn.Module], what: Freeze, name: str) -> None:
    """Freezes the whole model, or all that comes before a layer."""
    model.requires_grad_(requires_grad=what is not True)
    if isinstance(what, bool):
        return
    if what > len(layers):
        raise SteelyardError(f"encoder {name} has {len(layers)} layers, fewer than freeze = {what}; freeze all: true")
    for parameter, depth in depths(model, layers).items():
        parameter.requires_grad_(depth >= what)


def rates(model: nn.Module, layers: list[nn.Module], decay: float) -> dict[nn.Parameter, float]:
    """Decay to the power of how many layers lie above a parameter's own; the embeddings lie below all."""
    return {p: decay ** (len(layers) - 1 - depth) for p, depth in depths(model, layers).items()}


def with_lora(model: nn.Module, rank: int, name: str) -> Any:
    """The model with low-rank changes to the products that make queries and values; all else is frozen."""
    try:
        import peft
    except ModuleNotFoundError as error:
        raise SteelyardError(f"encoder {name}: lora needs the package peft: pip install 'steelyard[text]'") from error
    ends = ("query", "value", "q_lin", "v_lin", "q_proj", "v_proj", "attn.q", "attn.v", "Wqkv")
    found = sorted({path for path, m in model.named_modules() if isinstance(m, nn.Linear) and path.endswith(ends)})
    if not found:
        raise SteelyardError(
            f"encoder {name} ({type(model).__name__}): its attention is not known to lora; leave it out"
        )
    settings = peft.LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by a name that is on its way out
        return peft.get_peft_model(model, settings)
