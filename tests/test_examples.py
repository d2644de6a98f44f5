"""Every example runs as it stands."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def run(*command, cwd):
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program(program, tmp_path):
    assert run("-W", "error", program, cwd=tmp_path)
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


def test_csv_two_sources(tmp_path):
    folder = tmp_path / "csv_two_sources"
    shutil.copytree(EXAMPLES / "csv_two_sources", folder)
    printed = run("-m", "steelyard", "train", "tickets.toml", "--out", "run", "--json", cwd=folder)
    assert json.loads(printed)["rows"] == {"tickets": 54, "chats": 135, "reviews": 108}
    assert (folder / "run" / "report.html").exists()
    header, *rows = run("-m", "steelyard", "predict", "run", "new.csv", cwd=folder).splitlines()
    assert header == "id,body,predicted_topic,probability"
    assert len(rows) == len((folder / "new.csv").read_text().splitlines()) - 1
