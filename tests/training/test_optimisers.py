"""Adam on the CPU goes over the parameters once, with the same step; whoever says otherwise is heard."""

import pytest
import torch

from steelyard.training.optimisers import build_optimizer
from steelyard.training.settings import Training


def parameters():
    generator = torch.Generator().manual_seed(0)
    return {f"p{n}": torch.nn.Parameter(torch.randn(5, n, generator=generator)) for n in (1, 3)}


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_adam_is_fused_and_its_steps_are_adams(name):
    ours, plain = parameters(), parameters()
    optimizer = build_optimizer(ours, Training(optimizer=name), 0.1)
    assert all(group["fused"] for group in optimizer.param_groups)
    reference = getattr(torch.optim, name)(plain.values(), lr=0.1)
    for _ in range(5):
        for own, other in zip(ours.values(), plain.values(), strict=True):
            own.grad, other.grad = own.detach().sin(), other.detach().sin()
        optimizer.step()
        reference.step()
    for own, other in zip(ours.values(), plain.values(), strict=True):
        torch.testing.assert_close(own, other)


def test_other_optimisers_and_other_wishes_are_left_alone():
    assert not build_optimizer(parameters(), Training(optimizer="SGD"), 0.1).param_groups[0]["fused"]
    wished = Training(optimizer_options={"foreach": True})
    assert build_optimizer(parameters(), wished, 0.1).param_groups[0]["fused"] is not True
