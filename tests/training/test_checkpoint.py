"""Checkpoints are tensors and JSON, checked by a sum; a damaged one is passed over, and nothing breaks the reader."""

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steelyard import SteelyardError, methods, testing
from steelyard.testing import promises
from steelyard.testing.materials import parameters
from steelyard.training import checkpoint
from steelyard.training.folder import CHECKPOINT, RunFolder
from steelyard.training.loop import Interrupted, Loop
from steelyard.training.memory import Peak

STATE = {
    "model": {"a.weight": torch.arange(6.0).reshape(2, 3), "half": torch.ones(2, dtype=torch.bfloat16)},
    "optimizer": {
        "state": {0: {"step": torch.tensor(3.0)}},
        "param_groups": [{"betas": (0.9, 0.999), "foreach": None}],
    },
    "place": {"best": float("-inf"), "steps": 2**40},
    "milestones": Counter({3: 1}),
    "empty": torch.zeros(0),
    "bits": torch.tensor([True, False]),
}


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "state"
    tied = torch.randn(2, 2)
    checkpoint.save(path, STATE | {"tied": [tied, tied], "turned": tied.T})
    found, damage = checkpoint.load(path)
    assert not damage
    assert torch.equal(found["model"]["a.weight"], STATE["model"]["a.weight"])
    assert found["model"]["half"].dtype is torch.bfloat16
    assert found["optimizer"]["param_groups"] == STATE["optimizer"]["param_groups"]
    assert list(found["optimizer"]["state"]) == [0]
    assert (found["place"], found["milestones"]) == (STATE["place"], STATE["milestones"])
    assert type(found["milestones"]) is Counter
    assert torch.equal(found["tied"][0], tied)
    assert torch.equal(found["turned"], tied.T)
    with safetensors.safe_open(path, "pt") as file:  # anyone can read it, and reading executes nothing
        assert json.loads(file.metadata()["state"])


def test_what_is_no_tensor_and_not_plain_is_refused(tmp_path):
    with pytest.raises(SteelyardError, match="not object"):
        checkpoint.save(tmp_path / "state", {"x": object()})


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two checkpoints, the newer over the older."""
    path = tmp_path_factory.mktemp("two") / "state"
    for number in range(2):
        checkpoint.save(path, STATE | {"number": number})
    return path, path.read_bytes()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_torn_or_changed_it_is_passed_over(two, data):
    path, whole = two
    place = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        hurt = whole[:place]
    else:
        hurt = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
    path.write_bytes(hurt)
    found, damage = checkpoint.load(path)
    assert found["number"] == 0
    assert str(path) in damage
    path.write_bytes(whole)
    assert checkpoint.load(path)[0]["number"] == 1


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_any_two_files_are_refused_in_a_line(tmp_path_factory, first, second):
    path = tmp_path_factory.mktemp("any") / "state"
    path.write_bytes(first)
    checkpoint.before(path).write_bytes(second)
    with pytest.raises(SteelyardError, match="not a whole checkpoint"):
        checkpoint.load(path)


def test_a_damaged_checkpoint_never_takes_the_place_of_the_whole_one(tmp_path):
    path = tmp_path / "state"
    for number in range(2):
        checkpoint.save(path, {"number": number})
    for number in range(2, 5):
        path.write_bytes(path.read_bytes()[:-1])
        assert checkpoint.load(path)[0] == {"number": 0}
        checkpoint.save(path, {"number": number})
        assert checkpoint.load(path)[0] == {"number": number}


def test_what_a_killed_writer_left_is_removed_and_a_living_ones_is_not(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, living = tmp_path / f".state.{ended.pid}", tmp_path / f".state.{os.getppid()}"
    for other in (left, living, tmp_path / ".state.notes", tmp_path / f".states.{ended.pid}"):
        other.write_bytes(b"half")
    checkpoint.write_atomically(tmp_path / "state", b"whole")
    kept = {"state", living.name, ".state.notes", f".states.{ended.pid}"}
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_writing_it_takes_little_memory_of_its_own(tmp_path):
    state = {"large": [torch.ones(2**21) for _ in range(8)]}  # 64 MB
    checkpoint.save(tmp_path / "small", {"a": torch.ones(2)})
    before = Peak()
    held = before.megabytes
    checkpoint.save(tmp_path / "state", state)
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("this system cannot forget earlier peaks")
    assert before.megabytes - held < 24
    assert checkpoint.load(tmp_path / "state")[0]["large"][7].sum() == 2**21


def test_tensors_that_share_or_skip_memory_are_written_as_they_look(tmp_path):
    whole = torch.arange(12.0).reshape(3, 4)
    state = {
        "whole": whole,
        "same": whole,
        "row": whole[1],
        "turned": whole.T,
        "flat": whole.view(-1),
        "one": whole[:1],
    }
    checkpoint.save(tmp_path / "state", state)
    found = checkpoint.load(tmp_path / "state")[0]
    assert all(torch.equal(found[name], value) for name, value in state.items())


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "state"
    checkpoint.save(path, {"number": 1})
    for error in (OSError(28, "No space left on device"), safetensors.SafetensorError("No space left on device")):

        def full(tensors, file, about, error=error):
            file.write_bytes(b"half")
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "save_tensors", full)
            with pytest.raises(SteelyardError, match="No space left on device"):
                checkpoint.save(path, {"number": 2})
        assert [each.name for each in tmp_path.iterdir()] == ["state"]
        assert checkpoint.load(path)[0] == {"number": 1}


def test_what_was_resumed_from_is_let_go(tmp_path, monkeypatch):
    taken = []
    restore = Loop._restore

    def spy(self, job, method, state):
        restore(self, job, method, state)
        taken.append(state)

    monkeypatch.setattr(Loop, "_restore", spy)
    settings = {"log_every": 1, "checkpoint_seconds": 0, "out": tmp_path / "run"}
    with contextlib.suppress(Interrupted):
        testing.train(methods.get("alphavil"), progress=promises.StopAt(4), **settings)
    testing.train(methods.get("alphavil"), **settings)
    assert taken == [{}]


def test_killed_before_its_configuration_was_written_a_run_finds_its_folder(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / ".config.toml.123").write_text("[sui")
    assert go_on(out).summary["steps"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(SteelyardError, match="not empty"):
        go_on(tmp_path / "other")


def interrupted(out):
    with pytest.raises(KeyboardInterrupt):
        testing.train(methods.get("tawt"), out=out, progress=testing.StopAt(6), log_every=1, checkpoint_seconds=0)


def go_on(out):
    return testing.train(methods.get("tawt"), out=out, log_every=1, checkpoint_seconds=0)


@pytest.mark.parametrize("harm", ["cut", "gone", "changed"])
def test_a_run_goes_on_from_the_checkpoint_before_bitwise(tmp_path, harm):
    out = tmp_path / "run"
    interrupted(out)
    path = out / CHECKPOINT
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content[: len(content) // 2] if harm == "cut" else content)
    if harm == "gone":  # killed between the two renamings
        path.unlink()
    whole, found = testing.train(methods.get("tawt"), log_every=1), go_on(out)
    assert torch.equal(parameters(whole), parameters(found))
    assert whole.weight_trace == found.weight_trace


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_whole_checkpoint_of_something_else_is_refused_in_a_line(tmp_path_factory, data):
    """Its sum is right, but it is not this run's: anything in it may be missing or of another kind."""
    out = tmp_path_factory.mktemp("other") / "run"
    interrupted(out)
    state, _ = checkpoint.load(out / CHECKPOINT)
    key = data.draw(st.sampled_from(sorted(state)))
    odd = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2), st.just({}))
    state[key] = data.draw(odd)
    if data.draw(st.booleans()):
        del state[key]
    checkpoint.save(out / CHECKPOINT, state)
    with contextlib.suppress(SteelyardError):
        go_on(out)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["summary.json", "model.json"]),
    content=st.one_of(st.binary(max_size=60), st.sampled_from([b"[]", b"{}", b"[" * 3000])),
)
def test_a_folder_with_other_files_is_refused_in_a_line(tmp_path_factory, name, content):
    folder = tmp_path_factory.mktemp("folder")
    (folder / name).write_bytes(content)
    with contextlib.suppress(SteelyardError):
        RunFolder(folder).read_json(name)
