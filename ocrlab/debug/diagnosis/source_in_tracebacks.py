"""Source code that tracebacks show: it names what a program could do, not what happened.

So it is never evidence, but for what is asserted above a bare AssertionError: that is what happened.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ocrlab.debug.diagnosis.log_lines import LogText

FRAME = re.compile(r'^(\s*)File "[^"\n]{1,500}", line \d+')
NOTEBOOK = re.compile(r"^[A-Z]\w{1,60} +Traceback \(most recent call last\)")
NOTEBOOK_CODE = re.compile(r"^(?:-+> *|\s+)\d+(?:\s|$)")
TEST = re.compile(r"^_{5,}.{1,200}_{5,}$")
TEST_CODE = re.compile(r"^(?:>\s|\s{4})")
RAISES = re.compile(r"^(?:\w+\.){0,6}[A-Z]\w{0,60}(?::|$)")


ASSERTED = re.compile(r"^\s+assert\s")
UNMET = re.compile(r"^(?:\w+\.){0,6}AssertionError:?\s*$")
# What a handler does to report, and a step to leave something for later.
WRITES = re.compile(
    r"open\([^)\n]*['\"][wax]b?\+?['\"]|\.write\w*\(|\bmakedirs\(|\.mkdir\(|\.touch\(|\bsave\w*\(|\.to_\w+\(|dump\w*\("
    r"|FileHandler\(|SummaryWriter\(|\bexport\w*\("
)
MARKS = re.compile(r"^[\s~^]+$")


def blanked(page: LogText) -> LogText:
    """Return a page whose shown source (below frames of Python, in IPython's and pytest's listings) is blank."""
    lines = page.text.split("\n")
    writes = list[int]()
    indent: int | None = None
    listing: re.Pattern[str] | None = None
    for index, line in enumerate(lines):
        frame = FRAME.match(line)
        if frame:
            indent, listing = len(frame[1]), None
        elif indent is not None and line.strip() and len(line) - len(line.lstrip()) > indent:
            writes += [page.numbers[index]] if WRITES.search(line) else []
            lines[index] = line if _unmet(lines, index) else " " * len(line)
        elif NOTEBOOK.match(line):
            indent, listing = None, NOTEBOOK_CODE
        elif TEST.match(line):
            indent, listing = None, TEST_CODE
        elif listing and listing.match(line):
            lines[index] = " " * len(line)
        else:
            indent = None
            listing = None if listing is NOTEBOOK_CODE and RAISES.match(line) else listing
            listing = None if listing is TEST_CODE and line.startswith("E ") else listing
    return replace(page, text="\n".join(lines), writes=tuple(writes))


def _unmet(lines: list[str], index: int) -> bool:
    """Tell whether a line asserts what a bare AssertionError right below says is not so."""
    if not ASSERTED.match(lines[index]):
        return False
    below = next((line for line in lines[index + 1 : index + 3] if not MARKS.match(line)), "")
    return UNMET.match(below) is not None
