"""Two processes equal one with the same global batch; one that dies ends the run, which goes on in any number."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.training import several_worker

WORKER = Path(several_worker.__file__)
PROCESSES = int(os.environ.get("STEELYARD_PROCESSES", "2"))


def launched(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    return subprocess.run(
        [*command, WORKER, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=140 * PROCESSES,
    )


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """What every process found; one launch for all cases, since starting processes costs more than training."""
    folder = tmp_path_factory.mktemp("several")
    run = launched("compare", folder)
    assert run.returncode == 0, run.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(PROCESSES)]


@pytest.mark.parametrize("name", [*several_worker.cases(), "resumed"])
def test_several_processes_equal_one(together, name):
    first, *others = (found.get(name, {"failed": "a case before it failed"}) for found in together)
    assert "failed" not in first, first["failed"]
    assert all(other == first for other in others), "the processes differ"
    if name == "resumed":
        return
    alone = several_worker.outcome(*several_worker.cases()[name])
    if "refused" in first:
        assert "processes" in first["refused"], first["refused"]
        return
    assert torch.allclose(torch.tensor(first["parameters"]), torch.tensor(alone["parameters"]), atol=1e-5, rtol=0)
    for (step, task, weight), (_, _, expected) in zip(first["weights"], alone["weights"], strict=True):
        assert abs(weight - expected) <= 1e-5 * max(1, abs(expected)), f"step {step}: {task} {weight}, not {expected}"


def test_processes_that_drift_apart_are_found_out(together):
    for found in together:
        assert "have drifted apart by step 10" in found["drift"]["refused"]


def test_a_process_that_dies_ends_the_run_and_fewer_go_on(tmp_path):
    run = launched("die", tmp_path)
    assert run.returncode != 0
    assert "another process of this run has ended" in run.stderr
    assert "the last checkpoint is kept" in run.stderr
    went_on = several_worker.outcome_of_a_death(tmp_path)
    whole = several_worker.outcome_of_a_death(tmp_path / "whole")
    assert torch.allclose(torch.tensor(went_on["parameters"]), torch.tensor(whole["parameters"]), atol=1e-5, rtol=0)
    assert [row[:2] for row in went_on["weights"]] == [row[:2] for row in whole["weights"]]
