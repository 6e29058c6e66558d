"""The command ``scope-lite``: run the notebooks, train, redraw figures, look after runs.

Exit codes: 0 done, 1 something broke (a bug with its traceback, or a notebook that failed), 2 a mistake in what was
asked for (one line, no traceback), 130 stopped with Ctrl-C. Whatever is heavy is imported by the command that needs
it, so that ``--help`` answers at once. A group of commands has a file: ``notebooks`` (run, figures),
``runs`` (run folders), ``models`` (real models by name), ``shipped`` (what makes the shipped tables and models),
``machine`` (doctor).
"""

from __future__ import annotations

from typing import Annotated

import typer

from scope_lite import __version__
from scope_lite.cli.base import OneLineErrors, group
from scope_lite.cli.chat import chat
from scope_lite.cli.gpu_check import gpu_check
from scope_lite.cli.machine import doctor
from scope_lite.cli.models import models_app
from scope_lite.cli.notebooks import figures, run
from scope_lite.cli.plan import plan
from scope_lite.cli.runs import runs_app
from scope_lite.cli.shipped import nano_app, results_app, small_app
from scope_lite.cli.simulators import simulator_app
from scope_lite.cli.training import train

app = group("See simulator collapse happen, understand why, and test two ways to fix it.", OneLineErrors)
for command in (run, figures, train, chat, doctor, plan, gpu_check):
    app.command()(command)
for name, commands in (
    ("runs", runs_app),
    ("models", models_app),
    ("nano", nano_app),
    ("results", results_app),
    ("simulator", simulator_app),
    ("small", small_app),
):
    app.add_typer(commands, name=name)


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """See simulator collapse happen, understand why, and test two ways to fix it."""
    if version:
        typer.echo(__version__)
        raise typer.Exit
