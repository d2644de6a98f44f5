"""A hand-written job: small csv files and a TOML file."""

import csv
import random
from pathlib import Path

GOOD = "great lovely superb happy excellent fine charming bright wonderful nice".split()
BAD = "awful poor broken sad terrible dull dreadful bleak nasty boring".split()
NEUTRAL = "the a film product device story screen battery actor plot box service table chair".split()

CONFIG = """
[target]
name = "complaints"
train = "complaints.csv"
dev = "dev.csv"
test = "test.csv"
text = "body"
label = "topic"

[[source]]
name = "reviews"
train = "reviews.csv"
text = "text"
label = "stars"

[[source]]
name = "messages"
train = "messages.csv"
text = "message"
label = "mood"

[model]
encoder = "textcnn"
size = 16
channels = 8

[training]
epochs = 3
learning_rate = 0.01
device = "cpu"
"""


def write_csv(path: Path, header: list[str], rows: list[list[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def sentences(n: int, labels: tuple[str, str], seed: int) -> list[list[str]]:
    draw = random.Random(seed)
    rows = []
    for number in range(n):
        words = draw.choices(NEUTRAL, k=6) + draw.choices(GOOD if number % 2 else BAD, k=2)
        draw.shuffle(words)
        rows.append([" ".join(words), labels[number % 2]])
    return rows


def write_job(folder: Path) -> Path:
    """Writes the job into a folder."""
    write_csv(folder / "complaints.csv", ["body", "topic"], sentences(40, ("angry", "content"), 0))
    write_csv(folder / "dev.csv", ["body", "topic"], sentences(20, ("angry", "content"), 1))
    write_csv(folder / "test.csv", ["body", "topic"], sentences(60, ("angry", "content"), 2))
    write_csv(folder / "reviews.csv", ["text", "stars"], sentences(120, ("low", "high"), 3))
    write_csv(folder / "messages.csv", ["message", "mood"], sentences(80, ("0", "1"), 4))
    (folder / "job.toml").write_text(CONFIG)
    return folder
