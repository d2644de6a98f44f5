"""Kills small runs at random points, damages some of their checkpoints, and counts what is lost: it should be nothing.

    python tests/soak/kills.py --kills 1000

Every run is trained by workers forked from this process, which has everything imported. A worker is killed (SIGKILL)
after a random time and another goes on, until the run has ended; then its model and its weights are compared, byte by
byte, with those of a run that nobody disturbed. After one kill in ten the newest checkpoint is cut short or a bit of
it is changed. All methods take their turns under each paradigm that they train in, with a fine-tuning phase after it
and a network that has BatchNorm and dropout.
"""

import argparse
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch

from steelyard import SteelyardError, methods, testing
from steelyard.training.folder import CHECKPOINT

RESULTS = ("model.safetensors", "weights.csv")
SETTINGS = {"checkpoint_seconds": 0, "log_every": 1, "epochs": 4, "finetune_epochs": 3}
PARADIGMS = ("normalised_joint", "pretrain", "joint")
REFUSED = 2
MOST = 12
"""Kills of one run: a machine that has become slower since its time was taken would kill it for ever."""

Case = tuple[str, str]


def work(case: Case, out: Path) -> None:
    """Trains, or goes on training, in a process of its own."""
    name, paradigm = case
    try:
        testing.train(methods.get(name), out=out, paradigm=paradigm, **SETTINGS)
    except SteelyardError as error:
        sys.stderr.write(f"{name}, {paradigm}: {error}\n")
        os._exit(REFUSED)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is a wrong result
        sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n")
        os._exit(1)
    os._exit(0)


def sitting(case: Case, out: Path, seconds: float | None) -> int | None:
    """One worker's life: its exit status, or None if it was killed."""
    worker = os.fork()
    if not worker:
        work(case, out)
    end = None if seconds is None else time.monotonic() + seconds
    while end is None or time.monotonic() < end:
        done, status = os.waitpid(worker, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    os.kill(worker, signal.SIGKILL)
    _, status = os.waitpid(worker, 0)
    return None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)


def damage(path: Path, draw: random.Random) -> bool:
    """Cuts a file short, or changes one of its bytes, as a failing disk might."""
    if not path.exists():
        return False
    content = bytearray(path.read_bytes())
    if draw.random() < 0.5:
        content = content[: draw.randrange(len(content))]
    else:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return True


def disturbed(case: Case, out: Path, longest: float, draw: random.Random) -> tuple[int, int, int | None]:
    """Kills and goes on until the run has ended: kills, damaged checkpoints, the last worker's exit status."""
    kills = damaged = 0
    while True:
        status = sitting(case, out, draw.uniform(0.0, longest) if kills < MOST else None)
        if status is not None:
            return kills, damaged, status
        kills += 1
        # Only where there are two checkpoints: nothing helps who loses the only one.
        if draw.random() < 0.1 and (out / CHECKPOINT).with_name(f"before.{CHECKPOINT.name}").exists():
            damaged += damage(out / CHECKPOINT, draw)


def main() -> int:
    """Runs until there were enough kills; the exit status says whether all results were right."""
    parser = argparse.ArgumentParser(description="Kill small runs at random points and count what is lost.")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    draw = random.Random(asked.seed)
    folder = Path(tempfile.mkdtemp(prefix="steelyard-kills-"))
    kills = damaged = runs = wrong = lost = 0
    testing.train(methods.get("uniform"), out=folder / "warm", **SETTINGS)  # workers inherit all that this imports
    expected, seconds = {}, {}
    began = time.process_time()
    turns = itertools.cycle((name, paradigm) for paradigm in PARADIGMS for name in methods.names())
    refused = set()
    while kills < asked.kills:
        case = next(turns)
        if case in refused:
            continue
        if case not in expected:
            whole, start = folder / f"whole-{'-'.join(case)}", time.monotonic()
            status = sitting(case, whole, None)
            if status == REFUSED:
                refused.add(case)
                continue
            if status:
                return 1
            seconds[case] = time.monotonic() - start
            expected[case] = [(whole / each).read_bytes() for each in RESULTS]
        out = folder / f"run-{runs}"
        more, hurt, status = disturbed(case, out, seconds[case] / 2, draw)
        kills, damaged, runs = kills + more, damaged + hurt, runs + 1
        if status != 0:
            lost += 1
            print(f"{case}: the run was lost, its worker ended with {status}, in {out}")
            continue
        if [(out / each).read_bytes() for each in RESULTS] != expected[case]:
            wrong += 1
            print(f"{case}: the result differs, in {out}")
            continue
        shutil.rmtree(out, ignore_errors=True)
        sys.stderr.write(f"\r{kills} kills, {runs} runs, {damaged} damaged, {lost} lost, {wrong} wrong ")
    spent = time.process_time() - began + sum(os.times()[2:4])
    taught = len({name for name, _ in expected})
    print(
        f"{kills} kills over {runs} runs of {taught} methods ({len(expected)} with their paradigms, {len(refused)} "
        f"refused), {damaged} damaged checkpoints: {lost} runs lost, {wrong} results wrong; {spent:.0f} CPU seconds"
    )
    if not wrong and not lost:
        shutil.rmtree(folder, ignore_errors=True)
    return int(bool(lost or wrong))


if __name__ == "__main__":
    sys.exit(main())
