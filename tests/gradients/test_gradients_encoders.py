"""Every encoder that the library ships, against the exact path."""

from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from tests.gradients.gradient_checks import check
from torch import Tensor, nn

from steelyard import encoders

ROWS = torch.tensor([0, 0, 1, 1, 2, 2])
SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}

NUMBERS = {
    "mlp": (lambda: encoders.MLP((7,), hidden=(6, 5), dropout=0.2), (7,)),
    "lenet": (lambda: encoders.LeNet((1, 12, 12), channels=(3, 4), kernel=3, hidden=6), (12, 12)),
    "resnet": (lambda: encoders.ResNet((3, 8, 8), channels=4, stages=2), (3, 8, 8)),
    "resnet with group norm": (lambda: encoders.ResNet((3, 8, 8), channels=4, stages=2, norm="group"), (3, 8, 8)),
}
TEXT = {
    "textcnn": lambda: encoders.TextCNN(50, size=5, channels=4, dropout=0.2),
    "textcnn of even width": lambda: encoders.TextCNN(50, size=5, channels=4, widths=(2, 4), freeze=True),
    "lstm": lambda: encoders.LSTM(50, size=5, hidden=4),
    "deep lstm": lambda: encoders.LSTM(50, size=5, hidden=4, layers=2),
    "lstm forwards": lambda: encoders.LSTM(50, size=5, hidden=4, bidirectional=False),
}


def both(module: nn.Module, *inputs: Tensor, pool: bool) -> None:
    """In float64 and float32."""
    for dtype in (torch.float64, torch.float32):
        module = module.to(dtype)
        given = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
        check(module, partial(vectors, module, given, pool=pool), ROWS, 3)


def vectors(module: nn.Module, inputs: list[Tensor], *, pool: bool) -> Tensor:
    out = module(*inputs)
    return module.pool(out, inputs[1]) if pool else out


def padded() -> tuple[Tensor, Tensor]:
    mask = torch.arange(9) < torch.tensor([9, 4, 7, 1, 2, 5]).unsqueeze(1)
    return torch.randint(2, 50, (6, 9)) * mask, mask


@pytest.mark.parametrize("name", NUMBERS)
def test_encoders_of_numbers(name: str) -> None:
    make, shape = NUMBERS[name]
    module = make()
    module.eval() if name == "resnet" else module.train()
    both(module, torch.randn(6, *shape), pool=False)


@pytest.mark.parametrize("name", TEXT)
def test_encoders_of_text(name: str) -> None:
    both(TEXT[name](), *padded(), pool=True)


@pytest.mark.parametrize("kind", [transformers.BertConfig, transformers.RobertaConfig])
def test_transformers(kind: type, tmp_path: Path) -> None:
    kind(**SMALL, pad_token_id=0).save_pretrained(tmp_path)
    both(encoders.Transformer(str(tmp_path), pretrained=False), *padded(), pool=True)


def test_every_built_in_encoder_is_here() -> None:
    assert set(encoders.names()) <= set(NUMBERS) | set(TEXT)
