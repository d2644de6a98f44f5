"""A run's page with what a transfer and a comparison of the same target have measured, in folders of their own."""

import json

import pytest
from tests.report.folders import NASTY, SCRIPT

from steelyard import report
from steelyard.report.answer import worth
from steelyard.report.apart import joined
from steelyard.report.reading import read, read_any


def measured(folder, said, name, *, rows="other", seeds=3, subject=None, **findings):
    folder.mkdir()
    cells = [{"key": {"seed": seed}, "value": {"test": 0.5}} for seed in range(seeds)]
    (folder / "cells.jsonl").write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    (folder / "study.json").write_text(json.dumps({"study": name, "subject": {"rows": rows, **(subject or {})}}))
    (folder / "findings.json").write_text(json.dumps({"answer": "", **findings}))
    (folder / f"{name}.json").write_text(json.dumps(said))
    return folder


@pytest.fixture
def transfer(tmp_path, plain_run):
    def value(source, kind, gain, p):
        ends = {"low": gain - 0.01, "high": gain + 0.01, "p": p, "p_holm": p}
        return {"target": NASTY, "source": source, "kind": kind, "gain": gain, **ends}

    said = {
        "target": NASTY, "judged": {NASTY: {"task": NASTY, "metric": "accuracy", "role": "test"}},
        "worths": [
            value(SCRIPT, "alone", 0.01, 0.2), value("_plain", "alone", 0.03, 0.01),
            value(SCRIPT, "left_out", 0.04, 0.01), value("_plain", "left_out", 0.02, 0.2),
            {"target": SCRIPT, "source": "_plain", "kind": "alone", "gain": 9.0},
        ],
    }  # fmt: skip
    rows = (plain_run / "data.sha256").read_text()
    matrix = {"title": "Transfer matrix", "rows": ["a"], "columns": ["b"], "values": [[0.5]]}
    return measured(tmp_path / "worth", said, "transfer", rows=rows, matrices=[matrix])


@pytest.fixture
def compared(tmp_path):
    values = {"single": {0: 0.5, 1: 0.6, 2: 0.7}, "uniform": {0: 0.8, 2: 0.9}}
    said = {
        "ground": {"target": NASTY, "metric": "accuracy", "role": "test", "higher": True},
        "runs": [{"method": m, "seed": s, "test": v} for m, by_seed in values.items() for s, v in by_seed.items()],
    }  # fmt: skip
    return measured(tmp_path / "methods", said, "comparison", subject={"training": {"epochs": 20, "seed": 0}})


def test_worths_transfer_and_controls_stand_on_the_runs_own_page(plain_run, transfer, compared, steelyard, tmp_path):
    status, printed, err = steelyard("report", plain_run, transfer, compared, "--out", tmp_path / "page.html")
    assert status == 0, err
    assert "page.html" in printed
    page = (tmp_path / "page.html").read_text()
    assert "What each source was worth: what all sources lose without it" in page
    assert "What each source was worth: added to the target alone" in page
    assert "Transfer matrix" in page
    assert "measured apart (worth), over 3 seeds, with the first seed on the very rows of this run" in page
    assert "measured apart (methods), over 3 seeds, on other rows than this run" in page
    assert "its settings were others: epochs 20, not 2." in page
    assert "9.0000" not in page, "worths to another target"


def test_the_page_goes_into_the_runs_folder(plain_run, transfer):
    assert report.write(plain_run, transfer) == plain_run / "report.html"


def test_corrected_p_values_decide_and_controls_are_paired_by_seed(plain_run, transfer, compared):
    run = joined(read(plain_run), [read_any(transfer), read_any(compared)])
    assert worth(run) == (
        f"{SCRIPT} (+0.0400) helped; _plain (+0.0200) made no difference that can be told from chance "
        "(what all sources lose without it)."
    )
    assert run.comparison == {"single": [0.5, 0.7], "uniform": [0.8, 0.9]}


def test_what_is_about_another_target_stands_beside_the_run(plain_run, transfer, study, tmp_path):
    other = json.loads((transfer / "transfer.json").read_text())
    (transfer / "transfer.json").write_text(json.dumps(other | {"target": "else"}))
    assert joined(read(plain_run), [read_any(transfer)]) is None
    assert joined(read(plain_run), [read_any(study)]) is None
    page = report.write(plain_run, transfer, out=tmp_path / "page.html").read_text()
    assert "Runs" in page
    assert "measured apart" not in page
