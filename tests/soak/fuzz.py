"""Feeds the readers with inputs that nobody meant, and looks for anything but a table or a line that says what is off.

    python tests/soak/fuzz.py csv --inputs 100000

Targets: csv, jsonl, conll, config, checkpoint. The inputs are mutations of well-formed ones; `led.py` finds them by the
code that they reach. Files are written into a folder of their own, and whatever else appears in it is an error too; an
input that takes ten seconds of the processor is a hang. Every checkpoint is read twice: as it came, which its checksum
mostly refuses, and with the checksum that its content has, so that what comes after it is reached too.
"""

import argparse
import contextlib
import hashlib
import json
import random
import re
import signal
import tempfile
import time
from pathlib import Path

from steelyard import SteelyardError, config
from steelyard.data.readers import read
from steelyard.training import checkpoint

SECONDS = 10.0
"""Processor time of an input, which does not run out while something else has the machine."""
SEEDS = {
    "csv": [
        b'text,label\nfine day,good\n"a, b",bad\n',
        "über;zahl\n1,5;2\n".encode(),
        b"a\n\n\x00\n",
        b"\xef\xbb\xbfx,y\r\n1,2\r\n",
    ],
    "jsonl": [b'{"text": "a", "label": 1}\n{"text": null, "tags": ["x"]}\n', b'{"a": {"b": [1, 2.5, true]}}\n'],
    "conll": [b"A B-PER\nb O\n\nc O\n", b"# x\n1\tA\tB\n2\tc\td\n\n"],
    "config": [
        (
            b'[target]\nname = "a"\ntrain = "a.csv"\ntext = "t"\nlabel = "l"\n[[source]]\nname = "b"\ntrain = "b.csv"\n'
            b'[method]\nname = "tawt"\neta = 2.0\n[training]\nepochs = 3\n[model]\nencoder = "mlp"\n'
        ),
        b'[method.weights]\nname = "tawt"\n[method.gradients]\nname = "pcgrad"\n',
    ],
    "checkpoint": [],
}
ENDINGS = {"csv": "data.csv", "jsonl": "data.jsonl", "conll": "data.conll", "config": "job.toml", "checkpoint": "state"}


def feed(target: str, content: bytes, folder: Path) -> bool:
    """One input: whether it was refused; whatever is not a clean refusal is raised."""
    if target == "checkpoint" and (sealed := resealed(content)) != content:
        with contextlib.suppress(SteelyardError):
            checkpoint.load(_written(sealed, folder / ENDINGS[target]))
    refused = False
    signal.signal(signal.SIGPROF, _hangs)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    path = _written(content, folder / ENDINGS[target])
    try:
        if target == "config":
            config.load(path).method.build()
        elif target == "checkpoint":
            checkpoint.load(path)
        else:
            read(str(path), Path())
    except SteelyardError as error:
        if not str(error).strip():
            raise AssertionError("an error without a word") from error
        refused = True
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        path.unlink(missing_ok=True)
    left = sorted(each.name for each in folder.iterdir())
    if left:
        raise AssertionError(f"files that nobody asked for: {left}")
    return refused


def _written(content: bytes, path: Path) -> Path:
    path.write_bytes(content)
    return path


def resealed(content: bytes) -> bytes:
    """A checkpoint with the checksum that its content should have."""
    found = re.search(rb'"sha256":"(.{64})', content, re.DOTALL)
    if found is None:
        return content
    start, stop = found.span(1)
    total = hashlib.sha256(content[:start] + b"0" * 64 + content[stop:]).hexdigest().encode()
    return content[:start] + total + content[stop:]


def seeds(target: str, folder: Path) -> list[bytes]:
    """Well-formed inputs to begin with."""
    if target != "checkpoint":
        return SEEDS[target]
    import torch

    checkpoint.save(folder / "seed", {"model": {"a": torch.ones(2, 2)}, "place": {"step": 3}, "list": [1, (2.0, None)]})
    content = (folder / "seed").read_bytes()
    (folder / "seed").unlink()
    return [content]


def mutated(known: list[bytes], draw: random.Random) -> bytes:
    """A well-formed input with some of it cut, doubled, changed or put in from elsewhere."""
    content = bytearray(draw.choice(known))
    for _ in range(draw.randint(1, 6)):
        place, length = draw.randint(0, len(content)), draw.randint(1, 12)
        other = draw.choice(known)
        start = draw.randint(0, len(other))
        odd = draw.choice(
            [b"\x00", b'"', b"\n", b",", b"\xff", b"[", b"{", b"\\", b"1e999", b"\xe2\x80\xa8", b"=", b"\t"]
        )
        content[place : place + draw.choice([0, 0, length])] = draw.choice(
            [b"", odd, odd * length, other[start : start + length], draw.randbytes(length)]
        )
    return bytes(content)


def _hangs(number: int, frame: object) -> None:
    raise TimeoutError(f"an input took more than {SECONDS:g} seconds of the processor")


def by_mutation(target: str, inputs: int, seed: int) -> None:
    """So many mutations."""
    draw, began = random.Random(seed), time.process_time()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        known, refused = seeds(target, folder), 0
        for number in range(inputs):
            content = mutated(known, draw)
            try:
                refused += feed(target, content, folder)
            except BaseException:
                print(f"{target}, input {number}: {content!r}")
                raise
    spent = round(time.process_time() - began)
    print(json.dumps({"target": target, "inputs": inputs, "refused": refused, "broken": 0, "cpu_seconds": spent}))


def main() -> None:
    """Feeds one target."""
    parser = argparse.ArgumentParser(description="Feed a reader with inputs that nobody meant.")
    parser.add_argument("target", choices=list(SEEDS))
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    by_mutation(asked.target, asked.inputs, asked.seed)


if __name__ == "__main__":
    main()
