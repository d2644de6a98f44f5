"""What every test may rely on."""

import os

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    """Small models are fastest on one thread, and a test's randomness is its own."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
