"""Explanations as sentences with blanks, for messages that need no more: `known_messages.py` has them.

A blank is a part of the message, a value that a rule derives from it, or one of
`<call>`, `<func>`, `<name>`: the failing call, what it calls, the last part of that
`<here>`, `<line>`: its place, its line
`<base>`: the object whose method is called; `<x@1>`: the argument `x` of the call, or its second one
`<x@1.shape>`, `.dtype`, `.type`, `.value`, `.length`, `.keys`: what is known of its value
`<x@1.from>`: a sentence on where it was made, empty where that is not known
`<operands>`: the shapes of the tensors in the call, empty where there are none
`<layer>`: the module that failed
A rule whose blanks cannot be filled is passed over.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ocrlab.debug.diagnosis.explanations.explanation import Explanation, listed, replaced, sizes
from ocrlab.debug.diagnosis.explanations.failure import Failure, Value
from ocrlab.debug.diagnosis.explanations.layers import failing_layer, named_layer
from ocrlab.debug.diagnosis.explanations.messages import BLANK
from ocrlab.debug.diagnosis.explanations.origins import failing_call, origin
from ocrlab.debug.diagnosis.explanations.source import Source, argument, constant, dotted, last_name

MOST_CODE = 120  # characters of an expression that a sentence quotes


@dataclass(frozen=True)
class Rule:
    """What a message means: sentences with blanks, and the edit as the text before and after."""

    text: str
    fix: str
    edit: tuple[str, str] | None = None
    derive: Callable[[Blanks], Mapping[str, object] | None] | None = None  # further blanks; None: the rule does not fit
    calls: tuple[str, ...] = ()  # names of the call that is meant, where the line has several


class Blanks:
    """The values of the blanks for one failure; raises KeyError for one that is not known."""

    def __init__(self, parts: Mapping[str, Any], failure: Failure, calls: tuple[str, ...] = ()) -> None:
        self.parts = dict(parts)
        self.failure, self.frame = failure, failure.frame
        place = failing_call(failure, self.frame, *calls)
        self.source: Source | None = place[0] if place else None
        self.node = place[1] if place else None

    def fill(self, text: str) -> str:
        """Return a text with its blanks filled; raises KeyError."""
        return BLANK.sub(lambda match: self[match[1]], text)

    def __getitem__(self, name: str) -> str:
        if name in self.parts:
            part = self.parts[name]
            return sizes(part) if isinstance(part, tuple) else str(part)
        method = getattr(self, f"_{name}", None)
        if method is not None:
            return str(method())
        which, _, detail = name.partition(".")
        node = self.argument(which)
        return self.code(node) if not detail else str(getattr(self, f"_of_{detail}")(node))

    def argument(self, which: str) -> ast.expr:
        """Return an argument of the failing call, or the object whose method it is; raises KeyError."""
        name, _, position = which.partition("@")
        node: ast.expr | None = None
        if which == "base" and self.node is not None and isinstance(self.node.func, ast.Attribute):
            node = self.node.func.value
        elif which == "func" and self.node is not None:
            node = self.node.func
        elif position and self.node is not None:
            node = argument(self.node, int(position), name)
        if node is None:
            raise KeyError(which)
        return node

    def value(self, node: ast.expr) -> Value:
        """Return the live value of an expression; raises KeyError."""
        value = self.failure.value(dotted(node)) if dotted(node) else None
        if value is None:
            raise KeyError(dotted(node))
        return value

    def number(self, which: str) -> int:
        """Return the whole number that an argument is; raises KeyError."""
        node = self.argument(which)
        number = constant(node)
        if not isinstance(number, int):
            number = self.value(node).number
        if not isinstance(number, int):
            raise KeyError(which)
        return number

    def code(self, node: ast.AST) -> str:
        text = self.source.code(node) if self.source is not None else ""
        if not text:
            raise KeyError("code")
        return text if len(text) <= MOST_CODE else f"{text[:MOST_CODE]}..."

    def _call(self) -> str:
        if self.node is None:
            raise KeyError("call")
        return self.code(self.node)

    def _func(self) -> str:
        return self.code(self.argument("func"))

    def _name(self) -> str:
        return last_name(self.argument("func"))

    def _here(self) -> str:
        if self.frame is None:
            raise KeyError("here")
        return self.frame.place

    def _line(self) -> str:
        text = self.frame.code if self.frame else ""
        if not text:
            raise KeyError("line")
        return text.strip()

    def _base(self) -> str:
        return self.code(self.argument("base"))

    def _layer(self) -> str:
        module = self.failure.module
        path = named_layer(failing_layer(self.failure))
        if module is None or not (path or module.text):
            raise KeyError("layer")
        text = f"`{module.text}`" if module.text else ""
        return f"{path} ({text})" if path and text else path or text

    def _operands(self) -> str:
        """Say which shapes the tensors of the call have."""
        values = [value for value in (self.frame.values.values() if self.frame else ()) if value.shape is not None]
        text = self.code(self.node) if self.node is not None else self.frame.code if self.frame else ""
        named = [v for v in values if v.name in text and v.kind in ("tensor", "array", "table")]
        shown = [f"`{value.name}` is {sizes(value.shape or ())}" for value in named[:4]]
        return f" Here {listed(shown)}." if shown else ""

    def _of_shape(self, node: ast.expr) -> str:
        shape = self.value(node).shape
        if shape is None:
            raise KeyError("shape")
        return sizes(shape)

    def _of_dtype(self, node: ast.expr) -> str:
        return self._as_text(self.value(node).dtype)

    def _of_type(self, node: ast.expr) -> str:
        return self._as_text(self.value(node).type)

    def _of_value(self, node: ast.expr) -> str:
        number = constant(node)
        return str(number) if number is not None else self._as_text(self.value(node).text)

    def _of_length(self, node: ast.expr) -> str:
        value = self.value(node)
        return self._as_text(value.length if value.length is not None else (value.shape or (None,))[0])

    def _of_keys(self, node: ast.expr) -> str:
        value = self.value(node)
        names = value.keys or value.columns
        if not names:
            raise KeyError("keys")
        return listed([f"`{name}`" for name in names], 8)

    @staticmethod
    def _as_text(fact: object) -> str:
        """Return a fact as text; raises KeyError for one that is unknown."""
        if fact is None:
            raise KeyError
        return str(fact)

    def _of_from(self, node: ast.expr) -> str:
        """Say where a value was made: the expression, and the layer that it calls."""
        if self.source is None or self.failure.source(self.frame) is None:
            return ""
        where = origin(self.failure, self.source, node, self.frame)
        text = ""
        if where.node is not node and where.code and len(where.code) <= MOST_CODE:
            text = f" `{self.source.code(node)}` comes from `{where.code}` ({where.place})."
        called = where.node
        while isinstance(called, ast.Call):
            built = origin(self.failure, where.source, called.func, where.frame)
            if built.node is not called.func and isinstance(built.node, ast.Call):
                return f"{text} `{where.source.code(called.func)}` is `{built.code}` ({built.place})."
            if not isinstance(called.func, ast.Attribute):
                break
            called = called.func.value
        return text


def explain_by(rules: tuple[Rule, ...], parts: Mapping[str, Any], failure: Failure) -> Explanation | None:
    """Return the explanation of the first rule whose blanks can all be filled; None where there is no such rule."""
    for rule in rules:
        blanks = Blanks(parts, failure, rule.calls)
        try:
            if rule.derive is not None:
                derived = rule.derive(blanks)
                if derived is None:
                    continue
                blanks.parts.update(derived)
            text, fix = blanks.fill(rule.text), blanks.fill(rule.fix)
        except (AttributeError, LookupError, TypeError, ValueError):
            continue
        frame = failure.frame
        edit = None
        if rule.edit is not None and frame is not None:
            try:
                before, after = (blanks.fill(part) for part in rule.edit)
                edit = replaced(failure.source(frame), frame.line, before, after)
            except KeyError:
                edit = None
        return Explanation(text, fix, edit)
    return None
