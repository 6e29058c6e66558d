"""``scope-lite models``: which real models there are by name, which of them are here, and how to get one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scope_lite.cli.base import group, print_table

models_app = group("Real models by name: what there is, download one, or take a file that is here.")
Model = Annotated[str, typer.Argument(help="A name of `scope-lite models list`.")]


@models_app.command("list")
def models_list() -> None:
    """Every model that can be named, its size, what a download takes, and whether it is on this machine."""
    import pandas as pd

    from scope_lite.models import registry

    rows = [
        {"name": name, "model": entry.title, "billion": entry.size, "licence": entry.licence, "GB": entry.download,
         "chat template": entry.template, "here": "yes" if registry.kept(name) else "no",
         "SHA-256": registry.made_from(name)[:12]}
        for name, entry in registry.models().items()
    ]  # fmt: skip
    print_table(pd.DataFrame(rows))


@models_app.command("get")
def models_get(name: Model) -> None:
    """Download a model from its makers, check its hash, and make it ready; then NAME works wherever a model does."""
    from scope_lite.models import registry

    _tell(name, registry.get(name))


@models_app.command("add")
def models_add(
    name: Model, file: Annotated[Path, typer.Argument(help="The makers' file, or the folder of their files.")]
) -> None:
    """The same from a file that is on this machine already."""
    from scope_lite.models import registry

    _tell(name, registry.add(name, file.expanduser()))


def _tell(name: str, folder: Path) -> None:
    from scope_lite.models import registry

    pinned = all(registry.known(name).files.values())
    says = "as pinned" if pinned else "pinned nowhere yet: to hold others to it, put it into models/registry.yaml"
    typer.echo(f"{name} is ready in {folder}\nSHA-256 {registry.made_from(name)}, {says}")
