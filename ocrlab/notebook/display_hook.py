"""What an isolated cell displays: `display(...)`, figures and the last value travel to the notebook as MIME bundles.

The child has no IPython shell, where `display` would only print. What displays is taken over when the cell imports it,
so that a cell that displays nothing imports nothing.
"""

from __future__ import annotations

import base64
import builtins
import contextlib
import importlib.abc
import importlib.util
import io
import sys
import uuid
from collections.abc import Callable, Mapping
from typing import Any

KIND = "display"  # of the events that carry a bundle
LARGEST = 5_000_000  # characters of one representation; above it only the others are sent
DPI = 100  # of figures, as IPython draws them

Bundle = dict[str, Any]


class Display:
    """What shows things for a cell in a child; `send` takes events."""

    def __init__(self, send: Callable[[Bundle], None]) -> None:
        self.send = send

    def publish(
        self, data: Mapping[str, Any], metadata: Any = None, *, transient: Any = None, update: bool = False, **_: Any
    ) -> None:
        """Send a bundle; it has the arguments of `IPython.display.publish_display_data`."""
        event = {"kind": KIND, "data": bounded(data), "metadata": dict(metadata or {}), "update": bool(update)}
        self.send({**event, "id": (transient or {}).get("display_id")})

    def show(
        self,
        *objects: Any,
        include: Any = None,
        exclude: Any = None,
        metadata: Any = None,
        transient: Any = None,
        display_id: Any = None,
        raw: bool = False,
        update: bool = False,
        **_: Any,
    ) -> Any:
        """Be `IPython.display.display`."""
        name = uuid.uuid4().hex if display_id is True else display_id
        transient = {**(transient or {}), **({"display_id": name} if name else {})}
        if name and not objects:
            objects, raw = ({},), True  # a place that is filled later
        for thing in objects:
            data, about = (thing, {}) if raw else formatted(thing, include, exclude)
            self.publish(data, {**about, **(metadata or {})}, transient=transient, update=update)
        return sys.modules["IPython.core.display_functions"].DisplayHandle(name) if name else None  # type: ignore[attr-defined]

    def figures(self) -> list[Any]:
        """Send the open figures of pyplot, close and return them."""
        pyplot: Any = sys.modules.get("matplotlib.pyplot")
        figures = [pyplot.figure(number) for number in pyplot.get_fignums()] if pyplot else []
        for figure in figures:
            self.publish(figure_bundle(figure))
            pyplot.close(figure)
        return figures

    def take_over(self) -> None:
        """Be what IPython and pyplot show things with, from the moment when they are imported."""

        def show(*_: Any, **__: Any) -> None:  # a method would not do: pyplot gives it a signature
            self.figures()

        def show_later(*objects: Any, **more: Any) -> Any:
            from IPython.display import display

            return display(*objects, **more)

        builtins.display = show_later  # type: ignore[attr-defined]  # a notebook has it without importing it
        ours = {"display": self.show, "publish_display_data": self.publish}
        sys.meta_path.insert(0, _Replacing("IPython.core.display_functions", ours))
        sys.meta_path.insert(0, _Replacing("matplotlib.pyplot", {"show": show}))


class _Replacing(importlib.abc.MetaPathFinder):
    """Replace functions of a module as soon as it has been imported."""

    def __init__(self, name: str, ours: Mapping[str, Any]) -> None:
        self.name, self.ours = name, ours

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def and_replace(module: Any) -> None:
            execute(module)
            vars(module).update(self.ours)

        spec.loader.exec_module = and_replace  # type: ignore[method-assign]
        return spec


def formatted(thing: Any, include: Any = None, exclude: Any = None) -> tuple[Bundle, Bundle]:
    """Return a value as a notebook would show it, with metadata; where that fails as its `repr`."""
    if is_figure(thing):
        return figure_bundle(thing), {}
    with contextlib.suppress(Exception):  # a formatter may raise anything
        from IPython.core.formatters import DisplayFormatter

        data, about = DisplayFormatter().format(thing, include=include, exclude=exclude)
        return data, about
    return {"text/plain": repr(thing)}, {}


def figure_bundle(figure: Any) -> Bundle:
    """Return a figure as PNG."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI, bbox_inches="tight")
    return {"image/png": file.getvalue(), "text/plain": repr(figure)}


def is_figure(thing: Any) -> bool:
    """Return whether a value is a figure of matplotlib."""
    figures: Any = sys.modules.get("matplotlib.figure")
    return figures is not None and isinstance(thing, figures.Figure)


def bounded(data: Mapping[str, Any]) -> Bundle:
    """Return a bundle as JSON can hold it, without what is too large; raises nothing."""
    coded = {
        kind: base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value
        for kind, value in data.items()
    }
    bundle = {
        kind: value for kind, value in coded.items() if len(value if isinstance(value, str) else repr(value)) <= LARGEST
    }
    if coded and not bundle:
        bundle["text/plain"] = f"… {', '.join(coded)} of more than {LARGEST // 1_000_000} MB, not shown here"
    return bundle
