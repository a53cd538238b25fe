"""The contents of a notebook or report: parameters, outcome, results, plots. torch is never imported.

Images and maps are passed as arrays; figures are returned as a `View` (HTML and its text).
Public: `notebook_to_html(path)`, `write_bug_report(run)`, `list_runs(folder)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ocrlab.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ocrlab.reports.bug_report.build import write_bug_report
    from ocrlab.reports.html.document import notebook_to_html
    from ocrlab.reports.run_history.run_list import list_runs

__all__ = ["list_runs", "notebook_to_html", "write_bug_report"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "list_runs": "ocrlab.reports.run_history.run_list",
        "notebook_to_html": "ocrlab.reports.html.document",
        "write_bug_report": "ocrlab.reports.bug_report.build",
    },
)
