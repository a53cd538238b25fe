"""Which module of a network, and which operator, a traceback ends in: read off the calls that its frames show.

A frame is followed by torch's own `Module._call_impl` where the expression in it calls a module, so that the way of a
call through a network spells the module's name: `self.bert(`, `self.embeddings(`, `self.word_embeddings(`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

CALLING = re.compile(r"(?:_wrapped_call_impl|_call_impl|__call__|_slow_forward)\Z")  # functions of Module
OURS = re.compile(
    r"ocrlab[/\\]debug[/\\]recorder[/\\](?:\w+[/\\])*\w+\.py\Z"
)  # stand between two of them where a training is recorded
MODULE = re.compile(r"torch[/\\]nn[/\\]modules[/\\]module\.py\Z")
CALLED = re.compile(r"([A-Za-z_]\w*(?:\.\w+|\[\w+\])*)\(")
OPERATOR = re.compile(r"\b(?:torch|F|functional|_VF)(?:\.\w+)*\.(\w+)\(")
FRAME = re.compile(r'^\s*File "([^"\n]{1,500})", line \d+,? in (\S+)')
CONTAINER = re.compile(r"torch[/\\]nn[/\\]modules[/\\]container\.py\Z")  # Sequential: which member, no traceback says
TORCH = re.compile(r"[/\\]torch[/\\](?!nn[/\\])")  # as checkpoint, which calls whatever it was given
LATE = re.compile(
    r"(?:CUDA|HIP|XPU) error|CU(?:BLAS|SOLVER|SPARSE|FFT)_STATUS|cuDNN error|CUDNN_STATUS|device-side assert"
)
SURFACED = " (where it surfaced)"
MODULE_TEXT = re.compile(rf"^module [\w.*?]+(?:, operator \w+)?(?:{re.escape(SURFACED)})?\Z")
MARKS = re.compile(r"^\s*[~^]+[~^ ]*$")
WRAPPERS = {"module", "_orig_mod", "_forward_module", "_fsdp_wrapped_module"}  # DataParallel, compile, Lightning, FSDP
NO_OPERATORS = {"checkpoint", "compile", "no_grad", "autocast", "tensor", "load", "save", "manual_seed"}


@dataclass(frozen=True)
class Call:
    """One frame: its file and function, and the part of its line that was at work."""

    file: str
    function: str
    code: str
    number: int

    @property
    def calls_module(self) -> bool:
        """Tell whether this is torch's way into a module's forward."""
        return bool(MODULE.search(self.file) and CALLING.match(self.function))


def failing_module(lines: Sequence[tuple[int, str]]) -> tuple[int, str] | None:
    """Return the line of a traceback that names its operator, and in words the module and the operator; None for none.

    `lines` are numbered, from the traceback to its exception; without a call of a module nothing is said. What a
    device reports surfaces later than it happened, at whatever asks next.
    """
    calls = list(_calls(lines))
    names: list[str] = []
    local = ""
    for call, into in pairwise(calls):
        if call.calls_module or not into.calls_module:
            continue
        name = "*" if CONTAINER.search(call.file) else "self.?" if TORCH.search(call.file) else _callee(call.code)
        if name.startswith("self.") or names:
            names += [part for part in (name or "?").removeprefix("self.").split(".") if part not in WRAPPERS]
        elif name == "*" and local:
            local += ".*"  # of which network the member is, is known at least
        elif name and name != "self":
            local = name  # the whole network: its own name is not a part of its modules' names
    if not calls:
        return None
    last = calls[-1]
    operators = list(OPERATOR.finditer(last.code))
    operator = operators[-1][1] if len(operators) == 1 and operators[-1][1] not in NO_OPERATORS else ""
    if len(names) > 1 and set(names) == {"?"}:  # in a compiled graph, say: not one name is known
        names = ["?"] if operator else []
    if not names and not local:
        return None
    where = f"module {'.'.join(names) or local}"
    where += f", operator {operator}" if operator else ""
    return last.number, where + SURFACED * bool(LATE.search(lines[-1][1]))


def module_text(text: str) -> str:
    """Return a line of evidence if it is one of ours, else nothing."""
    return text if MODULE_TEXT.match(text) else ""


def _calls(lines: Sequence[tuple[int, str]]) -> Iterator[Call]:
    at = 0
    while at < len(lines):
        frame = FRAME.match(lines[at][1])
        number = lines[at][0]
        at += 1
        if not frame:
            continue
        code = marks = ""
        ours = OURS.search(frame[1])
        if at < len(lines) and not FRAME.match(lines[at][1]):
            number, code = lines[at]
            at += 1
            if at < len(lines) and MARKS.match(lines[at][1]):
                marks = lines[at][1]
                at += 1
        if not ours:
            yield Call(frame[1].replace("\\", "/"), frame[2], _marked(code, marks), number)


def _marked(code: str, marks: str) -> str:
    """Return the part of a line that is marked below it, all of it where nothing is."""
    begin = len(marks) - len(marks.lstrip())
    return (code[begin : len(marks.rstrip())] if marks else code).strip()


def _callee(code: str) -> str:
    """Return the name of the module that an expression calls; `self.?` where several could be meant.

    Outer calls come first: of `self.relu(self.conv(x))` without marks nobody knows which one is at work.
    """
    callees = [name for name in CALLED.findall(code) if name.startswith("self.") or "." not in name]
    mine = [name for name in callees if name.startswith("self.")] or callees
    if len(mine) != 1 and not (mine and code.startswith(f"{mine[0]}(") and code.endswith(")")):
        return "self.?" if mine and mine[0].startswith("self.") else ""
    return re.sub(r"\[(\w+)\]", r".\1", mine[0])
