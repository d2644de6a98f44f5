"""Covariance similarity in one pass: the numbers of the formula, on rows, words and aligned embeddings."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from steelyard import Rows, SharedModel, SteelyardError, Suite, Task, encoders, testing
from steelyard.diagnostics import Moments, covariance_similarity, similarity
from steelyard.functional import covariance_similarity as score
from steelyard.tasks import Ragged


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def pair(shift: float = 0.0) -> tuple[Tensor, Tensor]:
    stretch = torch.arange(1, 9)
    return normal(9000, 8) * stretch + shift, normal(5000, 8, seed=1) * stretch.flip(0) + shift


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_pass_says_what_all_rows_at_once_say(center: bool, normalized: bool, dtype: torch.dtype) -> None:
    a, b = pair(shift=3.0)
    chunks = [[part.to(dtype) for part in torch.split(x, 700)] for x in (a, b)]
    found = similarity(*map(Moments.of, chunks), center=center, normalized=normalized)
    assert abs(found - float(score(a, b, center=center, normalized=normalized))) < (
        1e-6 if dtype.itemsize == 4 else 1e-12
    )


def test_a_mean_far_away_costs_no_digits() -> None:
    a, b = (x.float() for x in pair(shift=1e4))
    found = similarity(Moments.of(a), Moments.of(b), center=True)
    assert abs(found - float(score(a.double(), b.double(), center=True))) < 1e-6


def test_moments_merge_as_if_they_had_seen_all_rows() -> None:
    a, _ = pair(shift=2.0)
    whole, first, second = Moments.of(a), Moments.of(a[:3000] + 0.0), Moments.of(a[3000:])
    first.merge(second)
    first.merge(Moments())
    empty = Moments()
    empty.merge(first)
    for center in (False, True):
        torch.testing.assert_close(empty.covariance(center), whole.covariance(center))
    torch.testing.assert_close(whole.covariance(), a.T @ a / len(a))
    torch.testing.assert_close(whole.covariance(center=True), a.T.cov(correction=0))


def test_rows_may_lie_in_a_file(tmp_path) -> None:
    a, b = pair()
    mapped = []
    for name, rows in (("a", a), ("b", b)):
        np.save(tmp_path / f"{name}.npy", rows.numpy())
        mapped.append(torch.from_numpy(np.load(tmp_path / f"{name}.npy", mmap_mode="r+")))
    assert abs(similarity(*map(Moments.of, mapped)) - float(score(a, b))) < 1e-12


def test_integers_and_half_precision_are_rows_too() -> None:
    rows = torch.randint(0, 9, (300, 5), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(Moments.of(rows).covariance(), Moments.of(rows.double()).covariance())
    half = Moments.of(rows.bfloat16()).covariance()
    torch.testing.assert_close(half, Moments.of(rows.double()).covariance(), rtol=1e-5, atol=0)


def dense(**extra: Tensor) -> Suite:
    a, b = (x[:300].float() for x in pair())
    tasks = {"a": a, "again": a, "b": b, **extra}
    return Suite([Task(n, "regression", {"train": Rows(x, x[:, 0])}) for n, x in tasks.items()], target="a")


def test_a_suites_matrix_is_symmetric_and_every_pairs_score() -> None:
    suite = dense()
    found = covariance_similarity(suite)
    rows = {name: task.rows["train"].inputs for name, task in suite.tasks.items()}
    for first, x in rows.items():
        for second, y in rows.items():
            assert abs(found[first, second] - float(score(x.double(), y.double()))) < 1e-6
    assert found["a", "a"] == found["a", "again"] < 0.9
    assert abs(covariance_similarity(suite, normalized=True)["a", "again"] - 1) < 1e-9
    assert np.allclose(found.rows(), found.values.T)
    fewer = covariance_similarity(suite, rows=50)
    assert fewer["a", "b"] != found["a", "b"]
    assert fewer["a", "a"] == fewer["a", "again"]


def test_alignment_counts_and_can_make_covariances_equal() -> None:
    suite = dense()
    model = SharedModel(encoders.MLP((8,), hidden=(4,)), suite)
    unaligned = covariance_similarity(suite)
    torch.testing.assert_close(covariance_similarity(suite, model).values, unaligned.values, rtol=1e-6, atol=0)
    model.add_alignment(["b"])
    with torch.no_grad():
        # A's columns are stretched by 1 … 8, b's by 8 … 1: R turns the order round.
        model.alignment.matrices["b"].change.copy_(torch.eye(8).flip(0) - torch.eye(8))
    aligned = covariance_similarity(suite, model, normalized=True)
    assert aligned["a", "b"] > 0.98 > covariance_similarity(suite, normalized=True)["a", "b"]
    assert aligned["a", "again"] > 0.999999


def test_embeddings_of_words_leave_padding_out() -> None:
    texts = Ragged.of([[1, 2, 3, 4], [5, 6], [7], [2, 9, 1], [4, 4]])
    suite = Suite(
        [
            Task("t", "classification", {"train": Rows(texts, torch.tensor([0, 1, 0, 1, 1]))}),
            Task("u", "classification", {"train": Rows(Ragged.of([[3], [8, 8, 8, 2, 1]]), torch.tensor([0, 1]))}),
        ]
    )
    model = SharedModel(encoders.TextCNN(10, size=6, channels=4), suite)
    vectors = model.encoder.words.table(texts.values).detach().double()
    others = model.encoder.words.table(torch.tensor([3, 8, 8, 8, 2, 1])).detach().double()
    for made in (model, SharedModel(model.encoder, suite)):
        found = covariance_similarity(suite, made)
        assert abs(found["t", "u"] - float(score(vectors, others))) < 1e-6
        made.add_alignment(matrix="low_rank", rank=2)
        assert abs(covariance_similarity(suite, made)["t", "u"] - float(score(vectors, others))) < 1e-6
    read = covariance_similarity(suite, model, at="representation")
    assert 0 < read["t", "u"] <= 1
    with pytest.raises(SteelyardError, match="task 't' reads words, which have no covariance"):
        covariance_similarity(suite)


def test_the_model_is_left_as_it_was() -> None:
    suite, model = testing.suite(), SharedModel(testing.encoder(), testing.suite())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    covariance_similarity(suite, model, at="representation")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert not any(isinstance(module, nn.BatchNorm1d) and module._forward_hooks for module in model.modules())


def test_what_cannot_be_compared_is_told() -> None:
    with pytest.raises(SteelyardError, match=r"different widths \(a 8, again 8, b 8, narrow 3\)"):
        covariance_similarity(dense(narrow=torch.ones(5, 3)))
    with pytest.raises(SteelyardError, match="task 'flat': all rows are equal"):
        covariance_similarity(dense(flat=torch.ones(5, 8)), center=True)
    with pytest.raises(SteelyardError, match="of the representation needs a model"):
        covariance_similarity(dense(), at="representation")
    with pytest.raises(SteelyardError, match="rows must be"):
        Moments().add(torch.ones(3))
    with pytest.raises(SteelyardError, match="rows of 2 numbers after rows of 3"):
        Moments.of([torch.ones(4, 3), torch.ones(4, 2)])
    with pytest.raises(SteelyardError, match="there are no rows"):
        Moments().covariance()
