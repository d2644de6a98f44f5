"""An interrupted run ends bitwise where the uninterrupted one does, whatever interrupted it."""

import os
import random
import resource
import signal
import subprocess
import sys
import time

import pytest
from tests.jobs import write_job

SETTINGS = ["--set", "training.checkpoint_seconds=0", "--set", "training.epochs=12", "--set", "model.dropout=0.2"]


def command(out, *more):
    return [sys.executable, "-m", "steelyard", "train", out.parent / "job.toml", "--out", out, *SETTINGS, *more]


def run(out, **options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command(out), env=environment, capture_output=True, text=True, check=False, **options)


def kill_after_checkpoint(out, number, seconds):
    """Starts the run, waits until it has a checkpoint newer than now, and kills it some time later."""
    state = out / "checkpoint" / "state.safetensors"
    before = state.stat().st_mtime_ns if state.exists() else 0
    process = subprocess.Popen(command(out), env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (state.exists() and state.stat().st_mtime_ns > before):
        time.sleep(0.01)
    time.sleep(seconds)
    process.send_signal(number)
    return process.wait()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A job that ran without interruption; shared, since starting a process costs more than training."""
    job = write_job(tmp_path_factory.mktemp("job"))
    finished = run(job / "whole")
    assert finished.returncode == 0, finished.stderr
    return job


def test_killed_three_times_and_resumed_it_is_bitwise_the_same(whole):
    draw = random.Random(os.getpid())
    kills = [kill_after_checkpoint(whole / "killed", signal.SIGKILL, draw.uniform(0, 0.3)) for _ in range(3)]
    assert -signal.SIGKILL in kills, "the run was too short to be killed"
    last = run(whole / "killed")
    assert last.returncode == 0, last.stderr
    for name in ("model.safetensors", "weights.csv"):
        assert (whole / "killed" / name).read_bytes() == (whole / "whole" / name).read_bytes()
    lines = [(whole / each / "metrics.jsonl").read_text().count("\n") for each in ("killed", "whole")]
    assert lines == [12, 12]


def test_same_seed_twice_is_bitwise_the_same_model(whole):
    assert run(whole / "again").returncode == 0
    assert (whole / "again/model.safetensors").read_bytes() == (whole / "whole/model.safetensors").read_bytes()


def test_a_polite_stop_says_how_to_go_on(whole):
    assert kill_after_checkpoint(whole / "stopped", signal.SIGINT, 0.05) == 130
    last = run(whole / "stopped")
    assert last.returncode == 0
    assert "going on from step" in last.stderr


def test_a_full_disk_keeps_the_previous_checkpoint(whole):
    kill_after_checkpoint(whole / "full", signal.SIGKILL, 0.05)
    state = whole / "full/checkpoint/state.safetensors"
    (state.parent / f".{state.name}.{2**22 + 1}").write_bytes(b"half")  # as a kill in mid-write leaves it
    before = state.read_bytes()
    limit = len(before) // 2
    full = run(whole / "full", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert full.returncode == 2, full.stderr
    complaints = [line for line in full.stderr.splitlines() if line.startswith("steelyard: ")]
    assert len(complaints) == 1, full.stderr
    assert "cannot write" in complaints[0]
    assert state.read_bytes() == before
    assert {path.name for path in state.parent.iterdir()} <= {"state.safetensors", "before.state.safetensors"}
    assert run(whole / "full").returncode == 0
    assert (whole / "full/model.safetensors").read_bytes() == (whole / "whole/model.safetensors").read_bytes()
