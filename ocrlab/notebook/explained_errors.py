"""After `%load_ext ocrlab`, an exception in a cell is followed by its explanation under the traceback.

    %explain_errors off           switches that off for this kernel, `on` switches it on again

It listens to IPython's event `post_run_cell`, reads the frames of the exception and the cells that ran before, and
shows one block of text and HTML. The traceback stays as it is; where the facts support no explanation nothing is shown.
"""

from __future__ import annotations

import time
from html import escape
from typing import Any

from ocrlab.debug.diagnosis import explanations
from ocrlab.debug.diagnosis.explanations import failure as failures
from ocrlab.debug.watch import failing_values
from ocrlab.redaction import clean

SECONDS = 0.1  # the explanation is left out where it is not there after this time
MAX_CELLS = 200  # that are looked at, the newest ones


def register(shell: Any) -> None:
    """Show explanations in an IPython shell, and add the line magic `%explain_errors`."""
    shown = {"on": True}

    def switch(line: str) -> None:
        shown["on"] = line.strip().lower() != "off"

    def explain_failure(result: Any) -> None:
        error = getattr(result, "error_in_exec", None)
        if not shown["on"] or not isinstance(error, Exception):
            return
        try:
            start = time.monotonic()
            explanation = explain(error, shell)
            if explanation is not None and time.monotonic() - start <= SECONDS:
                display(explanation)
        except Exception:  # the user's cell has failed already; nothing may follow from our own code
            return

    shell.events.register("post_run_cell", explain_failure)
    shell.register_magic_function(switch, "line", "explain_errors")


def explain(error: Exception, shell: Any) -> explanations.Explanation | None:
    """Return the explanation of an exception that a cell of a shell has raised."""
    history = shell.history_manager.input_hist_raw
    last = len(history) - 1
    cells = [
        failures.Cell(count, count, text, count == last)
        for count, text in enumerate(history)
        if text.strip() and count > max(0, last - MAX_CELLS)
    ]
    described = [
        frame
        for frame in failing_values.collect(error, lambda file: not failures.LIBRARY.search(file))
        if not ("/IPython/" in frame["file"] and frame["function"] == "run_code")
    ]
    failure = failures.Failure(type(error).__name__, str(error) if error.args else "")
    failure = failures.with_cells(failures.from_values(failure, described), cells)
    result = explanations.explain(failures.with_sources(failure))
    return result[1] if result else None


def display(explanation: explanations.Explanation) -> None:
    """Show an explanation as text and as HTML."""
    from IPython.display import display as show

    edit = explanation.edit
    place = f"{edit.file}, line {edit.line}" if edit else ""
    plain = [f"Why: {explanation.text}", f"Fix: {explanation.fix}"]
    html = [f"<p><b>Why.</b> {escape(explanation.text)}</p>", f"<p><b>Fix.</b> {escape(explanation.fix)}</p>"]
    if edit:
        plain += [f"{place}:", f"- {edit.before}", f"+ {edit.after}"]
        html.append(f"<p>{escape(place)}</p><pre>- {escape(edit.before)}\n+ {escape(edit.after)}</pre>")
    style = "border-left:4px solid #c77700;padding:0 0 0 1em;margin:.5em 0"
    block = f'<div style="{style}">{"".join(html)}</div>'
    show({"text/plain": clean("\n".join(plain)), "text/html": clean(block)}, raw=True)
