"""The studies of what a source is worth to a target, in sizes that take seconds."""

import json

import pytest
import torch

from steelyard import studies
from steelyard.studies import noisy_rows, signals, tawt_tables, three_sources
from steelyard.studies.results import Results
from steelyard.tasks import Role


def run(name, settings, monkeypatch, tmp_path):
    study = studies.get(name)
    monkeypatch.setattr(study, "settings", {"small": settings})
    found, failed = studies.run(study(), tmp_path / name, size="small", jobs=1, progress=False)
    assert not failed
    return found


def test_flip_rate(monkeypatch, tmp_path):
    settings = {"seeds": 1, "rates": [0.0, 0.5, 1.0], "rows": [20], "source_rows": 100, "points": 30, "epochs": 1}
    found = run("flip-rate", settings, monkeypatch, tmp_path)
    ranks, gains = found.tables
    assert [row[1] for row in ranks.rows] == ["trained", "answers", "gradients"]
    assert gains.columns[2:] == ("q = 0", "q = 0.5", "q = 1")
    assert set(found.figures) == {"distance", "gain"}
    cells = [json.loads(line)["value"] for line in (tmp_path / "flip-rate" / "cells.jsonl").read_text().splitlines()]
    assert all(len(cell["learned"]) == 3 and 0 <= cell["single"] <= 1 for cell in cells)


def test_signals(monkeypatch, tmp_path):
    chosen = ("every step, dev_meta", "αVIL's deltas")
    monkeypatch.setattr(signals, "SIGNALS", {name: signals.SIGNALS[name] for name in chosen})
    found = run("signals", {"seeds": 1, "epochs": 1, "steps": 3, "suites": ["digits"]}, monkeypatch, tmp_path)
    ranking, accuracy = found.tables
    assert [row[0] for row in ranking.rows] == [*chosen, signals.DISTANCE]
    assert all(float(row[2]) + float(row[3]) + float(row[4]) == pytest.approx(1, abs=0.02) for row in ranking.rows)
    assert [row[0] for row in accuracy.rows] == [*signals.CONTROLS, *chosen, signals.DISTANCE]
    assert "on each suite:" in found.answer


def test_noisy_rows(monkeypatch, tmp_path):
    found = run("noisy-rows", {"seeds": 1, "rates": [0.2], "epochs": 2, "rows": 60}, monkeypatch, tmp_path)
    (table,) = found.tables
    assert [row[1] for row in table.rows] == list(noisy_rows.WAYS)
    assert all(0 <= float(row[2].split(" ")[0]) <= 1 for row in table.rows)
    assert "AUROC of 0.8 or more" in found.answer


BRIEF = {"seeds": 2, "epochs": 2, "steps": 3}


@pytest.mark.parametrize(
    ("name", "sizes", "points"),
    [
        ("tawt-ratio", {"rows": 10, "ratios": [1, 2]}, ("1", "2")),
        ("tawt-size", {"rows": [10, 20], "ratio": 2}, ("10", "20")),
        ("tawt-fixed", {"rows": 10, "ratio": 2}, ("normalised joint", "pre-training")),
    ],
)
def test_tawt_tables(name, sizes, points, monkeypatch, tmp_path):
    study = studies.get(name)
    found = run(name, BRIEF | sizes, monkeypatch, tmp_path)
    accuracy, gains = found.tables
    assert accuracy.columns[1:] == gains.columns[1:] == points
    means = {row[0]: row[1:] for row in accuracy.rows}
    assert list(means) == list(study.ways)
    empty = [(way, point) for way, line in means.items() for point, mean in zip(points, line, strict=True) if not mean]
    assert empty == ([("ramp", "pre-training")] if name == "tawt-fixed" else []), "pre-training has no ramp"
    assert gains.rows[-1][1:] == [study.published[point] for point in points]
    assert ("gain" in found.figures) == ("gain changes by" in found.answer) == (name != "tawt-fixed")


def test_gains_of_tawt_are_paired_at_each_point_and_compared_along_the_points():
    study, settings = tawt_tables.TAWTRatio(), {"seeds": 2, "ratios": [1, 16], "rows": 10}
    more = {1: {0: 5.0, 1: 7.0}, 16: {0: 1.0, 1: 2.0}}
    cells = [
        (
            key,
            {"accuracy": 50 + 20 * key["seed"] + more[key["ratio"]][key["seed"]] * (key["way"] == tawt_tables.PAPERS)},
        )
        for key in study.keys(settings)
    ]
    found = study.findings(settings, Results(cells))
    assert "1: +6.0000" in found.answer
    assert "16: +1.5000" in found.answer
    assert "changes by -4.5000" in found.answer


@pytest.mark.parametrize("paradigm", [tawt_tables.JOINT, tawt_tables.PRETRAIN])
def test_fixed_weights_are_those_that_moving_ones_end_at(paradigm):
    point = {"rows": 10, "ratio": 2, "paradigm": paradigm, "seed": 1}
    measure = tawt_tables.TAWTFixed.measure
    settings = BRIEF | {"epochs": 3}
    even = measure(settings, way="uniform", **point)["weights"]
    moved = measure(settings, way=tawt_tables.PAPERS, **point)
    held = measure(settings, way=tawt_tables.PAPERS + tawt_tables.HELD, **point)
    assert moved["first_weights"] == pytest.approx(even)
    assert moved["weights"] != pytest.approx(even, abs=0.01)
    assert held["first_weights"] == held["weights"] == pytest.approx(moved["weights"])


def test_the_three_sources_are_what_they_say():
    suite = three_sources.digits(seed=3)
    again, other = three_sources.digits(seed=3), three_sources.digits(seed=4)
    target, permuted = (suite[name].rows[Role.TRAIN] for name in ("target", "permuted"))
    assert len(target) == 50
    assert torch.equal(target.inputs, again["target"].rows[Role.TRAIN].inputs)
    assert not torch.equal(target.inputs, other["target"].rows[Role.TRAIN].inputs)
    assert {name: task.size() for name, task in suite.tasks.items()} == {
        "target": 50, "helpful": 300, "irrelevant": 300, "permuted": 300,
    }  # fmt: skip
    everything = torch.cat([suite[name].rows[Role.TRAIN].inputs.flatten(1) for name in suite.tasks])
    assert len(torch.unique(everything, dim=0)) == len(everything), "no image is in two tasks"
    assert suite["helpful"].outputs == 5
    assert permuted.labels.bincount(minlength=10).min() > 10
