"""What every test may rely on."""

import os

import pytest
import torch

from steelyard.cli import main

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    """Small models are fastest on one thread, and a test's randomness is its own."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


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
