"""The names of persons and machines: home folders, user names, host names.

Some are those of this environment; others are only in a text, which itself shows that it means a person or a machine.
"""

from __future__ import annotations

import builtins
import contextlib
import keyword
import os
import platform
import pwd
import re
import socket
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial

from ocrlab.redaction.text_spans import Find, Span, begins_word, ends_word

# Accounts that systems, images and services come with, and words that every log holds: never replaced.
NOBODY = frozenset(
    """
    actions admin administrator ai airflow all alma alpine amazon anaconda anonymous apache app apps arch azureuser
    backbone backup bamboo bastion batch batches begin bin box boxes build builder buildkite cache cd centos ci
    circleci client cloud cluster code colab compute computer conda config configs container conv cpu cuda cuda0 cv
    daemon darwin dask data dataset datasets date day dbnet debian debug decoder default demo desktop detect
    detector dev devel developer device dl docker driver ec2-user elastic encoder end epoch epochs error errors eval
    evaluate example failed fatal fedora file files folder ftp fusion games gateway gcpuser git github gitlab
    gitlab-runner gpu gpus guest hadoop head hg home homebrew host hostname http https icdar image images img infer
    inference info input inputs irc jax jenkins jovyan jupyter jupyterhub kaggle keras kernel lab label labels labs
    laptop layer layers lightning line lines linux linuxbrew list local localdomain localhost log login logs loss
    losses mac machine macos mail main mambauser man map maps mask masks master media memory messagebus metric
    metrics miniconda ml mlflow mnt model models module mongo month mysql name names neck news nginx nix nlp nobody
    node nodes nogroup none notebook null nvidia ocr ocrlab odroid out output outputs owner page pages path pc pi
    pip pixel pixels pod podman polygon postgres predict private process prod production project projects proxy
    public python python3 pytorch raspberrypi ray receipt receipts recognition redhat redis research resnet rocky
    root router run runner runs sagemaker sample samples score scratch seed server service settings shard shared
    slave slurm source spack spark src sroie ssh sshd staff staging start steam step steps stop storage student
    students success svn sync sys system systemd temp tensorflow test tester testing tests text texts thread time
    tmp token tokens torch train trained trainer training travis type types ubuntu unknown user username users
    vagrant val valid validation vm vps wandb warning week windows word words work workdir worker workers workspace
    workstation wsl www-data year
    """.split()
)

# People's names that are words of a language or of this field: only where the text says that a user is meant.
ALSO_WORDS = frozenset(
    """
    ada adam adams alma amber angel angle april art ash august autumn axel basil bay bean bear berry beta bill
    bishop black blue bob bond booth bray brook brooks brown buck bud bush butler carol carter case cash chance
    chandler chase chip christian clark clay cliff clip cole cook cooper coral dale dash dawn day dean dell dick
    dixie don dot drew duke earl early eden eve ever faith fay field finn fisher flora ford forest fox frank gamma
    gauss gene gill ginger glen grace grant gray green grey guy hall hank harmony harp harry hazel heath heather
    heaven henry hill hope hunt hunter ian ink iris ivy jack jade jan jasper java jay jean jet jewel jimmy joe john
    jordan joy jude judge julia june junior justice justin kay ken kim king kit lamb lance lane lars laurel lee leo
    leslie liberty lily linus long lord lot love low luna lux lynx major mark marks marsh mason matt max may mercury
    mercy merit mike miles mill miller min mint miracle misty mode mona moon moss nan nat neo neon nick noble noel
    nora norm norma north nova olive opal oscar page paige pat patience paul pearl peg penny peter phoenix pierce
    piper poly poppy porter price prince quest quinn rain rand ranger raven ray read red reed reef rex rich ridge
    river rob robin rock rod roll roman rose ross rowan roy ruby rush russ rusty rye sage sally sam sandy saw scala
    scout sea sharp shaw short sienna silver singer sky sleep small smith snow sol star stella sterling stone storm
    story sue sum summer sunny swan swift tab tan tanner taylor temple tensor tiger tim tom toni tony trace tree
    trip troy truth tucker turner ty tyler unity van velvet vera victor vim viola violet virtue vision walker wall ward
    warner warren wave way webb west white will willow win winter wise wolf wood woods wren wright young zen
    """.split()
) | {name.lower() for name in [*dir(builtins), *keyword.kwlist]}

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
SHORTEST_MACHINE = 4  # letters of the name of a machine

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
    """Yield homes, the names of users where they are not common words, and those of this host."""
    users, hosts, homes = names
    for home in homes:
        for spelt in _spellings(home):
            yield from ((at, end, HOME) for at, end in _words(text, spelt, ".~-_", ".-_"))
    yield from _home_owners(text)
    for user in users:
        if user.lower() not in NOBODY:
            yield from _user_spans(text, user)
    yield from persons(text)
    for host in _unique([*hosts, *machines(text)]):
        if host.lower() not in ALSO_WORDS:
            yield from ((at, end, HOST) for at, end in _words(text, host, "-", "-"))
        elif host in text:  # on a machine called `tensor` every tensor(3) would be gone
            yield from ((*match.span(1), HOST) for match in _host_pattern(host).finditer(text))


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
        if begins_word(text, at, before) and ends_word(text, end, after):
            yield at, end
        at = text.find(word, end)


def _home_owners(text: str) -> Iterator[Span]:
    if "home" not in text and "Users" not in text:
        return
    for match in ANYBODY.finditer(text):
        group = "name" if match["name"] else "person"
        name = match[group].rstrip(".")
        if begins_word(text, match.start(), "._~-") and name.lower() not in SHARED:
            yield match.start(group), match.start(group) + len(name), USER


def _user_spans(text: str, user: str) -> Iterator[Span]:
    """Yield a user's name as a whole word; one that is a word of its own only where a user is meant."""
    if len(user) >= SHORTEST and user.lower() not in ALSO_WORDS:
        yield from ((at, end, USER) for at, end in _words(text, user, "", ""))
    elif user in text:
        yield from ((*match.span(match.lastindex or 0), USER) for match in _user_pattern(user).finditer(text))


@lru_cache(maxsize=16)
def _user_pattern(user: str) -> re.Pattern[str]:
    name = re.escape(user)
    return re.compile(
        rf"(?:\b(?:user(?:name)?|login|logname|owner|USER|LOGNAME|USERNAME)[\"']?\s?[:= ]\s?[\"']?|torchinductor_"
        rf"|/(?:scratch|work|data|media|lustre|nfs|gpfs|projects?|users)/)({name})(?![A-Za-z0-9])"
        rf"|(?<![A-Za-z0-9.])({name})(?=@\w)"
    )


@lru_cache(maxsize=16)
def _host_pattern(host: str) -> re.Pattern[str]:
    name = re.escape(host)
    meant = r"(?:\b(?i:host|hostname|node|nodename|machine)[\"']?\s?[:= ]\s?[\"']?|\w@|tfevents\.\d{1,20}\.|://)"
    return re.compile(rf"{meant}({name})(?![A-Za-z0-9_-])")


def persons(text: str) -> Iterator[Span]:
    """Yield who and where in `anna@example.org` and `anna@lab:~/x$`; services and their accounts stay."""
    at = text.find("@")
    while at >= 0:
        who, where = WHO.search(text[max(0, at - 64) : at]), WHERE.match(text, at + 1)
        if who and where and who.group().lower() not in ROLES and begins_word(text, at - len(who.group()), "_~/.@:-"):
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
                if len(name) >= SHORTEST_MACHINE and name.lower() not in NOBODY:
                    yield name
            at = text.find(literal, end if end >= 0 else len(text))
