"""What is flipped in the runs of a bisect, and how much each thing is suspected."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ocrlab.errors import ConfigError
from ocrlab.records import Verdict

NAMED = re.compile(r"(?P<name>[A-Za-z_][\w.-]*)=(?P<sides>.*:.*)", re.DOTALL)
DATA = "data"
SUSPECTS: dict[str, tuple[str, ...]] = {  # by the beginning of a cause: what usually has to do with it, first first
    "loader.": ("workers", "start method", "data", "pin memory"),
    "loader.fork_deadlock": ("start method", "workers", "opencv threads", "threads"),
    "loader.cuda_in_fork": ("start method", "workers", "pin memory"),
    "loader.hang": ("workers", "start method", "opencv threads", "data"),
    "hang.": ("workers", "start method", "threads", "opencv threads", "compile"),
    "gpumem.": ("batch size", "crop", "precision", "compile"),
    "host.shm": ("workers", "batch size", "crop"),
    "host.": ("workers", "batch size", "crop", "pin memory"),
    "data.": ("data", "crop"),
    "io.": ("data", "workers"),
    "num.": ("learning rate", "precision", "data", "gradient clipping"),
    "kernel.": ("data", "cudnn", "channels last", "compile", "precision"),
    "native.": ("workers", "data", "opencv threads", "channels last", "threads"),
    "build.": ("cudnn", "precision", "compile"),
}
SAME = {  # what other programs call it, without signs and digits
    "workers": r"(n|nb|num)?(data|loader|dataloader|loading)?(workers?|proc(esses)?)|j|(loader|dataloader)?numworkers",
    "batch size": r"(train|per(device|gpu)|micro|global|perdevicetrain)?(batch|bs|batchsize)(train|pergpu|perdevice)?",
    "precision": r"(use|mixed)?(precision|amp|fp|bf|half|autocast|float|dtype|torchdtype|mixedprecision|tf)",
    "crop": r"(image|img|im|input|crop|patch)?(crop|size|sz|resolution|res|height|width)|max(seq)?(len|length)|seqlen",
    "compile": r"(torch|use)?(compile|jit|inductor)",
    "pin memory": r"pin(ned)?(memory)?",
    "learning rate": r"(base|max|init|peak)?(lr|learningrate)(max|init)?",
    "gradient clipping": r"(grad(ient)?)?clip(ping|norm|value|gradnorm)?|maxgradnorm",
    "threads": r"(n|num|omp|ompnum|mkl|mklnum|intraop)?threads",
    "start method": r"(mp|multiprocessing)?(startmethod|context)",
    "data": r"(train)?(data|dataset|datadir|dataroot|datapath|root|list|files?|manifest)",
}
STRENGTH = (6.0, 3.0, 2.0, 1.5)  # how much more than the rest they are suspected, in that order


@dataclass(frozen=True)
class Factor:
    """One thing that is flipped: `bad` as it was, `good` the safe value, in words.

    Of `ocrlab train` `overrides` are settings that flip it and `job` what its child is given. Of any other program the
    words themselves take the place of `{name}` in its command, or are the environment variable of that name.
    """

    name: str
    bad: str
    good: str
    overrides: tuple[str, ...] = ()
    job: Mapping[str, Any] = field(default_factory=dict)


def parse_factors(words: Sequence[str]) -> list[Factor]:
    """Return the factors that `NAME=BAD:GOOD` words describe, for any program; raises ConfigError."""
    factors: list[Factor] = []
    for word in words:
        match = NAMED.fullmatch(word)
        if match is None:
            raise ConfigError(f"--factor {word} cannot be read", need="NAME=BAD:GOOD, such as workers=8:0")
        bad, good = _sides(match["name"], match["sides"])
        if bad == good:
            raise ConfigError(
                f"--factor {word} changes nothing", need="a working value that differs from the failing one"
            )
        if match["name"] in [factor.name for factor in factors]:
            raise ConfigError(f"--factor {match['name']} is given twice", need="each name once")
        factors.append(Factor(match["name"], bad, good))
    return factors


def _sides(name: str, text: str) -> tuple[str, str]:
    """Return both values of `BAD:GOOD`, where a value holds colons itself `BAD::GOOD`; raises ConfigError.

    Nothing is guessed: `cuda:0:cpu`, cut at the wrong colon, would be searched with values that nobody has meant.
    """
    if text.count("::") == 1:
        return text.partition("::")[::2]
    if text.count(":") == 1 or text.startswith(":"):
        return text.partition(":")[::2]
    if text.endswith(":"):
        return text[:-1], ""
    cuts = [place for place, sign in enumerate(text) if sign == ":"][:3]
    cuttings = " or ".join(f"{name}={text[:cut]}::{text[cut + 1 :]}" for cut in cuts)
    raise ConfigError(f"--factor {name}={text} has more than one colon", need=cuttings)


def suspicion_weights(factors: Sequence[Factor], verdict: Verdict | None) -> list[float]:
    """Return the prior of each factor from the causes of a verdict, 1 without evidence for it."""
    weights = [1.0] * len(factors)
    for cause in verdict.causes if verdict else ():
        prefix = max((start for start in SUSPECTS if cause.id.startswith(start)), key=len, default=None)
        for name, strength in zip(SUSPECTS[prefix] if prefix else (), STRENGTH, strict=False):
            for place, factor in enumerate(factors):
                if _plain(factor.name) == _plain(name):
                    weights[place] = max(weights[place], 1 + (strength - 1) * cause.confidence)
    return weights


def _plain(name: str) -> str:
    """Return a name as it is compared: `runtime.num_workers`, `NWORKERS` and `Workers` are `workers`."""
    bare = re.sub(r"[^a-z]", "", name.lower().rpartition(".")[2])
    return next((canonical for canonical, names in SAME.items() if re.fullmatch(names, bare)), name.lower())
