"""The study of AANG: every method puts as many rows through the encoder, and the tables say what was found."""

import pytest

from steelyard.studies import get
from steelyard.studies.aang import METHODS, TASKS, schedule
from steelyard.studies.results import Results


@pytest.mark.parametrize("size", ["small", "full"])
def test_compute_is_matched(size):
    settings = get("aang").settings[size]
    auxiliary = settings["auxiliary"]

    def rows(method):
        found = schedule(method, settings, 0)
        steps = found["steps_per_epoch"]
        if method == "TAPT":
            return steps * (found["epochs"] * auxiliary + found["finetune_epochs"] * found["batch_size"])
        own = 0 if method == "fine-tuning" else auxiliary
        return steps * found["epochs"] * (found["batch_size"] + own)

    expected = rows("aang")
    for method in METHODS:
        assert rows(method) == pytest.approx(expected, rel=0.02), method


def test_tables():
    study = get("aang")()
    cells = []
    for key in study.keys({"seeds": 5}):
        value = {"accuracy": 0.5 + 0.01 * key["seed"] + (0.1 if key["method"] == "aang" else 0.0)}
        if key["method"] == "aang":
            shares = {"transform: mask": 0.25, "output: denoise": 0.6}
            value |= {"early": shares, "late": shares, "lambda_e": 0.5}
        cells.append((key, value))
    assert len(cells) == 5 * len(TASKS) * len(METHODS)
    found = study.findings(study.settings["small"], Results(cells))
    assert "over even weights by +0.1000" in found.answer
    assert [table.columns[0] for table in found.tables] == ["method"] * 3 + ["primitive"] * 2
