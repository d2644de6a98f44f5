"""The synthetic tasks of information transfer are what they say: covariances, cosines, labels, noise, seeds."""

import math

import pytest
import torch
from torch import Tensor

from steelyard import Role, SteelyardError
from steelyard.data.generators import Made, Source, subspace_tasks, transfer_tasks

SOURCES = {
    "near": Source(20_000, 0.96, "same"),
    "far": Source(20_000, 0.5, "different"),
    "other": Source(500, -0.2, "different"),
}


def made(**options: object) -> Made:
    settings = {"target_rows": 20_000, "dim": 20, "condition": 10.0, "held_rows": 300, "seed": 3} | options
    return transfer_tasks(SOURCES, **settings)


def rows(tasks: Made, name: str, role: Role = Role.TRAIN) -> tuple[Tensor, Tensor]:
    found = tasks.suite[name].rows[role]
    return found.inputs.double(), found.labels


@pytest.mark.parametrize("order", ["RQD", "RDQ"])
@pytest.mark.parametrize("name", ["target", "near", "far"])
def test_rows_have_the_covariance_that_they_are_said_to_have(order: str, name: str) -> None:
    tasks = made(order=order)
    inputs, _ = rows(tasks, name)
    expected = tasks.covariances[name]
    apart = (inputs.T @ inputs / len(inputs) - expected).norm() / expected.norm()
    assert apart < 0.06
    values = torch.linalg.eigvalsh(expected)
    torch.testing.assert_close(values, torch.tensor([1.0] * 18 + [100.0] * 2).double())


@pytest.mark.parametrize("order", ["RQD", "RDQ"])
def test_same_is_the_same_and_different_varies_elsewhere(order: str) -> None:
    tasks = made(order=order)
    assert torch.equal(tasks.covariances["target"], tasks.covariances["near"])
    assert torch.equal(tasks.covariances["far"], tasks.covariances["other"])
    first, second = tasks.covariances["target"], tasks.covariances["far"]
    if order == "RQD":  # Q cancels: both are diagonal, with disjoint large entries
        assert torch.allclose(first, first.diagonal().diag())
        assert not ((first.diagonal() > 50) & (second.diagonal() > 50)).any()
    else:
        assert (first - first.diagonal().diag()).norm() > 1
        assert (first - second).norm() > 1


def test_in_the_printed_order_the_rotation_cancels() -> None:
    covariances = [made(order="RQD", seed=seed).covariances["target"].diagonal().sort().values for seed in range(3)]
    for found in covariances:
        torch.testing.assert_close(found, covariances[0])


@pytest.mark.parametrize("seed", range(3))
def test_models_are_at_the_cosines_asked_for(seed: int) -> None:
    tasks = made(seed=seed)
    target = tasks.parameters["target"]
    for name, source in SOURCES.items():
        theta = tasks.parameters[name]
        assert abs(float(theta.norm()) - 1) < 1e-12
        assert abs(float(theta @ target) - source.cosine) < 1e-12


def test_labels_follow_the_link() -> None:
    for link in ("linear", "relu"):
        tasks = made(link=link)
        inputs, labels = rows(tasks, "far")
        scores = inputs @ tasks.parameters["far"]
        torch.testing.assert_close(labels, (scores.relu() if link == "relu" else scores).float(), rtol=1e-4, atol=1e-4)
        assert tasks.suite["far"].metric == "spearman"
    tasks = made(link="logistic", condition=1.0)
    inputs, labels = rows(tasks, "far")
    probability = (inputs @ tasks.parameters["far"]).sigmoid()
    for low in (0.1, 0.4, 0.7):
        between = (probability > low) & (probability < low + 0.2)
        assert abs(float(labels[between].float().mean()) - float(probability[between].mean())) < 0.03


def test_noise_falls_on_training_labels_alone() -> None:
    noisy = {"near": Source(20_000, noise=0.5), "far": Source(20_000, covariance="different")}
    clean, dirty = (transfer_tasks(s, dim=20, target_rows=100, held_rows=300) for s in (
        {name: Source(20_000, covariance=each.covariance) for name, each in noisy.items()}, noisy))  # fmt: skip
    (inputs, labels), (again, found) = rows(clean, "near"), rows(dirty, "near")
    assert torch.equal(inputs, again)
    assert abs(float((found - labels).std() / labels.std()) - 0.5) < 0.02
    assert torch.equal(rows(clean, "far")[1], rows(dirty, "far")[1])
    scores = rows(dirty, "near", Role.TEST)[0] @ dirty.parameters["near"]
    torch.testing.assert_close(rows(dirty, "near", Role.TEST)[1], scores.float(), rtol=1e-4, atol=1e-4)
    sources = {"s": Source(20_000, noise=0.3)}
    flipped, kept = (
        transfer_tasks(s, dim=20, target_rows=100, link="logistic") for s in (sources, {"s": Source(20_000)})
    )
    rate = (rows(flipped, "s")[1] != rows(kept, "s")[1]).float().mean()
    assert abs(float(rate) - 0.3) < 0.02


def test_one_seed_one_suite_and_a_source_more_changes_no_other() -> None:
    first, again, other = made(), made(), made(seed=4)
    for name in first.suite.tasks:
        assert torch.equal(rows(first, name)[0], rows(again, name)[0])
        assert not torch.equal(rows(first, name)[0], rows(other, name)[0])
    fewer = transfer_tasks({"near": SOURCES["near"]}, target_rows=20_000, dim=20, condition=10.0, held_rows=300, seed=3)
    assert torch.equal(rows(first, "near")[1], rows(fewer, "near")[1])
    assert torch.equal(rows(first, "target")[1], rows(fewer, "target")[1])


@pytest.mark.parametrize("cosine", [0.0, 0.5, 0.9, 1.0])
def test_subspaces_meet_at_one_angle(cosine: float) -> None:
    tasks = subspace_tasks(cosine, rank=4, dim=12, seed=1)
    first, second = tasks.parameters["target"], tasks.parameters["source"]
    angles = torch.linalg.svdvals(first.T @ torch.linalg.qr(second).Q)
    torch.testing.assert_close(angles, torch.full((4,), cosine).double())
    torch.testing.assert_close(second.T @ second, torch.eye(4).double())
    printed = subspace_tasks(cosine, rank=4, dim=12, seed=1, as_published=True).parameters["source"]
    angles = torch.linalg.svdvals(first.T @ torch.linalg.qr(printed).Q)
    torch.testing.assert_close(angles, torch.full((4,), cosine / math.hypot(cosine, 1 - cosine)).double())


def test_neurons_are_summed() -> None:
    tasks = subspace_tasks(0.5, rank=3, dim=8, noise=0.0, source_rows=4000)
    inputs, labels = rows(tasks, "source")
    expected = (inputs @ tasks.parameters["source"]).relu().sum(1)
    torch.testing.assert_close(labels, expected.float(), rtol=1e-4, atol=1e-4)
    classes = subspace_tasks(0.5, link="logistic", rank=3, dim=8, noise=0.0, source_rows=4000)
    share = rows(classes, "source")[1].float().mean()
    assert abs(float(share) - float((expected > expected.mean()).float().mean())) < 0.02
    assert torch.equal(rows(classes, "source")[1], (expected > 3 / math.sqrt(2 * math.pi)).long())


def test_what_cannot_be_made_is_told() -> None:
    with pytest.raises(SteelyardError, match=r"source 'far': 1\.5 is no cosine"):
        transfer_tasks({"far": Source(10, 1.5)})
    with pytest.raises(SteelyardError, match="cannot be two disjoint sets"):
        transfer_tasks({}, spiked=0.8)
    with pytest.raises(SteelyardError, match=r"noise of -0\.1 is negative"):
        transfer_tasks({"far": Source(10, noise=-0.1)})
    with pytest.raises(SteelyardError, match="a dim of at least 20"):
        subspace_tasks(0.5, dim=12)
