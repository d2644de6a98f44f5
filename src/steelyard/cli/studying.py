"""``study``: the papers' tables and figures, and our own questions, again."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from steelyard import report, studies
from steelyard.cli.printing import print_json, print_table, raise_failed, say
from steelyard.cli.runs import dated
from steelyard.cli.stopping import resumable
from steelyard.studies import Findings, Size


def study(
    name: str, small: bool, seeds: int | None, jobs: int | None, backend: str, out: Path | None, as_json: bool
) -> None:
    """Runs a study, or goes on with one, and prints its tables; cells that failed are an error when all is said."""
    chosen = studies.get(name)()
    size: Size = "small" if small else "full"
    folder = out or dated(f"study-{name}")
    if not as_json:
        about = f"{chosen.summary}" + (f" ({chosen.paper})" if chosen.paper else "")
        left = studies.minutes(chosen, folder, size=size, seeds=seeds, jobs=jobs)
        takes = f"{left:.1f} minutes" if left < 90 else f"{left / 60:.1f} hours"
        Console(stderr=True).print(
            f"{name}: {about}; about {takes} on {jobs or os.cpu_count()} cores; to go on after a stop: --out {folder}",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip
    with resumable(folder):
        findings, failed = studies.run(
            chosen, folder, size=size, seeds=seeds, jobs=jobs, backend=backend, progress=not as_json
        )
    report.write(folder)
    if as_json:
        tables = [{"title": t.title, "columns": t.columns, "rows": t.rows, "note": t.note} for t in findings.tables]
        found = {"study": str(folder), "answer": findings.answer, "tables": tables, "differs": findings.differs}
        print_json(found | {"failed": failed})
    else:
        _print(findings, failed, folder)
    raise_failed(failed, "cell", folder)


def _print(findings: Findings, failed: dict[str, str], folder: Path) -> None:
    """The tables and what they say, then which cells failed and why."""
    for table in findings.tables:
        print_table(table.title, table.columns, table.rows, table.columns[1:])
        if table.note:
            say(table.note)
    say(findings.answer)
    if findings.differs:
        say(f"differs: {findings.differs}")
    say(f"tables, figures and cells: {folder}")
    for what, why in failed.items():
        say(f"failed: {what}: {why}")


def names() -> None:
    """The names of the studies, one in a line."""
    for name in studies.names():
        say(name)


def listing(as_json: bool) -> None:
    """Lists the studies."""
    found = [studies.get(name) for name in studies.names()]
    if as_json:
        print_json(
            [{"name": s.name, "summary": s.summary, "paper": s.paper, "minutes": dict(s.minutes)} for s in found]
        )
        return
    rows = [
        [s.name, s.summary, s.paper, ", ".join(s.needs), f"{s.minutes['small']:g}", f"{s.minutes['full']:g}"]
        for s in found
    ]
    columns = ["name", "what it asks", "paper", "fetches", "minutes (small)", "minutes (full)"]
    print_table("studies", columns, rows, columns[-2:])
