"""Some hundred odd inputs for every reader; `make fuzz` takes many more."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.soak import fuzz


@pytest.mark.parametrize("target", list(fuzz.SEEDS))
def test_mutations_end_in_a_table_or_a_line(target, tmp_path):
    draw, known = random.Random(3), fuzz.seeds(target, tmp_path)
    for _ in range(150):
        fuzz.feed(target, fuzz.mutated(known, draw), tmp_path)


@pytest.mark.parametrize("target", list(fuzz.SEEDS))
@settings(max_examples=30, deadline=None)
@given(content=st.binary(max_size=200))
def test_any_bytes_end_in_a_table_or_a_line(target, tmp_path_factory, content):
    fuzz.feed(target, content, tmp_path_factory.mktemp("fuzz"))
