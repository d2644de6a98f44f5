"""The capacity search: narrower than the single tasks' sum where tasks share, hopeless widths stopped, gone on with."""

import json

import pytest
import torch
from torch import nn

from steelyard import Rows, SteelyardError, Suite, Task, testing
from steelyard.diagnostics import Capacity, capacity_search
from steelyard.diagnostics.capacity import Curve, Search

SETTINGS = {"optimizer": "Adam", "learning_rate": 0.03, "batch_size": 40, "steps_per_epoch": 10, "device": "cpu"}


def low_rank(tasks: int = 5, rank: int = 2, seed: int = 0) -> Suite:
    """Linear tasks whose models span few directions; too few rows to learn any of them alone."""
    draw = torch.Generator().manual_seed(seed)
    models = torch.randn(30, rank, generator=draw) @ torch.randn(rank, tasks, generator=draw)

    def rows(number: int, count: int) -> Rows:
        inputs = torch.randn(count, 30, generator=draw)
        return Rows(inputs, inputs @ models[:, number] + 1.5 * torch.randn(count, generator=draw))

    return Suite(
        [Task(f"t{k}", "regression", {"train": rows(k, 40), "dev_select": rows(k, 300)}) for k in range(tasks)]
    )


def linear(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(30, width, bias=False)


def searched(**options: object) -> Capacity:
    return capacity_search(low_rank(), linear, [1, 2, 4, 8], epochs=8, **SETTINGS, **options)


def test_tasks_that_share_two_directions_want_a_shared_part_of_about_two() -> None:
    found = searched(grace=1.0)
    assert found.shared.best in (2, 4)
    assert found.shared.best < found.total
    assert set(found.single) == {f"t{k}" for k in range(5)}
    assert found.shared.curves[2].value > found.shared.curves[1].value
    assert found.shared.curves[2].value > found.shared.curves[8].value
    assert not any(curve.stopped for curve in found.shared.curves.values())
    assert found.lines()["together"] == [(r, curve.value) for r, curve in found.shared.curves.items()]


def test_hopeless_widths_stop_early_and_the_choice_stays() -> None:
    whole, raced = searched(grace=1.0, single=False), searched(grace=0.25, single=False)
    stopped = [width for width, curve in raced.shared.curves.items() if curve.stopped]
    assert stopped
    assert raced.single == {}
    for width in stopped:
        values = raced.shared.curves[width].values
        assert len(values) < 8
        assert values == whole.shared.curves[width].values[: len(values)]
    assert raced.shared.best == whole.shared.best


def test_a_search_goes_on_where_it_stopped(tmp_path) -> None:
    suite, options = testing.suite(), {"epochs": 2, "device": "cpu", "single": False}
    first = capacity_search(suite, "mlp", [2, 4], out=tmp_path, **options)
    (tmp_path / "together" / "width-4" / "metrics.jsonl").read_text()
    marked = json.loads((tmp_path / "together" / "width-2" / "summary.json").read_text())
    again = capacity_search(suite, "mlp", [2, 4, 8], out=tmp_path, **options)
    assert json.loads((tmp_path / "together" / "width-2" / "summary.json").read_text()) == marked
    assert {r: again.shared.curves[r] for r in (2, 4)} == dict(first.shared.curves)


def test_of_equal_widths_the_smallest_is_best_and_errors_count_down() -> None:
    curves = {r: Curve(values, stopped=False) for r, values in ((2, (-3.0, -1.0)), (4, (-1.0,)), (8, (-2.0,)))}
    assert Search(("t",), curves).best == 2
    found = capacity_search(low_rank(tasks=1), linear, [2], epochs=2, single=False, **SETTINGS)
    assert found.shared.curves[2].value < 0


def test_what_cannot_be_searched_is_told() -> None:
    suite = testing.suite()
    with pytest.raises(SteelyardError, match="what the width of 'resnet' is called is not known"):
        capacity_search(suite, "resnet", [4])
    with pytest.raises(SteelyardError, match=r"\[0, 2\] are no widths"):
        capacity_search(suite, "mlp", [0, 2])
    bare = Suite([Task("t", "regression", {"train": Rows(torch.ones(4, 2), torch.arange(4.0))})])
    with pytest.raises(SteelyardError, match="task 't' has no dev rows to choose a width by"):
        capacity_search(bare, "mlp", [2])
