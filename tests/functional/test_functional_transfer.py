"""Singular-value weights, covariance similarity, the shared module: formulas, traps, invariances."""

import math

import pytest
import torch
from torch import Tensor

from steelyard.functional import (
    covariance_similarity,
    cross_validated_rank,
    gram_weights,
    linear_shared_module,
    moment_weights,
    spectral_gap_rank,
    svd_weights,
)

CODINGS = [(-1.0, 1.0), (0.0, 1.0), (1.0, 2.0), (3.0, -4.0)]
NOISE = (0.0, 0.3, 1.0, 3.0, 10.0)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rotation(size: int, seed: int) -> Tensor:
    basis: Tensor = torch.linalg.qr(normal(size, size, seed=seed)).Q
    return basis


def related_tasks(shift: float = 0.5, tasks: int = 6) -> tuple[Tensor, Tensor]:
    """Return inputs and real-valued labels of tasks that share one direction, up to a little."""
    inputs = normal(4000, 20) + shift
    directions = torch.nn.functional.normalize(normal(20, 1, seed=1), dim=0) + 0.1 * normal(20, tasks, seed=2)
    return inputs, inputs @ directions


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_svd_weights_are_algorithm_2(rank: int, center: bool) -> None:
    inputs, labels = normal(30, 6) + 1, normal(30, 4, seed=1) + 2
    shifted = (inputs - inputs.mean(0), labels - labels.mean(0)) if center else (inputs, labels)
    moments = shifted[0].T @ shifted[1]
    principal = torch.linalg.svd(moments).U[:, :rank]
    expected = (moments.T @ principal).norm(dim=1)
    raw = svd_weights(inputs, labels, rank, center, normalize=False)
    torch.testing.assert_close(raw, expected)
    share = svd_weights(inputs, labels, rank, center, True, normalize=False)
    torch.testing.assert_close(share, expected / moments.norm(dim=0))
    torch.testing.assert_close(svd_weights(inputs, labels, rank, center), expected / expected.mean())


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("rank", [1, 2, 6])
@pytest.mark.parametrize("standardize", [False, True])
def test_weight_falls_with_the_flip_rate(coding: tuple[float, float], rank: int, standardize: bool) -> None:
    inputs, scores = related_tasks()
    positive = scores > scores.mean(0)
    order, weights = torch.randperm(4000, generator=torch.Generator().manual_seed(3)), []
    for rate in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5):
        flipped = positive.clone()
        chosen = order[: int(rate * 4000)]
        flipped[chosen, 0] = ~flipped[chosen, 0]
        labels = torch.where(flipped, coding[1], coding[0])
        weights.append(float(svd_weights(inputs, labels, rank, standardize=standardize)[0]))
    assert weights == sorted(weights, reverse=True)
    assert weights[-1] < 0.15 * weights[0]


def test_uncentred_zero_one_labels_hide_the_noise() -> None:
    inputs, scores = related_tasks()
    labels = (scores > scores.mean(0)).double()
    noisy = labels.clone()
    noisy[::2, 0] = 1 - noisy[::2, 0]
    assert float(svd_weights(inputs, noisy, 1, center=False)[0]) > 0.9
    assert float(svd_weights(inputs, noisy, 1)[0]) < 0.15


def test_additive_noise_raises_the_weight_unless_labels_are_standardised() -> None:
    inputs, labels = related_tasks()
    plain, share, standard = [], [], []
    for size in (*NOISE, 100.0):
        noisy = labels.clone()
        noisy[:, 0] += size * normal(4000, seed=5)
        plain.append(float(svd_weights(inputs, noisy, 1)[0]))
        share.append(float(svd_weights(inputs, noisy, 1, scale_free=True)[0]))
        standard.append(float(svd_weights(inputs, noisy, 1, standardize=True)[0]))
    assert plain[-1] > 3 * plain[0]
    assert share[-1] > 1.5 * share[0]
    assert standard[:5] == sorted(standard[:5], reverse=True)
    assert standard[-1] < 0.1 * standard[0]


def test_full_rank_removes_no_noise() -> None:
    inputs, labels = normal(50, 8), normal(50, 3, seed=1)
    lengths = (inputs.T @ labels).norm(dim=0)
    torch.testing.assert_close(svd_weights(inputs, labels, 3, center=False, normalize=False), lengths)
    torch.testing.assert_close(svd_weights(inputs, labels, 3, scale_free=True), torch.ones(3).double())


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_svd_weights_ignore_order_signs_shifts_and_scale(scale: float, dtype: torch.dtype) -> None:
    inputs, labels = normal(40, 6), normal(40, 4, seed=1)
    plain = svd_weights(inputs, labels, 2)
    order = torch.tensor([2, 0, 3, 1])
    signs = torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
    moved = svd_weights((inputs * scale).to(dtype), (labels * signs)[:, order].to(dtype) * scale, 2)
    assert moved.dtype == dtype
    torch.testing.assert_close(moved, plain[order].to(dtype), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(svd_weights(inputs + 7, labels - 3, 2), plain)
    torch.testing.assert_close(svd_weights(inputs @ rotation(6, 3), labels, 2), plain)
    spread = torch.tensor([1.0, 10.0, 0.1, 3.0], dtype=torch.float64)
    standard = svd_weights(inputs, labels, 2, standardize=True)
    torch.testing.assert_close(svd_weights(inputs, labels * spread, 2, standardize=True), standard)
    assert not torch.allclose(svd_weights(inputs, labels * spread, 2), plain)


def test_raw_standardised_weights_are_those_of_standardised_labels() -> None:
    inputs, labels = normal(40, 6), normal(40, 4, seed=1) * torch.tensor([1.0, 5.0, 0.2, 2.0])
    spread = labels / labels.std(0, correction=0)
    expected = svd_weights(inputs, spread, 2, normalize=False)
    torch.testing.assert_close(svd_weights(inputs, labels, 2, standardize=True, normalize=False), expected)
    assert moment_weights(torch.eye(3), 2).dtype == torch.float32


def test_constant_labels_carry_no_weight_and_no_nan() -> None:
    inputs, labels = normal(40, 6), normal(40, 3, seed=1)
    labels[:, 1] = 0.1
    for options in ({}, {"standardize": True}, {"scale_free": True}):
        weights = svd_weights(inputs, labels, 2, **options)
        assert float(weights[1]) == 0.0
        torch.testing.assert_close(weights.mean().item(), 1.0)
    assert svd_weights(inputs, torch.ones(40, 3), 2).tolist() == [1.0, 1.0, 1.0]


def test_tasks_with_their_own_inputs_and_gram_form() -> None:
    inputs, labels = normal(40, 6), normal(40, 4, seed=1)
    shared = svd_weights(inputs, labels, 2)
    lists = ([inputs] * 4, list(labels.unbind(1)))
    torch.testing.assert_close(svd_weights(*lists, 2), shared)
    twice = (
        [inputs, inputs.repeat(3, 1), inputs, inputs],
        [labels[:, 0], labels[:, 1].repeat(3), *lists[1][2:]],
    )
    torch.testing.assert_close(svd_weights(*twice, 2), shared)
    moments = normal(4, 9, seed=2)
    for options in ({}, {"normalize": False}, {"scale_free": True}):
        expected = moment_weights(moments, 2, **options)
        torch.testing.assert_close(gram_weights(moments @ moments.T, 2, **options), expected)


def test_svd_weights_refuse_nonsense() -> None:
    inputs, labels = torch.ones(5, 3), torch.ones(5, 2)
    for rank in (0, 3):
        with pytest.raises(ValueError, match="rank"):
            svd_weights(inputs, labels, rank)
    with pytest.raises(ValueError, match="do not match"):
        svd_weights(inputs, labels[:4], 1)
    with pytest.raises(ValueError, match="equally many"):
        svd_weights(inputs, [labels[:, 0]], 1)
    with pytest.raises(ValueError, match="nan"):
        svd_weights(inputs * math.nan, labels, 1)
    with pytest.raises(ValueError, match=r"\[n, n\]"):
        gram_weights(inputs, 1)


def score_by_definition(a: Tensor, b: Tensor) -> float:
    first, second = a.T @ a, b.T @ b
    return float(((first @ second).trace() / first.trace() / second.trace()).sqrt())


@pytest.mark.parametrize("rows", [4, 40])
def test_score_is_equation_6(rows: int) -> None:
    a, b = normal(rows, 7), normal(rows + 1, 7, seed=1) * torch.arange(1, 8)
    score = covariance_similarity(a, b, mass=1.0)
    torch.testing.assert_close(score.item(), score_by_definition(a, b))
    first, second = a.T @ a, b.T @ b
    cosine = (first @ second).trace() / first.norm() / second.norm()
    torch.testing.assert_close(covariance_similarity(a, b, 1.0, normalized=True), cosine)
    torch.testing.assert_close(covariance_similarity(b, a, 1.0), score)


@pytest.mark.parametrize(("rows", "count"), [(3, 2), (50, 3)])
def test_truncation_keeps_the_mass_and_no_more(rows: int, count: int) -> None:
    lengths = torch.tensor([90.0, 8.9, 0.6, 0.3, 0.2], dtype=torch.float64).sqrt()
    lengths[rows:] = 0
    basis = rotation(5, 0)
    a = torch.nn.functional.pad(torch.diag(lengths), (0, 0, 0, 45))[:rows] @ basis
    b = torch.arange(1, 6)[:, None] * rotation(5, 1)
    kept = lengths.clone()
    kept[count:] = 0
    cut = torch.diag(kept) @ basis
    expected = covariance_similarity(cut, b, mass=1.0)
    torch.testing.assert_close(covariance_similarity(a, b, 0.99), expected)
    torch.testing.assert_close(covariance_similarity(a, a, 0.99), covariance_similarity(cut, cut, 1.0))
    assert abs(float(covariance_similarity(a, a, 0.9)) - 1) < 1e-12


def test_score_with_itself_is_not_one() -> None:
    a = normal(60, 8) * torch.arange(1, 9)
    sigma = a.T @ a
    torch.testing.assert_close(covariance_similarity(a, a, 1.0), sigma.norm() / sigma.trace())
    torch.testing.assert_close(covariance_similarity(a, a, normalized=True).item(), 1.0)
    equal = rotation(100, 0) * 3
    torch.testing.assert_close(covariance_similarity(equal, equal).item(), 0.1)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("normalized", [False, True])
def test_score_invariances(scale: float, dtype: torch.dtype, normalized: bool) -> None:
    stretch = torch.arange(1, 7)
    a, b = normal(40, 6) * stretch, normal(30, 6, seed=1) * stretch.flip(0)

    def score(first: Tensor, second: Tensor) -> Tensor:
        return covariance_similarity(first.to(dtype), second.to(dtype), normalized=normalized)

    plain, turn = score(a, b), rotation(6, 4)
    assert plain.dtype == dtype
    for first, second in (
        (a * scale, b / scale),
        (rotation(40, 2) @ a, b),
        (a.repeat(3, 1), b),
        (a @ turn, b @ turn),
        (b, a),
    ):
        torch.testing.assert_close(score(first, second), plain, rtol=1e-4, atol=1e-6)
    assert abs(float(score(a @ turn, b) - plain)) > 1e-2


@pytest.mark.parametrize("scale", [1e-180, 1e180])
def test_score_neither_overflows_nor_vanishes(scale: float) -> None:
    a, b = normal(40, 6), normal(4, 6, seed=1)
    torch.testing.assert_close(covariance_similarity(a * scale, b * scale), covariance_similarity(a, b))


def test_centring_and_refusals() -> None:
    a, b = normal(40, 6), normal(30, 6, seed=1)
    centred = covariance_similarity(a + 5, b - 2, center=True)
    torch.testing.assert_close(centred, covariance_similarity(a, b, center=True))
    assert float(covariance_similarity(a + 5, b - 2)) > 2 * float(centred)
    with pytest.raises(ValueError, match="zero after centring"):
        covariance_similarity(torch.ones(4, 6), b, center=True)
    with pytest.raises(ValueError, match="covariance of the inputs is zero"):
        covariance_similarity(torch.zeros(4, 6), b)
    with pytest.raises(ValueError, match="inputs holds nan"):
        covariance_similarity(a * math.nan, b)
    with pytest.raises(ValueError, match=r"\[m, d\]"):
        covariance_similarity(a, b[:, :3])
    for mass in (0.0, 1.1):
        with pytest.raises(ValueError, match="mass"):
            covariance_similarity(a, b, mass)


def span(basis: Tensor) -> Tensor:
    q: Tensor = torch.linalg.qr(basis).Q
    return q @ q.T


def test_shared_module_equals_alternating_least_squares() -> None:
    inputs, labels = normal(60, 7) * torch.arange(1, 8), normal(60, 4, seed=1)
    weights = torch.tensor([1.0, 4.0, 0.5, 2.0], dtype=torch.float64)
    module = normal(7, 2, seed=2)
    for _ in range(3000):
        heads = torch.linalg.lstsq(inputs @ module, labels).solution
        # Normal equations of the weighted problem in B: XᵀX B (A W Aᵀ) = Xᵀ Y W Aᵀ.
        right = inputs.T @ labels @ (weights[:, None] * heads.T)
        module = torch.linalg.solve(inputs.T @ inputs, right) @ torch.linalg.inv(heads * weights @ heads.T)
    best = linear_shared_module(inputs, labels, 2, weights)
    torch.testing.assert_close(span(best), span(module), atol=1e-6, rtol=0)
    assert not torch.allclose(span(linear_shared_module(inputs, labels, 2)), span(module), atol=1e-2)


def test_wide_enough_module_shares_nothing() -> None:
    inputs, labels = normal(60, 7), normal(60, 3, seed=1)
    single = inputs @ torch.linalg.lstsq(inputs, labels).solution
    for rank in (3, 5):
        seen = inputs @ linear_shared_module(inputs, labels, rank)
        torch.testing.assert_close(seen @ torch.linalg.lstsq(seen, labels).solution, single)
    seen = inputs @ linear_shared_module(inputs, labels, 2)
    assert not torch.allclose(seen @ torch.linalg.lstsq(seen, labels).solution, single, atol=1e-2)


def test_shared_module_with_redundant_columns() -> None:
    inputs, labels = normal(60, 5), normal(60, 3, seed=1)
    redundant = torch.cat([inputs, inputs[:, :2]], 1)
    narrow = inputs @ linear_shared_module(inputs, labels, 2)
    torch.testing.assert_close(span(redundant @ linear_shared_module(redundant, labels, 2)), span(narrow))
    with pytest.raises(ValueError, match="rank"):
        linear_shared_module(inputs, labels, 6)


def planted(rank: int, noise: float, seed: int = 0) -> Tensor:
    return normal(8, rank, seed=seed) @ normal(rank, 12, seed=seed + 1) + noise * normal(8, 12, seed=seed + 2)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_ranks_are_found(rank: int) -> None:
    many = [planted(rank, 0, 10 * seed) + 0.3 * normal(5, 8, 12, seed=10 * seed + 9) for seed in range(30)]
    found = [cross_validated_rank(folds) for folds in many]
    assert found.count(rank) >= 27
    signs = torch.tensor([1.0, -1.0] * 4, dtype=torch.float64)
    assert [cross_validated_rank((folds * signs[:, None]).flip(1)) for folds in many] == found
    lengths = torch.tensor([*(9.0, 8.0, 7.5, 7.0)[:rank], 1.0, 0.3, 1e-5, 0.0], dtype=torch.float64)
    moments = rotation(8, 1)[:, : len(lengths)] * lengths @ rotation(12, 2)[: len(lengths)]
    assert spectral_gap_rank(moments) == spectral_gap_rank(moments * 1e-9) == rank


def test_ranks_of_one_vector_of_none_and_of_noise() -> None:
    assert spectral_gap_rank(normal(1, 5)) == spectral_gap_rank(torch.zeros(3, 5)) == 1
    assert spectral_gap_rank(torch.eye(3)[:2]) == 1
    assert cross_validated_rank(normal(4, 1, 5)) == cross_validated_rank(torch.zeros(4, 3, 5)) == 1
    assert cross_validated_rank(normal(5, 6, 30)) == 1
    assert cross_validated_rank(normal(1, 6, 30).expand(5, 6, 30)) == 6
    with pytest.raises(ValueError, match=r"\[F, k, d\]"):
        cross_validated_rank(normal(1, 6, 30))


def test_cross_validation_is_the_error_of_what_is_held_out() -> None:
    folds = planted(2, 0.5) + normal(4, 8, 12, seed=5)
    errors = torch.zeros(8, dtype=torch.float64)
    for held in range(4):
        others = folds[[f for f in range(4) if f != held]].mean(0)
        left = torch.linalg.svd(others, full_matrices=False).U
        for rank in range(1, 9):
            kept = left[:, :rank] @ left[:, :rank].T @ others
            errors[rank - 1] += (kept - folds[held]).square().sum()
    assert cross_validated_rank(folds) == int(errors.argmin()) + 1


def test_several_vectors_of_one_task() -> None:
    moments, owners = normal(5, 7), torch.tensor([0, 1, 1, 2, 0])
    single = moment_weights(moments, 2, normalize=False)
    joined = moment_weights(moments, 2, normalize=False, owners=owners)
    expected = torch.stack([single[owners == t].norm() for t in range(3)])
    torch.testing.assert_close(joined, expected)
    turned = moments.clone()
    turned[[1, 2]] = rotation(2, 3) @ moments[[1, 2]]
    torch.testing.assert_close(moment_weights(turned, 2, normalize=False, owners=owners), expected)
