"""Word vectors from text files."""

import gzip
import logging
from pathlib import Path

import pytest
import torch

from steelyard.encoders import glove, read_vectors
from steelyard.errors import SteelyardError

LINES = "the 0.5 -1 2\ncat 1 2 3e-1\n. . . 7 8 9.5\ndog 4 5 6\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "vectors.txt"
    path.write_text(LINES, encoding="utf-8")
    return path


def test_words_get_their_vectors_in_the_vocabularys_order(file: Path) -> None:
    vectors = glove(file, ["dog", "unicorn", "the", ". . .", "dog"])
    assert vectors.dtype == torch.float32
    assert vectors[[0, 2, 3, 4]].tolist() == [[4, 5, 6], [0.5, -1, 2], [7, 8, 9.5], [4, 5, 6]]


def test_missing_words_get_small_vectors_by_the_seed(file: Path) -> None:
    words = ["the", *(f"w{i}" for i in range(500))]
    vectors = glove(file, words)
    torch.testing.assert_close(vectors, glove(file, words), rtol=0, atol=0)
    assert not torch.equal(vectors, glove(file, words, seed=1))
    assert 0.09 < vectors[1:].std() < 0.11
    state = torch.get_rng_state()
    glove(file, words)
    assert torch.equal(state, torch.get_rng_state())


def test_coverage_is_returned_and_logged(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        vectors = read_vectors(file, ["the", "unicorn", "cat", "dog"])
    assert vectors.found.tolist() == [True, False, True, True]
    assert vectors.coverage == 0.75
    assert "3 of 4 words have a vector (75.0 %)" in caplog.text


def test_gzip_header_blank_lines_and_odd_separators(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt.gz"
    with gzip.open(path, "wb") as stream:
        stream.write("3 2\r\na 1 2\r\nb\u2028c 3 4\r\nd\u00a0e 5 6 \n\n".encode())
    assert glove(path, ["d\u00a0e", "a", "b\u2028c"]).tolist() == [[5, 6], [1, 2], [3, 4]]


def test_the_first_of_two_vectors_counts(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("a 1 2\na 3 4\n")
    assert glove(path, ["a"]).tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a 1 2\nb 1\n", "line 2: 1 numbers after the word instead of 2"),
        ("a 1 2\nb 1.5 2.5 3.5\n", "line 2: 3 numbers after the word instead of 2"),
        ("a 1 2\nb 1 x\n", "line 2: the vector of 'b'"),
        ("a 1 2\nb 1 nan\n", "line 2: the vector of 'b'"),
        ("word\n", "line 1: 0 numbers"),
        ("", "no vectors in this file"),
        ("c 1 2\n", "none of the 2 words"),
    ],
)
def test_bad_files_are_told_by_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(text)
    with pytest.raises(SteelyardError, match=message) as caught:
        glove(path, ["a", "b"])
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_unreadable_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(SteelyardError, match="cannot be read"):
        glove(tmp_path / "none.txt", ["a"])
    with pytest.raises(SteelyardError, match="cannot be read"):
        glove(tmp_path, ["a"])
    for name, content in (("plain.gz", b"a 1 2\n"), ("cut.gz", gzip.compress(b"a 1 2\n" * 99)[:-12])):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SteelyardError, match="cannot be read"):
            glove(tmp_path / name, ["a"])
