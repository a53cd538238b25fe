"""The exception that ended a program, and which lines before it can have caused it.

Warnings that a program prints at every start explain nothing where a later line says how it ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ocrlab.debug.diagnosis.catalogue import Level, Role
from ocrlab.debug.diagnosis.evidence import CONTEXT, KERNEL_LOG, Hit
from ocrlab.debug.diagnosis.log_text import Line, LogText
from ocrlab.records import RuledOut

ERRORS = "errors.txt"  # of an incident: what the program's Python told of errors that the program had hidden
TRACEBACK = "Traceback (most recent call last)"
NOTEBOOK = re.compile(r"^(?!Original )([A-Z]\w{1,60}) +Traceback")
NAMED = re.compile(r"^(?:E {3,})?(?:\w+\.){0,6}(_?[A-Z]\w{0,60})(?::|$)")
RAISED = re.compile(r"^(?:E {3,})?(?:\w+\.){0,6}([A-Z]\w{0,60}(?:Error|Exception|Exit|Interrupt))(?::|$)")
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
CAUSAL: tuple[str, ...] = ("kernel.", "gpumem.", "host.", "hw.", "loader.", "dist.", "native.", "data.index_range")
CAUSAL += ("io.disk_full", "build.cpu_isa", "wsl.", "scheduler.")
DEVICE: tuple[str, ...] = (
    "driver.",
    "build.arch",
    "build.cpu_only",
    "build.cuda_libraries",
    "kernel.",
    "hw.",
    "gpumem.",
    "wsl.",
)
DEVICE += ("data.index_range",)  # torch warns first
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
WORKED: tuple[str, ...] = (
    "gpumem.capacity",
    "gpumem.fragmentation",
    "gpumem.leak",
    "gpumem.foreign",
    "gpumem.absurd_size",
)
WORKED += ("hw.gpu", "kernel.illegal_address", "kernel.misaligned", "kernel.launch_failure", "data.index_range")
UNUSABLE = ("driver.", "build.cpu_only", "build.cuda_libraries")
FINISHED = re.compile(
    r"(?i)^\W*(?:[\w:./-]+\s){0,4}?(?:training|run|job|fit|evaluation|testing|everything|all|epochs?|successfully)?\W{0,3}"
    r"(?:is |was |has |(?<!to )have )?(?<!to have )(?:successfully )?(?:finished|completed?|done|succeeded)\b"
    r"(?![^\n]{0,120}(?:error|fail|exit code -?[1-9]|\bbut\b|\b(?:hang|hung|stuck|freez|froze|stall|crash|kill)"
    r"|segfault|segmentation|core dumped))"
)
ERROR = re.compile(r"\bERROR\b|\bFATAL\b|\bCRITICAL\b")
NAN_LOSS = re.compile(r"(?i)loss\w*\W{1,4}(?:nan|inf)\b")
ROOT = re.compile(r"Root Cause \(first observed failure\):[\s\S]{0,400}?exitcode\s*:\s*(-?\d+)")
TERMINATED = re.compile(r"SIGTERM|-15\b")
OUTLASTED = (
    "loader.worker_crash",
    "loader.worker_killed",
)  # the batches that were ready are used up, then comes the end
DIED = "Fatal Python error: "  # of a worker too, whatever the main process still prints
BAR = re.compile(r"%\|[^|]*\| *(\d+/\d+)")
DURING = "During handling of the above exception, another exception occurred:"
MARK = "ocrlab: "  # begins what `diagnose.firsts` says between the tracebacks of errors.txt: what hid the one above
# A handler of these has another way to do the same; a handler of others cleans up, and may fail at that.
TRIED = re.compile(
    r"(?:Key|Attribute|Index|Type|Value|Import|ModuleNotFound|FileNotFound|Lookup|OS|IO|Unicode\w*)Error$"
    r"|StopIteration$|Empty$"
)
CLEANED = ("io.missing", "io.permission")  # what a handler fails of that removes or writes a file
SHOWN = 3  # lines above an exception in which the source of its innermost frame stands
SILENT_FAULTS = ("num.", "hw.", "wsl.")  # what ends no program: only a warning tells it
LASTING_FAULTS = (*SILENT_FAULTS, "build.arch", "gpumem.", "kernel.", "data.index_range", "hang.")


@dataclass(frozen=True)
class Uncaught:
    """The tracebacks that end a log with no progress between them: first and last line, and the exceptions."""

    page: LogText
    first: int
    last: int
    exceptions: tuple[Line, ...]
    traced: bool  # with a traceback, not only its last line

    @property
    def own(self) -> Line:
        """Return the last exception that does not only tell of another process's."""
        own = [line for line in self.exceptions if not RELAYED.search(line.text)]
        return self.handled or (own or list(self.exceptions))[-1]

    @property
    def handled(self) -> Line | None:
        """Return the exception whose handler failed as it reported or cleaned up; None where it tried another way."""
        for number, text in zip(self.page.numbers, self.page.text.split("\n"), strict=False):
            if not self.first <= number:
                continue
            before = [line for line in self.exceptions if line.number < number]
            if before and text.startswith(MARK) and self.page.name == ERRORS:
                return before[-1]
            if number <= self.last and text.startswith(DURING):
                exception = NAMED.match(before[-1].text) if before else None
                if exception and (not TRIED.search(exception[1]) or self._reports(number)):
                    return before[-1]
                return None
        return None

    def _reports(self, begin: int) -> bool:
        """Tell whether the first error after a line is of a statement that writes: no other way to try."""
        last = next((line.number for line in self.exceptions if line.number > begin), 0)
        return any(last - SHOWN <= number < last for number in self.page.writes if number > begin)

    @property
    def hid(self) -> str:
        """Return in a sentence what has hidden the first error, where the program's Python told of it."""
        if self.page.name != ERRORS:
            return ""
        lines = self.page.text.split("\n")
        return next((text.removeprefix(MARK).rstrip(":") for text in lines if text.startswith(MARK)), "")

    @property
    def plain(self) -> bool:
        """Tell whether these are errors of the program's own logic: KeyError, TypeError, a class of its own."""
        exceptions = [self.own] if self.hid else self.exceptions
        names = [NAMED.match(line.text) for line in exceptions if not RELAYED.search(line.text)]
        return bool(names) and not any(name is None or CARRIERS.match(name[1]) for name in names)


def find_uncaught(texts: Iterable[LogText]) -> Uncaught | None:
    """Return what ended the program, None where no log ends with an exception."""
    endings = [_uncaught_of(page) for page in texts if page.name not in (CONTEXT, KERNEL_LOG)]
    return next((ending for ending in reversed(endings) if ending is not None), None)


def _uncaught_of(page: LogText) -> Uncaught | None:
    lines = [Line(number, text) for number, text in zip(page.numbers, page.text.split("\n"), strict=False)]
    moved = set(page.progress)
    first, exceptions, waits, name = 0, list[Line](), False, None
    last = 0
    bars = set[str]()  # how far bars have come: one that is closed at the end of a program is drawn once more
    for line in lines:
        notebook = NOTEBOOK.match(line.text)
        if TRACEBACK in line.text:
            first, waits, name = first or line.number, True, notebook[1] if notebook else None
        elif waits and _ends(line.text, name):
            waits, last = False, line.number
            exceptions.append(line)
        elif not waits and RAISED.match(line.text) and not HANDLED.search(line.text):
            first, last = first or line.number, line.number
            exceptions.append(line)
        elif not waits and first and line.number in moved and not _again(line.text, bars):
            first, exceptions = 0, []  # it went on
        elif not waits and first and not exceptions and HANDLED.search(line.text):
            first = 0
        bars.update(BAR.findall(line.text))
    traced = any(TRACEBACK in line.text for line in lines if line.number >= first)
    return Uncaught(page, first, last, tuple(exceptions), traced) if first and exceptions else None


def _again(text: str, bars: set[str]) -> bool:
    """Tell whether a line is progress bars that have come no further than before."""
    counts = BAR.findall(text)
    return bool(counts) and bars.issuperset(counts)


def _ends(text: str, notebook: str | None) -> bool:
    """Tell whether a line is the exception that ends a traceback."""
    if notebook:
        return text.startswith(notebook)
    return bool(text.strip()) and not text.startswith((" ", "\t")) and NAMED.match(text) is not None


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
        number = hit.evidence.line
        if handled and _after(hit, end, handled):
            continue
        itself = hit.role is Role.WRAPPER and number == end.own.number  # DeadKernelError: there is no other to read
        relayed = hit.role is Role.WRAPPER and hit.evidence.file == end.page.name and not itself
        if end.plain and end.traced and not roots and relayed:
            continue  # torchrun and its like report the exception that is there to be read
        if hit.evidence.file != end.page.name or number is None or number >= end.first:
            remaining.append(hit)
        elif IMREAD in hit.evidence.text and not _unread(hit, end):
            remaining += [] if roots else [hit.capped(hit.level.lower.lower)]
        elif end.plain and not roots:
            remaining += [] if _survived(hit, end) else _before_plain(hit, end)
        elif not _survived(hit, end) or any(akin(hit, root) for root in roots):
            remaining.append(hit)
        elif not roots and not HANDLED.search(hit.evidence.text):
            remaining.append(hit.capped(Level.POSSIBLE))
    return remaining


def _after(hit: Hit, end: Uncaught, handled: Line) -> bool:
    """Tell whether a hit is only what came of an error that was handled: its handler failed, or the program went on."""
    if end.hid:
        later = [line.text.strip() for line in end.exceptions if line.number > handled.number]
        return any((text.partition(": ")[2] or text) in hit.evidence.text for text in later)
    return hit.cause in CLEANED and hit.evidence.file == end.page.name and (hit.evidence.line or 0) > handled.number


def _before_plain(hit: Hit, end: Uncaught) -> list[Hit]:
    """Return what a line may still be before an error of the program's own logic: all of it, less, or nothing."""
    if hit.cause.startswith(CAUSAL) or _unread(hit, end) or not end.traced:
        return [hit]
    return [hit.capped(Level.POSSIBLE)] if ERROR.search(hit.evidence.text) else []


def rule_out_survived(before: list[Hit], after: list[Hit], texts: list[LogText]) -> list[RuledOut]:
    """Return what `counted` has left out, once for each cause of which nothing is left."""
    left = {hit.cause for hit in after}
    gone = {hit.cause: hit for hit in before if hit.cause not in left}
    why = "line {} of {} is not the exception that ended the program: only a warning, or the program went on"
    end = find_uncaught(texts)
    handled = end.handled if end else None
    later = "line {} of {} is only what the handler of the first exception failed of"
    if end and end.hid:
        later = f"line {{}} of {{}} came later: {end.hid}"
    ruled_out = []
    for cause, hit in gone.items():
        reason = later if end and handled and _after(hit, end, handled) else why
        ruled_out.append(RuledOut(cause, reason.format(hit.evidence.line, hit.evidence.file)))
    if end and end.hid and not any(end.hid in ruled.why for ruled in ruled_out):
        last = NAMED.match(end.exceptions[-1].text)
        ruled_out.append(RuledOut(last[1] if last and len(end.exceptions) > 1 else "output", end.hid))
    return ruled_out


def _survived(hit: Hit, end: Uncaught) -> bool:
    """Tell whether a line before the end is only a warning, was handled, or was followed by progress."""
    if _unread(hit, end):
        return False
    number = hit.evidence.line or 0
    lines = list(zip(end.page.numbers, end.page.text.split("\n"), strict=False))
    above = [text for at, text in lines if number - WARNED_LINES <= at < number]
    warned = any(WARNED.search(text) for text in above) and not any(TRACEBACK in text for text in above)
    if warned or any(mild.search(hit.evidence.text) for mild in MILD):
        return True
    if hit.cause in OUTLASTED or hit.evidence.text.startswith(DIED):
        return False
    after = [text for at, text in lines if at > number][:2]
    return any(HANDLED.search(text) for text in after) or any(number < at < end.first for at in end.page.progress)


def _unread(hit: Hit, end: Uncaught) -> bool:
    """Tell whether a line says that an image could not be read, and the program failed of having none."""
    return IMREAD in hit.evidence.text and any(NOTHING_READ.search(line.text) for line in end.exceptions)


def akin(hit: Hit, root: Hit) -> bool:
    """Tell whether a warning can be of an error's disease: both of the GPU's world, and not disproved by it."""
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
    """Tell whether a log says at its end that the program has finished."""
    logs = [page for page in texts if page.text.strip()]
    if not logs or any(page.name in (CONTEXT, KERNEL_LOG) for page in logs) or find_uncaught(texts):
        return False
    return all(FINISHED.search(page.text.rstrip().rpartition("\n")[2]) for page in logs)


def keep_nan_losses(hits: list[Hit]) -> list[Hit]:
    """Return what still counts in a log that ended well: a loss that became NaN."""
    return [hit for hit in hits if hit.evidence.line is None or NAN_LOSS.search(hit.evidence.text)]


def cap_benign_warnings(hits: list[Hit], texts: list[LogText]) -> list[Hit]:
    """Return the hits of a log without an exception at its end; a warning yields to what stands after it."""
    pages = {page.name: page for page in texts}
    mild = {id(hit) for hit in hits if is_mild(hit, pages.get(hit.evidence.file))}
    grave = [hit for hit in hits if id(hit) not in mild and hit.role is not Role.WRAPPER]
    return [_cap_warning(hit, grave, pages) if id(hit) in mild else hit for hit in hits]


def is_mild(hit: Hit, page: LogText | None) -> bool:
    """Tell whether a line only warns, by its level or by its own words."""
    if page is None or page.name in (CONTEXT, KERNEL_LOG) or hit.evidence.line is None:
        return False
    text, number = hit.evidence.text, hit.evidence.line
    if any(mild.search(text) for mild in MILD):
        return True
    return any(WARNED.search(above) for at, above in _lines(page) if number - WARNED_LINES <= at < number)


def _cap_warning(hit: Hit, grave: Iterable[Hit], pages: dict[str, LogText]) -> Hit:
    """Return a warning with what it is worth: little beside an end that is not its own, less than sure beside words."""
    page, number = pages[hit.evidence.file], hit.evidence.line or 0
    later = [other for other in grave if other.evidence.file != page.name or (other.evidence.line or 0) > number]
    if any(other.cause == hit.cause for other in later) or hit.cause.startswith(SILENT_FAULTS):
        return hit
    fits = hit.cause.startswith(LASTING_FAULTS)
    if later and not any(akin(hit, other) or _leads(hit, other) for other in later):
        return hit.capped(Level.POSSIBLE)
    if not fits and any(at > number for at in page.progress):
        return hit.capped(Level.POSSIBLE)
    after = (text for at, text in _lines(page) if at > number and text.strip() and not text.startswith((" ", "\t")))
    spoken = any(not HARMLESS.search(text) for text in after)
    return hit.capped(Level.LIKELY) if spoken and not fits else hit


def _leads(hit: Hit, later: Hit) -> bool:
    """Tell whether what a line warns of can be why something else is said later."""
    if (hit.cause, later.cause) == ("loss.ctc_length", "num.nonfinite"):  # a label without a path costs infinitely much
        return True
    # What a person says of ranks that stand still is what a connection does that is tried for ever.
    return later.evidence.file == CONTEXT and all(side.cause.startswith("dist.") for side in (hit, later))


def _lines(page: LogText) -> Iterable[tuple[int, str]]:
    return zip(page.numbers, page.text.split("\n"), strict=False)
