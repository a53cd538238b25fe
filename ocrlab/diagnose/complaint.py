"""What people tell of a training that wrote no error: a symptom, its circumstances, and what both speak for.

Words prove nothing. The causes are ranked by how many circumstances fit; the first is never more than 0.42 sure.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from dataclasses import dataclass

from ocrlab.diagnose import prose
from ocrlab.diagnose.evidence import CONTEXT, KERNEL_LOG, Hit, quote
from ocrlab.diagnose.log import Page
from ocrlab.diagnose.words import Searched

MOST, LEAST = 0.42, 0.15
LAST = 3  # lines of a log that tell where it stands
WEIGHTS = (1.0, 0.7, 0.5, 0.35)  # of a row's causes, most probable first

# Symptoms.
DENIED = r"(?<!not )(?<!n't )(?<!never )(?<!no longer )(?<!without )"
STILL = (
    rf"{DENIED}\b(?:hang(?:s|ing)?\b(?!=)|hung\b|stuck|chok(?:es|ed)\b|freez\w+|froze\w*|stall(?:s|ed|ing)?\b|halt(?:s|ed)?\b|dead-?lock"
    r"|stops? (?:responding|outputting|printing|at (?:an?|one|some|the)\b)|(?:stay|stand)s? still)"
    r"|\butili[sz]ation\b[^\n]{0,30}\b(?:drop|f[ae]ll|becom|go|down)\w*[^\n]{0,12}\b(?:0|zero)\b"
    r"|\b(?:no|not|never|n't|without|nothing|none|neither) (?:\w+ ){0,4}?"
    r"(?:progress|feedback|reaction|moves?\b|moving|advanc|proceed|start|beg[iu]n|continu|respon|happen|display|print"
    r"|shown|return|finish)"
    r"|\bno (?:further |more )?output\b"
    r"|\b(?:waits?|waiting|blocks?|blocked|runs?) (?:for ?ever|endless|indefinitely)"
    r"|卡[住死在着]|不动|没有?反应|无响应|停住"
)
GONE = (
    rf"{DENIED}\b(?:die[sd]?|dying|stop(?:s|ped)|exit(?:s|ed)?|quits?|end(?:s|ed)|crash(?:es|ed)?|terminate[sd]?|vanish"
    r"|disappear|clos(?:es|ed)|shuts? ?down|interrupted|abort(?:s|ed)?)\b"
    r"[^\n.]{0,60}?\b(?:without|no|silent|sudden|abrupt|random|unexpected|automatic|itself|nothing)"
    r"|\b(?:got|gets|is|was|being|be) (?:\w+ )?(?:killed|stopped|terminated|aborted)\b"
    r"|\b(?:machine|pc|computer|server|system|laptop) (?:\w+ )?(?:crash|collaps|dies|died)"
    r"|\b(?:session|kernel|runtime)\b[^\n]{0,30}\b(?:restart|crash|die|dead|disconnect)"
    r"|闪退|自动(?:退出|停止|中断|结束)|进程\S{0,4}(?:结束|退出|中断|消失|被杀|死掉|挂)|没有?报错\S{0,10}(?:退出|结束|停止)"
)
UP = r"(?:increas|grow|climb|ris(?:es|ing)|leak|accumulat|explod|fill|creep|swell|go(?:es|ing)? up|higher)"
GROWS = (
    rf"\b(?:v?ram|memory)\b[^\n]{{0,60}}?{DENIED}\b{UP}|\b{UP}[^\n]{{0,40}}\b(?:v?ram|memory)\b"
    r"|\b(?:free|available) (?:\w+ ){0,2}(?:ram|memory)\b[^\n]{0,40}\b(?:decreas|shrink|drop|fall|run)\w*"
    r"|[内显]存[^\n]{0,20}(?:增|涨|升|爆|占满|泄[漏露])"
)

# Circumstances.
ANY = ""
BETWEEN = (
    r"validat|evaluat|\bsav(?:e|es|ed|ing)\b|checkpoint|end of|last (?:batch|step|iter)|barrier"
    r"|after (?:\w+ ){0,2}epoch"
)
CARDS = (
    r"multi\w*[- ]?(?:gpu|card|node)|\b(?:two|three|four|six|eight|several|multiple|both|all|[2-9]|1[06]) (?:\w+ )?"
    r"(?:gpus|cards|nodes|machines|devices|ranks|processes)\b"
    r"|\bgpus\b|\bddp\b|\bfsdp\b|data ?parallel|distributed|\branks?\b|nccl|torchrun|多卡|多机"
)
CLUSTER = r"slurm|sbatch|cluster|\bjobs?\b|queue|\bssh\b|terminal|tmux|nohup|overnight|server"
CPU_BUSY = r"cpu[^\n]{0,20}(?:100|busy|full)|one core"
DEBUGGER = r"\bpdb\b|breakpoint|debugger|set_trace|\binput\(|password|passphrase|\[y/n\]"
DOCKER = r"docker|container|kubernetes|\bpods?\b"
EXTENSION = r"extension|compil|\bninja\b|cpp_|\.cu\b|cuda op|custom op|plugin|\bjit\b|编译"
FIRST_CUDA = r"\.cuda\(|to\(.?cuda|to (?:the )?gpu|nvidia-smi|cuda init"
FULL = r"\b(?:ram|swap|memory)\b[^\n]{0,30}(?:full|100|exhaust|used up)|full (?:ram|swap|memory)"
IDLE = r"\butil[^\n]{0,40}\b(?:0|zero)\b|\bgpus? (?:is |are |was |were )?idle|power[^\n]{0,30}\b0\b|利用率[^\n]{0,4}0"
LOADER = (
    r"\bworkers?\b|num_workers|data ?load|\bloader\b|(?:get|load|fetch|next|first)\w* (?:\w+ )?batch|\bdata ?sets?\b"
    r"|数据"
)
NOTEBOOK = r"jupyter|notebook|colab|kaggle|ipython|\bcell\b"
ON_CARD = (
    r"\bv-?ram\b|(?:gpu|cuda|video|graphics?|card|device)\b[^\n]{0,30}\b(?:memory|usage|consum)"
    r"|memory[^\n]{0,20}(?:of|on) (?:the )?(?:gpu|card)|cuda out|显存"
)
ON_HOST = r"(?<!v)(?<!v-)\bram\b|(?:cpu|host|system|main)\b[^\n]{0,10} memory|\bswap\b|\bkilled\b|内存"
SPINS = r"(?:gpu|util|card)[^\n]{0,60}\b(?:9\d|100) ?%|\b(?:9\d|100) ?%[^\n]{0,30}(?:gpu|util)|gpus?\b[^\n]{0,20}\bbusy"
START = r"\b(?:start|beg[iu]n|launch|import|initiali|first)|\bat all\b|console|terminal|no output|nothing|开始"
STORE = r"\bnfs\b|network (?:drive|share|disk|file)|\bmount|\bhdd\b|(?:hard|mechanical) (?:disk|drive)|\bs3\b|samba"
TRACKER = r"wandb|weights (?:&|and) biases|tensorboard|mlflow|comet|neptune|clearml|swanlab"
WINDOWS = r"\bwin(?:dows)? ?(?:10|11)?\b"


@dataclass(frozen=True)
class Row:
    """Where somebody tells this symptom and this circumstance: its causes, most probable first, and what they weigh."""

    symptom: re.Pattern[str]
    circumstance: re.Pattern[str]
    weight: float
    causes: tuple[str, ...]


def _row(symptom: str, circumstance: str, weight: float, causes: str) -> Row:
    return Row(_compiled(symptom), _compiled(circumstance), weight, tuple(causes.split()))


@functools.cache
def _compiled(words: str) -> re.Pattern[str]:
    return re.compile(words, re.IGNORECASE)


ROWS = (
    _row(STILL, ANY, 0.6, "loader.hang_sample hang.deadlock loader.fork_deadlock"),
    _row(STILL, LOADER, 1.0, "loader.fork_deadlock loader.hang_sample loader.hang_unpicklable"),
    _row(STILL, CARDS, 1.5, "dist.timeout_desync dist.p2p dist.network dist.misconfig"),
    _row(STILL, BETWEEN, 0.5, "dist.timeout_desync loader.fork_deadlock"),
    _row(STILL, START, 0.5, "hang.build_lock hang.import hang.cuda_init hang.stopped"),
    _row(STILL, EXTENSION, 2.0, "hang.build_lock hang.compile"),
    _row(STILL, DEBUGGER, 2.0, "hang.stopped"),
    _row(STILL, TRACKER, 2.0, "hang.tracker tracker.network"),
    _row(STILL, SPINS, 1.0, "dist.p2p hang.gpu_kernel dist.timeout_desync"),
    _row(STILL, IDLE, 1.0, "loader.hang_sample loader.fork_deadlock hang.deadlock"),
    _row(STILL, CPU_BUSY, 1.0, "loader.hang_sample hang.deadlock"),
    _row(STILL, FULL, 2.0, "host.oom_kill host.alloc_fail"),
    _row(STILL, STORE, 1.0, "loader.hang_sample"),
    _row(STILL, FIRST_CUDA, 1.0, "hang.cuda_init hang.gpu_kernel"),
    _row(STILL, NOTEBOOK, 1.0, "loader.pickling loader.hang_sample"),
    _row(STILL, WINDOWS, 0.7, "loader.pickling"),
    _row(GONE, ANY, 0.6, "host.oom_kill native.segv ext.signal"),
    _row(GONE, ON_HOST, 1.5, "host.oom_kill host.alloc_fail"),
    _row(GONE, WINDOWS, 0.5, "native.segv host.alloc_fail"),
    _row(GONE, NOTEBOOK, 1.0, "notebook.kernel_died host.oom_kill"),
    _row(GONE, CLUSTER, 0.7, "scheduler.kill ext.signal host.oom_kill"),
    _row(GONE, LOADER, 0.5, "host.oom_kill loader.worker_crash host.shm"),
    _row(GONE, DOCKER, 1.0, "host.oom_kill host.shm"),
    _row(GROWS, ANY, 0.6, "host.oom_kill gpumem.leak"),
    _row(GROWS, ON_CARD, 1.5, "gpumem.leak gpumem.fragmentation gpumem.capacity"),
    _row(GROWS, ON_HOST, 1.5, "host.oom_kill host.alloc_fail"),
)

SLOW = re.compile(
    r"(?i)\b(?:slow(?:s|er|ly|ness)?|low (?:gpu )?util\w*|takes? (?:too|so|very) (?:long|much time)|bottleneck|idle)\b"
    r"|[太很变]慢"
)
LEARNS_NOT = re.compile(
    r"(?i)\b(?:loss|accuracy|m?ap|metrics?|hmean|model)\b[^\n.]{0,40}\b"
    r"(?:(?:not|n't) (?:decreas|improv|converg|learn|fall|go|drop|chang)|constant|(?:stay|remain|keep)s? (?:at )?0"
    r"|(?:stay|remain|keep|i)s? (?:always )?the same)"
    r"|\b(?:worse|bad|poor|wrong) (?:\w+ )?(?:results?|metrics?|accuracy)\b|learns? nothing|不收敛|不下降"
)
TIMES = "where the time goes: loader.watch(train_loader) and profile.steps() of ocrlab.trace, around a few steps"
CHECKS = (
    "one step looked at: contract.check(model, batch, loss, optimizer=opt) of ocrlab.trace tells what is wrong with it"
)


def hits(texts: list[Page]) -> list[Hit]:
    """Return what the symptom and its circumstances speak for, each with the line of the symptom."""
    told = [(page, _words(page)) for page in texts]
    whole = Searched("\n".join(words for _, words in told))
    around = Searched("\n".join([whole.text, *map(_stands_at, texts)]))
    scores: dict[str, float] = defaultdict(float)
    symptom: dict[str, re.Pattern[str]] = {}
    shown = {symptom: whole.search(symptom) is not None for symptom in {row.symptom for row in ROWS}}
    for row in ROWS if not prose.pauses(whole.text) else ():
        if shown[row.symptom] and around.search(row.circumstance):
            for cause, weight in zip(row.causes, WEIGHTS, strict=False):
                scores[cause] += weight * row.weight
                symptom.setdefault(cause, row.symptom)
    best = max(scores.values(), default=1.0)
    return [
        _hit(cause, round(MOST * score / best, 2), symptom[cause], told)
        for cause, score in scores.items()
        if MOST * score / best >= LEAST
    ]


def _hit(cause: str, sure: float, symptom: re.Pattern[str], told: list[tuple[Page, str]]) -> Hit:
    page, match = next((page, match) for page, words in told if (match := symptom.search(words)))
    line = page.line(match.start() + len(match[0]) - len(match[0].lstrip()))
    return Hit(cause, sure, sure, "possible", quote(page.name, line), "what is told is like it")


def asks(texts: list[Page]) -> list[str]:
    """Return what to look at where somebody tells that training is slow, or that it learns nothing."""
    whole = "\n".join(map(_words, texts))
    slow = SLOW.search(whole) is not None or prose.pauses(whole)
    return [TIMES] * slow + [CHECKS] * (LEARNS_NOT.search(whole) is not None)


def _stands_at(page: Page) -> str:
    """Return the last lines of a log: what it says last is where it stands."""
    lines = [line for line in page.text.split("\n") if line.strip()] if page.name != KERNEL_LOG else []
    return "\n".join(lines[-LAST:])


def _words(page: Page) -> str:
    if page.name == KERNEL_LOG:
        return ""
    return page.text if page.name == CONTEXT else prose.sentences(page.text)
