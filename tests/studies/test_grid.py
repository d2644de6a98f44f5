"""A grid measures each cell once, goes on after any stop, and bears a cell that fails."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from steelyard.errors import SteelyardError
from steelyard.studies import backends, grid
from steelyard.training.memory import Peak

KEYS = [{"method": method, "seed": seed} for method in ("a", "b") for seed in range(3)]


def measure(settings, method, seed):
    with open(settings["calls"], "a") as file:  # noqa: PTH123
        file.write(f"{method}{seed}\n")
    if method == "b" and seed == 1 and settings.get("fails"):
        raise ValueError("no such luck")
    time.sleep(settings.get("sleep", 0))
    return {"value": seed + (10 if method == "b" else 0), "pid": os.getpid()}


def crash(settings, method, seed):
    if (method, seed) == ("a", 1):
        os._exit(9)
    return {"value": seed}


def calls(path):
    return sorted(path.read_text().split()) if path.exists() else []


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_cell_is_measured_once(tmp_path, jobs):
    settings = {"calls": str(tmp_path / "calls")}
    for _ in range(2):
        results, failed = grid.run(
            measure, KEYS, tmp_path / "cells", settings=settings, jobs=jobs, backend="threading", progress=False
        )
        assert not failed
        assert results.series("value", method="b") == {0: 10, 1: 11, 2: 12}
        assert [key for key, _ in results] == KEYS
    assert calls(tmp_path / "calls") == ["a0", "a1", "a2", "b0", "b1", "b2"]


def test_other_processes(tmp_path):
    settings = {"calls": str(tmp_path / "calls")}
    results, _ = grid.run(measure, KEYS, tmp_path / "cells", settings=settings, jobs=2, progress=False)
    assert os.getpid() not in {value["pid"] for _, value in results}


def test_a_failing_cell_is_named_and_tried_again(tmp_path, capsys):
    settings = {"calls": str(tmp_path / "calls"), "fails": True}
    results, failed = grid.run(measure, KEYS, tmp_path / "cells", settings=settings, jobs=1)
    assert len(results) == 5
    assert list(failed) == ["method b, seed 1"]
    assert "ValueError: no such luck (test_grid.py:" in failed["method b, seed 1"]
    assert "failed: method b, seed 1" in capsys.readouterr().err
    results, failed = grid.run(measure, KEYS, tmp_path / "cells", settings={**settings, "fails": False}, jobs=1)
    assert (len(results), failed) == (6, {})
    assert calls(tmp_path / "calls").count("b1") == 2


def test_a_line_cut_short_is_measured_again(tmp_path):
    settings = {"calls": str(tmp_path / "calls")}
    cells = tmp_path / "cells"
    grid.run(measure, KEYS, cells, settings=settings, jobs=1, progress=False)
    cells.write_bytes(cells.read_bytes()[:-9])
    results, _ = grid.run(measure, KEYS, cells, settings=settings, jobs=1, progress=False)
    assert len(results) == 6
    assert calls(tmp_path / "calls").count("b2") == 2
    assert all(json.loads(line) for line in cells.read_text().splitlines())


def test_killed_and_gone_on_with(tmp_path):
    code = (
        "import sys; from pathlib import Path; from tests.studies.test_grid import KEYS, measure\n"
        "from steelyard.studies import grid; base = Path(sys.argv[1])\n"
        "grid.run(measure, KEYS, base / 'cells', settings={'calls': str(base / 'calls'), 'sleep': 0.2}, jobs=1)"
    )
    started = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.DEVNULL)
    while len(calls(tmp_path / "calls")) < 3:
        time.sleep(0.02)
        assert started.poll() is None
    started.send_signal(signal.SIGKILL)
    started.wait()
    kept = (tmp_path / "cells").read_text().splitlines()
    assert len(kept) >= 2
    results, _ = grid.run(
        measure, KEYS, tmp_path / "cells", settings={"calls": str(tmp_path / "calls")}, jobs=1, progress=False
    )
    assert sorted(value["value"] for _, value in results) == [0, 1, 2, 10, 11, 12]
    assert (tmp_path / "cells").read_text().splitlines()[: len(kept)] == kept
    assert len(calls(tmp_path / "calls")) <= 7


def test_a_process_that_dies_is_named_and_takes_no_other_cell_with_it(tmp_path):
    results, failed = grid.run(crash, KEYS, tmp_path / "cells", jobs=2, progress=False)
    assert len(results) == 5
    assert list(failed) == ["method a, seed 1"]
    assert "its process was killed" in failed["method a, seed 1"]


def test_unknown_backends_and_missing_packages_are_refused(tmp_path, monkeypatch):
    with pytest.raises(SteelyardError, match="no backend 'loki'; did you mean 'loky'"):
        grid.run(measure, KEYS, tmp_path / "cells", backend="loki", progress=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SteelyardError, match="pip install 'steelyard\\[scale\\]'"):
        backends.check("ray")


def test_a_peak_is_that_of_the_run():
    before = Peak().megabytes
    held = bytearray(200 * 2**20)
    held[::4096] = b"x" * len(held[::4096])
    assert Peak().megabytes > before + 150
    peak = Peak()
    del held
    if peak._reset:
        assert Peak().megabytes < before + 100


ON_A_CLUSTER = """
import json, sys, warnings
from pathlib import Path
from steelyard.studies import grid
from tests.studies.test_grid import KEYS, measure
base, backend = Path(sys.argv[1]), sys.argv[2]
results, failed = grid.run(measure, KEYS, base / "cells", settings={"calls": str(base / "calls"), "fails": True},
                           jobs=2, backend=backend, progress=False)
print(json.dumps([[value["value"] for _, value in results], failed]))
"""


@pytest.mark.skipif("STEELYARD_NIGHTLY" not in os.environ, reason="starts Ray and Dask, which is slow: make nightly")
@pytest.mark.parametrize("backend", ["ray", "dask"])
def test_clusters(tmp_path, backend):
    """In a process of its own: they start servers, and warn about their own future."""
    pytest.importorskip("ray" if backend == "ray" else "distributed", reason="extra scale is not installed")
    done = subprocess.run(
        [sys.executable, "-c", ON_A_CLUSTER, str(tmp_path), backend],
        capture_output=True, text=True, check=False, timeout=250, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    values, failed = json.loads(done.stdout.splitlines()[-1])
    assert values == [0, 1, 2, 10, 12]
    assert list(failed) == ["method b, seed 1"]
    assert calls(tmp_path / "calls") == ["a0", "a1", "a2", "b0", "b1", "b2"]
