"""A widget to choose from, above the picture of what was chosen: for JupyterLab; a report shows a table instead."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ocrlab.reports.view import View


def chooser(kind: str, show: Callable[[int], View], **options: Any) -> Any:
    """Return an ipywidgets control of this class, whose integer value `show` turns into what is shown below it."""
    ipywidgets = importlib.import_module("ipywidgets")  # it has no types
    control, shown = getattr(ipywidgets, kind)(**options), ipywidgets.HTML()

    def update(_: object = None) -> None:
        shown.value = show(control.value)._repr_mimebundle_()["text/html"]

    control.observe(update, "value")
    update()
    return ipywidgets.VBox([control, shown])
