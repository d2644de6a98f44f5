"""Encoders: the part of the model that all tasks share."""

from steelyard.encoders.dense import MLP
from steelyard.encoders.image import LeNet, ResNet
from steelyard.encoders.language import LanguageHead
from steelyard.encoders.registry import build, default, names, options, pretrained
from steelyard.encoders.text import LSTM, TextCNN, max_over_tokens
from steelyard.encoders.transformer import SpecialTokens, Transformer
from steelyard.encoders.vectors import Vectors, glove, read_vectors

__all__ = [
    "LSTM",
    "MLP",
    "LanguageHead",
    "LeNet",
    "ResNet",
    "SpecialTokens",
    "TextCNN",
    "Transformer",
    "Vectors",
    "build",
    "default",
    "glove",
    "max_over_tokens",
    "names",
    "options",
    "pretrained",
    "read_vectors",
]
