"""Caps on messages that many things print: what they support without the words or frames that belong to the cause."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ocrlab.debug.diagnosis.catalogue import Level
from ocrlab.debug.diagnosis.evidence import Hit
from ocrlab.debug.diagnosis.log_text import LogText


@dataclass(frozen=True)
class Cap:
    """A hit of a cause that begins with `cause`, on a line like `pattern`, needs `requires` somewhere in the texts.

    Without it, and always where nothing is required, the hit has at most the level `cap`; None leaves it out.
    """

    cause: str
    pattern: re.Pattern[str]
    cap: Level | None
    requires: re.Pattern[str] | None = None


DATA = re.compile(
    r"(?i)data_?(?:set|loader)|(?<!c)annot|label|coco|\bvoc\b|__getitem__|ground.?truth|bbox|polygon|[/\\]datas?[/\\]"
    r"|^ *File \"[^\"\n]{0,200}data\w*\.py|\bdata\w*\.ya?ml|(?<!config)(?<!conf)(?<!cfg)(?<!settings)(?<!params)"
    r"(?<!args)(?<!state)(?<!metrics)(?<!results)\.(?:csv|xml|txt|jsonl?)\b(?!\.py)|img_\d|\bimage",
    re.MULTILINE,
)
# A frame of a sample, or no frame at all.
OF_A_SAMPLE = re.compile(r"_utils/(?:fetch|collate)\.py|__getitem__|collate|\A(?![\s\S]*File \")")
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
# Of a compiler or a linker: it misses a package of the system, no file of the program.
LINKED = re.compile(
    r"\bld(?:\.\w+)?: cannot find|fatal error: \S+(?:: No such| file not found)|Cannot open include file"
    r"|unable to execute '|^error: command '[^'\n]{1,200}' failed: No such"
    r"|^(?:gcc|g\+\+|cc1plus|clang|nvcc)(?![\w+])[^\n]{0,40}: "
)
ROOMY = re.compile(  # nobody says that /dev/shm is large
    r"\A(?![\s\S]*(?:--ipc[= ]host|[1-9]\d\d ?GB? (?:of |in )?/dev/shm|/dev/shm (?:is|has) [1-9]\d\d? ?GB?))"
)
GAVE_UP = re.compile(  # reported outside of such a line
    r"\[E[^\n]{0,40}socket\.cpp|^(?!\[W)[^\n]*(?:Error\b|(?i:time-?d? ?out|hang|stuck|refused))", re.MULTILINE
)
OWN_MACHINE = re.compile(  # no network lies between: whoever should listen is not there
    r"client socket has (?:failed|timed out)[^\n]{0,80}(?:\b127\.0\.0\.1\b|\blocalhost\b)"
)
ABORT_REASON = re.compile(
    r"what\(\)|terminate called|(?i:assert)|free\(|malloc|corrupt|OMP: |Fatal|[Cc]heck failed|MPI_ABORT"
)
WHERE_IT_DIED = re.compile(
    r"Fatal Python error|(?:Current t|T)hread 0x|^ *#\d+ |segfault at|(?i:backtrace|gdb)", re.MULTILINE
)
# PaddleOCR tells what went wrong with one line of the label file: nobody says so.
SAMPLE_OF_A_LINE = re.compile(r"\A(?![\s\S]*(?:error happened with msg|When parsing line))")
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
A_WORKER = re.compile(r"(?i)multiprocessing|data_?loader|worker|queues?\.py|resource_sharer")
TOOL_MESSAGE = re.compile(  # in words of the library that looked for it
    r"(?i)\b(?:nvcc|ptxas|nvidia-smi|gcc|g\+\+|ninja|cmake|compiler|runtime)\b[^\n]{0,40}(?:not found|is missing)"
    r"|\b(?:checking|detecting|finding) (?:the )?compiler"
)
# Shared memory of a block of the GPU, which a kernel asks for: no /dev/shm.
ON_CHIP = re.compile(
    r"(?i)shared memory[^\n]{0,60}(?:kernel|gemm|pipeline|stage|block|tile|required|hardware limit|smem)"
)
SEND_AND_RECEIVE = re.compile(
    r"P2P ?Op|p2p_?op|\bp2p (?:op|communication|send|recv)"
)  # of ranks, no wires between cards
TRACKED = re.compile(r"(?i)wandb|mlflow|comet|neptune|clearml|tensorboard|swanlab")
FETCHED = re.compile(r"connectionpool|requests\.exceptions|Max retries|ProxyError|Tunnel connection|Proxy Auth")
LOADS = re.compile(r"Weights only load failed|UnpicklingError|WeightsUnpickler error")
# weights_only tells any error that it meets in these words: nobody names one of the device or the disk.
REFUSED_ITSELF = re.compile(
    r"\A(?![\s\S]*WeightsUnpickler error: (?:CUDA|HIP|XPU|MPS|Attempting to|out of memory|\[Errno|No space))"
)
NOT_OF_ITS_OWN = re.compile(
    r"\A(?![\s\S]*(?:exitcode\s*:\s*|terminated with exit code |\(exitcode: )(?:[1-9]\d?|1[01]\d|12[0-3])\b)"
)
NOT_BUILT = re.compile(
    r"error: command|ninja: build stopped|Error building extension|make(?:\[\d+\])?: \*\*\*|setup\.py|pip install"
    r"|Failed building|CalledProcessError|\A[^\n]{0,400}\Z"
)
KEY_FILE = re.compile(
    r"\bmachine api\.wandb|key for [\w./:-]{1,60} to your netrc"
)  # where a key for the server is kept
LIKELY, POSSIBLE = Level.LIKELY, Level.POSSIBLE
CAPS = (
    # Ray names all that it can think of
    Cap("", re.compile(r"unexpected system error|potential root causes"), POSSIBLE),
    # A program that failed of its own exception: what its launcher adds tells nothing more.
    Cap("dist.timeout_desync", re.compile(r"ChildFailedError|Process(?:Exited|Raised)Exception"), None, NOT_OF_ITS_OWN),
    # DeepSpeed tries this at each start
    Cap("build.", re.compile(r"\bld(?:\.\w+)?: cannot find -l"), POSSIBLE, NOT_BUILT),
    # the server was reached
    Cap("tracker.network", re.compile(r"Response \[4\d\d\]|previously created and deleted"), POSSIBLE),
    Cap("tracker.network", KEY_FILE, None),
    Cap("driver.", re.compile(r"NCCL INFO"), None),
    Cap("ckpt.corrupt", LOADS, POSSIBLE, REFUSED_ITSELF),
    Cap("native.abort", CHECKED, POSSIBLE),
    Cap("loader.", re.compile(r"Connection reset by peer"), None, A_WORKER),
    Cap("user.shape", SIZES, LIKELY, NOT_LOADED),
    Cap("io.disk_full", re.compile(r"inotify"), None),
    Cap("host.thread_limit", re.compile(r"unable to lock file"), None),
    Cap("host.alloc_fail", re.compile(r"CUDA error|cudaError|\brmm\b|cuMemAlloc|device memory"), None),
    Cap("host.alloc_fail", re.compile(r"allocate -?\d{16,20} bytes"), POSSIBLE),  # nobody has so much
    Cap("io.missing", TOOL_MESSAGE, POSSIBLE),
    Cap("host.shm", ON_CHIP, None),
    # printed at many good ends
    Cap("gpumem.leak", re.compile(r"communicator hasn't been destroyed|destroy_process_group"), None),
    Cap("dist.p2p", SEND_AND_RECEIVE, None),
    # what a compiler cannot do
    Cap("num.nonfinite", re.compile(r"(?i)constexpr|(?:does not|n't|not) support[^\n]{0,20}\bnan"), None),
    Cap("tracker.network", FETCHED, POSSIBLE, TRACKED),
    Cap("data.annotation", re.compile(r"^yaml\.|JSONDecodeError"), None, DATA),  # a file of settings as well
    Cap("data.annotation", PARSED, POSSIBLE, DATA),
    Cap("data.", re.compile(r"^ZeroDivisionError"), None, DATA),
    Cap("data.sample", re.compile(r"Caught \w+ in DataLoader worker"), None, OF_A_SAMPLE),
    Cap("data.annotation", re.compile(r"^KeyError: '(?:points|shapes)'"), None, DATA),
    Cap("dist.port", re.compile(r"Address already in use"), POSSIBLE, RANKS),  # any server's
    Cap("io.port", re.compile(""), POSSIBLE, NOT_OF_TORCH),
    Cap("io.permission", re.compile(r"Permission denied \((?:publickey|password|keyboard)"), None),  # of ssh
    Cap("dist.", SOCKET, None, RANKS),
    Cap("io.missing", LINKED, None),
    Cap("dist.", re.compile(r"^\[W[^\n]{0,40}socket\.cpp"), LIKELY, GAVE_UP),  # c10d tries the next address, and again
    # torchrun, after one has failed
    Cap("ext.signal", re.compile(r"Sending process \d+ closing signal SIGTERM"), None),
    Cap("native.segv", re.compile(""), LIKELY, WHERE_IT_DIED),
    Cap("native.abort", re.compile(r"SIGABRT|exit ?code|return ?code|died with|status 134"), LIKELY, ABORT_REASON),
    Cap("user.", re.compile(""), POSSIBLE, SAMPLE_OF_A_LINE),
    Cap("io.disk_full", re.compile(r"No space left on device|\[Errno 28\]|ENOSPC"), LIKELY, WRITES),
    Cap("host.shm", re.compile(r"[Bb]us error"), LIKELY, ROOMY),
    Cap("num.nonfinite", re.compile(""), LIKELY, NOT_ONLY_ON_SEVERAL_GPUS),
    Cap("num.nonfinite", re.compile(""), LIKELY, NO_CTC),
    Cap("dist.network", OWN_MACHINE, LIKELY),
    # of a shared-memory segment, a plugin or /sys
    Cap("build.", re.compile(r"NCCL (?:WARN|INFO)[^\n]{0,200}No such file"), None),
    # cv2.imread returns None for a file that is missing as well as for one that it cannot decode.
    Cap("data.corrupt", re.compile(r"'NoneType' object (?:has no attribute 'shape'|is not subscript)"), LIKELY),
)


def apply_caps(hits: list[Hit], texts: list[LogText]) -> list[Hit]:
    """Return the hits, those that lack their context with a lower level or left out."""
    whole = "\n".join(text.text for text in texts)
    capped = []
    for hit in hits:
        caps = (cap for cap in CAPS if hit.cause.startswith(cap.cause) and cap.pattern.search(hit.evidence.text))
        cap = next((cap for cap in caps if not (cap.requires and cap.requires.search(whole))), None)
        if cap is None or cap.cap is not None:
            capped.append(hit.capped(cap.cap) if cap and cap.cap else hit)
    return capped
