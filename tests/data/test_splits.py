"""Splits are stratified, seeded, and never part a document."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard import data
from steelyard.data import splits
from steelyard.tasks import Kind, Ragged, Role

groups = st.lists(st.integers(-1, 4), min_size=1, max_size=60).map(np.array)


@given(groups, st.floats(0.05, 0.9), st.integers(0, 5))
def test_held_out_rows_are_labelled_and_no_class_is_lost(strata: np.ndarray, fraction: float, seed: int) -> None:
    kept, held = splits.hold_out(strata, fraction, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate([kept, held])), np.arange(len(strata)))
    assert (strata[held] >= 0).all()
    assert set(strata[kept]) == set(strata)
    again = splits.hold_out(strata, fraction, seed)
    np.testing.assert_array_equal(held, again[1])


@given(groups, st.integers(1, 60), st.integers(0, 5))
def test_a_draw_holds_each_class_in_proportion(strata: np.ndarray, count: int, seed: int) -> None:
    rows = splits.draw(strata, count, seed)
    assert len(rows) == len(set(rows)) == min(count, len(strata))
    labelled = strata[strata >= 0]
    if count <= len(labelled):
        assert (strata[rows] >= 0).all()
        for name in set(labelled):
            exact = count * (labelled == name).mean()
            classes = len(set(labelled))
            assert abs((strata[rows] == name).sum() - exact) <= (1 if count >= 8 * classes else classes)
            if count >= classes:
                assert (strata[rows] == name).any()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), min_size=2, max_size=60), st.integers(0, 5))
def test_documents_stay_whole(pairs: list[tuple[int, int]], seed: int) -> None:
    documents, strata = np.array(pairs).T
    kept, held = splits.hold_out(strata, 0.3, seed, documents=documents)
    assert len(kept) + len(held) == len(pairs)
    assert not set(documents[kept]) & set(documents[held])
    assert set(strata[kept]) == set(strata)
    assert len(held) == 0 or len(set(documents)) > 1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-1, 2)), min_size=2, max_size=60), st.integers(0, 5))
def test_twins_stay_together_where_the_fraction_allows_it(pairs: list[tuple[int, int]], seed: int) -> None:
    twins, strata = np.array(pairs).T
    kept, held = splits.hold_out(strata, 0.3, seed, twins=twins)
    np.testing.assert_array_equal(np.sort(np.concatenate([kept, held])), np.arange(len(strata)))
    assert set(strata[kept]) == set(strata)
    if set(twins[kept]) & set(twins[held]):
        np.testing.assert_array_equal(held, splits.hold_out(strata, 0.3, seed)[1])


def test_rows_without_twins_are_split_as_if_none_were_looked_for() -> None:
    strata = np.arange(50) % 3
    np.testing.assert_array_equal(
        splits.hold_out(strata, 0.2, 1, "x", twins=np.arange(50))[1], splits.hold_out(strata, 0.2, 1, "x")[1]
    )


def test_equal_rows_of_a_file_are_held_out_together(tmp_path: Path) -> None:
    """Every third text occurs twice, and the suite's warnings are errors: none may be in train and in dev."""
    texts = [f"text {i}" for i in range(90)] + [f"text {i}" for i in range(0, 90, 3)]
    (tmp_path / "t.csv").write_text("body,y,z\n" + "".join(f"{t},{len(t) % 2},{i % 2}\n" for i, t in enumerate(texts)))
    target = data.TargetData(name="t", train="t.csv", text="body", label="y", dev_fraction=0.2)
    source = data.SourceData(name="s", train="t.csv", text="body", label="z")
    prepared = data.build(target, [source], base=tmp_path)
    assert not prepared.summary.duplicates
    rows = prepared.suite["t"].rows
    assert 18 <= len(rows[Role.DEV_SELECT]) <= 30
    sides = [{texts[i] for i in rows[role].lines.tolist()} for role in (Role.TRAIN, Role.DEV_SELECT)]
    assert not sides[0] & sides[1]


def test_equal_rows_of_a_table_without_named_inputs(tmp_path: Path) -> None:
    """All columns but the labels of all tasks are inputs, so rows that differ in another task's label are equal."""
    lines = "".join(f"{i // 2},{i // 2 % 7},{i // 2 % 2},{i % 2}\n" for i in range(80))
    (tmp_path / "t.csv").write_text("a,b,y,z\n" + lines)
    target = data.TargetData(name="t", train="t.csv", label="y")
    prepared = data.build(target, [data.SourceData(name="s", train="t.csv", label="z")], base=tmp_path)
    assert not prepared.summary.duplicates
    assert len(prepared.suite["t"].rows[Role.DEV_SELECT]) == 8


def test_a_file_of_few_different_rows_says_what_its_dev_is_worth(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("body,y\n" + "good,1\nbad,0\n" * 40)
    with pytest.warns(data.DataWarning, match=r"dev was held out of t.csv, where rows repeat; remove the repeats"):
        data.build(data.TargetData(name="t", train="t.csv", text="body", label="y"), base=tmp_path)


def test_share_and_proportions() -> None:
    strata = np.repeat([0, 1, 2], [800, 150, 50])
    _, held = splits.hold_out(strata, 0.1, 0)
    assert np.bincount(strata[held]).tolist() == [80, 15, 5]
    _, held = splits.hold_out(strata, 0.1, 0, documents=np.arange(1000) // 5)
    assert np.bincount(strata[held]).tolist() == [80, 15, 5]
    assert not np.array_equal(held, splits.hold_out(strata, 0.1, 1, documents=np.arange(1000) // 5)[1])


def test_strata() -> None:
    assert splits.strata(torch.tensor([2, -100, 0]), Kind.CLASSIFICATION).tolist() == [2, -1, 0]
    flags = torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 0, 0], [float("nan")] * 3])
    assert splits.strata(flags, Kind.MULTILABEL).tolist() == [0, 1, 3, -1]
    numbers = torch.cat([torch.arange(100.0), torch.tensor([float("nan")])])
    assert np.bincount(splits.strata(numbers, Kind.REGRESSION) + 1).tolist() == [1] + [10] * 10
    tags = Ragged(torch.tensor([1, -100, -100, 0]), torch.tensor([0, 2, 2, 3, 4]))
    assert splits.strata(tags, Kind.TAGGING).tolist() == [0, -1, -1, 0]


def test_dev_of_a_target_is_no_sources_train(tmp_path: Path) -> None:
    lines = "".join(f"text {i},{i % 2},{i % 3}\n" for i in range(60))
    (tmp_path / "t.csv").write_text("body,a,b\n" + lines)
    target = data.TargetData(name="a", train="t.csv", text="body", label="a", dev_fraction=0.2)
    source = data.SourceData(name="b", train="t.csv", text="body", label="b", dev_fraction=0)
    suite = data.build(target, [source], base=tmp_path, seed=3).suite
    assert suite.sizes() == {"a": 48, "b": 48}
    assert suite["a"].rows[Role.TRAIN].inputs is suite["b"].rows[Role.TRAIN].inputs
    assert torch.equal(suite["a"].rows[Role.DEV_SELECT].lines, suite["b"].rows[Role.DEV_SELECT].lines)
    other = data.build(target, base=tmp_path, seed=4).suite
    assert not torch.equal(suite["a"].rows[Role.DEV_SELECT].lines, other["a"].rows[Role.DEV_SELECT].lines)


def test_groups_from_a_column(tmp_path: Path) -> None:
    lines = "".join(f"text {i},{i % 2},doc{i // 5}\n" for i in range(100))
    (tmp_path / "t.csv").write_text("body,y,doc\n" + lines)
    target = data.TargetData(name="t", train="t.csv", text="body", label="y", group="doc", dev_fraction=0.2)
    rows = data.build(target, base=tmp_path).suite["t"].rows
    assert len(rows[Role.DEV_SELECT]) == 20
    documents = [set((rows[role].lines // 5).tolist()) for role in (Role.TRAIN, Role.DEV_SELECT)]
    assert not documents[0] & documents[1]
