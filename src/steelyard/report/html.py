"""Pieces of the page. Whatever comes from data passes through `text`; nothing else writes it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from steelyard.report import drawing

CELLS = 15_000
"""About as many cells as a table may have; of longer ones every so many rows are shown."""


def text(value: object) -> str:
    """Anything as text that no browser reads as markup."""
    return escape(str(value), quote=True)


def number(value: object, digits: int = 4) -> str:
    """A number as people read it; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "–" if value is None else str(value)
    if isinstance(value, int) or not math.isfinite(value):
        return f"{value:,}" if isinstance(value, int) else "–"
    return f"{value:.{digits}f}" if abs(value) < 1e-12 or 1e-3 <= abs(value) < 1e5 else f"{value:.{digits - 1}e}"


@dataclass(frozen=True)
class Table:
    """A table to read and to copy.

    Attributes:
        title: What it holds.
        columns: The names of its columns; none of them for a list of facts.
        rows: Its cells: numbers, or text.
        note: What stands below.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""

    def __str__(self) -> str:
        kept, note = self._kept()
        right = [_numeric([row[i] for row in kept]) for i in range(len(self.columns))]
        head = "".join(_cell("th", name, r, " scope=col") for name, r in zip(self.columns, right, strict=True))
        body = "".join(
            "<tr>" + "".join(
                _cell("td" if i else "th", value, right[i], "" if i else " scope=row") for i, value in enumerate(row)
            ) + "</tr>" for row in kept
        )  # fmt: skip
        title = text(self.title)
        button = f"<button type=button class=copy aria-label='Copy the table: {title}'>Copy</button>"
        below = f"<p class=dim>{text(note)}</p>" if note else ""
        return (
            f"<div class=table><div class=bar><span>{title}</span>{button}</div>"
            f"<div class=wide tabindex=0 role=group aria-label='{title}'><table aria-label='{title}'>"
            f"{f'<thead><tr>{head}</tr></thead>' if any(self.columns) else ''}<tbody>{body}</tbody></table></div>"
            f"{below}</div>"
        )

    def _kept(self) -> tuple[Sequence[Sequence[object]], str]:
        """The rows that are shown, evenly chosen where there are very many, the last always."""
        every = math.ceil(len(self.rows) * max(1, len(self.columns)) / CELLS)
        if every <= 1:
            return self.rows, self.note
        kept = [row for place, row in enumerate(self.rows) if place % every == 0 or place == len(self.rows) - 1]
        said = f"{len(kept):,} of {len(self.rows):,} rows; the folder's files hold the others."
        return kept, f"{self.note} {said}".strip()


def _numeric(column: Sequence[object]) -> bool:
    given = [value for value in column if value not in (None, "", "–")]
    return bool(given) and all(isinstance(v, (int, float)) or re.match(r"[-+−<]? ?\d", str(v)) for v in given)


def _cell(tag: str, value: object, right: bool, more: str = "") -> str:
    return f"<{tag}{' class=n' if right else ''}{more}>{text(number(value))}</{tag}>"


@dataclass(frozen=True)
class Figure:
    """A figure with its legend and its numbers; in a notebook it shows itself.

    Attributes:
        title: What it shows.
        says: The same in a sentence, for those who do not see it.
        svg: The drawing.
        legend: Names, each with the number of its line's style.
        table: The numbers that it was drawn from.
        note: What stands below.
    """

    title: str
    says: str
    svg: str
    legend: Sequence[tuple[str, int]] = field(default_factory=list)
    table: Table | None = None
    note: str = ""

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        return f"<style>{STYLE}</style><div class=steelyard>{self}</div>"

    def __str__(self) -> str:
        legend = "".join(f"<li>{_swatch(style)}{text(name)}</li>" for name, style in self.legend)
        legend = f"<ul class=legend aria-label='Legend'>{legend}</ul>" if legend else ""
        note = f"<p class=dim>{text(self.note)}</p>" if self.note else ""
        numbers = f"<details><summary>Numbers: {text(self.title)}</summary>{self.table}</details>" if self.table else ""
        return f"<figure><figcaption>{text(self.title)}</figcaption>{inline(self)}{legend}{note}{numbers}</figure>"


def inline(figure: Figure) -> str:
    """The drawing as a part of the page: it has a name for screen readers, and its parts' names are its own."""
    svg = re.sub(r"<style.*?</style>", "", figure.svg, flags=re.DOTALL)
    prefix = f"f{abs(hash_of(figure.title + svg)):x}-"
    svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{prefix}", svg)
    svg = re.sub(r"\s*\n\s*", " ", svg)
    return svg.replace("<svg ", f"<svg role=img aria-label='{text(figure.says)}' ", 1)


def hash_of(content: str) -> int:
    """A number that is the same in every process."""
    import zlib

    return zlib.crc32(content.encode())


def _swatch(style: int) -> str:
    look = drawing.style(style)
    dash = {
        "-": "",
        "--": " stroke-dasharray='6 3'",
        ":": " stroke-dasharray='2 3'",
        "-.": " stroke-dasharray='6 3 2 3'",
    }
    name = f"line{style % 8}"
    return (
        f"<svg class=swatch viewBox='0 0 24 8' aria-hidden=true><line x1=1 y1=4 x2=23 y2=4 stroke-width=3 "
        f"style='stroke:var(--sy-{name},{look['color']})'{dash[look['linestyle']]} /></svg>"
    )


def picture(svg: str, says: str) -> str:
    """A drawing from a file, as an image: whatever is in it, it runs nothing and fetches nothing."""
    import base64

    data = base64.b64encode(svg.encode()).decode()
    return f"<img alt='{text(says)}' src='data:image/svg+xml;base64,{data}'>"


def section(title: str, *parts: object, name: str = "") -> str:
    """A part of the page with its heading; nothing at all if it would be empty."""
    inside = "".join(str(part) for part in parts if part)
    if not inside:
        return ""
    place = name or re.sub(r"[^a-z]+", "-", title.lower()).strip("-")
    return f"<section aria-labelledby='{place}'><h2 id='{place}'>{text(title)}</h2>{inside}</section>"


def side_by_side(*figures: Figure | None) -> str:
    """Figures in as many columns as there is room for."""
    shown = [str(each) for each in figures if each is not None]
    return f"<div class=figures>{''.join(shown)}</div>" if shown else ""


GENERATOR = "<meta name=generator content=steelyard>"
_HERE = Path(__file__).parent
STYLE = drawing.theme() + (_HERE / "page.css").read_text(encoding="utf-8")
SCRIPT = (_HERE / "page.js").read_text(encoding="utf-8")


def document(title: str, lead: str, sections: Sequence[str]) -> str:
    """The whole page: one file that fetches nothing, and in which no script runs but its own."""
    import base64
    import hashlib

    own = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{own}'"
    places = re.findall(r"<h2 id='([^']*)'>(.*?)</h2>", "".join(sections))
    links = "".join(f"<a href='#{place}'>{name}</a>" for place, name in places)
    return (
        f"<!doctype html><html lang=en><head><meta charset=utf-8>{GENERATOR}"
        f'<meta http-equiv=Content-Security-Policy content="{policy}">'
        "<meta name=viewport content='width=device-width,initial-scale=1'><meta name=color-scheme content='light dark'>"
        f"<title>{text(title)}</title><style>{STYLE}</style></head><body class=steelyard>"
        f"<a class=skip href='#main'>Skip to the findings</a><header><h1>{text(title)}</h1></header>"
        f"<nav aria-label='On this page'>{links}</nav><main id=main tabindex=-1>{lead}{''.join(sections)}</main>"
        f"<p id=said role=status></p><script>{SCRIPT}</script></body></html>"
    )
