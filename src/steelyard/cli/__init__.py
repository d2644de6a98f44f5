"""The command line. Heavy libraries are imported by the command that needs them, never by ``--help``."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from steelyard import __version__
from steelyard.errors import SteelyardError

F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path(path_type=Path)


def _json(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for machines.")(function)


def _out(function: F) -> F:
    text = "The folder to make (default: a dated one below runs/)."
    return click.option("--out", type=_FILE, help=text)(function)


def _parallel(function: F) -> F:
    backend = "loky (processes here), ray or dask (extra scale), possibly with an address: dask:tcp://host:8786"
    function = click.option("--backend", default="loky", show_default=True, help=backend)(function)
    return click.option("--jobs", type=click.IntRange(1), help="Runs at once (default: one per core).")(function)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="steelyard")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def app(debug: bool) -> None:
    """Learn a target task with few labels from everything else you have, and see what each source was worth."""
    del debug


@app.command()
@click.option("--data", type=click.Choice(["digits", "sentiment4"]), default="digits", show_default=True,
              help="digits need no download; sentiment4 is text and is fetched once.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True)
@_out
@_json
def demo(data: str, seeds: int, out: Path | None, as_json: bool) -> None:
    """Train on real data in under two minutes: the target alone, fixed weights and learned weights side by side."""
    from steelyard.cli import demonstration

    demonstration.demo(data, seeds, out, as_json)


@app.command()
@click.argument("config", type=_FILE)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a key: --set training.epochs=3")
@_out
@_json
def train(config: Path, changes: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    """Train a model for the target of CONFIG (a TOML file); the same command goes on after an interruption."""
    from steelyard.cli import runs

    runs.train(config, changes, out, as_json)


@app.command()
@click.argument("run", type=_FILE)
@click.argument("input", type=_FILE)
@click.option("--task", help="A task other than the target.")
@click.option("--out", type=_FILE, help="A file to write to (default: standard output).")
@_json
def predict(run: Path, input: Path, task: str | None, out: Path | None, as_json: bool) -> None:  # noqa: A002
    """Predictions of a trained RUN for the rows of INPUT (csv, jsonl, …), in the same form."""
    from steelyard.cli import runs

    runs.predict(run, input, task, out, as_json)


@app.command()
@click.argument("config", type=_FILE)
@click.option("--all-pairs", is_flag=True, help="Every task as a target: a matrix.")
@click.option("--quick", is_flag=True, help="Train nothing: only the estimate at the initial parameters.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a key: --set training.epochs=3")
@click.option("--out", type=_FILE, help="A csv file to write to, too.")
@_json
def distance(config: Path, all_pairs: bool, quick: bool, changes: tuple[str, ...], out: Path | None,
             as_json: bool) -> None:  # fmt: skip
    """The task distance of each source of CONFIG (a TOML file) to the target: the smaller, the nearer."""
    from steelyard.cli import distances

    distances.distance(config, all_pairs, quick, changes, out, as_json)


@app.command()
@click.argument("config", type=_FILE)
@click.option("--methods", metavar="A,B,C", help="What is asked about, with commas: tawt, tawt+pcgrad, "
              "tawt:eta=2.0, my_file.py:MyMethod (default: the method of CONFIG).")  # fmt: skip
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--no-controls", "controls", is_flag=True, flag_value=False, default=True,
              help="Leave out the controls: single, uniform, joint, ramp, random.")  # fmt: skip
@click.option("--budget", type=click.IntRange(0), default=0, show_default=True,
              help="Trials of hyper-parameters for each method, chosen on dev rows (extra tune).")  # fmt: skip
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a key: --set training.epochs=3")
@_parallel
@click.option("--keep-runs", is_flag=True, help="Keep each run's folder, with its model, below OUT/runs.")
@_out
@_json
def compare(config: Path, methods: str | None, seeds: int, controls: bool, budget: int, changes: tuple[str, ...],
            jobs: int | None, backend: str, keep_runs: bool, out: Path | None, as_json: bool) -> None:  # fmt: skip
    """Compare methods with each other and with controls on CONFIG, over seeds; the same --out goes on after a stop."""
    from steelyard.cli import comparing

    comparing.compare(config, changes, methods, seeds, controls, budget, jobs, backend, keep_runs, out, as_json)


@app.command()
@click.argument("config", type=_FILE)
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--method", default="uniform", show_default=True, help="What weighs the tasks.")
@click.option("--matrix", is_flag=True, help="Also every other task as the target of each.")
@click.option("--budget", type=click.IntRange(0), help="So many runs with random groups of sources, in place of each "
              "on its own; 0: never (default: only with more than ten sources).")  # fmt: skip
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a key: --set training.epochs=3")
@_parallel
@_out
@_json
def transfer(config: Path, seeds: int, method: str, matrix: bool, budget: int | None, changes: tuple[str, ...],
             jobs: int | None, backend: str, out: Path | None, as_json: bool) -> None:  # fmt: skip
    """What each source of CONFIG is worth to the target: added alone, left out of all, or in groups; over seeds."""
    from steelyard.cli import transferring

    transferring.transfer(config, changes, seeds, method, matrix, budget, jobs, backend, out, as_json)


@app.command()
@click.argument("name", required=False)
@click.option("--list", "listed", is_flag=True, help="List the studies.")
@click.option("--names", is_flag=True, help="Their names alone, for scripts.")
@click.option("--small", is_flag=True, help="The size that runs in minutes.")
@click.option("--seeds", type=click.IntRange(1), help="How many seeds, if not the size's own number.")
@_parallel
@_out
@_json
def study(name: str | None, listed: bool, names: bool, small: bool, seeds: int | None, jobs: int | None, backend: str,
          out: Path | None, as_json: bool) -> None:  # fmt: skip
    """Redo a table or figure: NAME, or --list. The same command with the same --out goes on after a stop."""
    from steelyard.cli import studying

    if names:
        studying.names()
    elif listed or name is None:
        studying.listing(as_json)
    else:
        studying.study(name, small, seeds, jobs, backend, out, as_json)


@app.command()
@click.argument("name", required=False)
@_json
def methods(name: str | None, as_json: bool) -> None:
    """What methods there are, what each needs and costs; with a NAME, its options."""
    from steelyard.cli import information

    information.methods(name, as_json)


@app.group(invoke_without_command=True)
@_json
@click.pass_context
def suites(context: click.Context, as_json: bool) -> None:
    """Packaged real data: what there is; `fetch` gets it ahead of time, `check` reads and counts it."""
    if context.invoked_subcommand is None:
        from steelyard.cli import packaged

        packaged.listing(as_json)


@suites.command("fetch")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_json
def suites_fetch(names: tuple[str, ...], as_json: bool) -> None:
    """Fetch suites, or single tasks (NAME/TASK), verify and prepare them; a stopped fetch goes on where it was."""
    from steelyard.cli import packaged

    packaged.fetch(names, as_json)


@suites.command("check")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_json
def suites_check(names: tuple[str, ...], as_json: bool) -> None:
    """Fetch suites (all, if none is named), read every task, and compare the counts with those recorded."""
    from steelyard.cli import packaged

    packaged.check(names, as_json)


@app.command()
@_json
def doctor(as_json: bool) -> None:
    """What this machine has: versions, devices, extras, room on disk."""
    from steelyard.cli import information

    information.doctor(as_json)


@app.command()
@click.argument("config", type=_FILE)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a key: --set training.epochs=3")
@_json
def advise(config: Path, changes: tuple[str, ...], as_json: bool) -> None:
    """Before training: how each source of CONFIG (a TOML file) looks, what to start with and why, how long it takes."""
    from steelyard.cli import advising

    advising.advice(config, changes, as_json)


@app.command()
@click.argument("runs", type=_FILE, nargs=-1, required=True, metavar="RUN...")
@click.option("--out", type=_FILE, help="The file to write (default: report.html, in the folder if there is one only).")
@_json
def report(runs: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """The page of a RUN's, a study's or a comparison's folder, or of several runs side by side."""
    from steelyard.cli import reporting

    reporting.page(runs, out, as_json)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line: exit status 0 when done, 2 when the user's input is wrong (one line says what)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    warnings.showwarning = _one_line_warning
    try:
        app.main(args=arguments, prog_name="steelyard", standalone_mode=False)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "steelyard"
        _fail(f"{error.format_message()} (see {command} --help)", 2)
    except (click.Abort, KeyboardInterrupt) as stop:
        if debug:
            raise
        cause = stop if isinstance(stop, KeyboardInterrupt) else stop.__cause__
        again = "stopped; run the same command to go on" if type(cause).__name__ == "Interrupted" else "stopped"
        _fail(str(cause or "") or again, 130)
    except SteelyardError as error:
        if debug:
            raise
        from steelyard.training.processes import ToldElsewhereError

        if isinstance(error, ToldElsewhereError):
            sys.exit(2)  # the first process has said it
        _fail(" ".join(str(error).split()), 2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)


def _fail(message: str, status: int) -> None:
    click.echo(f"steelyard: {message}", err=True)
    sys.exit(status)


def _one_line_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    if issubclass(category, UserWarning) and category.__module__.startswith("steelyard"):
        click.echo(f"steelyard: note: {' '.join(str(message).split())}", err=True)
