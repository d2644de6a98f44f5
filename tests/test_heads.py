"""Heads: what they compute, and how they are named."""

import pytest
import torch
from torch import nn

from steelyard import heads
from steelyard.errors import SteelyardError
from steelyard.model import HEADS, SharedModel
from steelyard.tasks import Rows, Suite, Task


def test_mlp_is_linear_relu_linear() -> None:
    features = torch.randn(5, 3)
    head = heads.mlp(hidden=7)(3, 2)
    weight, bias, last, shift = head.parameters()
    assert weight.shape == (7, 3)
    expected = (features @ weight.T + bias).clamp(min=0) @ last.T + shift
    torch.testing.assert_close(head(features), expected)
    assert [tuple(p.shape) for p in heads.mlp()(3, 2).parameters()] == [(3, 3), (3,), (2, 3), (2,)]


def test_token_head_reads_every_token() -> None:
    features = torch.randn(2, 4, 3)
    head = heads.token(3, 5)
    weight, bias = head.parameters()
    torch.testing.assert_close(head(features)[1, 2], features[1, 2] @ weight.T + bias)


@pytest.mark.parametrize("name", ["linear", "mlp", "token"])
def test_named_heads_have_the_asked_size(name: str) -> None:
    assert name in heads.names()
    assert heads.get(name)(3, 4)(torch.randn(2, 3)).shape == (2, 4)


def test_unknown_head_names_the_nearest() -> None:
    with pytest.raises(SteelyardError, match=r"head 'linaer' is unknown; did you mean 'linear'\?"):
        heads.get("linaer")
    rows = Rows(torch.randn(2, 3), torch.tensor([0, 1]))
    suite = Suite([Task("t", "classification", {"train": rows}, head="mpl")])
    with pytest.raises(SteelyardError, match=r"task 't': head 'mpl' is unknown; did you mean 'mlp'\?"):
        SharedModel(nn.Linear(3, 3), suite)
    with pytest.raises(SteelyardError, match="at least 1"):
        heads.mlp(hidden=0)


def test_registered_head_is_built_and_its_name_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(width: int, outputs: int) -> nn.Module:
        return nn.Linear(width, outputs, bias=False)

    monkeypatch.setitem(HEADS, "plain", plain)  # taken back after the test
    del HEADS["plain"]
    assert heads.register("plain", plain) is plain
    rows = Rows(torch.randn(2, 3), torch.tensor([0, 1]))
    model = SharedModel(nn.Linear(3, 6), Suite([Task("t", "classification", {"train": rows}, head="plain")]))
    assert [tuple(p.shape) for p in model.head("t").parameters()] == [(2, 6)]
    with pytest.raises(SteelyardError, match="'plain' already"):
        heads.register("plain", heads.linear)
    assert HEADS["plain"] is plain
