"""Whole models as they are met in practice, against the exact path."""

import pytest
import torch
import transformers
from tests.gradients.gradient_checks import check
from torch import Tensor, nn

from steelyard import gradients

ROWS = torch.tensor([0, 0, 1, 1, 2, 2])
SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
CONFIGS = {
    "bert": lambda: transformers.BertConfig(**SMALL),
    "roberta": lambda: transformers.RobertaConfig(**SMALL, pad_token_id=0),
    "minilm": lambda: transformers.BertConfig(**SMALL | {"hidden_size": 12, "num_attention_heads": 6}),
    "distilbert": lambda: transformers.DistilBertConfig(vocab_size=50, dim=16, n_layers=2, n_heads=2, hidden_dim=32),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=50, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2
    ),
}


def padded() -> tuple[Tensor, Tensor]:
    ids = torch.randint(1, 50, (6, 9))
    mask = (torch.arange(9) < torch.tensor([9, 4, 7, 9, 2, 5]).unsqueeze(1)).long()
    return ids * mask, mask


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_hugging_face_encoders_with_padding(name: str, training: bool, dtype: torch.dtype) -> None:
    model = transformers.AutoModel.from_config(CONFIGS[name]()).to(dtype).train(training)
    ids, mask = padded()

    def forward() -> Tensor:
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        return (hidden * mask.unsqueeze(2)).sum(1)

    check(model, forward, ROWS, 3)


def test_masked_language_model_with_tied_decoder() -> None:
    model = transformers.BertForMaskedLM(CONFIGS["bert"]()).double().eval()
    ids, mask = padded()
    check(model, lambda: model(input_ids=ids, attention_mask=mask).logits, ROWS, 3)


def test_eager_and_fused_attention_agree() -> None:
    config = CONFIGS["bert"]()
    config._attn_implementation = "eager"
    model = transformers.AutoModel.from_config(config).double().eval()
    ids, mask = padded()
    check(model, lambda: model(input_ids=ids, attention_mask=mask).last_hidden_state, ROWS, 3)


class TextCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(200, 6, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(6, 4, size, padding=size // 2) for size in (3, 5, 7))
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(12, 5))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids).transpose(1, 2)
        return self.head(torch.cat([conv(x).relu().amax(2) for conv in self.convs], 1))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.last = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(x + self.norm(self.last(self.relu(self.norm(self.first(x))))))


def resnet() -> nn.Module:
    stem = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    return nn.Sequential(stem, Block(4), Block(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))


class Tagger(nn.Module):
    """Words, an LSTM, a self-attention layer of torch, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(200, 8)
        self.lstm = nn.LSTM(8, 4, bidirectional=True, batch_first=True)
        self.attention = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, ids: Tensor) -> Tensor:
        hidden, (last, _) = self.lstm(self.words(ids))
        return self.head(self.attention(hidden).mean(1) + torch.cat([last[0], last[1]], 1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_text_cnn(dtype: torch.dtype) -> None:
    model, ids = TextCNN().to(dtype), torch.randint(0, 200, (6, 9))
    check(model, lambda: model(ids), ROWS, 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_residual_network_with_batch_norm_in_eval_mode(dtype: torch.dtype) -> None:
    model, x = resnet().to(dtype).eval(), torch.randn(6, 3, 8, 8, dtype=dtype)
    check(model, lambda: model(x), ROWS, 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_lstm_and_attention(dtype: torch.dtype) -> None:
    model, ids = Tagger().to(dtype), torch.randint(0, 200, (6, 7))
    check(model, lambda: model(ids), ROWS, 3)


def test_a_body_in_scope_and_heads_outside() -> None:
    body, heads = Tagger().double(), nn.ModuleList(nn.Linear(5, 3) for _ in range(3)).double()
    ids, labels = torch.randint(0, 200, (6, 7)), torch.randint(0, 3, (6,))

    def losses(z: Tensor) -> Tensor:
        return torch.stack(
            [
                nn.functional.cross_entropy(head(z[task == ROWS]), labels[task == ROWS])
                for task, head in enumerate(heads)
            ]
        )

    check(body, lambda: body(ids), ROWS, 3, losses_of=losses)


def test_row_slopes_are_those_of_single_rows() -> None:
    model, ids = TextCNN().double().eval(), torch.randint(0, 200, (6, 9))
    with gradients.record(model, ROWS) as tape:
        each = model(ids).square().sum(1)
        losses = torch.zeros(3, dtype=torch.float64).index_add(0, ROWS, each)
    direction = {name: torch.randn_like(value) for name, value in tape.scope.parameters.items()}
    exact = gradients.TaskGradients(
        gradients.exact_task_gradients(each, tape.scope.parameters), tape.scope.shapes, each.detach()
    )
    torch.testing.assert_close(tape.row_slopes(losses, direction), exact.slopes(direction))
