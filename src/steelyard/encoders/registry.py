"""Encoders by name, built for what a suite's rows are."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import Tensor, nn

from steelyard.encoders.dense import MLP
from steelyard.encoders.image import LeNet, ResNet
from steelyard.encoders.text import LSTM, TextCNN
from steelyard.encoders.transformer import Transformer
from steelyard.errors import SteelyardError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.tasks import Spec


@dataclass(frozen=True)
class Entry:
    """A built-in encoder.

    Attributes:
        make: Its class.
        text: Whether it reads token ids; else rows of numbers.
    """

    make: Callable[..., nn.Module]
    text: bool


BUILT_IN: dict[str, Entry] = {
    "mlp": Entry(MLP, text=False),
    "textcnn": Entry(TextCNN, text=True),
    "lstm": Entry(LSTM, text=True),
    "lenet": Entry(LeNet, text=False),
    "resnet": Entry(ResNet, text=False),
}


def names() -> list[str]:
    """The built-in encoders. `build` also takes any Hugging Face name or folder."""
    return list(BUILT_IN)


def default(spec: Spec) -> str:
    """The built-in encoder for rows of which no one has said how to read them."""
    if spec.vocabulary:
        return "textcnn"
    return "mlp" if len(spec.shape) == 1 else "resnet"


def pretrained(name: str, base: Path | str = ".") -> bool:
    """Whether a name means a Hugging Face model: it is not built in, nor a built-in one's name misspelt.

    Args:
        name: As the user wrote it.
        base: The folder that a relative path starts from.
    """
    if name in BUILT_IN:
        return False
    return "/" in name or ":" in name or (Path(base) / name).exists() or not did_you_mean(name, names())


def options(name: str) -> dict[str, object]:
    """The options of an encoder, with their default values."""
    make = BUILT_IN[name].make if name in BUILT_IN else Transformer
    return {option.name: option.default for option in _options(make)}


def build(name: str, spec: Spec, **options: Any) -> nn.Module:
    """An encoder for the rows of a suite.

    Args:
        name: A built-in encoder (`names`), or the name or folder of a Hugging Face model.
        spec: What the rows are: ``suite.spec``.
        **options: The encoder's own options (see its class).

    Raises:
        SteelyardError: If the encoder does not read such rows, or an option is unknown or ill-typed.
    """
    entry = BUILT_IN.get(name)
    if entry is None and not pretrained(name):
        hint = did_you_mean(name, names())
        raise SteelyardError(f"encoder {name!r} is not built in; {hint} There are: {', '.join(names())}")
    make = entry.make if entry else Transformer
    options = {key: _checked(name, make, key, value) for key, value in options.items()}
    reads_text = entry.text if entry else True
    if reads_text != bool(spec.vocabulary):
        raise SteelyardError(_mismatch(name, spec, reads_text))
    if entry is None:
        return _transformer(name, spec, options)
    if entry.text:
        return entry.make(spec.vocabulary, spec.padding, **options)
    return entry.make(spec.shape, **options)


def _transformer(name: str, spec: Spec, options: dict[str, Any]) -> nn.Module:
    encoder = Transformer(name, **options)
    if encoder.vocabulary < spec.vocabulary:
        raise SteelyardError(
            f"encoder {name} knows {encoder.vocabulary} token ids, but the rows hold ids up to "
            f"{spec.vocabulary - 1}; cut the texts with this model's own tokenizer"
        )
    return encoder


def _mismatch(name: str, spec: Spec, reads_text: bool) -> str:
    others = ", ".join(other for other, entry in BUILT_IN.items() if entry.text != reads_text)
    if reads_text:
        return f"encoder {name} reads text, but the rows are numbers of shape {list(spec.shape)}; use {others}"
    return f"encoder {name} reads numbers, but the rows are text; use {others} or a Hugging Face model"


def _options(make: Callable[..., nn.Module]) -> list[inspect.Parameter]:
    """The keyword-only parameters: what the rows decide comes before them."""
    return [p for p in inspect.signature(make).parameters.values() if p.kind is p.KEYWORD_ONLY]


def _checked(name: str, make: Callable[..., nn.Module], key: str, value: Any) -> Any:
    """An option's value, of the type that the encoder says."""
    known = [option.name for option in _options(make)]
    if key not in known:
        hint = " ".join(filter(None, (did_you_mean(key, known), f"there are: {', '.join(known)}")))
        raise SteelyardError(f"encoder {name} has no option {key!r}; {hint}")
    kind = get_type_hints(make.__init__, include_extras=True)[key]
    try:
        return TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value)
    except ValidationError as error:
        shown = type(value).__name__ if isinstance(value, Tensor) else repr(value)
        raise SteelyardError(
            f"encoder {name}: {key}={shown} does not fit: {error.errors()[0]['msg'].lower()}"
        ) from None
