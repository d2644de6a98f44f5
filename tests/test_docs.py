"""The documentation is true: Python runs, TOML parses, tables are complete, and the site builds strictly."""

import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

from steelyard import cli, config, heads, methods, studies
from steelyard.data import SourceData
from steelyard.objectives import stages
from steelyard.training import METRICS, Training

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("**/*.md")])
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """A page's blocks in a language that are meant to run, each with the line on which it begins."""
    text = page.read_text(encoding="utf-8")
    return [
        (text[: found.start(3)].count("\n"), found[3])
        for found in FENCE.finditer(text)
        if found[1] == language and "no-run" not in found[2]
    ]


def pages_with(language: str) -> list[object]:
    return [pytest.param(p, id=str(p.relative_to(ROOT))) for p in PAGES if blocks(p, language)]


@pytest.fixture
def own_registries(monkeypatch):
    """What a page registers is forgotten after it."""
    monkeypatch.setattr(methods, "_REGISTRY", dict(methods._REGISTRY))
    monkeypatch.setattr(studies, "_REGISTRY", dict(studies._REGISTRY))
    for stage, known in stages._REGISTRY.items():
        monkeypatch.setitem(stages._REGISTRY, stage, dict(known))
    kept = dict(heads.HEADS)
    yield
    heads.HEADS.clear()
    heads.HEADS.update(kept)


@pytest.mark.parametrize("page", pages_with("python"))
def test_python_runs(page, tmp_path, monkeypatch, own_registries):
    lines: list[str] = []
    for start, block in blocks(page, "python"):
        lines += [""] * (start - len(lines)) + block.splitlines()  # so that a traceback names the page's own line
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(lines) + "\n", str(page), "exec"), module.__dict__)  # noqa: S102


@pytest.mark.parametrize("page", pages_with("toml"))
def test_toml_parses(page, tmp_path):
    for _, block in blocks(page, "toml"):
        tables = tomllib.loads(block)
        if "target" not in tables:
            block = '[target]\nname = "t"\ntrain = "t.csv"\n' + block  # noqa: PLW2901
        file = tmp_path / "config.toml"
        file.write_text(block, encoding="utf-8")
        config.load(file).method.build()


def test_the_readmes_toml_is_the_examples():
    shown = tomllib.loads(blocks(ROOT / "README.md", "toml")[0][1])
    assert shown == tomllib.loads((ROOT / "examples/csv_two_sources/tickets.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", pages_with("bash"))
def test_commands_exist(page):
    for _, block in blocks(page, "bash"):
        for line in block.splitlines():
            words = line.split("#")[0].split()
            if words[:1] != ["steelyard"] or words[1].startswith("-"):
                continue
            assert words[1] in cli.app.commands, f"{page.name}: {line}"
            known = {name for option in cli.app.commands[words[1]].params for name in option.opts} | {"--help"}
            assert {word for word in words if word.startswith("--")} <= known, f"{page.name}: {line}"


@pytest.mark.parametrize(
    ("page", "pattern", "names"),
    [
        ("training.md", "| `{}` |", list(Training.model_fields)),
        ("training.md", "`{}`", list(METRICS)),
        ("methods", "\n## {}\n", methods.names()),
        ("command-line.md", "`{}`", [*SourceData.model_fields, *cli.app.commands]),
    ],
)
def test_tables_are_complete(page, pattern, names):
    place = ROOT / "docs" / page
    text = "".join(p.read_text(encoding="utf-8") for p in (sorted(place.glob("*.md")) if place.is_dir() else [place]))
    text = text.replace("`steelyard ", "`").replace(" CONFIG`", "`").replace(" RUN INPUT`", "`").replace(" NAME`", "`")
    missing = [name for name in names if pattern.format(name) not in text]
    assert not missing, f"docs/{page} says nothing of {', '.join(missing)}"


def test_site_builds_strictly(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    pages = list((tmp_path / "site").glob("**/*.html"))
    assert len(pages) > 20
    fetched = [
        p for p in pages if re.search(r'<(?:link|script)[^>]+(?:href|src)="https?://(?!localhost)', p.read_text())
    ]
    assert not fetched, f"these pages fetch something from elsewhere: {fetched[:3]}"
