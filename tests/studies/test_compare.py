"""A comparison is paired, honest about what failed, and goes on after any stop."""

import csv
import hashlib
import json
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from steelyard import report, testing
from steelyard.errors import SteelyardError
from steelyard.methods import Method
from steelyard.methods.fixed import Uniform
from steelyard.studies import Subject, compare, holm
from steelyard.studies.contestants import contestant, contestants
from steelyard.studies.tuning import Search, space
from steelyard.tasks import Rows

SHORT = {"epochs": 2, "batch_size": 8, "learning_rate": 0.05, "device": "cpu"}
QUICK = {"jobs": 1, "progress": False, **SHORT}

CONFIG = """
[target]
name = "digit"
train = "suite:digits/digit@50"

[[source]]
name = "parity"
train = "suite:digits/parity@200"

[model]
encoder = "mlp"

[training]
epochs = 2
device = "cpu"
"""


def suite(seed):
    """Data that depends on the seed; it has test rows, and the second task labels the first one's rows."""
    made = testing.suite(seed=seed)
    test = testing.suite(seed=seed + 100)
    tasks = [t.with_rows({**t.rows, "test": test[t.name].rows["dev_meta"]}) for t in made.tasks.values()]
    first = tasks[0].rows["train"]
    tasks[1] = tasks[1].with_rows({**tasks[1].rows, "train": Rows(first.inputs, 1 - first.labels)})
    return made.with_tasks(tasks)


class Seen(Uniform):
    """Uniform weights that note what they were given."""

    name = "seen"
    notes_of: dict[tuple[str, int], dict[str, str]] = {}  # noqa: RUF012

    def start(self, job):
        super().start(job)
        batches = torch.cat([job.alone("task0", number).parts[0].inputs for number in range(3)])
        self.notes_of[self.name, job._batcher._training.seed] = {
            "parameters": _hash(
                [p for n, p in job.model.named_parameters() if "task0" in n or n.startswith("encoder")]
            ),
            "rows": _hash([batches]),
            "test": _hash([job.suite["task0"].rows["test"].inputs]),
        }


class SeenAlone(Seen):
    name = "seen_alone"
    paradigm = "single"


class Breaks(Method):
    """Fails with one seed."""

    name = "breaks"
    summary = "fails"

    def start(self, job):
        super().start(job)
        if job._batcher._training.seed == 1:
            raise RuntimeError("no such luck")


def _hash(tensors):
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()


def test_runs_of_one_seed_share_rows_order_and_initial_parameters(tmp_path):
    compare(suite, testing.encoder, [Seen, SeenAlone], out=tmp_path / "out", seeds=2, controls=False, **QUICK)
    noted = Seen.notes_of
    assert len(noted) == 4
    for seed in (0, 1):
        assert noted["seen", seed] == noted["seen_alone", seed]
    for what in ("parameters", "rows", "test"):
        assert noted["seen", 0][what] != noted["seen", 1][what]


def test_the_table_is_what_the_runs_gave(tmp_path):
    found = compare(suite, testing.encoder, ["tawt", "tawt+pcgrad"], out=tmp_path / "out", seeds=3, **QUICK)
    assert [row.method for row in found.rows] == ["single", "uniform", "joint", "ramp", "random", "tawt", "tawt+pcgrad"]
    assert not found.failed
    with (tmp_path / "out" / "values_by_run.csv").open() as file:
        runs = list(csv.DictReader(file))
    by_method = {m: [float(r["test"]) for r in runs if r["method"] == m] for m in ("uniform", "tawt", "tawt+pcgrad")}
    assert all(len(values) == 3 for values in by_method.values())
    with (tmp_path / "out" / "values.csv").open() as file:
        table = {row["method"]: row for row in csv.DictReader(file)}
    assert float(table["tawt"]["mean"]) == pytest.approx(statistics.mean(by_method["tawt"]))
    assert float(table["tawt"]["sd"]) == pytest.approx(statistics.stdev(by_method["tawt"]))
    gains = [a - b for a, b in zip(by_method["tawt"], by_method["uniform"], strict=True)]
    assert float(table["tawt"]["uniform_gain"]) == pytest.approx(statistics.mean(gains))
    p = [float(table[m]["uniform_p"]) for m in ("tawt", "tawt+pcgrad")]
    corrected = [float(table[m]["uniform_p_holm"]) for m in ("tawt", "tawt+pcgrad")]
    assert corrected == pytest.approx(holm(p))
    assert table["random"]["uniform_p_holm"] == "nan"  # a control is not what was asked about
    assert float(table["single"]["steps"]) == float(table["uniform"]["steps"])
    assert float(table["tawt"]["peak_mb"]) > 50
    with (tmp_path / "out" / "table1.csv").open() as file:
        shown = list(csv.reader(file))
    assert shown == [list(found.table.columns), *map(list, found.table.rows)]
    said = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert said["ground"] == {"target": "task0", "metric": "accuracy", "role": "test", "higher": True}
    assert said["answer"] in (tmp_path / "out" / "comparison.md").read_text()
    assert {len(run["curve"]) for run in said["runs"]} == {2}
    assert len({run["rows"] for run in said["runs"] if run["seed"] == 0}) == 1
    shown = json.loads((tmp_path / "out" / "findings.json").read_text())
    for name in ("against_uniform", "against_single", "curves"):
        assert "<svg" in (tmp_path / "out" / f"{name}.svg").read_text()
        assert name in shown["titles"]
    page = report.write(tmp_path / "out").read_text()
    assert found.answer.split(";")[0] in page


def test_a_failing_run_is_named_and_not_fatal(tmp_path):
    found = compare(suite, testing.encoder, [Breaks], out=tmp_path / "out", seeds=3, **QUICK)
    assert list(found.failed) == ["method breaks, seed 1"]
    assert "no such luck" in found.failed["method breaks, seed 1"]
    assert found["breaks"].score.count == 2
    assert found["breaks"].against["uniform"].gain.count == 2
    assert "Failed: method breaks, seed 1" in (tmp_path / "out" / "comparison.md").read_text()
    with pytest.raises(SteelyardError, match=r"every run failed.*no such luck"):
        compare(suite, testing.encoder, [Breaks], out=tmp_path / "none", seeds=[1], controls=False, **QUICK)


BREAKS = """
from steelyard.methods.fixed import Uniform

class Breaks(Uniform):
    name = "breaks"

    def start(self, job):
        super().start(job)
        if job._batcher._training.seed == 1:
            raise RuntimeError("no such luck")
"""


@pytest.mark.parametrize(
    "command", [("compare", "--methods", "b.py:Breaks", "--no-controls"), ("transfer", "--method", "b.py:Breaks")]
)
def test_a_command_with_failed_runs_prints_its_table_and_ends_with_status_2(tmp_path, steelyard, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(CONFIG)
    Path("b.py").write_text(BREAKS)
    status, out, err = steelyard(command[0], "c.toml", *command[1:], "--seeds", 2, "--jobs", 1, "--out", "out")
    assert status == 2
    assert "mean ± 95 %" in out or "added to the target alone" in out
    assert "RuntimeError: no such luck" in out
    assert "failed: " in err.splitlines()[-1]
    assert err.splitlines()[-1].endswith("the same command with --out out tries again")
    assert Path("out/report.html").exists()


def test_seeds_and_methods_may_be_added_but_nothing_may_change(tmp_path):
    out = tmp_path / "out"
    compare(suite, testing.encoder, ["tawt"], out=out, seeds=1, controls=False, **QUICK)
    cells = (out / "cells.jsonl").read_text()
    compare(suite, testing.encoder, ["tawt", "ramp"], out=out, seeds=2, controls=False, **QUICK)
    assert (out / "cells.jsonl").read_text().startswith(cells)
    assert len((out / "cells.jsonl").read_text().splitlines()) == 4
    assert (out / "weights_ramp.svg").exists()
    for wrong in ({"methods": [contestant("tawt:eta=2.0").build()]}, {"methods": ["tawt"], "epochs": 3}):
        with pytest.raises(SteelyardError, match="belongs to another comparison"):
            compare(suite, testing.encoder, out=out, controls=False, **{**QUICK, **wrong})


def test_every_method_gets_the_same_budget_and_test_rows_are_not_looked_at(tmp_path):
    pytest.importorskip("optuna")
    out = tmp_path / "out"
    found = compare(suite, testing.encoder, ["tawt"], out=out, seeds=1, budget=5, **QUICK)
    assert {name: len(search.values) for name, search in found.searches.items()} == dict.fromkeys(
        ("single", "uniform", "joint", "ramp", "random", "tawt"), 5
    )
    trials = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    assert all("test" not in trial["value"] for trial in trials)
    for search in found.searches.values():
        best = max(search.values.values())
        number = next(n for n, value in search.values.items() if value == best)
        changed = {k: v for k, v in search.tried[number].items() if v != search.space[k][0]}
        assert search.best == changed
    assert found["tawt"].chosen == found.searches["tawt"].best
    # Killed on the way, the search goes on as it would have.
    before = {name: search.tried for name, search in found.searches.items()}
    lines = (out / "trials.jsonl").read_text().splitlines(keepends=True)
    (out / "trials.jsonl").write_text("".join(lines[:7]))
    (out / "cells.jsonl").write_text("")
    again = compare(suite, testing.encoder, ["tawt"], out=out, seeds=1, budget=5, **QUICK)
    assert {name: search.tried for name, search in again.searches.items()} == before


def test_a_search_repeats_nothing_and_finds_the_best():
    pytest.importorskip("optuna")
    search = Search({"a": (0, 1, 2), "b": (0, 1, 2, 3)})
    number = 0
    while (proposed := search.propose(number)) is not None:
        assert proposed not in search.tried.values()
        search.tried[number] = proposed
        search.values[number] = -((proposed["a"] - 1) ** 2) - (proposed["b"] - 3) ** 2
        number += 1
    assert number == 12
    assert search.best == {"a": 1, "b": 3}
    assert {"training.learning_rate", "share"} <= set(space(contestant("tawt"), {}))
    assert "weights.share" in space(contestant("tawt+pcgrad"), {})


def test_without_optuna_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SteelyardError, match="steelyard\\[tune\\]"):
        compare(suite, testing.encoder, ["tawt"], out=tmp_path / "out", seeds=1, budget=3, **QUICK)


def test_methods_as_users_write_them(tmp_path):
    assert contestant("tawt:eta=2.0:share=0.5").build().options.eta == 2.0
    assert contestant("tawt+pcgrad:weights.eta=3").build().options.weights.eta == 3.0
    assert contestant({"weights": "tawt", "gradients": "cagrad", "label": "mine"}).label == "mine"
    assert contestant(Seen).kind is Seen
    path = tmp_path / "mine.py"
    path.write_text("from steelyard.methods.fixed import Uniform\nclass Mine(Uniform):\n    name = 'mine'\n")
    assert contestant(f"{path}:Mine").build().name == "mine"
    for wrong, message in {
        "tawtt": "did you mean 'tawt'", "tawt:etta=1": "no option 'etta'", f"{path}:Yours": "no method class 'Yours'",
        "nowhere.py:Mine": "no such file", "no_such_package:Mine": "No module named",
    }.items():  # fmt: skip
        with pytest.raises(SteelyardError, match=message):
            contestant(wrong)
    with pytest.raises(SteelyardError, match="two methods are called 'tawt'"):
        contestants(["tawt", "tawt"], True, testing.suite(), {})
    assert "ramp" not in [c.label for c in contestants(["tawt"], True, testing.suite(), {"paradigm": "pretrain"})]


def test_a_method_of_ones_own_runs_in_other_processes(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from steelyard.methods.fixed import Uniform\nclass Mine(Uniform):\n    name = 'mine'\n")
    settings = {"jobs": 2, "progress": False, **SHORT}
    out = tmp_path / "out"
    found = compare(testing.suite(), testing.encoder, [f"{path}:Mine"], out=out, seeds=1, controls=False, **settings)
    assert not found.failed
    assert found.ground.role == "dev_select"  # these rows have no test


HELD = """
import time
from pathlib import Path
from steelyard.methods.tawt import TAWT

class Held(TAWT):
    name = "held"

    def start(self, job):
        while Path(__file__).with_name("hold").exists():
            time.sleep(0.02)
        super().start(job)
"""
"""Waits for as long as a file is there, so that a run is stopped in mid-run however slow the machine."""


def _command(folder, *more):
    asked = ["--methods", f"{folder / 'held.py'}:Held", "--seeds", "2", "--jobs", "1", "--out", str(folder / "out")]
    return [sys.executable, "-m", "steelyard", "compare", str(folder / "c.toml"), *asked, *more]


def _stop_after(folder, lines, signal_):
    started = subprocess.Popen(_command(folder), stderr=subprocess.PIPE, text=True, cwd=folder)
    cells = folder / "out" / "cells.jsonl"
    end = time.monotonic() + 120
    while not cells.exists() or len(cells.read_text().splitlines()) < lines:
        assert started.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    started.send_signal(signal_)
    _, said = started.communicate(timeout=60)
    return started.returncode, said


def test_killed_or_stopped_the_same_command_ends_with_the_same_table(tmp_path, steelyard):
    (tmp_path / "c.toml").write_text(CONFIG)
    (tmp_path / "held.py").write_text(HELD)
    (tmp_path / "hold").touch()
    assert _stop_after(tmp_path, 2, signal.SIGKILL)[0] == -signal.SIGKILL
    status, said = _stop_after(tmp_path, 4, signal.SIGINT)
    assert status == 130
    assert f"stopped; to go on: steelyard compare {tmp_path / 'c.toml'}" in said
    assert f"--out {tmp_path / 'out'}" in said
    assert 4 <= len((tmp_path / "out/cells.jsonl").read_text().splitlines()) < 12
    (tmp_path / "hold").unlink()
    tables = []
    for folder in ("out", "whole"):
        status, out, err = steelyard(*_command(tmp_path)[3:-1], tmp_path / folder, "--json")
        assert status == 0, err
        found = json.loads(out)
        assert found["failed"] == {}
        tables.append([{k: v for k, v in row.items() if k not in ("seconds", "peak_mb")} for row in found["methods"]])
    assert tables[0] == tables[1]


def test_bad_calls(tmp_path, steelyard, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(CONFIG)
    for arguments, message in (
        (("--methods", "tawtt"), "did you mean 'tawt'"),
        (("--methods", ","), "no method to compare"),
        (("--backend", "loki"), "did you mean 'loky'"),
        (("--out", tmp_path), "is not empty and holds no comparison"),
        (("--set", "training.epochs=x"), "training.epochs"),
    ):
        status, _, err = steelyard("compare", "c.toml", *arguments)
        assert status == 2
        assert message in err.splitlines()[-1]
    with pytest.raises(SteelyardError, match="a Subject has its own encoder"):
        compare(Subject(testing.suite()), "mlp", out=tmp_path / "x")
