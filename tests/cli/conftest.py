"""The hand-written job as a fixture, and a way to call commands."""

import pytest
from tests.jobs import write_job

from steelyard.cli import main


@pytest.fixture
def job(tmp_path, monkeypatch):
    """The folder of the job; also the working directory."""
    monkeypatch.chdir(tmp_path)
    return write_job(tmp_path)


@pytest.fixture
def steelyard(capsys):
    """Runs a command: returns its exit status, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        status = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            status = int(stop.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return run
