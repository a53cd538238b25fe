"""Messages that many things print: what they speak for only beside the words or frames that belong to it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ocrlab.diagnose.evidence import Hit
from ocrlab.diagnose.log import Page


@dataclass(frozen=True)
class Doubt:
    """A hit of `cause` on a line like `line` needs `beside` somewhere in the texts, else it is worth `most` at most."""

    cause: str
    line: re.Pattern[str]
    beside: re.Pattern[str]
    most: float


DATA = re.compile(
    r"(?i)data_?(?:set|loader)|(?<!c)annot|label|coco|\bvoc\b|__getitem__|ground.?truth|bbox|[/\\]datas?[/\\]"
    r"|^ *File \"[^\"\n]{0,200}data\w*\.py|\bdata\w*\.ya?ml|(?<!config)(?<!conf)(?<!cfg)(?<!settings)(?<!params)"
    r"(?<!args)(?<!state)(?<!metrics)(?<!results)\.(?:csv|xml|txt|jsonl?)\b(?!\.py)|img_\d|\bimage",
    re.MULTILINE,
)
SAMPLE = re.compile(r"_utils/(?:fetch|collate)\.py|__getitem__|collate")
RANKS = re.compile(
    r"(?i)torch[./]distributed|\bnccl\w*|\bgloo\b|c10d|rendezvous|rdzv|MASTER_(?:ADDR|PORT)|torchrun|torch_?elastic"
    r"|ProcessGroup|TCPStore|\bDDP\b|\bddp\b|init_process_group|torch\.distributed|multi-?node|multi-?gpu"
    r"|\brank \d|deepspeed|horovod|\bmpi"
)
PARSED = re.compile(
    r"JSONDecodeError|UnicodeDecodeError|could not convert string to float|invalid literal for int|ValueError"
    r"|yaml\.|ParseError|to unpack"
)
SOCKET = re.compile(
    r"(?i)connection (?:refused|reset|timed out|aborted|closed)|URLError|BrokenPipe|name or service|name resolution"
    r"|getaddrinfo|network is unreachable|no route to host"
)
NEVER = re.compile(r"(?!)")
NCCL_LINE = re.compile(r"NCCL (?:WARN|INFO)[^\n]{0,200}No such file")  # of a shared-memory segment, a plugin or /sys
INFORMED = re.compile(r"\[I \w+\.cpp:\d+\]")  # torch's own word of what it does: it names dtypes and devices
ATTACHED = re.compile(r"attaching to shared memory segment[^\n]{0,80}No such file")  # not full: another /dev/shm
LISTED = re.compile(r"unexpected system error|potential root causes")  # Ray names all that it can think of
DOUBTS = (
    Doubt("", LISTED, NEVER, 0.4),
    Doubt("data.annotation", re.compile(r"^yaml\.|JSONDecodeError"), DATA, 0.0),  # a file of settings as well
    Doubt("data.annotation", PARSED, DATA, 0.4),
    Doubt("data.sample", re.compile(r"Caught \w+ in DataLoader worker"), SAMPLE, 0.0),
    Doubt("data.annotation", re.compile(r"^KeyError: '(?:points|shapes)'"), DATA, 0.0),
    Doubt("dist.port", re.compile(r"Address already in use"), RANKS, 0.5),  # any server's
    Doubt("io.permission", re.compile(r"Permission denied \((?:publickey|password|keyboard)"), NEVER, 0.0),  # of ssh
    Doubt("dist.", SOCKET, RANKS, 0.0),
    Doubt("io.missing", NCCL_LINE, NEVER, 0.0),
    Doubt("build.", NCCL_LINE, NEVER, 0.0),
    Doubt("user.", INFORMED, NEVER, 0.0),
    Doubt("host.shm", ATTACHED, NEVER, 0.5),
    Doubt("hang.tracker", re.compile(r"api_key not configured"), re.compile(r"(?i)timed? ?out|hang|stuck"), 0.4),
    # cv2.imread returns None for a file that is missing as well as for one that it cannot decode.
    Doubt("data.corrupt", re.compile(r"'NoneType' object (?:has no attribute 'shape'|is not subscript)"), NEVER, 0.62),
)


def weighed(hits: list[Hit], texts: list[Page]) -> list[Hit]:
    """Return the hits, those in doubt with less confidence and those that then speak for nothing left out."""
    whole = "\n".join(page.text for page in texts)
    return [one for hit in hits if (one := _weighed(hit, whole)).confidence > 0]


def _weighed(hit: Hit, whole: str) -> Hit:
    for doubt in DOUBTS:
        suits = hit.cause.startswith(doubt.cause) and doubt.line.search(hit.evidence.text)
        if suits and not doubt.beside.search(whole):
            return replace(hit, confidence=min(hit.confidence, doubt.most), ceiling=min(hit.ceiling, doubt.most))
    return hit
