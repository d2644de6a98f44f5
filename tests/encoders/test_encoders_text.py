"""Encoders of text: values by hand, and indifference to padding."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steelyard.encoders import LSTM, TextCNN, max_over_tokens
from steelyard.errors import SteelyardError
from steelyard.tasks import Ragged

TEXTS = Ragged.of([[1, 2, 3, 4, 5], [6, 7], [8]])

MAKERS = {
    "textcnn": lambda: TextCNN(10, size=4, channels=3, widths=(1, 2, 3, 5)),
    "lstm": lambda: LSTM(10, size=4, hidden=3),
    "lstm, forwards": lambda: LSTM(10, size=4, hidden=3, bidirectional=False),
    "lstm, two layers": lambda: LSTM(10, size=4, hidden=3, layers=2),
}


@pytest.fixture(params=MAKERS)
def encoder(request: pytest.FixtureRequest) -> nn.Module:
    return MAKERS[request.param]()


def pooled(encoder: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    return encoder.pool(encoder(ids, mask), mask)


def test_padding_changes_nothing(encoder: nn.Module) -> None:
    ids, mask = TEXTS.padded(torch.arange(3))
    wide, wide_mask = (
        F.pad(ids, (0, 6), value=9),
        F.pad(mask, (0, 6)),
    )  # what stands in the padding is no matter
    tokens = encoder(ids, mask)
    assert tokens.shape == (3, 5, encoder.width)
    torch.testing.assert_close(encoder(wide, wide_mask)[:, :5][mask], tokens[mask])
    torch.testing.assert_close(pooled(encoder, wide, wide_mask), pooled(encoder, ids, mask))
    for i in range(3):
        alone, alone_mask = TEXTS.padded(torch.tensor([i]))
        torch.testing.assert_close(encoder(alone, alone_mask)[0], tokens[i][mask[i]])
        torch.testing.assert_close(pooled(encoder, alone, alone_mask)[0], pooled(encoder, ids, mask)[i])


def test_padding_gives_no_gradient(encoder: nn.Module) -> None:
    ids, mask = TEXTS.padded(torch.arange(3))
    ids = ids.masked_fill(~mask, 9)
    pooled(encoder, ids, mask).sum().backward()
    gradient = encoder.words.table.weight.grad
    assert gradient[9].eq(0).all()
    assert gradient[8].ne(0).any()


def test_a_text_without_tokens_is_zero_and_harmless(encoder: nn.Module) -> None:
    ids, mask = Ragged.of([[], [1, 2]]).padded(torch.arange(2))
    features = pooled(encoder, ids, mask)
    assert features[0].eq(0).all()
    features.sum().backward()
    assert all(p.grad.isfinite().all() for p in encoder.parameters())
    only, only_mask = Ragged.of([[]]).padded(torch.arange(1))
    assert pooled(encoder, only, only_mask).eq(0).all()


def test_max_is_over_real_tokens_even_if_negative() -> None:
    features = torch.tensor([[[-1.0, 3], [-2, -4], [9, 9]], [[-5, -6], [1, 1], [1, 1]]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert max_over_tokens(features, mask).tolist() == [[-1, 3], [-5, -6]]
    assert max_over_tokens(features, None).tolist() == [[9, 9], [1, 1]]


def test_textcnn_value() -> None:
    encoder = TextCNN(10, size=4, channels=2, widths=(3,))
    words = encoder.words.table.weight
    found = encoder(torch.tensor([[1, 2, 3]]), torch.ones(1, 3, dtype=torch.bool))[0]
    filters, bias = encoder.convolutions[0].parameters()
    middle = sum(filters[:, :, k] @ words[1 + k] for k in range(3)) + bias
    first = filters[:, :, 1] @ words[1] + filters[:, :, 2] @ words[2] + bias
    torch.testing.assert_close(found[1], middle.clamp(min=0))
    torch.testing.assert_close(found[0], first.clamp(min=0))


def test_lstm_value() -> None:
    encoder = LSTM(10, size=4, hidden=3)
    ids = torch.tensor([[1, 2, 3]])
    found = encoder(ids, ids > 0)
    vectors = encoder.words.table.weight[ids]
    torch.testing.assert_close(found, encoder.lstm(vectors)[0])


def test_window_widths_are_configurable_and_default_to_3_5_7() -> None:
    assert [c.kernel_size[0] for c in TextCNN(10).convolutions] == [3, 5, 7]
    encoder = TextCNN(10, channels=5, widths=(2, 4))
    assert [c.kernel_size[0] for c in encoder.convolutions] == [2, 4]
    assert encoder.width == 10


def test_given_vectors_are_copied_trained_or_frozen() -> None:
    vectors = torch.randn(10, 6)
    encoder = TextCNN(10, vectors=vectors)
    assert encoder.words.width == 6
    torch.testing.assert_close(encoder.words.table.weight.data, vectors)
    encoder.words.table.weight.data.zero_()
    assert vectors.abs().sum() > 0
    assert encoder.words.table.weight.requires_grad
    assert not LSTM(10, vectors=vectors, freeze=True).words.table.weight.requires_grad
    with pytest.raises(SteelyardError, match="vocabulary of 11; give one row per token id"):
        TextCNN(11, vectors=vectors)


def test_a_padding_id_beyond_the_vocabulary_has_a_row() -> None:
    encoder = TextCNN(3, padding=5)
    ids, mask = Ragged.of([[1, 2], [1]]).padded(torch.arange(2), fill=5)
    assert encoder(ids, mask).shape[:2] == (2, 2)


def test_dropout_is_active_in_training_alone() -> None:
    ids = torch.ones(1, 4, dtype=torch.long)
    for encoder in (TextCNN(3, dropout=0.5), LSTM(3, dropout=0.5)):
        assert not torch.equal(encoder(ids, ids > 0), encoder(ids, ids > 0))
        encoder.eval()
        torch.testing.assert_close(encoder(ids, ids > 0), encoder(ids, ids > 0), rtol=0, atol=0)
