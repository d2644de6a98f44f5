"""A study runs by name, in a folder of its own, and says what it found."""

import csv
import json

import pytest

from steelyard import studies
from steelyard.studies import Results, tables


@pytest.fixture
def few(monkeypatch):
    """The study ``controls`` in a size that takes a second."""
    monkeypatch.setattr(studies.get("controls"), "settings", {"small": {"seeds": 2, "epochs": 1}})


@pytest.mark.usefixtures("few")
def test_study_runs_and_goes_on(tmp_path, steelyard):
    out = tmp_path / "study"
    status, printed, err = steelyard("study", "controls", "--small", "--jobs", 1, "--out", out)
    assert status == 0, err
    assert "Sources with even weights change the target's test accuracy by" in printed
    with (out / "table1.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["single", "uniform", "joint", "ramp", "random"]
    assert {row["seeds"] for row in rows} == {"2"}
    cells = (out / "cells.jsonl").read_text()
    status, _, err = steelyard("study", "controls", "--small", "--jobs", 1, "--out", out)
    assert "going on: 10 of 10 were done" in err
    assert (out / "cells.jsonl").read_text() == cells
    assert "| single |" in (out / "study.md").read_text()
    status, printed, _ = steelyard("study", "controls", "--small", "--jobs", 1, "--seeds", 1, "--out", out, "--json")
    assert json.loads(printed)["tables"][0]["rows"][0][0] == "single"


def test_cells_that_fail_are_named_and_the_table_is_still_made(tmp_path, steelyard, monkeypatch):
    monkeypatch.setattr(studies.get("controls"), "settings", {"small": {"seeds": 2, "epochs": 1}})
    measure = studies.get("controls").measure

    def breaks(settings, **key):
        if key == {"method": "ramp", "seed": 1}:
            raise RuntimeError("no such luck")
        return measure(settings, **key)

    monkeypatch.setattr(studies.get("controls"), "measure", staticmethod(breaks))
    out = tmp_path / "study"
    status, printed, err = steelyard("study", "controls", "--small", "--jobs", 1, "--out", out)
    assert status == 2
    assert "failed: method ramp, seed 1: RuntimeError: no such luck" in printed
    assert f"1 cell failed: method ramp, seed 1; the same command with --out {out} tries again" in err
    assert "ramp" in (out / "table1.csv").read_text()
    status, printed, _ = steelyard("study", "controls", "--small", "--jobs", 1, "--out", out, "--json")
    assert status == 2
    assert list(json.loads(printed)["failed"]) == ["method ramp, seed 1"]
    monkeypatch.setattr(studies.get("controls"), "measure", staticmethod(measure))
    assert steelyard("study", "controls", "--small", "--jobs", 1, "--out", out)[0] == 0


def test_the_time_it_will_take_is_said_before_it_starts(tmp_path, steelyard, monkeypatch):
    kind = studies.get("controls")
    assert studies.minutes(kind(), tmp_path, size="full", jobs=2) == kind.minutes["full"]
    assert studies.minutes(kind(), tmp_path, size="full", seeds=5, jobs=4) == kind.minutes["full"] / 4
    monkeypatch.setattr(kind, "settings", {"small": {"seeds": 2, "epochs": 1}})
    _, _, err = steelyard("study", "controls", "--small", "--seeds", 1, "--jobs", 1, "--out", tmp_path / "s")
    assert f"about {kind.minutes['small']:.1f} minutes on 1 cores" in err
    assert studies.minutes(kind(), tmp_path / "s", size="small", jobs=1) == kind.minutes["small"]


def test_bad_calls(tmp_path, steelyard):
    status, _, err = steelyard("study", "controlls")
    assert (status, err) == (2, "steelyard: there is no study 'controlls'; did you mean 'controls'?\n")
    (tmp_path / "file").write_text("mine")
    status, _, err = steelyard("study", "controls", "--out", tmp_path)
    assert status == 2
    assert "is not empty and holds no study" in err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "study.json").write_text(json.dumps({"study": "x", "size": "full", "settings": {}}))
    status, _, err = steelyard("study", "controls", "--out", tmp_path / "other")
    assert status == 2
    assert "belongs to study 'x' (full)" in err


def test_every_study_is_described(steelyard):
    status, printed, _ = steelyard("study", "--list", "--json")
    assert status == 0
    for found in json.loads(printed):
        assert found["summary"]
        assert set(found["minutes"]) == {"small", "full"}
        keys = studies.get(found["name"])().keys(studies.get(found["name"]).settings["small"])
        assert len({json.dumps(key, sort_keys=True) for key in keys}) == len(keys)
        assert all("seed" in key for key in keys)


def test_the_papers_figures_stand_beside_ours():
    cells = [({"method": m, "seed": s}, {"x": s + 1.0}) for m in ("a", "b") for s in (0, 1)]
    found = tables.comparison("t", Results(cells), "x", published={"a": "96.4"})
    assert found.columns[:3] == ("method", "mean ± 95 %", "paper")
    assert [row[2] for row in found.rows] == ["96.4", ""]


def test_gains_are_paired_by_seed():
    values = {"a": {0: 1.0, 1: 5.0}, "b": {1: 4.0, 0: 0.5}}
    cells = [({"method": m, "seed": s}, {"x": v}) for m, each in values.items() for s, v in each.items()]
    gain = Results(cells).gain("x", {"method": "a"}, {"method": "b"})
    assert (gain.mean, gain.count) == (0.75, 2)
    assert studies.paired(values["a"], values["b"]) == gain
