"""Encoders from Hugging Face `transformers`, by name or from a folder."""

import inspect
import pickle
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from steelyard.encoders import tuning
from steelyard.encoders.language import LanguageHead, language_head, quiet
from steelyard.encoders.tuning import Freeze, Rank, Share
from steelyard.errors import SteelyardError
from steelyard.model import masked_mean
from steelyard.tasks import View

Pooling = Literal["mean", "first"]


@dataclass(frozen=True)
class SpecialTokens:
    """The ids that a tokenizer keeps for itself.

    Attributes:
        mask: The mask token.
        special: All that stand for no piece of text: padding, beginning, end, mask and the like.
        size: The number of ids.
    """

    mask: int
    special: tuple[int, ...]
    size: int


class Transformer(nn.Module):
    """A Hugging Face encoder: token ids ``[N, L]`` and mask to token features ``[N, L, width]``.

    Args:
        name: A model's name, or a folder that holds one.
        pooling: How a text's vector is made: the ``mean`` over its tokens, or the ``first`` token's features.
        freeze: Keep the encoder as it is and train the heads alone; or a number: the embeddings and so many of the
            first layers.
        pretrained: Load the weights; else only the configuration, with new weights.
        layer_decay: Each layer's learning rate is this times that of the layer above it; the embeddings' is lowest.
        lora: Train low-rank changes of this rank to the attention (LoRA, by ``peft``) and nothing else of it; 0: none.
    """

    embedding_stage = "output"

    def __init__(
        self,
        name: str,
        *,
        pooling: Pooling = "mean",
        freeze: Freeze = False,
        pretrained: bool = True,
        layer_decay: Share = 1.0,
        lora: Rank = 0,
    ) -> None:
        super().__init__()
        if pooling not in ("mean", "first"):
            raise SteelyardError(f"encoder {name}: pooling must be 'mean' or 'first', not {pooling!r}")
        self.model: Any = _load(name, pretrained)
        self._layers = tuning.layers_of(self.model)
        tuning.freeze(self.model, self._layers, freeze, name)
        self.pooling, self._decay, self._pretrained = pooling, layer_decay, pretrained
        self.name = name
        config: Any = self.model.config
        if not hasattr(config, "hidden_size") or not hasattr(config, "vocab_size"):
            raise SteelyardError(f"encoder {name} ({config.model_type}) does not read text; take one that does")
        self.width: int = config.hidden_size
        self.vocabulary: int = config.vocab_size
        positions = getattr(config, "max_position_embeddings", None) or 0
        # RoBERTa and its kin count positions from the one after the padding's id.
        self._longest = positions - (config.pad_token_id + 1 if _counts_from_padding(self.model) else 0)
        if lora:
            self.model = tuning.with_lora(self.model, lora, name)

    def forward(self, ids: Tensor, mask: Tensor, view: View | None = None) -> Tensor:
        """``[N, L]`` to ``[N, L, width]``, with each row's own attention mask and noise where a view is given."""
        if 0 < self._longest < ids.shape[1]:
            raise SteelyardError(
                f"encoder {self.name} reads at most {self._longest} tokens, and a row has {ids.shape[1]}; cut the "
                f"texts: max_length = {self._longest} in [features]"
            )
        given: dict[str, Tensor] = {"input_ids": ids}
        seen = mask.long()
        if view is not None and view.noise is not None:
            vectors = self.model.get_input_embeddings()(ids)
            given = {"inputs_embeds": vectors + view.noise.unsqueeze(-1) * torch.randn_like(vectors)}
        if view is not None and view.attention is not None:
            least = torch.finfo(self.embeddings.dtype).min
            seen = (~view.attention).to(self.embeddings.dtype).unsqueeze(1) * least
        try:
            features: Tensor = self.model(**given, attention_mask=seen).last_hidden_state
        except (RuntimeError, ValueError, TypeError) as error:
            if view is None or view.attention is None:
                raise
            raise SteelyardError(
                f"encoder {self.name} ({type(self.model).__name__}) takes no attention mask per place; use BERT, "
                "RoBERTa, MPNet, ELECTRA or another model that does"
            ) from error
        return features

    def rates(self) -> dict[nn.Parameter, float]:
        """What the learning rate of a parameter is multiplied with, where that is not 1."""
        return {} if self._decay == 1 else tuning.rates(self.model, self._layers, self._decay)

    @property
    def embeddings(self) -> nn.Parameter:
        """The table of token embeddings, ``[vocabulary, d]``."""
        table: nn.Parameter = self.model.get_input_embeddings().weight
        return table

    def tokens(self) -> SpecialTokens:
        """What its own tokenizer says of its ids."""
        transformers = _library(self.name)
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(self.name, use_fast=True, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise SteelyardError(
                f"encoder {self.name} has no tokenizer that can be loaded; put the tokenizer's files beside the model's"
            ) from error
        if tokenizer.mask_token_id is None:
            raise SteelyardError(
                f"the tokenizer of {self.name} has no mask token; use a model that was trained with one, or give the "
                "tokenizer one (tokenizer.mask_token)"
            )
        return SpecialTokens(tokenizer.mask_token_id, tuple(sorted(set(tokenizer.all_special_ids))), len(tokenizer))

    def language_head(self) -> LanguageHead | None:
        """The checkpoint's own head for masked tokens, if it has a trained one of BERT's form."""
        return language_head(_library(self.name), self.name) if self._pretrained else None

    def pool(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """``[N, L, width]`` to ``[N, width]``."""
        return features[:, 0] if self.pooling == "first" else masked_mean(features, mask)


def _counts_from_padding(model: nn.Module) -> bool:
    """Whether positions begin after the padding's id, as in RoBERTa: its position table then pads too."""
    tables = [m for path, m in model.named_modules() if path.endswith("position_embeddings")]
    return any(getattr(table, "padding_idx", None) is not None for table in tables)


def _load(name: str, pretrained: bool) -> nn.Module:
    transformers = _library(name)
    try:
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
        if pretrained:
            with quiet(transformers):
                model, found = transformers.AutoModel.from_pretrained(
                    name, output_loading_info=True, trust_remote_code=False
                )
        else:
            model = transformers.AutoModel.from_config(config, trust_remote_code=False)
    except (OSError, ValueError, RuntimeError, SafetensorError, pickle.UnpicklingError) as error:
        raise SteelyardError(_why(name, error)) from error
    lacking = sorted(key for key in found["missing_keys"] if "pooler" not in key) if pretrained else []
    if lacking:
        raise SteelyardError(
            f"encoder {name}: its weights are those of another model: {len(lacking)} of the {type(model).__name__}'s "
            f"tensors are not there, such as {lacking[0]}; take config.json and weights from one model"
        )
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
    if isinstance(error, pickle.UnpicklingError):
        return f"encoder {name}: its weights are a pickle that asks for code to be run; take them as safetensors"
    if "trust_remote_code" in str(error):
        return f"encoder {name} is Python code of its own, which is never run; take a model that transformers knows"
    if Path(name).is_dir():
        return f"the folder {name} does not hold a Hugging Face model that can be read ({reason})"
    return (
        f"encoder {name!r} is neither built in nor a folder, and no Hugging Face model of that name is "
        "cached or can be fetched; check the name and the network, or give a folder"
    )
