"""The papers' generators do what their papers say, by seed, and leave held-out rows alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.data import generators
from steelyard.data.generators import flip_rate
from steelyard.errors import SteelyardError
from steelyard.tasks import IGNORE, Ragged, Role, Rows, Suite, Task

SMALL = {"dim": 20, "classes": 4, "hidden": 64, "points": 80, "source_rows": 200, "target_rows": 30, "held_rows": 2_000}


def same(a: Suite, b: Suite) -> bool:
    return all(
        torch.equal(task.rows[role].inputs, b[name].rows[role].inputs)
        and torch.equal(task.rows[role].labels, b[name].rows[role].labels)
        for name, task in a.tasks.items()
        for role in task.rows
    )


# --- flip rates --------------------------------------------------------------------------------------------------


def test_flipped_points_are_nested_and_as_many_as_the_rate_says() -> None:
    rates = [0.0, 0.2, 0.5, 1.0]
    labels = generators.flip_rate.flipped(20_000, 10, rates, torch.Generator().manual_seed(0))
    changed = labels != labels[0]
    # A new label is one of all ten, so a tenth of the flipped points keeps the label that it had.
    assert changed.float().mean(1).tolist() == pytest.approx([0.9 * q for q in rates], abs=0.01)
    for smaller, larger in ((1, 2), (2, 3)):
        assert changed[larger][changed[smaller]].all()
        assert torch.equal(labels[larger][changed[smaller]], labels[smaller][changed[smaller]])
    assert labels.flatten().bincount(minlength=10).float().std() < 0.05 * labels.numel() / 10


def test_teachers_fit_their_points_side_by_side() -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.rand(60, 12, generator=generator) - 0.5
    labels = torch.randint(3, (2, 60), generator=generator)
    teachers = flip_rate.Teachers(12, 48, 3, 2, generator)
    assert torch.equal(teachers.parameters[0][0], teachers.parameters[0][1]), "they start alike"
    teachers.fit(inputs, labels, generator)
    assert torch.equal(teachers.outputs(inputs).argmax(-1), labels)
    assert all(torch.equal(teachers.answers(inputs, k), labels[k]) for k in range(2))
    assert not any(p.requires_grad for p in teachers.parameters)


def test_the_nearer_the_flip_rate_the_more_teachers_agree() -> None:
    rates = [0.0, 0.3, 0.6, 1.0]
    generator = torch.Generator().manual_seed(2)
    inputs = torch.rand(300, 30, generator=generator) - 0.5
    teachers = flip_rate.Teachers(30, 128, 10, 4, generator)
    teachers.fit(inputs, flip_rate.flipped(300, 10, rates, generator), generator)
    answers = teachers.outputs(torch.rand(4_000, 30, generator=generator) - 0.5).argmax(-1)
    agreement = (answers == answers[0]).float().mean(1).tolist()
    assert agreement[0] == 1
    assert agreement[0] > agreement[1] + 0.1 > agreement[2] + 0.1 > agreement[3] + 0.1
    assert agreement[3] == pytest.approx(0.1, abs=0.05), "at 1 they agree by chance"


def test_flip_rate_tasks() -> None:
    suite = generators.flip_rate_tasks({"near": 0, "far": 1.0}, **SMALL, seed=3)
    assert suite.target == "target"
    assert suite.sizes() == {"target": 30, "near": 200, "far": 200}
    assert {task.size(role) for task in suite.tasks.values() for role in (Role.DEV_SELECT, Role.TEST)} == {2_000}
    assert all(task.outputs == 4 for task in suite.tasks.values())
    every = torch.cat([rows.inputs for task in suite.tasks.values() for rows in task.rows.values()])
    assert len(every.unique(dim=0)) == len(every), "no row stands twice"
    assert every.min() >= -0.5
    assert every.max() < 0.5
    assert every.var() == pytest.approx(1 / 12, rel=0.02)
    assert same(suite, generators.flip_rate_tasks({"near": 0, "far": 1.0}, **SMALL, seed=3))
    assert not same(suite, generators.flip_rate_tasks({"near": 0, "far": 1.0}, **SMALL, seed=4))
    assert list(generators.flip_rate_tasks([0.25], **SMALL).tasks) == ["target", "flip-0.25"]


def test_a_source_of_rate_0_is_the_targets_own_task() -> None:
    """A network that has learnt the source of rate 0 answers the target's rows better than one of rate 1."""
    suite = generators.flip_rate_tasks([0, 1], **{**SMALL, "source_rows": 3_000})
    test = suite["target"].rows[Role.TEST]

    def score(name: str) -> float:
        rows = suite[name].rows[Role.TRAIN]
        near = torch.cdist(test.inputs, rows.inputs).topk(15, largest=False).indices
        votes = torch.nn.functional.one_hot(rows.labels[near], 4).sum(1).argmax(1)
        return float((votes == test.labels).float().mean())

    assert score("flip-0") > score("flip-1") + 0.15


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan")])
def test_flip_rates_are_shares(rate: float) -> None:
    with pytest.raises(SteelyardError, match="no share"):
        generators.flip_rate_tasks([rate], **SMALL)


def test_teachers_that_cannot_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flip_rate, "LONGEST", 2)
    with pytest.raises(SteelyardError, match="width 64 cannot fit 80 points of 20 dimensions"):
        generators.flip_rate_tasks([0.5], **SMALL)


# --- label noise -------------------------------------------------------------------------------------------------


@given(st.floats(0, 1), st.integers(2, 6), st.integers(0, 3))
def test_flips_have_their_rate_and_hit_all_other_classes(rate: float, classes: int, seed: int) -> None:
    labels = torch.arange(20_000) % classes
    labels[::10] = IGNORE
    noisy = generators.flip_labels(labels, rate, classes, seed)
    assert isinstance(noisy, torch.Tensor)
    given = labels != IGNORE
    assert torch.equal(noisy == IGNORE, ~given)
    wrong = noisy[given] != labels[given]
    assert float(wrong.float().mean()) == pytest.approx(rate, abs=0.02)
    if rate > 0.1:
        shifts = ((noisy - labels)[given][wrong] % classes).bincount(minlength=classes)[1:] / wrong.sum()
        assert shifts.tolist() == pytest.approx([1 / (classes - 1)] * (classes - 1), abs=0.05)
    assert torch.equal(noisy, generators.flip_labels(labels, rate, classes, seed))


def test_flips_of_several_labels_and_of_tags() -> None:
    flags = torch.tensor([[0.0, 1, float("nan")]] * 5_000)
    noisy = generators.flip_labels(flags, 0.25)
    assert noisy[:, 2].isnan().all()
    assert (noisy[:, :2] != flags[:, :2]).float().mean(0).tolist() == pytest.approx([0.25, 0.25], abs=0.02)
    tags = Ragged.of([[0, 1, IGNORE], [2]])
    turned = generators.flip_labels(tags, 1.0, 3)
    assert isinstance(turned, Ragged)
    assert turned.offsets is tags.offsets
    assert (turned.values == tags.values).tolist() == [False, False, True, False]


def test_noise_by_class() -> None:
    labels = torch.arange(30_000) % 3
    transition = torch.tensor([[1.0, 0, 0], [0.3, 0.7, 0], [0, 0.5, 0.5]])
    noisy = generators.transition_labels(labels, transition)
    found = torch.stack([noisy[labels == c].bincount(minlength=3) / 10_000 for c in range(3)])
    assert torch.allclose(found, transition, atol=0.02)
    tags = generators.transition_labels(Ragged.of([[1, 1], [0]]), torch.tensor([[1.0, 0], [1.0, 0]]))
    assert tags.values.tolist() == [0, 0, 0]


def test_additive_noise() -> None:
    labels = torch.linspace(-3, 3, 20_000)
    labels[0] = float("nan")
    noise = (generators.add_noise(labels, 0.5) - labels)[1:]
    assert (float(noise.mean()), float(noise.std())) == pytest.approx((0, 0.5), abs=0.02)
    assert generators.add_noise(labels, 0.5)[0].isnan()
    assert torch.equal(generators.add_noise(labels, 0.0)[1:], labels[1:])


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: generators.flip_labels(torch.tensor([0, 1]), 1.5, 2), "no share"),
        (lambda: generators.flip_labels(torch.tensor([0, 0]), 0.5, 1), "no other label"),
        (lambda: generators.transition_labels(torch.tensor([0]), torch.tensor([[0.5, 0.4], [0, 1]])), "add up to 1"),
        (lambda: generators.transition_labels(torch.tensor([0]), torch.ones(2, 3) / 3), "square"),
        (lambda: generators.transition_labels(torch.tensor([5]), torch.eye(2)), "there is a label 5"),
        (lambda: generators.add_noise(torch.zeros(2), -1), "negative"),
    ],
)
def test_noise_that_makes_no_sense(make, word: str) -> None:
    with pytest.raises(SteelyardError, match=word):
        make()


def layered(n: int = 60) -> Suite:
    """Two tasks on the same rows, a source and a regression of their own."""

    def inputs() -> torch.Tensor:
        return torch.randn(n, 3)

    shared, held = inputs(), inputs()
    return Suite(
        [
            Task(
                "a",
                "classification",
                {"train": Rows(shared, torch.arange(n) % 2), "test": Rows(held, torch.arange(n) % 2)},
            ),
            Task("b", "classification", {"train": Rows(shared, torch.arange(n) % 3)}),
            Task("c", "classification", {"train": Rows(torch.randn(10 * n, 3), torch.arange(10 * n) % 5)}),
            Task("d", "regression", {"train": Rows(inputs(), torch.randn(n))}),
        ],
        target="a",
    )


def test_noise_on_a_suite_reaches_train_alone() -> None:
    suite = layered()
    noisy = generators.with_noise(suite, {"a": 1.0, "b": torch.eye(3)[[1, 2, 0]], "d": 2.0}, seed=1)
    assert torch.equal(noisy["a"].rows[Role.TRAIN].labels, 1 - suite["a"].rows[Role.TRAIN].labels)
    assert torch.equal(noisy["a"].rows[Role.TEST].labels, suite["a"].rows[Role.TEST].labels)
    assert torch.equal(noisy["b"].rows[Role.TRAIN].labels, (suite["b"].rows[Role.TRAIN].labels + 1) % 3)
    assert noisy["c"].rows[Role.TRAIN].labels is suite["c"].rows[Role.TRAIN].labels
    assert float((noisy["d"].rows[Role.TRAIN].labels - suite["d"].rows[Role.TRAIN].labels).std()) > 1
    assert noisy["a"].rows[Role.TRAIN].inputs is noisy["b"].rows[Role.TRAIN].inputs
    with pytest.raises(SteelyardError, match="no task 'e', only a, b, c, d"):
        generators.with_noise(suite, {"e": 0.1})
    with pytest.raises(SteelyardError, match="'d' is regression: noise by class needs classes"):
        generators.with_noise(suite, {"d": torch.eye(2)})


# --- sizes -------------------------------------------------------------------------------------------------------


def test_sizes_by_number_and_by_ratio_to_the_target() -> None:
    suite = layered()
    assert generators.with_sizes(suite, {"c": 2.5, "d": 7}).sizes() == {"a": 60, "b": 60, "c": 150, "d": 7}
    few = generators.with_sizes(suite, {"a": 12, "c": 8.0, "d": 0.5}, seed=2)
    assert few.sizes() == {"a": 12, "b": 60, "c": 96, "d": 6}, "ratios are to the rows that the target keeps"
    assert generators.with_sizes(suite, {"a": 0.5, "c": 2.0}).sizes() == {"a": 30, "b": 60, "c": 60, "d": 60}
    assert set(few["c"].rows[Role.TRAIN].labels.bincount().tolist()) == {19, 20}, "classes in proportion"
    assert same(few, generators.with_sizes(suite, {"a": 12, "c": 8.0, "d": 0.5}, seed=2))
    other = generators.with_sizes(suite, {"c": 96}, seed=3)
    assert not torch.equal(other["c"].rows[Role.TRAIN].lines, few["c"].rows[Role.TRAIN].lines)


def test_layers_that_shrink_alike_still_share_rows() -> None:
    suite = generators.with_sizes(layered(), {"a": 20, "b": 20})
    a, b = (suite[name].rows[Role.TRAIN] for name in "ab")
    assert a.inputs is b.inputs
    assert torch.equal(a.labels, a.lines % 2)
    assert torch.equal(b.labels, b.lines % 3)


@pytest.mark.parametrize(
    ("sizes", "word"), [({"d": 61}, "60 training rows, 61"), ({"d": 0}, "0 are asked"), ({"x": 3}, "no task 'x'")]
)
def test_sizes_that_cannot_be(sizes: dict[str, int], word: str) -> None:
    with pytest.raises(SteelyardError, match=word):
        generators.with_sizes(layered(), sizes)


# --- overlaid images ---------------------------------------------------------------------------------------------


def test_an_overlay_is_the_canvas_resized() -> None:
    light, dark = torch.ones(1, 1, 4, 4), torch.zeros(1, 1, 4, 4)
    # A canvas of 8 x 8: the first image fills its top left quarter, the second its bottom right one.
    first, second = (generators.overlay(a, b, 4)[0, 0] for a, b in ((light, dark), (dark, light)))
    assert (float(first[0, 0]), float(first[0, 3]), float(first[3, 3])) == (1, 0, 0)
    assert torch.allclose(first, second.flip(0, 1))
    assert torch.allclose(first + second, generators.overlay(light, light, 4)[0, 0])
    bright = torch.full((1, 1, 4, 4), 200, dtype=torch.uint8)
    assert generators.overlay(bright, bright, 2).dtype == torch.uint8
    assert int(generators.overlay(bright, bright, 2).max()) == 200, "pixels that meet are not added up"


def digits(n: int, level: float) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(n) % 3
    return torch.full((n, 1, 7, 7), level) * (labels + 1)[:, None, None, None], labels


def test_pairs_use_each_image_before_any_comes_twice() -> None:
    first, second = digits(12, 1.0), digits(9, 0.0)
    images, left, right = generators.overlaid_pairs(first, second, 24, 5)
    assert left[:12].bincount().tolist() == [4, 4, 4]
    assert left.bincount().tolist() == [8, 8, 8]
    assert torch.equal(images.amax((1, 2, 3)).round().long(), left + 1), "labels belong to their images"
    assert len(right) == 24
    again = generators.overlaid_pairs(first, second, 24, 5)
    assert torch.equal(again[0], images)
    with pytest.raises(SteelyardError, match=r"\[1, 7, 7\] cannot be overlaid with images of \[1, 8, 8\]"):
        generators.overlaid_pairs(first, (torch.zeros(2, 1, 8, 8), torch.zeros(2)), 3, 0)


def test_overlay_tasks() -> None:
    sets = {"train": digits(30, 1.0), "test": digits(12, 1.0)}
    suite = generators.overlay_tasks(sets, sets, names=("top", "bottom"), counts={"train": 40}, seed=1)
    assert (suite.target, suite.sizes(), suite.sizes(Role.TEST)) == (
        "top",
        {"top": 40, "bottom": 40},
        {"top": 12, "bottom": 12},
    )
    assert suite["top"].rows[Role.TRAIN].inputs is suite["bottom"].rows[Role.TRAIN].inputs
    assert suite["bottom"].outputs == 3
    np.testing.assert_array_equal(
        suite["top"].rows[Role.TRAIN].labels,
        generators.overlay_tasks(sets, sets, counts={"train": 40}, seed=1)["left"].rows[Role.TRAIN].labels,
    )
