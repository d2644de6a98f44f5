"""One run that has everything, and one study, for all tests of the page."""

import pytest
from tests.report.folders import write_run, write_study


@pytest.fixture(scope="session")
def full_run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("report") / "full")


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("report") / "plain", "uniform", full=False, epochs=2)


@pytest.fixture(scope="session")
def study(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("report") / "study")
