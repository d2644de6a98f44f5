"""Networks as users have them: frozen, with parameters that nothing uses, with layers that share a weight."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from steelyard.errors import SteelyardError
from steelyard.testing.materials import WIDTH, MakeMethod, parameters, plain_encoder
from steelyard.testing.odd_data import must_be_sound, train


class Unused(nn.Module):
    """A network with a layer that its forward never calls."""

    width = 6

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(WIDTH, 6), nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        """``[N, 5]`` to ``[N, 6]``."""
        return torch.tanh(self.used(inputs))


class Tied(nn.Module):
    """A network in which one matrix is used twice, once turned over."""

    width = WIDTH

    def __init__(self) -> None:
        super().__init__()
        self.there, self.back = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.back.weight = self.there.weight

    def forward(self, inputs: Tensor) -> Tensor:
        """``[N, 5]`` to ``[N, 5]``."""
        return torch.tanh(self.back(torch.tanh(self.there(inputs))))


def frozen_encoder() -> nn.Module:
    """A network of which nothing is trained."""
    return plain_encoder().requires_grad_(False)


def bears_a_frozen_encoder(make: MakeMethod) -> None:
    """With a frozen encoder the heads learn and it stays; or the method says that it needs shared parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        before = torch.cat([p.flatten() for p in frozen_encoder().parameters()])
    try:
        run = train(make, network=frozen_encoder)
    except SteelyardError as error:
        assert "frozen" in str(error), f"refused, but not for what it is: {error}"
        return
    must_be_sound(run, "a frozen encoder")
    after = torch.cat([p.flatten() for p in run.model.encoder.parameters()])
    assert torch.equal(before, after), "a frozen encoder was moved"


def bears_unused_parameters(make: MakeMethod) -> None:
    """Parameters that no loss depends on stay as they are (but for weight decay) and break nothing."""
    must_be_sound(train(make, network=Unused), "parameters that nothing uses")
    run = train(make, network=Unused, optimizer="SGD")
    fresh = train(make, network=Unused, optimizer="SGD", epochs=1, steps_per_epoch=1, learning_rate=1e-30)
    kept = [dict(each.model.named_parameters())["encoder.unused.weight"] for each in (run, fresh)]
    assert torch.equal(*kept), "a parameter that nothing uses was moved"


def bears_tied_weights(make: MakeMethod) -> None:
    """A weight that two layers share stays one weight, in training and in the run folder."""
    with tempfile.TemporaryDirectory() as folder:
        run = train(make, network=Tied, out=Path(folder) / "run")
        encoder = run.model.encoder
        assert isinstance(encoder, Tied)
        assert encoder.there.weight is encoder.back.weight, "tied weights came apart"
        must_be_sound(run, "tied weights")
        back = train(make, network=Tied, out=Path(folder) / "run")
    assert torch.equal(parameters(run), parameters(back)), "tied weights are not read back as they were written"
