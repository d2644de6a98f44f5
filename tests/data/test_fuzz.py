"""Some hundred odd inputs for every reader; `make fuzz` takes many more."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.soak import fuzz

from steelyard import SteelyardError, config
from steelyard.data import paths
from steelyard.data.readers import read


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


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"a": "\\ud800"}', "line 2: half of a surrogate pair"),
        ('{"\\uDFFF": 1}', "line 2: half of a surrogate pair"),
        ('{"a": ' + "9" * 5000 + "}", "line 2: not a row .*digits"),
        ('{"a": ' + "[" * 5000 + "]" * 5000 + "}", "line 2: not a row .*recursion"),
        ('{"a": ' + '{"b": ' * 5000 + "1" + "}" * 5001, "line 2: not a row .*recursion"),
    ],
)
def test_json_that_python_cannot_hold_is_told_by_its_line(tmp_path, line, said):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": "\\ud83d\\ude00"}\n' + line + "\n")
    with pytest.raises(SteelyardError, match=said):
        read(str(path), Path())


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 5000 + "]" * 5000])
def test_toml_that_python_cannot_hold_is_refused(tmp_path, value):
    (tmp_path / "job.toml").write_text(f"epochs = {value}")
    with pytest.raises(SteelyardError, match="not valid TOML"):
        config.load(tmp_path / "job.toml")
    assert config.parse_changes((f"a={value}",)) == {"a": value}


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "~nobody-of-that-name/x"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, name):
    with pytest.raises(SteelyardError, match="cannot be the name of a file or folder"):
        paths.place(name, tmp_path)
    with pytest.raises(SteelyardError, match="cannot be the name of a file or folder"):
        read(name, tmp_path)
    table = {"name": "a", "train": "a.csv", "text": "t", "label": "l"}
    text = "\n".join(["[target]", *(f'{key} = "{value}"' for key, value in table.items())])
    (tmp_path / "job.toml").write_text(f'{text}\n[model]\nencoder = "{name.replace(chr(0), chr(92) + "u0000")}"\n')
    with pytest.raises(SteelyardError, match="cannot be the name of a file or folder"):
        config.load(tmp_path / "job.toml")
