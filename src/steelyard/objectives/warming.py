"""A masked-language head for an encoder that has none: trained once, on texts, with the encoder as it is."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steelyard.encoders import SpecialTokens, Transformer
from steelyard.encoders.language import head_of, masked_language_model
from steelyard.errors import SteelyardError
from steelyard.objectives.draft import text_draft
from steelyard.objectives.text import Bert
from steelyard.tasks import Ragged


def warm_up(
    name: str, texts: Ragged, folder: Path | str, *, steps: int = 300, rows: int = 32, rate: float = 1e-3, seed: int = 0
) -> list[float]:
    """Trains the head of a checkpoint on masked texts, and writes both as a Hugging Face folder.

    Token objectives that begin with an untrained head send noise into the encoder until the head has learned what
    its features mean. Sentence encoders come without one. The encoder's own weights do not change.

    Args:
        name: The encoder's name or folder.
        texts: Token ids of its tokenizer, such as a text task's ``rows["train"].inputs``.
        folder: Where the model and its tokenizer go.
        steps: Steps of AdamW, with a rate that falls to 0.
        rows: Texts in a step.
        rate: The learning rate.
        seed: The seed of the new head, of the texts in a step and of the masks.

    Returns:
        The loss of each step.
    """
    import transformers

    tokens, generator = Transformer(name).tokens(), torch.Generator().manual_seed(seed)
    model, _ = masked_language_model(transformers, name, seed)
    head = head_of(model)
    if head is None:
        raise SteelyardError(
            f"encoder {name}: a {type(model).__name__} has no head of BERT's form; take another encoder"
        )
    optimizer = torch.optim.AdamW(head.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    table, losses = model.get_input_embeddings().weight.detach(), []
    for _ in range(steps):
        features, asked = _hidden(model.base_model.eval(), texts, rows, tokens, generator)
        loss = F.cross_entropy(head.logits(features, table), asked)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(name, use_fast=True, trust_remote_code=False).save_pretrained(folder)
    return losses


@torch.no_grad()
def _hidden(
    body: nn.Module, texts: Ragged, rows: int, tokens: SpecialTokens, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Features of the hidden places of some texts ``[M, width]``, and the tokens that stood there ``[M]``."""
    ids, mask = texts.padded(torch.randint(len(texts), (rows,), generator=generator))
    draft = Bert()(text_draft(ids, mask, ids, tokens, generator), tokens, generator)
    features = body(input_ids=draft.inputs, attention_mask=mask.long()).last_hidden_state
    return features[draft.chosen], ids[draft.chosen]
