"""The names of a person and a machine: home folders, user names, host names."""

from __future__ import annotations

import contextlib
import os
import platform
import pwd
import re
import socket
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial

from ocrlab.redaction import foreign_names
from ocrlab.redaction.common_names import ALSO_WORDS, NOBODY
from ocrlab.redaction.foreign_names import HOST, USER
from ocrlab.redaction.replace import Find, Span, begins, ends

HOME = "~"
USERS = ("USER", "LOGNAME", "USERNAME", "SUDO_USER")
HOSTS = ("HOSTNAME", "HOST", "COMPUTERNAME", "SLURMD_NODENAME")
SHORTEST = 3  # letters of a user name, and one more of a host's, that is looked for anywhere
# Anybody's home, in any spelling: the name is replaced, so that it still shows where a file lay.
ANYBODY = re.compile(
    r"(?:(?:/mnt|/cygdrive)?/[a-z](?=/Users/)|/(?:export|nfs|cluster|storage|gpfs|lustre|ceph|hpc|net|vol|data)(?=/home/))?"
    r"(?:(?:/|\\/|%2[fF])(?:home|Users)(?:/users)?(?:/|\\/|%2[fF]))(?P<name>\w[\w.+-]{0,63})"
    r"|[A-Za-z](?::|%3[aA])(?:\\{1,4}|/|%5[cC]|%2[fF])Users(?:\\{1,4}|/|%5[cC]|%2[fF])"
    r"(?P<person>(?!\()[^\\/:*?\"'<>|%\s][^\\/:*?\"'<>|%\r\n]{0,40}(?=[\\/%])|(?!\()[^\\/:*?\"'<>|%\s]{1,64})"
)
SHARED = NOBODY | {"shared", "public", "default", "all", "all users", "default user"}


def finder() -> Find:
    """Return what finds the names that the environment and the system have now."""
    return partial(_spans, names=_names())


def _spans(text: str, names: tuple[tuple[str, ...], ...]) -> Iterator[Span]:
    """Yield homes, the names of users where they are no common words, and those of this host."""
    users, hosts, homes = names
    for home in homes:
        for spelt in _spellings(home):
            yield from ((at, end, HOME) for at, end in _words(text, spelt, ".~-_", ".-_"))
    yield from _of_anybody(text)
    for user in users:
        if user.lower() not in NOBODY:
            yield from _of_user(text, user)
    yield from foreign_names.persons(text)
    for host in _unique([*hosts, *foreign_names.machines(text)]):
        if host.lower() not in ALSO_WORDS:
            yield from ((at, end, HOST) for at, end in _words(text, host, "-", "-"))
        elif host in text:  # on a machine called `tensor` every tensor(3) would be gone
            yield from ((*match.span(1), HOST) for match in _meant_host(host).finditer(text))


def _names() -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the names of users and hosts, and the homes, as the environment and the system have them now."""
    env, account = os.environ, _account(os.getuid())
    users = _unique([*(env.get(name, "") for name in USERS), account[0]])
    hosts = _unique([*(env.get(name, "") for name in HOSTS), socket.gethostname(), platform.node()])
    hosts = _unique([*hosts, *(host.partition(".")[0] for host in hosts)])
    homes = [os.path.expanduser("~").rstrip("/"), account[1] if account[1].startswith(("/home/", "/Users/")) else ""]
    full_names = [host for host in hosts if len(host) > SHORTEST and host.lower() not in NOBODY]
    return (
        tuple(user for user in users if len(user) >= 2),
        _unique([*full_names, *(host.lower() for host in full_names), *(host.upper() for host in full_names)]),
        _unique([home for home in homes if home.startswith("/")]),
    )


@lru_cache(maxsize=8)
def _account(number: int) -> tuple[str, str]:
    with contextlib.suppress(KeyError, OSError):  # no such user in a container
        entry = pwd.getpwuid(number)
        return entry.pw_name, entry.pw_dir.rstrip("/")
    return "", ""


def _unique(words: Iterable[str]) -> tuple[str, ...]:
    """Return words once each, the longest first."""
    return tuple(sorted({word for word in words if word}, key=lambda word: (-len(word), word)))


@lru_cache(maxsize=64)
def _spellings(path: str) -> tuple[str, ...]:
    return _unique([path, path.replace("/", "\\/"), path.replace("/", "%2F"), path.replace("/", "%2f")])


def _words(text: str, word: str, before: str, after: str) -> Iterator[tuple[int, int]]:
    at = text.find(word)
    while at >= 0:
        end = at + len(word)
        if begins(text, at, before) and ends(text, end, after):
            yield at, end
        at = text.find(word, end)


def _of_anybody(text: str) -> Iterator[Span]:
    if "home" not in text and "Users" not in text:
        return
    for match in ANYBODY.finditer(text):
        group = "name" if match["name"] else "person"
        name = match[group].rstrip(".")
        if begins(text, match.start(), "._~-") and name.lower() not in SHARED:
            yield match.start(group), match.start(group) + len(name), USER


def _of_user(text: str, user: str) -> Iterator[Span]:
    """Yield a user's name as a whole word; one that is a word of its own only where a user is meant."""
    if len(user) >= SHORTEST and user.lower() not in ALSO_WORDS:
        yield from ((at, end, USER) for at, end in _words(text, user, "", ""))
    elif user in text:
        yield from ((*match.span(match.lastindex or 0), USER) for match in _meant(user).finditer(text))


@lru_cache(maxsize=16)
def _meant(user: str) -> re.Pattern[str]:
    name = re.escape(user)
    return re.compile(
        rf"(?:\b(?:user(?:name)?|login|logname|owner|USER|LOGNAME|USERNAME)[\"']?\s?[:= ]\s?[\"']?|torchinductor_"
        rf"|/(?:scratch|work|data|media|lustre|nfs|gpfs|projects?|users)/)({name})(?![A-Za-z0-9])"
        rf"|(?<![A-Za-z0-9.])({name})(?=@\w)"
    )


@lru_cache(maxsize=16)
def _meant_host(host: str) -> re.Pattern[str]:
    name = re.escape(host)
    meant = r"(?:\b(?i:host|hostname|node|nodename|machine)[\"']?\s?[:= ]\s?[\"']?|\w@|tfevents\.\d{1,20}\.|://)"
    return re.compile(rf"{meant}({name})(?![A-Za-z0-9_-])")
