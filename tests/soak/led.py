"""As `fuzz.py`, with inputs that are led by coverage: what reaches new code is kept, and changed further (atheris).

    python tests/soak/led.py jsonl --seconds 120

Code of the readers and of what they read with (json, tomllib, csv) is instrumented as it is imported, so nothing of the
library may be imported before. An input that breaks something is printed, and its file kept in the working folder.
"""

import argparse
import importlib.util
import re
import sys
import tempfile
from pathlib import Path

WATCHED = ["steelyard.data", "steelyard.config", "steelyard.methods", "steelyard.training", "tomllib", "json"]
LONGEST = 2_000
"""Bytes of an input."""


def words(target: str, known: list[bytes]) -> list[str]:
    """What inputs are made of, for libFuzzer's dictionary: the seeds' own words, and a configuration's keys."""
    found = {word.decode(errors="ignore") for seed in known for word in re.findall(rb"[A-Za-z_]{2,}", seed)}
    if target == "config":
        from steelyard import config, methods

        tables = (config.TargetData, config.FeatureOptions, config.Training, config.Config)
        found |= {key for table in tables for key in table.model_fields}
        found |= {*methods.names(), "nan", "inf", "true", "[[source]]", "[target]", "[model]", "[method]", "[training]"}
    return sorted(word for word in found if word.isascii())


def main() -> None:
    """Feeds one target until its time is over."""
    parser = argparse.ArgumentParser(description="Feed a reader with inputs that are led by coverage.")
    parser.add_argument("target", choices=["csv", "jsonl", "conll", "config", "checkpoint"])
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print(f"{asked.target}: not led by coverage, there is no atheris here (pip install atheris)")
        return
    import atheris

    with atheris.instrument_imports(include=WATCHED):
        import fuzz
    corpus, folder = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
    known = fuzz.seeds(asked.target, folder)
    for number, content in enumerate(known):
        (corpus / str(number)).write_bytes(content)
    dictionary = corpus.with_suffix(".dict")
    dictionary.write_text("".join(f'"{word}"\n' for word in words(asked.target, known)))
    options = [
        f"-max_total_time={asked.seconds}", "-timeout=1200", f"-seed={asked.seed}", f"-max_len={LONGEST}",
        f"-dict={dictionary}", f"-artifact_prefix=broken-{asked.target}-", "-print_final_stats=1", "-verbosity=0",
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *options, str(corpus)], lambda content: fuzz.feed(asked.target, content, folder))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
