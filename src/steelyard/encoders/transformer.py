"""Encoders from Hugging Face `transformers`, by name or from a folder."""

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from safetensors import SafetensorError
from torch import Tensor, nn

from steelyard.errors import SteelyardError
from steelyard.model import masked_mean

Pooling = Literal["mean", "first"]


class Transformer(nn.Module):
    """A Hugging Face encoder: token ids ``[N, L]`` and mask to token features ``[N, L, width]``.

    Args:
        name: A model's name, or a folder that holds one.
        pooling: How a text's vector is made: the ``mean`` over its tokens, or the ``first`` token's features.
        freeze: Keep the encoder as it is and train the heads alone.
        pretrained: Load the weights; else only the configuration, with new weights.
    """

    embedding_stage = "output"

    def __init__(self, name: str, *, pooling: Pooling = "mean", freeze: bool = False, pretrained: bool = True) -> None:
        super().__init__()
        if pooling not in ("mean", "first"):
            raise SteelyardError(f"encoder {name}: pooling must be 'mean' or 'first', not {pooling!r}")
        self.model = _load(name, pretrained)
        self.model.requires_grad_(requires_grad=not freeze)
        self.pooling = pooling
        config: Any = self.model.config
        if not hasattr(config, "hidden_size") or not hasattr(config, "vocab_size"):
            raise SteelyardError(f"encoder {name} ({config.model_type}) does not read text; take one that does")
        self.width: int = config.hidden_size
        self.vocabulary: int = config.vocab_size

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """``[N, L]`` to ``[N, L, width]``."""
        features: Tensor = self.model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return features

    def pool(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """``[N, L, width]`` to ``[N, width]``."""
        return features[:, 0] if self.pooling == "first" else masked_mean(features, mask)


def _load(name: str, pretrained: bool) -> nn.Module:
    transformers = _library(name)
    try:
        config = transformers.AutoConfig.from_pretrained(name)
        if pretrained:
            model = transformers.AutoModel.from_pretrained(name)
        else:
            model = transformers.AutoModel.from_config(config)
    except (OSError, ValueError, SafetensorError) as error:
        raise SteelyardError(_why(name, error)) from error
    if config.is_encoder_decoder:
        model = model.get_encoder()
    if "add_pooling_layer" in inspect.signature(type(model)).parameters:
        model.pooler = None  # its parameters would never get a gradient
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    encoder: nn.Module = model
    return encoder.train()


def _library(name: str) -> ModuleType:
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise SteelyardError(
            f"encoder {name!r} needs the Hugging Face library: pip install 'steelyard[text]'"
        ) from error
    library: ModuleType = transformers
    return library


def _why(name: str, error: Exception) -> str:
    reason = str(error).strip().partition("\n")[0]
    if Path(name).is_dir():
        return f"the folder {name} does not hold a Hugging Face model that can be read ({reason})"
    return (
        f"encoder {name!r} is neither built in nor a folder, and no Hugging Face model of that name is "
        "cached or can be fetched; check the name and the network, or give a folder"
    )
