"""One execution of a notebook: its cells in order, until they end, or until something ends them.

What is used of papermill and nbclient is public there, except the kernel's process (`Kernel.adopt`).
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import nbformat
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from papermill import engines
from papermill.clientwrap import PapermillNotebookClient
from papermill.log import logger

from ocrlab.errors import DataError
from ocrlab.reports.notebooks import executed_file, failure_marks, results, termination
from ocrlab.reports.notebooks.jupyter_kernel import Kernel
from ocrlab.reports.notebooks.termination import Ending
from ocrlab.run_folder.owner_process import signals_exit

CELL_TIMEOUT = 24 * 3600.0  # seconds; papermill's own is infinite, and a notebook that hangs would hang for ever
UNCAUGHT = "--IPKernelApp.capture_fd_output=False"  # output past the cells goes to files, see `jupyter_kernel`
LEAVING = 3.0  # seconds for a kernel that was asked to leave


class Manager(engines.NotebookExecutionManager):  # type: ignore[misc]
    """papermill's bookkeeping of cells, with files that are whole and clean, and pending cells that stay pending."""

    def save(self, **_: Any) -> None:
        """Write the notebook as it is now, without secrets; raises OSError."""
        if self.output_path:
            executed_file.write(self.nb, self.output_path)
        self.last_save_time = self.now()

    def notebook_complete(self, **_: Any) -> None:
        """Close the notebook: its times, and a clean copy of everything in the file and in memory."""
        self.end_time = self.now()
        self.nb.metadata.papermill["end_time"] = self.end_time.isoformat()
        self.nb.metadata.papermill["duration"] = (self.end_time - self.start_time).total_seconds()
        self.cleanup_pbar()
        clean, count = executed_file.redacted(self.nb)
        clean.metadata.setdefault("ocrlab", {})["redacted"] = count
        self.nb.cells, self.nb.metadata = clean.cells, clean.metadata  # papermill may write it once more by itself
        self.save()
        if self.output_path and executed_file.is_local(self.output_path):
            with contextlib.suppress(DataError):  # a third-party notebook, without a result
                results.copy_beside(self.output_path)


def execute(
    notebook: Any,
    kernel_name: str,
    settings: tuple[Any, ...],
    *,
    start_timeout: float = 60,
    execution_timeout: float | None = None,
    deadline: float | None = None,
    stdout_file: Any = None,
    stderr_file: Any = None,
    **_: Any,
) -> Any:
    """Execute a notebook as `Engine.execute_notebook` documents; `settings` are those of papermill's manager."""
    manager, kernel = Manager(notebook, *settings), Kernel()
    limits = Limits(execution_timeout or CELL_TIMEOUT, deadline)
    manager.notebook_start()
    client = PapermillNotebookClient(
        manager,
        kernel_name=kernel_name,
        timeout_func=limits.of_cell,
        startup_timeout=start_timeout,
        coalesce_streams=True,
        log=logger,
        log_output=manager.log_output,
        stdout_file=stdout_file,
        stderr_file=stderr_file,
    )
    try:
        with signals_exit():
            Run(manager, client, kernel, limits).execute_notebook()
    finally:
        manager.notebook_complete()
        kernel.close()
    return manager.nb


class Limits:
    """How long a cell and the whole notebook may take, in seconds."""

    def __init__(self, cell: float, whole: float | None) -> None:
        self.cell, self.whole, self.began = cell, whole, time.monotonic()

    def left(self) -> float:
        """Return what is left for the whole notebook, infinity if it has no limit."""
        return float("inf") if self.whole is None else self.whole - (time.monotonic() - self.began)

    def of_cell(self, _cell: Any = None) -> float:
        """Return how long a cell that begins now may run; nbclient takes 0 for no limit."""
        return max(0.01, min(self.cell, self.left()))

    def broken(self, cell_seconds: float) -> tuple[float, str]:
        """Return the limit that a cell has broken, in seconds, and its name."""
        if self.whole is not None and self.left() <= 0.01 and cell_seconds < self.cell:
            return self.whole, "the whole notebook"
        return self.cell, "a cell"


class Run:
    """One execution: the cells in order, until they end or something ends them."""

    def __init__(self, manager: Any, client: Any, kernel: Kernel, limits: Limits) -> None:
        self.manager, self.client, self.kernel, self.limits = manager, client, kernel, limits
        self.cells = manager.nb.cells
        self.last: int | None = None  # index of the code cell that began last
        self.leaving = False

    def execute_notebook(self) -> None:
        """Start the kernel and execute every cell; how it ended, if not by itself, is written into the notebook.

        Raises KeyboardInterrupt and SystemExit again when all is written.
        """
        self.client.reset_execution_trackers()
        self.client.on_cell_executed = self.note_exit
        ended: Ending | None = None
        stop: BaseException | None = None
        try:
            manager = self.client.create_kernel_manager()
            if any("ipykernel" in word for word in manager.kernel_spec.argv):
                self.client.extra_arguments = [UNCAUGHT]
            self.client.start_new_kernel(**self.kernel.launch())
            self.kernel.adopt(self.client.km)
            with self.client.setup_kernel():
                self.kernel.take_output()  # what it prints while it starts belongs to no cell
                try:
                    ended = self.execute_cells()
                except (KeyboardInterrupt, SystemExit) as error:
                    ended, stop = termination.stopped(self.number(), error), error
                if ended and ended.status in ("hung", "stopped"):
                    self.kernel.end()  # it would ignore a polite request
                if not ended:
                    self.client.set_widgets_metadata()
        except Exception as error:
            if self.last is None and ended is None:
                ended = termination.unstarted(self.kernel, error)
            elif not isinstance(error, RuntimeError):  # with which a kernel complains that is asked to leave twice
                raise
        except (KeyboardInterrupt, SystemExit) as error:
            ended, stop = ended or termination.stopped(self.number(), error), stop or error
        if ended:
            failure_marks.mark(self.manager, ended, self.last if ended.cell is not None else None)
        if stop:
            raise stop

    def execute_cells(self) -> Ending | None:
        """Execute the cells one by one; returns what ended them, None when all ran."""
        for index, cell in enumerate(self.cells):
            if cell.cell_type != "code" or not cell.source.strip():
                self.manager.cell_start(cell, index)
                self.manager.cell_complete(cell, cell_index=index)
                continue
            if self.limits.left() <= 0:
                return termination.late(self.limits.whole or 0.0, self.number())
            if self.kernel.exit_code() is not None:  # since the last cell, so that this one never ran
                return self.died()
            ended = self.execute_cell(index)
            if ended:
                return ended
        return None

    def execute_cell(self, index: int) -> Ending | None:
        """Execute one code cell; returns what ended the notebook in it."""
        self.last, cell, began = index, self.cells[index], time.monotonic()
        self.manager.cell_start(cell, index)
        ended: Ending | None = None
        try:
            self.client.execute_cell(cell, index)
            if self.leaving and self.kernel.gone_within(LEAVING):
                raise DeadKernelError("the cell called exit()")
        except CellExecutionError as error:
            message = f"{error.ename}: {error.evalue}".partition("\n")[0]
            ended = termination.failed(cell.execution_count, message, failure_marks.text_of(cell), error.traceback)
        except DeadKernelError:
            ended = self.died()
        except CellTimeoutError:
            self.append_kernel_output(cell)
            broken = self.limits.broken(time.monotonic() - began)
            ended = termination.stuck(self.kernel, *broken, self.number(), failure_marks.text_of(cell))
        self.append_kernel_output(cell)
        if ended is None:
            self.manager.cell_complete(cell, cell_index=index)
        return ended

    def died(self) -> Ending:
        """Return how the kernel died, in the cell that began last."""
        if self.last is None:
            return termination.died(self.kernel, None, self.kernel.log())
        cell = self.cells[self.last]
        cell.execution_count = self.number()  # its message may have died with the kernel
        self.append_kernel_output(cell)
        return termination.died(self.kernel, cell.execution_count, failure_marks.text_of(cell))

    def note_exit(self, execute_reply: Any, **_: Any) -> None:
        """Note from the reply to a cell whether it called `exit()`: the kernel replies first, and then it goes."""
        payload = execute_reply["content"].get("payload") or []
        self.leaving = any(item.get("source") == "ask_exit" and not item.get("keepkernel") for item in payload)

    def append_kernel_output(self, cell: Any) -> None:
        """Put what native code and child processes wrote past the cell below its other output."""
        for name, text in self.kernel.take_output():
            cell.outputs.append(nbformat.v4.new_output("stream", name=name, text=text))

    def number(self) -> int | None:
        """Return the number in the brackets of the cell that began last."""
        if self.last is None:
            return None
        count = self.cells[self.last].execution_count
        before = [cell.execution_count or 0 for cell in self.cells[: self.last] if cell.cell_type == "code"]
        return int(count) if count is not None else max(before, default=0) + 1
