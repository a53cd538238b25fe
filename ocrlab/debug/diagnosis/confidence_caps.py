"""Caps on messages that many things print: what they support without the words or frames that belong to the cause."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ocrlab.debug.diagnosis.catalogue import Level
from ocrlab.debug.diagnosis.evidence import Hit
from ocrlab.debug.diagnosis.log_text import LogText


@dataclass(frozen=True)
class ConfidenceCap:
    """A hit of a cause that begins with `cause`, on a line like `pattern`, needs `requires` somewhere in the texts.

    Without it the hit has at most the level `cap`, and does not count at all where that is None.
    """

    cause: str
    pattern: re.Pattern[str]
    requires: re.Pattern[str]
    cap: Level | None


DATA = re.compile(
    r"(?i)data_?(?:set|loader)|(?<!c)annot|label|coco|\bvoc\b|__getitem__|ground.?truth|bbox|polygon|[/\\]datas?[/\\]"
    r"|^ *File \"[^\"\n]{0,200}data\w*\.py|\bdata\w*\.ya?ml|(?<!config)(?<!conf)(?<!cfg)(?<!settings)(?<!params)"
    r"(?<!args)(?<!state)(?<!metrics)(?<!results)\.(?:csv|xml|txt|jsonl?)\b(?!\.py)|img_\d|\bimage",
    re.MULTILINE,
)
RANKS = re.compile(
    r"(?i)torch[./]distributed|\bnccl\w*|\bgloo\b|c10d|rendezvous|rdzv|MASTER_(?:ADDR|PORT)|torchrun|torch_?elastic"
    r"|ProcessGroup|TCPStore|\bDDP\b|\bddp\b|init_process_group|torch\.distributed|multi-?node|multi-?gpu"
    r"|\brank \d|deepspeed|horovod|\bmpi|RuntimeError: Address already in use|server socket has failed"
)
# Python's own sockets raise OSError: a RuntimeError, and a "server socket", are torch's store of the ranks.
OF_TORCH = r"RuntimeError: Address already in use|server socket has failed"
NOT_OF_TORCH = re.compile(rf"\A(?![\s\S]*(?:{OF_TORCH}))")
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
# Of a compiler or a linker: it misses a package of the system, no file of the program.
LINKED = re.compile(
    r"\bld(?:\.\w+)?: cannot find|fatal error: \S+(?:: No such| file not found)|Cannot open include file"
    r"|unable to execute '|^error: command '[^'\n]{1,200}' failed: No such"
    r"|^(?:gcc|g\+\+|cc1plus|clang|nvcc)(?![\w+])[^\n]{0,40}: "
)
ROOMY = re.compile(  # nobody says that /dev/shm is large
    r"\A(?![\s\S]*(?:--ipc[= ]host|[1-9]\d\d ?GB? (?:of |in )?/dev/shm|/dev/shm (?:is|has) [1-9]\d\d? ?GB?))"
)
BUS = re.compile(r"[Bb]us error")
ENDS_OTHERS = re.compile(r"Sending process \d+ closing signal SIGTERM")  # torchrun, after one has failed
TRIES_AGAIN = re.compile(r"^\[W[^\n]{0,40}socket\.cpp")  # c10d tries the next address, and again
GAVE_UP = re.compile(  # told elsewhere than in such a line itself
    r"\[E[^\n]{0,40}socket\.cpp|^(?!\[W)[^\n]*(?:Error\b|(?i:time-?d? ?out|hang|stuck|refused))", re.MULTILINE
)
OWN_MACHINE = re.compile(  # no network lies between: whoever should listen is not there
    r"client socket has (?:failed|timed out)[^\n]{0,80}(?:\b127\.0\.0\.1\b|\blocalhost\b)"
)
DIED_OF_IT = re.compile(r"SIGABRT|exit ?code|return ?code|died with|status 134")
ABORT_REASON = re.compile(
    r"what\(\)|terminate called|(?i:assert)|free\(|malloc|corrupt|OMP: |Fatal|[Cc]heck failed|MPI_ABORT"
)
WHERE_IT_DIED = re.compile(
    r"Fatal Python error|(?:Current t|T)hread 0x|^ *#\d+ |segfault at|(?i:backtrace|gdb)", re.MULTILINE
)
# PaddleOCR tells what went wrong with one line of the label file: nobody says so.
SAMPLE_OF_A_LINE = re.compile(r"\A(?![\s\S]*(?:error happened with msg|When parsing line))")
FULL = re.compile(r"No space left on device|\[Errno 28\]|ENOSPC")
WRITES = re.compile(  # what fills a disk: without it the space may be that of /dev/shm
    r"(?i)\bsav(?:e[ds]?|ing)\b|writ(?:e|ing|er|ten)\b|serializ|checkpoint|\.(?:pth?|ckpt|safetensors|bin|h5|log)\b"
    r"|\.(?:zip|tar|lmdb)\b|tensorboard|wandb|mlflow|download|extract|cache|/tmp|quota|\bdisk\b|\bdf\b"
    r"|No space left on device: ?['\"/]"
)
NOT_ONLY_ON_SEVERAL_GPUS = re.compile(  # nobody says that it needs several cards
    r"(?i)\A(?![\s\S]*(?:only (?:with|on|when using) (?:several|multiple|two|2|4|8|more than one)|(?:one|a single|1) "
    r"(?:gpu|card) (?:is|works?|runs?|trains?) ))"
)
NO_CTC = re.compile(r"(?i)\A(?![\s\S]*\bctc)")
# caffe, darknet and their like end themselves where a CUDA call fails: what they print of it says why.
CHECKED = re.compile(r"cudaSuccess|check_error: Assertion|CUDNN_STATUS_SUCCESS|CUBLAS_STATUS_SUCCESS|ncclSuccess")
SIZES = re.compile(r"The size of tensor a|inconsistent tensor size|sizes do not match")
NOT_LOADED = re.compile(  # nobody loads weights there, and no optimizer meets the state of another model
    r"\A(?![\s\S]*(?:, in (?:\w*weight_loader|load_weights\w*|load_state_dict|load_checkpoint)$|\bloaded_weight\b"
    r"|[/\\]torch[/\\]optim[/\\]\w{1,40}\.py\"?, line \d+, in \w+\n[^\n]{0,200}\n(?:[ ~^]+\n)?RuntimeError: ))",
    re.MULTILINE,
)
RESET = re.compile(r"Connection reset by peer")
A_WORKER = re.compile(r"(?i)multiprocessing|data_?loader|worker|queues?\.py|resource_sharer")
WATCHES = re.compile(r"inotify")
LOCKED = re.compile(r"unable to lock file")
DEVICE_MEMORY = re.compile(r"CUDA error|cudaError|\brmm\b|cuMemAlloc|device memory")
TOOL_MESSAGE = re.compile(  # in words of the library that looked for it
    r"(?i)\b(?:nvcc|ptxas|nvidia-smi|gcc|g\+\+|ninja|cmake|compiler|runtime)\b[^\n]{0,40}(?:not found|is missing)"
    r"|\b(?:checking|detecting|finding) (?:the )?compiler"
)
# Shared memory of a block of the GPU, which a kernel asks for: no /dev/shm.
ON_CHIP = re.compile(
    r"(?i)shared memory[^\n]{0,60}(?:kernel|gemm|pipeline|stage|block|tile|required|hardware limit|smem)"
)
OF_NCCL = re.compile(r"communicator hasn't been destroyed|destroy_process_group")  # printed at many good ends
SEND_AND_RECEIVE = re.compile(
    r"P2P ?Op|p2p_?op|\bp2p (?:op|communication|send|recv)"
)  # of ranks, no wires between cards
COMPILES = re.compile(r"(?i)constexpr|(?:does not|n't|not) support[^\n]{0,20}\bnan")  # what a compiler cannot do
TRACKED = re.compile(r"(?i)wandb|mlflow|comet|neptune|clearml|tensorboard|swanlab")
FETCHED = re.compile(r"connectionpool|requests\.exceptions|Max retries|ProxyError|Tunnel connection|Proxy Auth")
LOADS = re.compile(r"Weights only load failed|UnpicklingError|WeightsUnpickler error")
# weights_only tells any error that it meets in these words: nobody names one of the device or the disk.
REFUSED_ITSELF = re.compile(
    r"\A(?![\s\S]*WeightsUnpickler error: (?:CUDA|HIP|XPU|MPS|Attempting to|out of memory|\[Errno|No space))"
)
# A program that failed of its own exception: what its launcher adds tells nothing more.
LAUNCHER = re.compile(r"ChildFailedError|Process(?:Exited|Raised)Exception")
NOT_OF_ITS_OWN = re.compile(
    r"\A(?![\s\S]*(?:exitcode\s*:\s*|terminated with exit code |\(exitcode: )(?:[1-9]\d?|1[01]\d|12[0-3])\b)"
)
LINKS = re.compile(r"\bld(?:\.\w+)?: cannot find -l")  # DeepSpeed tries this at each start
NOT_BUILT = re.compile(
    r"error: command|ninja: build stopped|Error building extension|make(?:\[\d+\])?: \*\*\*|setup\.py|pip install"
    r"|Failed building|CalledProcessError|\A[^\n]{0,400}\Z"
)
ANSWERED = re.compile(r"Response \[4\d\d\]|previously created and deleted")  # the server was reached
KEY_FILE = re.compile(
    r"\bmachine api\.wandb|key for [\w./:-]{1,60} to your netrc"
)  # where a key for the server is kept
NCCL_TELLS = re.compile(r"NCCL INFO")
LISTED = re.compile(r"unexpected system error|potential root causes")  # Ray names all that it can think of
LIKELY, POSSIBLE = Level.LIKELY, Level.POSSIBLE
CAPS = (
    ConfidenceCap("", LISTED, NEVER, POSSIBLE),
    ConfidenceCap("dist.timeout_desync", LAUNCHER, NOT_OF_ITS_OWN, None),
    ConfidenceCap("build.", LINKS, NOT_BUILT, POSSIBLE),
    ConfidenceCap("tracker.network", ANSWERED, NEVER, POSSIBLE),
    ConfidenceCap("tracker.network", KEY_FILE, NEVER, None),
    ConfidenceCap("driver.", NCCL_TELLS, NEVER, None),
    ConfidenceCap("ckpt.corrupt", LOADS, REFUSED_ITSELF, POSSIBLE),
    ConfidenceCap("native.abort", CHECKED, NEVER, POSSIBLE),
    ConfidenceCap("loader.", RESET, A_WORKER, None),
    ConfidenceCap("user.shape", SIZES, NOT_LOADED, LIKELY),
    ConfidenceCap("io.disk_full", WATCHES, NEVER, None),
    ConfidenceCap("host.thread_limit", LOCKED, NEVER, None),
    ConfidenceCap("host.alloc_fail", DEVICE_MEMORY, NEVER, None),
    ConfidenceCap("host.alloc_fail", re.compile(r"allocate -?\d{16,20} bytes"), NEVER, POSSIBLE),  # nobody has so much
    ConfidenceCap("io.missing", TOOL_MESSAGE, NEVER, POSSIBLE),
    ConfidenceCap("host.shm", ON_CHIP, NEVER, None),
    ConfidenceCap("gpumem.leak", OF_NCCL, NEVER, None),
    ConfidenceCap("dist.p2p", SEND_AND_RECEIVE, NEVER, None),
    ConfidenceCap("num.nonfinite", COMPILES, NEVER, None),
    ConfidenceCap("tracker.network", FETCHED, TRACKED, POSSIBLE),
    ConfidenceCap("data.annotation", re.compile(r"^yaml\.|JSONDecodeError"), DATA, None),  # a file of settings as well
    ConfidenceCap("data.annotation", PARSED, DATA, POSSIBLE),
    ConfidenceCap("data.annotation", re.compile(r"^KeyError: '(?:points|shapes)'"), DATA, None),
    ConfidenceCap("dist.port", re.compile(r"Address already in use"), RANKS, POSSIBLE),  # any server's
    ConfidenceCap("io.port", re.compile(""), NOT_OF_TORCH, POSSIBLE),
    ConfidenceCap(
        "io.permission", re.compile(r"Permission denied \((?:publickey|password|keyboard)"), NEVER, None
    ),  # of ssh
    ConfidenceCap("dist.", SOCKET, RANKS, None),
    ConfidenceCap("io.missing", LINKED, NEVER, None),
    ConfidenceCap("dist.", TRIES_AGAIN, GAVE_UP, LIKELY),
    ConfidenceCap("ext.signal", ENDS_OTHERS, NEVER, None),
    ConfidenceCap("native.segv", re.compile(""), WHERE_IT_DIED, LIKELY),
    ConfidenceCap("native.abort", DIED_OF_IT, ABORT_REASON, LIKELY),
    ConfidenceCap("user.", re.compile(""), SAMPLE_OF_A_LINE, POSSIBLE),
    ConfidenceCap("io.disk_full", FULL, WRITES, LIKELY),
    ConfidenceCap("host.shm", BUS, ROOMY, LIKELY),
    ConfidenceCap("num.nonfinite", re.compile(""), NOT_ONLY_ON_SEVERAL_GPUS, LIKELY),
    ConfidenceCap("num.nonfinite", re.compile(""), NO_CTC, LIKELY),
    ConfidenceCap("dist.network", OWN_MACHINE, NEVER, LIKELY),
    ConfidenceCap("build.", NCCL_LINE, NEVER, None),
    # cv2.imread returns None for a file that is missing as well as for one that it cannot decode.
    ConfidenceCap(
        "data.corrupt", re.compile(r"'NoneType' object (?:has no attribute 'shape'|is not subscript)"), NEVER, LIKELY
    ),
)


def apply_caps(hits: list[Hit], texts: list[LogText]) -> list[Hit]:
    """Return the hits, those that lack their context with a lower level or left out."""
    whole = "\n".join(text.text for text in texts)
    capped = (_apply_cap(hit, whole) for hit in hits)
    return [hit for hit in capped if hit is not None]


def _apply_cap(hit: Hit, whole: str) -> Hit | None:
    for cap in CAPS:
        applies = hit.cause.startswith(cap.cause) and cap.pattern.search(hit.evidence.text)
        if applies and not cap.requires.search(whole):
            return None if cap.cap is None else hit.capped(cap.cap)
    return hit
