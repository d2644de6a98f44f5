"""The studies of information transfer run at a size of seconds, and what they say follows from their cells."""

import pytest

from steelyard import data, studies
from steelyard.studies import Results, information
from steelyard.studies.information.running import point, verdict
from steelyard.studies.statistics import Estimate, estimate

TRAINING = {"epochs": 1, "steps_per_epoch": 10, "learning_rate": 1e-2, "dim": 20, "flips": 0.1, "seeds": 2}
TRANSFER = TRAINING | {
    "links": ["linear", "relu"], "orders": ["RQD", "RDQ"], "rows": [60, 120], "targets": {"few": [50, 0.5]},
    "condition": 10.0, "neurons": 2,
}  # fmt: skip
TINY = {
    "transfer-covariance": TRANSFER,
    "alignment": TRANSFER | {"links": ["linear"], "epochs": 2},
    "transfer-cosine": TRAINING
    | {"cosines": [1.0, 0.0], "ten_cosines": [0.9], "pair_rows": 60, "rows": [80], "noise": 0.3, "rank": 4},
    "capacity": {"seeds": 2, "rows": 40, "epochs": 1, "learning_rate": 1e-2, "widths": {"mlp": [2, 4]}},
    "svd-noise": {"seeds": 2, "pairs": 2, "flips": [0.0, 0.2], "rows": 60, "epochs": 1, "hidden": 4},
}
FIGURES = {
    "transfer-covariance": ["linear-few", "relu-few"],
    "alignment": ["linear-few-RQD", "linear-few-RDQ"],
    "transfer-cosine": ["figure7", "figure8a", "figure8b"],
    "capacity": ["mlp"],
    "svd-noise": ["pairs"],
}


def reachable() -> None:
    try:
        data.suites.fetch("multilabel")
    except data.suites.UnreachableError as reason:
        pytest.skip(f"suite:multilabel is not cached and cannot be fetched: {reason}")


@pytest.mark.parametrize("name", TINY)
def test_a_study_runs_and_draws_its_figures(name, tmp_path, monkeypatch):
    if name == "svd-noise":
        reachable()
    study = studies.get(name)
    assert set(TINY[name]) == set(study.settings["small"]) == set(study.settings["full"])
    monkeypatch.setattr(study, "settings", {"small": TINY[name]})
    findings, failed = studies.run(study(), tmp_path / "out", size="small", jobs=1, progress=False)
    assert failed == {}
    assert list(findings.figures) == FIGURES[name]
    assert all(svg.startswith("<svg") for svg in findings.figures.values())
    for table in findings.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert "nan" not in " ".join(cell for row in table.rows for cell in row)


def test_in_the_linear_study_one_model_helps_and_an_orthogonal_one_hurts():
    settings = studies.get("transfer-cosine").settings["small"]
    found = [
        information.CosineFigure.measure(settings, panel="7a", cosine=cosine, rows=100, seed=0) for cosine in (1.0, 0.0)
    ]
    near, across = (value["together"] - value["alone"] for value in found)
    assert near > 0 > across


def test_the_verdict_is_the_intervals():
    assert verdict(estimate([1.0, 1.1, 0.9])) == "positive"
    assert verdict(estimate([-1.0, -1.1, -0.9])) == "negative"
    assert verdict(estimate([-1.0, 1.0])) == verdict(estimate([1.0])) == "undecided"
    assert point(3, estimate([1.0])) == (3, 1.0, 1.0, 1.0)
    assert point(3, Estimate(1.0, 0.5, 1.5, 0.1, 3)) == (3, 1.0, 0.5, 1.5)


def test_covariances_are_counted_at_the_smallest_source():
    settings = TRANSFER | {"links": ["linear"], "orders": ["RQD"]}
    gains = {"same": {60: 0.2, 120: 0.3}, "different": {60: -0.2, 120: 0.1}}
    cells = [
        ({"target": "few", "link": "linear", "order": "RQD", "source": source, "rows": rows, "seed": seed},
         {"value": 0.5 + gain + 0.01 * seed})
        for source, by_rows in ({"none": {0: 0.0}} | gains).items()
        for rows, gain in by_rows.items()
        for seed in range(3)
    ]  # fmt: skip
    findings = information.CovarianceFigure().findings(settings, Results(cells))
    assert "the same covariance helps in 1 and hurts in 0; a different one helps in 0 and hurts in 1" in findings.answer
    assert findings.tables[0].rows[1][-2:] == ["-0.2000 ± 0.0000", "+0.1000 ± 0.0000"]
