"""Encoders of token ids ``[N, L]`` with a mask ``[N, L]`` that is true on real tokens.

Both give a vector per token, ``[N, L, width]``, and a ``pool`` to one per text, ``[N, width]``. What stands
in the padding, and how much of it there is, changes nothing at real tokens.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from steelyard.encoders.options import Chance, Size, Sizes
from steelyard.errors import SteelyardError


class Words(nn.Module):
    """A vector per token, 0 in the padding.

    Args:
        vocabulary: The number of token ids.
        size: The size of a vector, unless vectors are given.
        padding: The token id of padding.
        vectors: Vectors to start from, ``[vocabulary, size]``; see `steelyard.encoders.glove`.
        freeze: Keep the vectors as they are.
    """

    def __init__(
        self, vocabulary: int, size: int, padding: int, vectors: Tensor | None = None, freeze: bool = False
    ) -> None:
        super().__init__()
        rows = max(vocabulary, padding + 1)
        if vectors is not None:
            if vectors.dim() != 2 or len(vectors) < vocabulary:
                raise SteelyardError(
                    f"vectors of shape {list(vectors.shape)} do not fit a vocabulary of {vocabulary}; give "
                    "one row per token id"
                )
            rows, size = max(rows, len(vectors)), vectors.shape[1]
        self.table = nn.Embedding(rows, size, padding_idx=padding)
        if vectors is not None:
            with torch.no_grad():
                self.table.weight[: len(vectors)] = vectors
        self.table.weight.requires_grad_(not freeze)
        self.width = self.table.embedding_dim

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """``[N, L]`` to ``[N, L, width]``."""
        vectors: Tensor = self.table(ids)
        return vectors.masked_fill(~mask.unsqueeze(-1), 0)


def max_over_tokens(features: Tensor, mask: Tensor | None) -> Tensor:
    """Each feature's maximum over real tokens, ``[N, L, d]`` to ``[N, d]``; 0 for a row without any."""
    if mask is None:
        return features.amax(1)
    largest = features.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(1)
    return largest.masked_fill(~mask.any(1, keepdim=True), 0)


class TextCNN(nn.Module):
    """Parallel convolutions over word vectors, one per window width, with ReLU; pooled by their maximum.

    Args:
        vocabulary: The number of token ids.
        padding: The token id of padding.
        size: The size of a word vector.
        channels: Channels per window width.
        widths: The window widths.
        dropout: The chance that a value of a word vector is dropped.
        vectors: Word vectors to start from, ``[vocabulary, size]``.
        freeze: Keep the word vectors as they are.
    """

    embedding_stage = "words"
    last_layer = "convolutions"

    def __init__(
        self,
        vocabulary: int,
        padding: int = 0,
        *,
        size: Size = 100,
        channels: Size = 64,
        widths: Sizes = (3, 5, 7),
        dropout: Chance = 0.0,
        vectors: Tensor | None = None,
        freeze: bool = False,
    ) -> None:
        super().__init__()
        self.words = Words(vocabulary, size, padding, vectors, freeze)
        self.dropout = nn.Dropout(dropout)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(self.words.width, channels, width, padding=width // 2) for width in widths
        )
        self.width = channels * len(widths)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """``[N, L]`` to ``[N, L, channels * len(widths)]``."""
        vectors = self.dropout(self.words(ids, mask)).transpose(1, 2).contiguous()
        # Windows of even width make one more output than there are tokens.
        windows = [convolution(vectors)[..., : ids.shape[1]] for convolution in self.convolutions]
        return torch.cat(windows, 1).relu().transpose(1, 2)

    def pool(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """The maximum over real tokens."""
        return max_over_tokens(features, mask)


class LSTM(nn.Module):
    """A recurrent network over word vectors, in one or both directions; pooled by its maximum.

    Args:
        vocabulary: The number of token ids.
        padding: The token id of padding.
        size: The size of a word vector.
        hidden: The size of the state, per direction.
        layers: How many layers there are.
        bidirectional: Read backwards too.
        dropout: The chance that a value of a word vector, or between layers, is dropped.
        vectors: Word vectors to start from, ``[vocabulary, size]``.
        freeze: Keep the word vectors as they are.
    """

    embedding_stage = "words"

    def __init__(
        self,
        vocabulary: int,
        padding: int = 0,
        *,
        size: Size = 100,
        hidden: Size = 128,
        layers: Size = 1,
        bidirectional: bool = True,
        dropout: Chance = 0.0,
        vectors: Tensor | None = None,
        freeze: bool = False,
    ) -> None:
        super().__init__()
        self.words = Words(vocabulary, size, padding, vectors, freeze)
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(
            self.words.width,
            hidden,
            layers,
            batch_first=True,
            dropout=dropout if layers > 1 else 0.0,
            bidirectional=bidirectional,
        )
        self.width = hidden * (1 + bidirectional)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """``[N, L]`` to ``[N, L, width]``."""
        vectors = self.dropout(self.words(ids, mask))
        features: Tensor
        if not self.lstm.bidirectional:
            # Padding is on the right: reading forwards, no real token comes after it.
            features, _ = self.lstm(vectors)
            return features
        lengths = mask.sum(1).clamp(min=1).cpu()  # a text without tokens is read as one of padding
        packed = pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False)
        features, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=ids.shape[1])
        return features

    def pool(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """The maximum over real tokens."""
        return max_over_tokens(features, mask)
