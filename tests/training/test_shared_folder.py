"""A run folder that somebody else made: nothing of it is executed, and no link in it leads us elsewhere."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from tests.jobs import write_job

from steelyard import SteelyardError, encoders, fit, load, report, testing
from steelyard.cli import main
from steelyard.data.features import Subwords
from steelyard.tasks import Spec

PAYLOAD = "from pathlib import Path\nPath({!r}).write_text('run')\n"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("somebody") / "run"
    fit(testing.suite(), "mlp", epochs=1, out=folder, progress=False, encoder_options={"hidden": (4,)})
    report.write(folder)
    return folder


@pytest.mark.parametrize(
    "name",
    ["metrics.jsonl", "weights.csv", ".lock", "model.safetensors", "report.html", "checkpoint", "notes.csv"],
)
def test_a_link_out_of_the_folder_is_refused(shared, tmp_path, name):
    folder, mine = tmp_path / "run", tmp_path / "mine"
    shutil.copytree(shared, folder)
    if name == "checkpoint":
        (folder / name).rename(mine)
    elif (folder / name).exists():
        (folder / name).replace(mine)
    else:
        mine.write_text("a,b\n1,2\n")
    before = None if mine.is_dir() else mine.read_bytes()
    (folder / name).symlink_to(mine)
    for reads in (load, report.write, lambda folder: fit(testing.suite(), "mlp", epochs=1, out=folder, progress=False)):
        with pytest.raises(SteelyardError, match=r"is a link out of its folder; put the file itself in its place"):
            reads(folder)
    assert before is None or mine.read_bytes() == before


def test_a_link_within_the_folder_and_a_link_to_the_folder_are_followed(shared, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(shared, folder)
    (folder / "weights.csv").rename(folder / "kept.csv")
    (folder / "weights.csv").symlink_to("kept.csv")
    (tmp_path / "latest").symlink_to(folder)
    assert load(tmp_path / "latest").weights == load(shared).weights


def test_a_study_folder_with_a_link_is_refused(tmp_path, steelyard):
    (tmp_path / "study").mkdir()
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "study" / "table1.csv").symlink_to(tmp_path / "mine")
    (tmp_path / "study" / "cells.jsonl").write_text("")
    for command in (("report", tmp_path / "study"), ("study", "controls", "--small", "--out", tmp_path / "study")):
        status, _, err = steelyard(*command)
        assert (status, err.count("\n") - (command[0] == "study")) == (2, 1)
        assert "table1.csv is a link out of its folder" in err
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_run_cannot_name_code_as_its_method_or_encoder(shared, tmp_path):
    ran = tmp_path / "ran"
    (tmp_path / "mine.py").write_text(PAYLOAD.format(str(ran)))
    for change in (
        {"method": {"name": f"{tmp_path / 'mine.py'}:Mine", "options": {}}},
        {"encoder": {"name": f"{tmp_path / 'mine.py'}:Mine", "options": {}}},
    ):
        folder = tmp_path / next(iter(change))
        shutil.copytree(shared, folder)
        about = json.loads((folder / "model.json").read_text())
        (folder / "model.json").write_text(json.dumps(about | change))
        if "encoder" in change:
            with pytest.raises(SteelyardError, match="reads text, but the rows are numbers"):
                load(folder)
        else:  # a method that is not ours has nothing to add to the model
            load(folder)
    assert not ran.exists()


@pytest.fixture
def foreign(tmp_path):
    """A model's folder that asks for Python code of its own."""
    folder = tmp_path / "model"
    folder.mkdir()
    references = {"AutoConfig": "own.Config", "AutoModel": "own.Model", "AutoTokenizer": ["own.Tokens", None]}
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": references}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": references}))
    (folder / "own.py").write_text(PAYLOAD.format(str(tmp_path / "ran")))
    return folder


def test_an_encoders_own_code_is_never_run(foreign, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # what a person might answer, who is asked
    with pytest.raises(SteelyardError, match="Python code of its own, which is never run"):
        encoders.build(str(foreign), Spec((), 10, 0))
    with pytest.raises(SteelyardError, match="could not be loaded"):
        _ = Subwords(str(foreign)).size
    assert not (tmp_path / "ran").exists()


class _Executes:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self):
        return os.mkdir, (str(self.place),)


def test_an_encoders_pickled_weights_are_not_executed(tmp_path):
    transformers = pytest.importorskip("transformers")
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    transformers.BertConfig(vocab_size=12, **size).save_pretrained(tmp_path / "model")
    torch.save({"weight": _Executes(tmp_path / "ran")}, tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(SteelyardError, match="pickle that asks for code to be run"):
        encoders.build(str(tmp_path / "model"), Spec((), 12, 0))
    assert not (tmp_path / "ran").exists()


@pytest.fixture(scope="module")
def predictable(tmp_path_factory):
    place = write_job(tmp_path_factory.mktemp("job"))
    main(["train", str(place / "job.toml"), "--out", str(place / "run"), "--set", "training.epochs=1", "--json"])
    return place / "run"


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"a": {"b": 1}}', b"\xff\x00\xff", b"[" * 100_000])
def test_files_that_no_run_wrote_are_refused_in_a_line(predictable, tmp_path, steelyard, content):
    for name in ("model.json", "recipe.json", "summary.json", "model.safetensors", "metrics.jsonl", "weights.csv"):
        folder = tmp_path / name
        shutil.copytree(predictable, folder)
        (folder / name).write_bytes(content)
        for command in (("predict", folder, predictable.parent / "dev.csv"), ("report", folder)):
            status, _, err = steelyard(*command)
            assert (status, err.count("\n")) in ((0, 0), (2, 1)), (command, err)
        if name in ("model.json", "recipe.json", "model.safetensors"):
            status, _, err = steelyard("predict", folder, predictable.parent / "dev.csv")
            assert status == 2
            assert name in err
