"""How an encoder is asked: one call per part, whatever kind of module it is."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from steelyard.errors import SteelyardError
from steelyard.tasks import IGNORE, Batch, Inputs, Member, Part, Ragged, Suite

if TYPE_CHECKING:
    from collections.abc import Iterator


def features_of(encoder: nn.Module, part: Part, hugging_face: bool) -> Tensor:
    """The encoder's one call for a part: ``[N, d]`` or token features ``[N, L, d]``."""
    if hugging_face:
        features = _hugging_face_features(encoder, part)
    elif part.view is not None:
        features = _viewed(encoder, part)
    else:
        features = encoder(part.inputs) if part.mask is None else encoder(part.inputs, part.mask)
    if features.dim() not in (2, 3):
        raise SteelyardError(
            f"the encoder gives features of shape {list(features.shape)}; return [rows, width] or "
            "[rows, tokens, width], for example with nn.Flatten at its end"
        )
    return features


def _viewed(encoder: nn.Module, part: Part) -> Tensor:
    if not accepts(encoder, 3):
        raise SteelyardError(
            f"the encoder {type(encoder).__name__} cannot look at tokens through an attention mask; use a Hugging Face "
            "encoder, by its name or folder"
        )
    features: Tensor = encoder(part.inputs, part.mask, part.view)
    return features


def _hugging_face_features(encoder: nn.Module, part: Part) -> Tensor:
    if part.view is not None:
        raise SteelyardError(
            "attention masks of single rows are for steelyard.encoders.Transformer: give the encoder by its name or "
            "folder, or wrap it"
        )
    if part.mask is None:
        found = encoder(part.inputs)
    else:
        found = encoder(input_ids=part.inputs, attention_mask=part.mask.long())
    features: Tensor | None = getattr(found, "last_hidden_state", None)
    if features is None:
        name = type(encoder).__name__
        raise SteelyardError(f"{name} gives no last_hidden_state; load it without its own head, by AutoModel")
    return features


def masked_mean(features: Tensor, mask: Tensor | None) -> Tensor:
    """The mean of token features ``[N, L, d]`` over real tokens; 0 for a row without any."""
    if mask is None:
        return features.mean(1)
    total = features.masked_fill(~mask.unsqueeze(-1), 0).sum(1)
    return total / mask.sum(1, keepdim=True).clamp(min=1)


def cut(features: Tensor, part: Part) -> list[Tensor]:
    """Each member's rows.

    One split where the members lie end to end: its backward is one concatenation, where every slice's would
    fill a gradient of all rows.
    """
    bounds = dict.fromkeys((member.rows.start, member.rows.stop) for member in part.members)
    edges = [(0, 0), *bounds, (len(features), None)]
    if all(before[1] == after[0] for before, after in pairwise(edges)):
        blocks = torch.split(features, [stop - start for start, stop in bounds])
        place = dict(zip(bounds, blocks, strict=True))
        return [place[member.rows.start, member.rows.stop] for member in part.members]
    return [features[member.rows] for member in part.members]


def joint_losses(
    part: Part, outputs: dict[str, Tensor], joined: dict[str, nn.Module]
) -> dict[str, tuple[Tensor, Tensor | int]]:
    """Summed losses and label counts of the tasks whose losses are computed together; see `SharedModel.join`.

    The module is given all rows of the part, with nothing to answer for in those of other tasks: then each row of
    what it gives is a row of the part, which is what the gradient engine asks for.
    """
    found: dict[str, tuple[Tensor, Tensor | int]] = {}
    for loss in {id(module): module for module in joined.values()}.values():
        members = sorted((m for m in part.members if joined.get(m.task) is loss), key=lambda member: member.rows.start)
        if not members:
            continue
        like = outputs[members[0].task]
        blocks, labels, sizes, start = [], [], [], 0
        for member in [*members, None]:
            gap = (len(part.inputs) if member is None else member.rows.start) - start
            blocks.append(like.new_zeros(gap, *like.shape[1:]))
            labels.append(members[0].labels.new_full((gap, like.shape[1]), IGNORE))
            sizes.append(gap)
            if member is not None:
                blocks.append(outputs[member.task])
                labels.append(member.labels)
                sizes.append(len(member.labels))
                start = member.rows.stop
        asked = torch.cat(labels)
        each: Tensor = loss(torch.cat(blocks), asked).squeeze(1)
        sums = [block.sum() for block in torch.split(each, sizes)[1::2]]
        counts = [block.sum().to(each.dtype) for block in torch.split(asked != IGNORE, sizes)[1::2]]
        found |= {m.task: pair for m, pair in zip(members, zip(sums, counts, strict=True), strict=True)}
    return found


def part_of(inputs: Inputs, index: Tensor, task: str, padding: int) -> Part:
    """Rows of one task, without labels."""
    values, mask = inputs.padded(index, padding) if isinstance(inputs, Ragged) else (inputs[index], None)
    return Part(values, mask, (Member(task, slice(0, len(index)), torch.empty(0)),))


def is_hugging_face(encoder: nn.Module) -> bool:
    """Whether this is a `transformers` or `peft` model, compiled or not; neither is imported to tell."""
    kinds = type(getattr(encoder, "_orig_mod", encoder)).__mro__
    names = {(kind.__module__.partition(".")[0], kind.__name__) for kind in kinds}
    return bool(names & {("transformers", "PreTrainedModel"), ("peft", "PeftModel")})


def accepts(function: object, arguments: int) -> bool:
    """Whether something is callable with this many positional arguments."""
    function = getattr(function, "_orig_mod", function)
    function = function.forward if isinstance(function, nn.Module) else function
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError:
        return False
    return True


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; each submodule gets its own mode back."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def width_of(encoder: nn.Module, suite: Suite) -> int:
    """The features' size: as the encoder or its configuration says, else found by a run on two rows."""
    for owner, name in ((encoder, "width"), (getattr(encoder, "config", None), "hidden_size")):
        width = getattr(owner, name, None)
        if isinstance(width, int):
            return width
    for task in suite.tasks.values():
        for rows in task.rows.values():
            index = torch.arange(min(2, len(rows)))
            return _trial(encoder, part_of(rows.inputs, index, task.name, suite.spec.padding))
    raise SteelyardError("no task has rows to try the encoder on: say how wide its features are (width=…)")


def _trial(encoder: nn.Module, part: Part) -> int:
    """The features' size; modes, buffers and random state are left as they were."""
    device = next((p.device for p in encoder.parameters()), torch.device("cpu"))
    kept = [
        (module, name, buffer, buffer.clone())
        for module in encoder.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if not is_lazy(buffer)
    ]
    forked = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with forked, torch.no_grad(), evaluating(encoder):
        moved = Batch((part,)).to(device).parts[0]
        width = features_of(encoder, moved, is_hugging_face(encoder)).shape[-1]
        for module, name, buffer, value in kept:
            if not torch.equal(buffer, value):
                buffer.copy_(value)
            module.register_buffer(name, buffer, persistent=name not in module._non_persistent_buffers_set)
    return width
