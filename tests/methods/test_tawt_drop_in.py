"""TAWT in a loop that the user owns."""

import pytest
import torch
from torch import nn

from steelyard import SteelyardError
from steelyard.functional import mirror_descent
from steelyard.methods.tawt import TargetWeights, answers


def loop(steps=6, **options):
    """A target, a source that is the same task, and one that says the opposite, through one head."""
    torch.manual_seed(0)
    encoder, head = nn.Sequential(nn.Linear(5, 8), nn.Tanh()), nn.Linear(8, 2)
    weights = TargetWeights(encoder.parameters(), sources=2, **options)
    generator = torch.Generator().manual_seed(1)

    def losses():
        x = torch.randn(3, 32, 5, generator=generator)
        y = (x[..., 0] > 0).long()
        y[2] = 1 - y[2]
        return torch.stack([nn.functional.cross_entropy(head(encoder(a)), b) for a, b in zip(x, y, strict=True)])

    return encoder, head, weights, losses, steps


def test_the_signal_is_the_cosine_of_the_encoders_gradients_and_touches_none():
    encoder, head, weights, losses, _ = loop(c=2.0)
    found = losses()
    signal = weights.observe(found[0], found[1:])
    own = [torch.cat([g.flatten() for g in torch.autograd.grad(v, list(encoder.parameters()), retain_graph=True)])
           for v in found]  # fmt: skip
    wanted = -2 * torch.stack([torch.cosine_similarity(own[0], own[i], 0) for i in (1, 2)])
    assert torch.allclose(signal, wanted, atol=1e-5)
    assert all(p.grad is None for p in (*encoder.parameters(), *head.parameters()))
    found.sum().backward()  # the graphs are still there


@pytest.mark.parametrize("accumulate", [True, False])
def test_the_source_that_agrees_gains(accumulate):
    _, _, weights, losses, steps = loop(accumulate=accumulate)
    for _ in range(steps):
        found = losses()
        weights.observe(found[0], found[1:])
    mixture = weights.update()
    assert mixture[0] > 2 * mixture[1]
    assert float(mixture.sum()) == pytest.approx(1)


def test_without_accumulation_it_is_the_published_step():
    _, _, weights, losses, _ = loop(accumulate=False, floor=0.0, eta=0.5)
    found = losses()
    signal = weights.observe(found[0], found[1:])
    assert torch.allclose(weights.update(), mirror_descent(torch.tensor([0.5, 0.5]), signal, 0.5), atol=1e-6)


def test_a_resumed_loop_goes_on_where_it_was():
    _, _, weights, losses, steps = loop()
    for _ in range(steps):
        found = losses()
        weights.observe(found[0], found[1:])
    _, _, other, _, _ = loop()
    other.load_state_dict(weights.state_dict())
    assert torch.equal(other.update(), weights.update())
    assert torch.equal(other.mixture, weights.mixture)


def test_parameters_that_a_loss_does_not_use_count_as_zero():
    encoder, idle = nn.Linear(5, 4), nn.Linear(5, 4)
    weights = TargetWeights([*encoder.parameters(), *idle.parameters()], sources=1)
    x = torch.randn(6, 5)
    loss = encoder(x).square().mean()
    assert float(weights.observe(loss, (3 * loss)[None])[0]) == pytest.approx(-1)
    assert float(weights.observe(loss, idle(x).square().mean()[None])[0]) == 0


def test_wrong_use_is_refused_in_words():
    frozen = nn.Linear(2, 2).requires_grad_(requires_grad=False)
    for parameters, sources in ((frozen.parameters(), 2), (nn.Linear(2, 2).parameters(), 0)):
        with pytest.raises(SteelyardError, match="needs trainable shared parameters and at least one source"):
            TargetWeights(parameters, sources=sources)


def test_a_look_before_training_is_the_methods_and_updates_go_on_from_it():
    generator = torch.Generator().manual_seed(2)
    target, near, far = (torch.randn(n, 6, generator=generator) for n in (40, 200, 200))
    weights = TargetWeights([nn.Parameter(torch.ones(1))], sources=2)
    shown = [(near, (near[:, 0] > 0).long()), (far, torch.randint(0, 3, (200,), generator=generator))]
    mixture = weights.look((target, target[:, 0]), shown)
    known = [(x.double(), answers.numbers(y)) for x, y in ((target, target[:, 0]), *shown)]
    wanted = mirror_descent(torch.tensor([0.5, 0.5]), answers.told(known[0], known[1:]).float(), 1.5, 0.05 / 2)
    torch.testing.assert_close(mixture, wanted)
    assert mixture[0] > 4 * mixture[1]
    torch.testing.assert_close(weights.update(), wanted)  # nothing was observed yet
    resumed = TargetWeights([nn.Parameter(torch.ones(1))], sources=2)
    resumed.load_state_dict(weights.state_dict())
    torch.testing.assert_close(resumed.update(), wanted)
    with pytest.raises(SteelyardError, match="2 sources, and was shown 1"):
        weights.look((target, target[:, 0]), shown[:1])
