"""Does the cause of an out-of-memory message come out of its numbers? Messages of three generations of torch.

python benchmarks/memory_oom.py [--count 200] [--seed 0] [--misses]

A card is drawn by seed: how much it has, what other processes hold, what this process holds inside and outside of
torch's allocator, how much of that lies idle between live blocks, and what is asked for. The label is computed from
those bytes alone: the cause is what, had it not been, would have let this request through. The message shows the same
bytes as torch prints them, rounded, and leaves out what its generation leaves out. Then the real ones of
../shared/diagnosis. `rows()` gives (what, measured, must) for benchmarks/memory.py.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from table import figure, markdown, page, parser, publish

SHARED = Path(__file__).parents[2] / "shared" / "diagnosis"
COUNT, MUST = 200, 0.97
GIB, MIB = 2**30, 2**20
CARDS = (5.79, 7.79, 10.76, 11.91, 15.9, 23.69, 31.74, 39.59, 47.53, 79.15, 93.02, 139.8)  # GiB, as torch prints them
ADVICE = {
    "1.0": "",
    "1.4": " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See "
    "documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
    "2.1": " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
    "to avoid fragmentation.  See documentation for Memory Management",
}
HEADS = {
    "1.0": ("RuntimeError: ",),
    "1.4": ("RuntimeError: ", "torch.cuda.OutOfMemoryError: ", "[rank1]: torch.cuda.OutOfMemoryError: "),
    "2.1": (
        "torch.OutOfMemoryError: ",
        "torch.cuda.OutOfMemoryError: ",
        "[rank0]: torch.OutOfMemoryError: ",
        "2026-01-05 12:00:01,123 - ERROR - project.engine.trainer - step 1200 failed: ",
    ),
}


@dataclass
class Card:
    """A card at the moment of the failure, in bytes."""

    total: int
    others: dict[int, int]
    context: int  # of this process
    libraries: int  # NCCL's buffers, cuBLAS' workspaces and the like, of this process
    allocated: int
    idle: int  # reserved, in no use, and in pieces
    request: int

    @property
    def foreign(self) -> int:
        return sum(self.others.values())

    @property
    def process(self) -> int:
        return self.context + self.libraries + self.allocated + self.idle

    @property
    def free(self) -> int:
        return self.total - self.foreign - self.process


def label(card: Card) -> str:
    """Return the cause by definition: what is large and alone would have let the request through; the largest of these.

    A request that no card of this size could hold is absurd. Where nothing would have helped, the step is too large.
    """
    if card.request > card.total or card.request >= 2**40:
        return "gpumem.absurd_size"
    shares = {"gpumem.foreign": card.foreign, "gpumem.raw_alloc": card.libraries, "gpumem.fragmentation": card.idle}
    least = {"gpumem.foreign": 0.1 * card.total, "gpumem.raw_alloc": 0.2 * card.total}
    alone = card.idle >= card.request  # enough without what is free
    least["gpumem.fragmentation"] = 0.05 * (card.idle + card.allocated) if alone else 0.1 * card.total
    enough = {name: size for name, size in shares.items() if size >= least[name] and card.free + size >= card.request}
    return max(enough, key=lambda name: enough[name], default="gpumem.capacity")


def draw_card(chance: random.Random, form: str) -> Card:
    """Return a card on which the request fails: neither what is free nor what lies idle in one piece is enough."""
    while True:
        total = int(chance.choice(CARDS) * GIB)
        context = int(chance.uniform(0.15, 0.6) * GIB)
        others, left = {}, total - context
        for _ in range(chance.choice((0, 0, 0, 1, 1, 2))):
            size = int(chance.choice((chance.uniform(0.0, 0.04), chance.uniform(0.15, 0.85))) * left)
            others[chance.randrange(300, 4_000_000)] = size
            left -= size
        libraries = int(chance.uniform(0.25, 0.5) * left) if form == "2.1" and chance.random() < 0.15 else 0
        reserved = int((left - libraries) * chance.choice((chance.uniform(0.05, 0.6), chance.uniform(0.9, 0.999))))
        idle = int(reserved * chance.choice((chance.uniform(0.0, 0.03), chance.uniform(0.1, 0.6))))
        free = left - libraries - reserved
        request = int(total * 10 ** chance.uniform(0.02, 7)) if chance.random() < 0.15 else 0
        request = request or int(math.exp(chance.uniform(math.log(max(free, 2 * MIB)), math.log(0.95 * total))))
        request = -(-request // (2 * MIB)) * 2 * MIB
        card = Card(total, others, context, libraries, reserved - idle, idle, request)
        if 0 <= card.free < request:
            return card


def size(count: int) -> str:
    """Return bytes as torch's format_size prints them."""
    if count <= 1024:
        return f"{count} bytes"
    for unit, power in (("KiB", 2**10), ("MiB", 2**20)):
        if count <= power * 1024:
            return f"{count / power:.2f} {unit}"
    return f"{count / GIB:.2f} GiB"


def rendered(card: Card, form: str, chance: random.Random) -> str:
    """Return the message that torch of this generation prints."""
    device, asked, total, free = chance.randrange(8), size(card.request), size(card.total), size(card.free)
    head = f"{chance.choice(HEADS[form])}CUDA out of memory. Tried to allocate {asked}"
    if form == "2.1":
        named = "".join(f"Process {pid} has {size(used)} memory in use. " for pid, used in card.others.items())
        mine = f"Including non-PyTorch memory, this process has {size(card.process)} memory in use. "
        if chance.random() < 0.2:  # in a container the process is listed by its number on the host
            mine = f"Process {chance.randrange(300, 4_000_000)} has {size(card.process)} memory in use. "
        text = f"{head}. GPU {device} has a total capacity of {total} of which {free} is free. {named}{mine}Of the "
        text += (
            f"allocated memory {size(card.allocated)} is allocated by PyTorch, and {size(card.idle)} is reserved by "
        )
        return f"{text}PyTorch but unallocated.{ADVICE[form]}"
    idle = f"{size(card.idle)} cached" if form == "1.0" else ""
    idle = idle or f"{size(card.idle + card.allocated)} reserved in total by PyTorch"
    figures = f"{total} total capacity; {size(card.allocated)} already allocated; {free} free; {idle}"
    return f"{head} (GPU {device}; {figures}){ADVICE[form]}"


def messages(count: int, seed: int) -> list[tuple[str, str]]:
    """Return messages with their labels, as many of each generation."""
    chance = random.Random(seed)
    texts = []
    for number in range(count):
        form = ("1.0", "1.4", "2.1")[number % 3]
        card = draw_card(chance, form)
        texts.append((rendered(card, form, chance), label(card)))
    return texts


def named(text: str) -> str | None:
    """Return the first cause of a log that holds nothing but this message."""
    from ocrlab.debug.diagnosis import classify
    from ocrlab.records import Incident

    causes = classify.classify(Incident(texts={"log_tail.txt": text})).causes
    return causes[0].id if causes else None


def real() -> list[tuple[str, set[str], str | None]]:
    """Return each real report of a memory failure with the causes that its thread accepts and the named one."""
    from ocrlab.debug.diagnosis import classify
    from ocrlab.records import Incident

    cases = []
    for line in (SHARED / "reports_dev.jsonl").read_text(encoding="utf-8").splitlines():
        report = json.loads(line)
        if not report["cause"].startswith(("gpumem.", "host.", "wsl.")):
            continue
        incident = Incident(texts={"log_tail.txt": report["log"]}, context=report.get("context") or "")
        verdict = classify.classify(incident)
        wanted = {report["cause"], *(report.get("also_acceptable") or ())}
        cases.append((report["id"], wanted, verdict.causes[0].id if verdict.causes else None))
    return cases


def rows(count: int = COUNT, seed: int = 0) -> list[tuple[str, str, str]]:
    """Return (what, measured, must) for the table of the memory lab; the real ones only where they are at hand."""
    generated = messages(count, seed)
    right = sum(named(text) == wanted for text, wanted in generated)
    share = right / count
    kinds = ", ".join(f"{number} {name.partition('.')[2]}" for name, number in Counter(w for _, w in generated).items())
    missed = " (missed)" if share < MUST else ""
    table = [(f"out-of-memory messages split by cause ({kinds})", f"{share:.3f} ({right}/{count}){missed}", f"{MUST}")]
    if SHARED.is_dir():
        collected = real()
        fine = sum(answer in wanted for _, wanted, answer in collected)
        missed = " (missed)" if fine < len(collected) else ""
        table.append(("real reports of memory failures: accepted", f"{fine} of {len(collected)}{missed}", "all"))
    return table


def main() -> None:
    """Print the table; end with 1 where a limit is not met."""
    arguments = parser(__doc__)
    arguments.add_argument("--count", type=int, default=COUNT, help=f"messages ({COUNT})")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--misses", action="store_true", help="print each message that is named wrongly")
    args = arguments.parse_args()
    table = rows(args.count, args.seed)
    parts = [markdown(("what", "is", "must"), table)]
    if args.misses:
        wrong = [(text, wanted, named(text)) for text, wanted in messages(args.count, args.seed)]
        parts += [f"- {wanted}, said {answer}: {text}" for text, wanted, answer in wrong if answer != wanted]
        parts += [f"- {name}: {answer}, not {wanted}" for name, wanted, answer in real() if answer not in wanted]
    for what, measured, must in table:
        figure(what, measured, "as in the text", limit=must)
    publish("memory-oom", page("Out-of-memory messages split by cause", "\n\n".join(parts)), args)
    sys.exit(any("(missed)" in row[1] for row in table))


if __name__ == "__main__":
    main()
