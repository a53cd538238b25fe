"""Persons and machines that this environment does not know, where a text says itself that it means one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ocrlab.redaction.common_names import NOBODY
from ocrlab.redaction.replace import Span, begins

USER, HOST = "(user)", "(host)"
WHO = re.compile(r"[A-Za-z][\w.+-]{1,63}$")
# An address for mail ends in the name of a network: `x@self.weight` multiplies, `user@1000.service` and `f@plt` are
# parts of systems. The prompt of a shell, and what ssh and scp reach, go on with a folder.
NETWORKS = (
    r"(?:com|org|net|edu|gov|mil|int|io|ai|dev|app|cloud|tech|science|info|biz|me|eu|corp|lan|internal|intra|example"
    r"|(?:ac|co|com|org|edu)\.[a-z]{2}|de|fr|uk|ch|at|nl|be|it|es|pt|se|no|dk|fi|pl|cz|ru|ua|cn|jp|kr|tw|hk|sg|in|au|nz"
    r"|ca|us|br|mx|ar|il|tr|gr|ie|hu|ro)"
)
WHERE = re.compile(
    rf"(?:((?:[A-Za-z0-9-]{{1,63}}\.){{1,5}}{NETWORKS})(?![\w(-]|\.\w)|([A-Za-z][\w.-]{{0,62}}):(?=~|/(?!/)))"
)
SSH = re.compile(r"\bssh://\(secret\)@([A-Za-z][\w.-]{1,62})")  # somebody's account there was replaced before
ROLES = NOBODY | frozenset(
    "abuse bugs contact feedback hello help info issues lists noreply no-reply office packages sales security self"
    " support team webmaster".split()
)
# Lines in which programs of several machines say where they ran; the literal is searched first.
NAME = r"(?<![\w.-])([A-Za-z][\w.-]{1,62})"
MACHINES = (
    ("] NCCL ", re.compile(rf"{NAME}:\d{{1,8}}:\d{{1,8}} \[\d{{1,3}}\] NCCL ")),
    ("  host ", re.compile(rf"  host {{1,12}}: {NAME}$")),  # torchrun's table of what failed
    (" CANCELLED", re.compile(rf"\*\*\* \S{{1,9}} [\w.]{{1,40}} ON {NAME} CANCELLED")),
    ("srun: error: ", re.compile(rf"srun: error: {NAME}: tasks? \d")),
)
# Folders and lines of programs that hold the name of whoever runs them.
OWNERS = tuple(
    (literal, re.compile(rf"{re.escape(literal)}{after}([A-Za-z][\w.-]{{1,62}}\w)"))
    for literal, after in (("/torchinductor_", ""), ("/pytest-of-", ""), ("uid=", r"\d{1,9}\("), ("gid=", r"\d{1,9}\("))
)
SHORTEST = 4  # letters of the name of a machine


def persons(text: str) -> Iterator[Span]:
    """Yield who and where in `anna@example.org` and `anna@lab:~/x$`; services and their accounts stay."""
    at = text.find("@")
    while at >= 0:
        who, where = WHO.search(text[max(0, at - 64) : at]), WHERE.match(text, at + 1)
        if who and where and who.group().lower() not in ROLES and begins(text, at - len(who.group()), "_~/.@:-"):
            host = where[where.lastindex or 0]
            yield at - len(who.group()), at, USER
            if host.lower() not in NOBODY:
                yield at + 1, at + 1 + len(host), HOST
        at = text.find("@", at + 1)
    if "ssh://(secret)@" in text:
        yield from ((*match.span(1), HOST) for match in SSH.finditer(text) if match[1].lower() not in NOBODY)
    for literal, pattern in OWNERS:
        for match in pattern.finditer(text) if literal in text else ():
            if match[1].lower() not in NOBODY:
                yield *match.span(1), USER


def machines(text: str) -> Iterator[str]:
    """Yield the names of machines that the log of several tells, whole and without their network."""
    for literal, pattern in MACHINES:
        at = text.find(literal)
        while at >= 0:
            line, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
            match = pattern.search(text[max(line, at - 120) : end if end >= 0 else len(text)][:300])
            for name in {match[1], match[1].partition(".")[0]} if match else ():
                if len(name) >= SHORTEST and name.lower() not in NOBODY:
                    yield name
            at = text.find(literal, end if end >= 0 else len(text))
