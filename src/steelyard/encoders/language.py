"""The masked-language head of a Hugging Face checkpoint: what stands between its features and its embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steelyard.errors import SteelyardError


@dataclass(frozen=True, eq=False)
class LanguageHead:
    """The tensors of a head as BERT's and its kin's: a linear map, GELU, a LayerNorm, and a bias per token.

    Attributes:
        weight: Of the linear map, ``[width, width]``.
        bias: Its bias, ``[width]``.
        scale: The LayerNorm's, ``[width]``.
        shift: Likewise.
        tokens: The bias of each token, ``[vocabulary]``.
        least: What the LayerNorm adds to the variance.
    """

    weight: Tensor
    bias: Tensor
    scale: Tensor
    shift: Tensor
    tokens: Tensor
    least: float

    def logits(self, features: Tensor, table: Tensor) -> Tensor:
        """A score per token of the embeddings' table ``[V, width]``, from features ``[M, width]``."""
        vectors = F.gelu(F.linear(features, self.weight, self.bias))
        normed = F.layer_norm(vectors, vectors.shape[1:], self.scale, self.shift, self.least)
        return F.linear(normed, table, self.tokens)

    def parameters(self) -> list[Tensor]:
        """The five tensors."""
        return [self.weight, self.bias, self.scale, self.shift, self.tokens]


def language_head(transformers: ModuleType, name: str) -> LanguageHead | None:
    """The trained head of a checkpoint, tied to its embeddings; None where it has none, or one of another form."""
    try:
        model, missing = masked_language_model(transformers, name)
    except ValueError:  # a model of a kind that fills no blanks
        return None
    except RuntimeError as error:
        raise SteelyardError(
            f"encoder {name}: its masked-language head does not fit its embeddings; take head and embeddings from one "
            "model, or a copy without the head"
        ) from error
    own = _own(model)
    return None if set(own) & missing else head_of(model)


def masked_language_model(transformers: ModuleType, name: str, seed: int = 0) -> tuple[Any, set[str]]:
    """A checkpoint with a masked-language head, and the names of the tensors that it lacks; those are drawn anew."""
    with torch.random.fork_rng(devices=[]), quiet(transformers):
        torch.manual_seed(seed)
        model, found = transformers.AutoModelForMaskedLM.from_pretrained(
            name, output_loading_info=True, trust_remote_code=False
        )
    return model, set(found["missing_keys"])


def head_of(model: Any) -> LanguageHead | None:
    """The head's own parameters, if it consists of the five."""
    modules = dict(model.named_modules())
    size, width = model.get_input_embeddings().weight.shape
    found: dict[str, Any] = {}
    for name, parameter in _own(model).items():
        path, _, last = name.rpartition(".")
        owner = modules[path]
        if isinstance(owner, nn.LayerNorm):
            key, found["least"] = {"weight": "scale", "bias": "shift"}[last], owner.eps
        elif isinstance(owner, nn.Linear) and owner.weight.shape == (width, width):
            key = last
        else:
            key = "tokens" if parameter.shape == (size,) else name
        found[key] = parameter
    return LanguageHead(**found) if set(found) == set(LanguageHead.__dataclass_fields__) else None


def _own(model: Any) -> dict[str, nn.Parameter]:
    """The parameters that are not the body's; a decoder tied to the embeddings is the body's."""
    body = {id(p) for p in model.base_model.parameters()}
    return {name: p for name, p in model.named_parameters() if id(p) not in body}


@contextmanager
def quiet(transformers: ModuleType) -> Iterator[None]:
    """Without the library's report of tensors that are new or not asked for: they are looked at here."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)
