"""The exception that ended a program, and which lines before it can have caused it.

Warnings that a program prints at every start explain nothing where a later line says how it ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ocrlab.debug.diagnosis.catalogue import Level, Role
from ocrlab.debug.diagnosis.evidence import CONTEXT, KERNEL_LOG, Hit
from ocrlab.debug.diagnosis.log_records import TRACEBACK, LoggedException
from ocrlab.debug.diagnosis.log_text import WRITES, LogText
from ocrlab.records import RuledOut

ERRORS = "errors.txt"  # of an incident: the exceptions that the program's handlers hid, as the error hook recorded them
RELAYED = re.compile(  # another's
    r"Caught \w+ in |^SystemExit|ChildFailedError|CalledProcessError|Process(?:Raised|Exited)Exception"
    r"|ExecuteUserScriptError"
)
# What libraries raise when something outside the program's own logic broke; the cause may stand before it.
CARRIERS = re.compile(
    r"^(?:RuntimeError|Exception|OSError|IOError|MemoryError|ImportError|ModuleNotFoundError|EOFError|SystemError"
    r"|KeyboardInterrupt|InternalError|LogicError|\w*(?:Accelerator|Cuda|CUDA|Nccl|NCCL|Hip|Dist|Inductor|Memory|Timeout"
    r"|Connection|Pipe|Comm|Child"
    r"|Process|Backend|Worker|Cancel|Abort|Launch|Compil|Triton|Http|HTTP|URL)\w*)$"
)
CAUSAL = (
    *("kernel.", "gpumem.", "host.", "hw.", "loader.", "dist.", "native.", "data.index_range", "io.disk_full"),
    *("build.cpu_isa", "wsl.", "scheduler."),
)
DEVICE = (
    *("driver.", "build.arch", "build.cpu_only", "build.cuda_libraries", "kernel.", "hw.", "gpumem.", "wsl."),
    "data.index_range",  # torch warns first
)
HARMLESS = re.compile(
    r"(?<!NCCL )\bWARN(?:ING)?\b|Warning ?:|^\[?W(?:\d{4})?[ \]]|: W \w|\bINFO\b|\bNOTICE\b|\bDEBUG\b"
    r"|^\[?I(?:\d{4})?[ \]]"
)
HANDLED = re.compile(
    r"(?i)\bretry(?:ing)?\b|\bskip(?:ping|ped)\b|\bignor(?:ed|ing)\b|\bfall(?:s|ing)? ?back\b|\bdisabling\b"
    r"|starting (?:fresh|from scratch)|\binstead\b|\baccepting this\b|\b(?:can|may) (?:safely )?(?:be )?ignored?\b"
)
# What says of itself that one function is missing, or that a decoder went on.
OPTIONAL = re.compile(
    r"(?i)\b(?:functionality|multiplication|optimi[sz]ations?|optimizers|quantization|metrics|kernels)\b[^\n]{0,30}"
    r"\b(?:will not be|not be|are|is|may not be) (?:now )?(?:available|enabled|unavailable|disabled)\b"
    r"|without gpu support|\bcuda binary at\b|libnvinfer|can't load c\+\+/cuda extensions|\bwe recommend\b"
    r"|\bis recommended\b|\bcorrupt jpeg data|\bpremature end of jpeg|\blibpng warning"
)
WARNED = re.compile(r":\d+: \w*Warning:\s*$")  # Python's warning whose words begin on the next line
WARNED_LINES = 6
MILD = (HARMLESS, HANDLED, OPTIONAL)
IMREAD = "imread"  # OpenCV only warns of a file that it cannot read and returns None
NOTHING_READ = re.compile(r"NoneType|\bNone\b|empty\(\)|cv2\.|imread|OpenCV")  # what then fails
# An error of these shows that the GPU could be used.
WORKED = (
    *("gpumem.capacity", "gpumem.fragmentation", "gpumem.leak", "gpumem.foreign", "gpumem.absurd_size", "hw.gpu"),
    *("kernel.illegal_address", "kernel.misaligned", "kernel.launch_failure", "data.index_range"),
)
UNUSABLE = ("driver.", "build.cpu_only", "build.cuda_libraries")
FINISHED = re.compile(
    r"(?i)^\W*(?:[\w:./-]+\s){0,4}?(?:training|run|job|fit|evaluation|testing|everything|all|epochs?|successfully)?\W{0,3}"
    r"(?:is |was |has |(?<!to )have )?(?<!to have )(?:successfully )?(?:finished|completed?|done|succeeded)\b"
    r"(?![^\n]{0,120}(?:error|fail|exit code -?[1-9]|\bbut\b|\b(?:hang|hung|stuck|freez|froze|stall|crash|kill)"
    r"|segfault|segmentation|core dumped))"
)
ERROR = re.compile(r"\bERROR\b|\bFATAL\b|\bCRITICAL\b")
ROOT = re.compile(r"Root Cause \(first observed failure\):[\s\S]{0,400}?exitcode\s*:\s*(-?\d+)")
TERMINATED = re.compile(r"SIGTERM|-15\b")
# The batches that were ready are used up before the end comes.
OUTLASTED = ("loader.worker_crash", "loader.worker_killed")
DIED = "Fatal Python error: "  # of a worker too, whatever the main process still prints
BAR = re.compile(r"%\|[^|]*\| *(\d+/\d+)")
# A handler of these has another way to do the same; a handler of others cleans up, and may fail at that.
TRIED = re.compile(
    r"(?:Key|Attribute|Index|Type|Value|Import|ModuleNotFound|FileNotFound|Lookup|OS|IO|Unicode\w*)Error$"
    r"|StopIteration$|Empty$"
)
CLEANED = ("io.missing", "io.permission")  # what a handler fails of that removes or writes a file
SILENT_FAULTS = ("num.", "hw.", "wsl.")  # what ends no program: only a warning tells it
LASTING_FAULTS = (*SILENT_FAULTS, "build.arch", "gpumem.", "kernel.", "data.index_range", "hang.")


@dataclass(frozen=True)
class Uncaught:
    """The exceptions that end a log with no progress between them, oldest first, and the line where they begin."""

    page: LogText
    first: int
    exceptions: tuple[LoggedException, ...]
    traced: bool  # with a traceback, not only its last line

    @property
    def last(self) -> int:
        """The line in which they end."""
        return self.exceptions[-1].number

    @property
    def own(self) -> LoggedException:
        """The last exception that does not only report another process's."""
        own = [exception for exception in self.exceptions if not RELAYED.search(exception.text)]
        return self.handled or (own or list(self.exceptions))[-1]

    @property
    def handled(self) -> LoggedException | None:
        """The exception whose handler failed as it reported or cleaned up; None where it tried another way."""
        for exception, following in zip(self.exceptions, (*self.exceptions[1:], None), strict=True):
            if exception.note and self.page.name == ERRORS:
                return exception
            if following and following.relation == "context":
                reports = any(WRITES.search(frame.source) for frame in following.frames[-1:])  # no other way to try
                tried = TRIED.search(exception.type) and not reports
                return exception if exception.type and not tried else None
        return None

    @property
    def hid(self) -> str:
        """What hid the first exception, as a sentence, where the error hook recorded it."""
        notes = (exception.note for exception in self.page.records.exceptions if self.page.name == ERRORS)
        return next(filter(None, notes), "")

    @property
    def plain(self) -> bool:
        """Return whether these are errors of the program's own logic: KeyError, TypeError, a class of its own."""
        exceptions = (self.own,) if self.hid else self.exceptions
        types = [exception.type for exception in exceptions if not RELAYED.search(exception.text)]
        return bool(types) and not any(not name or CARRIERS.match(name) for name in types)


def find_uncaught(texts: Iterable[LogText]) -> Uncaught | None:
    """Return what ended the program, None where no log ends with an exception."""
    endings = [_uncaught_of(page) for page in texts if page.name not in (CONTEXT, KERNEL_LOG)]
    return next((ending for ending in reversed(endings) if ending is not None), None)


def _uncaught_of(page: LogText) -> Uncaught | None:
    advances = _advances(page)
    last_ones: list[LoggedException] = []
    for exception in page.records.exceptions:
        if not exception.traced and HANDLED.search(exception.text):
            continue
        if last_ones and any(last_ones[-1].last < number < exception.first for number in advances):
            last_ones = []  # the program went on
        last_ones.append(exception)
    ended = tuple(exception for exception in last_ones if exception.text)
    if not ended or (last_ones[-1].text and any(number > last_ones[-1].last for number in advances)):
        return None
    return Uncaught(page, last_ones[0].first, ended, any(exception.traced for exception in last_ones))


def _advances(page: LogText) -> list[int]:
    """Return the lines that show progress: a bar that is closed at the end of a program is drawn once more."""
    progress, bars, advances = set(page.progress), set[str](), []
    for line in page.lines:
        counts = BAR.findall(line.text)
        if line.number in progress and not (counts and bars.issuperset(counts)):
            advances.append(line.number)
        bars.update(counts)
    return advances


def drop_survived(hits: list[Hit], texts: list[LogText]) -> list[Hit]:
    """Return the hits that can be the cause: before an uncaught exception no warning and nothing that was survived."""
    hits = _without_terminated(hits, texts)
    end = find_uncaught(texts)
    if end is None:
        return hits
    inside = [hit for hit in hits if hit.evidence.file == end.page.name and (hit.evidence.line or 0) >= end.first]
    roots = [hit for hit in inside if hit.role is Role.CAUSE]
    remaining = []
    handled = end.handled
    for hit in hits:
        number, elsewhere = hit.evidence.line, hit.evidence.file != end.page.name
        if handled and _after(hit, end, handled):
            continue
        # torchrun and its like report the exception that is there to be read; DeadKernelError has no other one.
        relayed = hit.role is Role.WRAPPER and not elsewhere and number != end.own.number
        if end.plain and end.traced and not roots and relayed:
            continue
        if elsewhere or number is None or number >= end.first:
            remaining.append(hit)
        elif IMREAD in hit.evidence.text and not _unread(hit, end):
            remaining += [] if roots else [hit.capped(hit.level.shifted(-2))]
        elif end.plain and not roots:
            # Before an error of the program's own logic a line counts in full, less, or not at all.
            causal = hit.cause.startswith(CAUSAL) or _unread(hit, end) or not end.traced
            if not _survived(hit, end) and (causal or ERROR.search(hit.evidence.text)):
                remaining.append(hit if causal else hit.capped(Level.POSSIBLE))
        elif not _survived(hit, end) or any(akin(hit, root) for root in roots):
            remaining.append(hit)
        elif not roots and not HANDLED.search(hit.evidence.text):
            remaining.append(hit.capped(Level.POSSIBLE))
    return remaining


def _after(hit: Hit, end: Uncaught, handled: LoggedException) -> bool:
    """Return whether a hit follows from an error that was handled: its handler failed, or the program continued."""
    if end.hid:
        later = [exception for exception in end.exceptions if exception.number > handled.number]
        return any((exception.message or exception.text.strip()) in hit.evidence.text for exception in later)
    return hit.cause in CLEANED and hit.evidence.file == end.page.name and (hit.evidence.line or 0) > handled.number


def rule_out_survived(before: list[Hit], after: list[Hit], texts: list[LogText]) -> list[RuledOut]:
    """Return what `drop_survived` left out, once for each cause of which nothing is left, and what hid an exception."""
    left = {hit.cause for hit in after}
    gone = {hit.cause: hit.evidence for hit in before if hit.cause not in left}
    end = find_uncaught(texts)
    why = "line {} of {} is not the exception that ended the program: only a warning, or the program went on"
    if end and end.handled:
        why = "line {} of {} is only a warning, or what the handler of the first exception failed of"
    ruled_out = [RuledOut(cause, why.format(line.line, line.file)) for cause, line in gone.items()]
    if end and end.hid:
        ruled_out.append(RuledOut(end.exceptions[-1].type if len(end.exceptions) > 1 else "output", end.hid))
    return ruled_out


def _survived(hit: Hit, end: Uncaught) -> bool:
    """Return whether a line before the end is only a warning, was handled, or was followed by progress."""
    if _unread(hit, end):
        return False
    number = hit.evidence.line or 0
    above = _lines_above(end.page, number)
    warned = any(WARNED.search(text) for text in above) and not any(TRACEBACK in text for text in above)
    if warned or any(mild.search(hit.evidence.text) for mild in MILD):
        return True
    if hit.cause in OUTLASTED or hit.evidence.text.startswith(DIED):
        return False
    after = [line.text for line in end.page.lines if line.number > number][:2]
    return any(HANDLED.search(text) for text in after) or any(number < at < end.first for at in end.page.progress)


def _lines_above(page: LogText, number: int) -> list[str]:
    return [line.text for line in page.lines if number - WARNED_LINES <= line.number < number]


def _unread(hit: Hit, end: Uncaught) -> bool:
    """Return whether a line says that an image could not be read, and the program failed of having none."""
    return IMREAD in hit.evidence.text and any(NOTHING_READ.search(line.text) for line in end.exceptions)


def akin(hit: Hit, root: Hit) -> bool:
    """Return whether a warning can be of an error's disease: both of the GPU's world, and not disproved by it."""
    if root.cause in WORKED and hit.cause.startswith(UNUSABLE):
        return False
    return hit.cause == root.cause or (hit.cause.startswith(DEVICE) and root.cause.startswith(DEVICE))


def _without_terminated(hits: list[Hit], texts: list[LogText]) -> list[Hit]:
    """Return the hits without the ranks that torchrun ended, where it names another one as the first that failed."""
    root = next((match for page in texts for match in ROOT.finditer(page.text)), None)
    if root is None or root[1] == "-15":
        return hits
    return [hit for hit in hits if hit.cause != "ext.signal" or not TERMINATED.search(hit.evidence.text)]


def ended_well(texts: list[LogText]) -> bool:
    """Return whether a log says at its end that the program has finished."""
    logs = [page for page in texts if page.text.strip()]
    if not logs or any(page.name in (CONTEXT, KERNEL_LOG) for page in logs) or find_uncaught(texts):
        return False
    return all(FINISHED.search(page.text.rstrip().rpartition("\n")[2]) for page in logs)


def cap_benign_warnings(hits: list[Hit], texts: list[LogText]) -> list[Hit]:
    """Return the hits of a log without an exception at its end; a warning yields to what stands after it."""
    pages = {page.name: page for page in texts if page.name not in (CONTEXT, KERNEL_LOG)}
    mild = {id(hit) for hit in hits if _is_mild(hit, pages.get(hit.evidence.file))}
    grave = [hit for hit in hits if id(hit) not in mild and hit.role is not Role.WRAPPER]
    return [_cap_warning(hit, grave, pages[hit.evidence.file]) if id(hit) in mild else hit for hit in hits]


def _is_mild(hit: Hit, page: LogText | None) -> bool:
    """Return whether a line only warns, by its level or by its own words."""
    if page is None or hit.evidence.line is None:
        return False
    mild = any(words.search(hit.evidence.text) for words in MILD)
    return mild or any(WARNED.search(text) for text in _lines_above(page, hit.evidence.line))


def _cap_warning(hit: Hit, grave: Iterable[Hit], page: LogText) -> Hit:
    """Return a warning with what it is worth: little beside an end that is not its own, less than sure beside words."""
    number = hit.evidence.line or 0
    later = [other for other in grave if other.evidence.file != page.name or (other.evidence.line or 0) > number]
    if any(other.cause == hit.cause for other in later) or hit.cause.startswith(SILENT_FAULTS):
        return hit
    fits = hit.cause.startswith(LASTING_FAULTS)
    unrelated = later and not any(akin(hit, other) or _leads(hit, other) for other in later)
    if unrelated or (not fits and any(at > number for at in page.progress)):
        return hit.capped(Level.POSSIBLE)
    after = (line.text for line in page.lines if line.number > number and line.text.strip())
    spoken = any(not HARMLESS.search(text) for text in after if not text.startswith((" ", "\t")))
    return hit.capped(Level.LIKELY) if spoken and not fits else hit


def _leads(hit: Hit, later: Hit) -> bool:
    """Return whether what a line warns of can be why something else is reported later."""
    if (hit.cause, later.cause) == ("loss.ctc_length", "num.nonfinite"):  # a label without a path costs infinitely much
        return True
    # What a person says of ranks that stand still is what a connection does that is tried for ever.
    return later.evidence.file == CONTEXT and all(side.cause.startswith("dist.") for side in (hit, later))
