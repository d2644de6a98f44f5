"""What the method adds to the model: the decoder of token objectives, and the dev head."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from steelyard import gradients
from steelyard.encoders import SpecialTokens, Transformer
from steelyard.errors import SteelyardError
from steelyard.model import SharedModel
from steelyard.objectives import Decoder, Space, TokenTransform
from steelyard.tasks import Batch


class Auxiliary(nn.Module):
    """The dev head, which the optimiser never sees, and the decoder of token objectives.

    Args:
        head: A head like the target's; None without a target.
        decoder: The decoder, or one for each of them, if there are token objectives.
    """

    def __init__(self, head: nn.Module | None, decoder: nn.Module | None) -> None:
        super().__init__()
        self.head, self.decoder = head, decoder


def add_auxiliary(model: SharedModel, copies: bool = False) -> Auxiliary:
    """Puts the method's modules into a model, and joins its token objectives to one decoder, or each to its own."""
    token_tasks = [name for name in model.tasks if isinstance(model.head(name), TokenTransform)]
    head = None if model.target is None else copy.deepcopy(model.head(model.target)).requires_grad_(requires_grad=False)
    made = Auxiliary(head, _decoders(model, token_tasks, copies) if token_tasks else None)
    model.add_module("method", made)
    return made


def _decoders(model: SharedModel, tasks: list[str], copies: bool) -> nn.Module:
    """What turns vectors into losses, begun with the checkpoint's own head where it has a trained one."""
    encoder = transformer(model)
    made: list[Decoder] = []
    for several in [[name] for name in tasks] if copies else [tasks]:
        table = nn.Parameter(encoder.embeddings.detach().clone()) if copies else encoder.embeddings
        made.append(Decoder(table, model.width))
        model.join(several, made[-1])
    if (trained := encoder.language_head()) is not None:
        parts: list[Any] = [*made, *(model.head(name) for name in tasks)]
        for part in parts:
            part.begin_with(trained)
    return nn.ModuleList(made) if copies else made[0]


def transformer(model: SharedModel) -> Transformer:
    """The encoder, if it reads tokens through attention masks."""
    encoder: Any = getattr(model.encoder, "_orig_mod", model.encoder)
    if not isinstance(encoder, Transformer):
        raise SteelyardError(
            f"objectives of text need a Hugging Face encoder, by its name or folder, not {type(encoder).__name__}"
        )
    return encoder


def special_tokens(model: SharedModel, space: Space) -> SpecialTokens | None:
    """The tokenizer's special tokens, for text."""
    return transformer(model).tokens() if space.data == "text" else None


@contextmanager
def dev_head(model: SharedModel, head: nn.Module) -> Iterator[None]:
    """The target is answered by another head for a while."""

    def answer(own: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        del own, output
        answered: Tensor = head(args[0])
        return answered

    handle = model.head(str(model.target)).register_forward_hook(answer)
    try:
        yield
    finally:
        handle.remove()


def meta_direction(model: SharedModel, head: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """∇_body L_E^val(body; dev head), by parameter name; nothing is left in the model or in the head."""
    body = model.scope("shared", trainable=True)
    place = model.tasks.index(str(model.target))
    with gradients.pure(model), dev_head(model, head):
        loss = model.losses(batch).means[place]
        found = torch.autograd.grad(loss, list(body.values()), allow_unused=True)
    return {name: value for name, value in zip(body, found, strict=True) if value is not None}


def fit_dev_head(model: SharedModel, head: nn.Module, features: Tensor, batch: Batch, steps: int, rate: float) -> None:
    """Full-batch AdamW (weight decay 0.1) on the dev head alone, on features that stay as they are."""
    target = str(model.target)
    parameters = list(head.parameters())
    was = head.training
    head.requires_grad_(requires_grad=True).eval()
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.1)
    for _ in range(steps):
        values, counts = model.row_losses(batch, {target: head(features)})[target]
        found = torch.autograd.grad(values.sum() / counts.sum().clamp(min=1), parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, found, strict=True):
            parameter.grad = gradient
        optimizer.step()
    optimizer.zero_grad()
    head.requires_grad_(requires_grad=False).train(was)
