"""Run one notebook through papermill, tell each cell as it starts, and say in one line what went wrong."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import papermill
from jupyter_client.kernelspec import NoSuchKernel
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, NotebookExecutionManager, papermill_engines
from papermill.exceptions import PapermillExecutionError
from papermill.log import logger

from scope_lite.cli.notebook_runner.parameters import Plan
from scope_lite.store.errors import ScopeError, first_line
from scope_lite.store.files import plain_disk_errors

ENGINE = "scope-lite"


class NotebookFailed(ScopeError):
    """A notebook stopped: which, in which cell, and why, in one line. Its executed copy is left to look at."""

    exit_code = 1


class WatchedEngine(NBClientEngine):
    """Papermill's own engine, which tells each cell as it starts and keeps the kernel's own chatter in a file."""

    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man: NotebookExecutionManager,
        kernel_name: str,
        on_cell: Callable[[int, int, str], None],
        kernel_log: Path,
        execution_timeout: int,
        **unused: Any,
    ) -> Any:
        cell_start = nb_man.cell_start

        def told(cell: Any, cell_index: int = 0, **more: Any) -> None:
            on_cell(cell_index + 1, len(nb_man.nb.cells), cell.source)
            cell_start(cell, cell_index, **more)

        nb_man.cell_start = told
        # with papermill's own timeouts it would wait for ever for a cell
        timeouts = {"timeout": execution_timeout, "startup_timeout": 120}
        client = PapermillNotebookClient(nb_man, **timeouts, kernel_name=kernel_name, log=logger)
        with kernel_log.open("wb") as stderr, tempfile.TemporaryDirectory(prefix="scope-lite-kernel-") as empty:
            # the kernel shows figures itself, and runs none of what users let IPython run at its start
            kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONSTARTUP", "MPLBACKEND")}
            return client.execute(stderr=stderr, env={**kept, "IPYTHONDIR": empty, "JUPYTER_CONFIG_DIR": empty})


papermill_engines.register(ENGINE, WatchedEngine)


def execute(plan: Plan, executed: Path, on_cell: Callable[[int, int], None]) -> None:
    """Run the notebook in its own folder and leave the executed copy at ``executed``, also when it fails.

    What a failed kernel itself wrote to its standard error is left in ``<stem>.kernel.log`` beside the copy.

    Raises:
        NotebookFailed: with the notebook, the cell and the last line of its error.
        ScopeError: if there is no kernel to run it in, or the disk is full.
    """
    kernel_log = executed.with_suffix(".kernel.log")
    number, line = 0, ""

    def note(cell: int, total: int, source: str) -> None:
        nonlocal number, line
        number, line = cell, source.strip().split("\n")[0][:60]
        on_cell(cell, total)

    where = ""
    try:
        with plain_disk_errors(executed):
            papermill.execute_notebook(
                plan.notebook,
                executed,
                parameters=plan.parameters,
                engine_name=ENGINE,
                cwd=plan.notebook.parent,
                progress_bar=False,
                execution_timeout=plan.execution_timeout,
                on_cell=note,
                kernel_log=kernel_log,
            )
        kernel_log.unlink()
        return
    except NoSuchKernel as exc:
        raise ScopeError(f"{plan.stem} wants the Jupyter kernel {exc.name!r}, which is not installed here") from exc
    except PapermillExecutionError as exc:
        where, why = f", In [{exc.exec_count}]", f"{exc.ename}: {str(exc.evalue).strip().split(chr(10))[0]}"
    except DeadKernelError:
        why = f"the kernel was killed (out of memory?), its last words: {kernel_log}"
    except CellTimeoutError:
        why = f"the cell took longer than {plan.execution_timeout} s (execution_timeout)"
    except (RuntimeError, TimeoutError) as exc:
        why = first_line(exc)  # jupyter_client tells a kernel that never came up in these
    raise NotebookFailed(f"{plan.stem} failed in cell {number}{where} (`{line}`): {why}; executed copy: {executed}")
