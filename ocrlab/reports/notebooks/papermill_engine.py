"""The papermill engine `ocrlab`: a notebook whose kernel dies, hangs or is stopped says so, with cell and cause.

With papermill's own engine such a notebook lies: no exception, the dead cell and all that never ran "completed", the
signal nowhere. Here the cell that was running is marked as failed, cells that never ran stay pending, the outcome at
the top and the result are overwritten, nothing that the kernel started is left, and the file is whole at every moment.

papermill loads this file while it is imported itself, so that nothing of papermill may be imported at its top.
"""

from __future__ import annotations

from typing import Any


class Engine:
    """What `papermill --engine ocrlab` and `ocrlab run` execute notebooks with; papermill asks for these three."""

    @classmethod
    def execute_notebook(
        cls,
        nb: Any,
        kernel_name: str,
        output_path: str | None = None,
        progress_bar: bool = True,
        log_output: bool = False,
        autosave_cell_every: int = 30,
        **limits_and_streams: Any,
    ) -> Any:
        """Execute a notebook and return it; what the notebook does is never raised, it stands in the notebook.

        `execution_timeout` is the limit of a cell, `deadline` that of the notebook, `start_timeout` that of the kernel
        to start, in seconds. Raises KeyboardInterrupt and SystemExit when all is written, and OSError.
        """
        from ocrlab.reports.notebooks.execution import execute

        settings = (output_path, log_output, progress_bar, autosave_cell_every)
        return execute(nb, kernel_name, settings, **limits_and_streams)

    @classmethod
    def nb_kernel_name(cls, nb: Any, name: str | None = None) -> str:
        """Return the name of the kernel that a notebook wants."""
        from papermill.utils import nb_kernel_name

        return str(nb_kernel_name(nb, name))

    @classmethod
    def nb_language(cls, nb: Any, language: str | None = None) -> str:
        """Return the language of a notebook."""
        from papermill.utils import nb_language

        return str(nb_language(nb, language))
