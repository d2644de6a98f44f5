"""The hand-written job as a fixture."""

import pytest
from tests.jobs import write_job


@pytest.fixture
def job(tmp_path, monkeypatch):
    """The folder of the job; also the working directory."""
    monkeypatch.chdir(tmp_path)
    return write_job(tmp_path)
