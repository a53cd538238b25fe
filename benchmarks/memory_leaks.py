"""Are planted leaks found with their line, is nothing else called a leak, and what does looking cost?

python benchmarks/memory_leaks.py            all rows (some minutes); cost alone: --cost

`rows()` gives (what, measured, must) for benchmarks/memory.py. Each program runs in a process of its own, since a leak
leaves its memory behind. The clean ones do what trainings do: caches that fill, sizes that vary, averaged weights.
"""

from __future__ import annotations

import argparse
import collections
import copy
import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

STEPS = 50  # within which a leak of 1 MiB a step must be found
LEAKS = ("graph", "outputs", "hook", "validation", "worker")
MUST = {"leaks": f"{len(LEAKS)} of {len(LEAKS)}", "alarms": "0 of 20", "cost": "0.5 %"}


def net() -> Any:
    from torch import nn

    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1))


def batches(size: Callable[[int], int] = lambda _: 256, count: int = STEPS) -> Iterator[Any]:
    import torch

    for step in range(count):
        yield torch.rand(1, 3, size(step), size(step))


def train(
    model: Any, after: Callable[[Any, Any], Any] = lambda *_: None, size: Callable[[int], int] = lambda _: 256
) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters())
    for images in batches(size):
        output = model(images)
        loss = output.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(output, loss)


def graph(model: Any) -> None:
    history = []
    for images in batches():
        loss = model(images)[:, :1].square().mean()
        history.append(loss)  # planted: graph


def outputs(model: Any) -> None:
    tensors = []
    train(model, lambda output, _: tensors.append(output))  # planted: outputs


def hook(model: Any) -> None:
    features = []

    def look(_module: Any, _inputs: Any, output: Any) -> None:
        features.append(output[:, :4].clone())  # planted: hook

    model[2].register_forward_hook(look)
    train(model)


def validation(model: Any) -> None:
    model.eval()
    total = 0.0
    for images in batches():
        total += model(images).abs().mean()  # planted: validation


class Cached:
    """A dataset that keeps each image, in every worker, for ever."""

    def __init__(self) -> None:
        self.decoded: dict[int, Any] = {}

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> Any:
        import torch

        if index not in self.decoded:
            self.decoded[index] = torch.rand(3, 300, 300)  # planted: worker
        return self.decoded[index]


def worker(model: Any, loader: Any) -> None:
    for _, images in zip(range(STEPS), loader, strict=False):
        model(images).mean().backward()
        model.zero_grad()


def growing(step: int) -> int:
    return 96 + 4 * step


def varying(step: int) -> int:
    return 64 + 32 * (step * 7 % 11)


def small(_step: int) -> int:
    return 64


def averaged(model: Any) -> None:
    import torch

    mean = copy.deepcopy(model)

    @torch.no_grad()
    def update(*_: Any) -> None:
        for a, b in zip(mean.parameters(), model.parameters(), strict=True):
            a.data = 0.99 * a + 0.01 * b

    train(model, update)


def validated(model: Any) -> None:
    import torch

    step = 0

    def every_ten(*_: Any) -> None:
        nonlocal step
        step += 1
        if step % 10 == 0:
            model.eval()
            with torch.no_grad():
                pages = [model(images) for images in batches(count=6)]
            torch.cat(pages).mean()
            model.train()

    train(model, every_ten)


def bounded(model: Any) -> None:
    cache: collections.OrderedDict[int, Any] = collections.OrderedDict()

    def keep(output: Any, _loss: Any) -> None:
        cache[len(cache)] = output.detach()
        if len(cache) > 40:
            cache.popitem(last=False)

    train(model, keep)


def memoised(model: Any) -> None:
    import torch

    @functools.lru_cache(maxsize=64)
    def page(number: int) -> Any:
        return torch.full((1, 300, 300), float(number))

    numbers = iter(range(1000))
    train(model, lambda *_: page(next(numbers)))


def last_ones(model: Any) -> None:
    last: collections.deque[Any] = collections.deque(maxlen=32)
    train(model, lambda output, _: last.append(output.detach()))


def losses(model: Any) -> None:
    history: list[float] = []
    train(model, lambda _, loss: history.append(loss.item()))


def words(model: Any) -> None:
    vocabulary: dict[str, int] = {}
    train(model, lambda *_: vocabulary.setdefault(f"word {len(vocabulary) % 30}", len(vocabulary)))


def accumulated(model: Any) -> None:
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number, images in enumerate(batches()):
        model(images).square().mean().backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def clipped(model: Any) -> None:
    import torch

    train(model, lambda *_: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))


def checkpointed(model: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    for images in batches():
        checkpoint(model, images, use_reentrant=False).square().mean().backward()
        model.zero_grad()


def late_state(model: Any) -> None:
    import torch

    optimizers = [torch.optim.Adam([p]) for p in model.parameters()]
    for number, images in enumerate(batches()):
        model(images).square().mean().backward()
        for optimizer in optimizers[: 1 + number // 8]:  # the state of each is made when it steps first
            optimizer.step()
        model.zero_grad()


def cleared(model: Any) -> None:
    pages: list[Any] = []

    def keep(output: Any, _loss: Any) -> None:
        pages.append(output.detach())
        if len(pages) >= 8:
            pages.clear()

    train(model, keep)


def plotted(model: Any) -> None:
    from matplotlib import pyplot

    pyplot.switch_backend("Agg")

    def draw(output: Any, _loss: Any) -> None:
        figure = pyplot.figure(figsize=(2, 2))
        figure.add_subplot().imshow(output[0, 0].detach())
        pyplot.close(figure)

    train(model, draw)


def deep(model: Any) -> None:
    import torch

    double = torch.nn.Sequential(*[copy.deepcopy(model[:3]).append(torch.nn.Conv2d(8, 3, 1)) for _ in range(3)])
    double.load_state_dict(double.state_dict())
    model[0].register_forward_hook(lambda module, inputs, output: double(inputs[0][..., :64, :64]).mean().backward())
    train(model)


def scaled(model: Any) -> None:
    import torch

    for images in batches():
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(images).float().square().mean()
        loss.backward()
        model.zero_grad()


CLEAN: dict[str, Callable[[Any], None]] = {
    "plain": train,
    "growing sizes": functools.partial(train, size=growing),
    "varying sizes": functools.partial(train, size=varying),
    "small": functools.partial(train, size=small),
    **{f.__name__: f for f in (averaged, validated, bounded, memoised, last_ones, losses, words, accumulated)},
    **{f.__name__: f for f in (clipped, checkpointed, late_state, cleared, plotted, deep, scaled)},
}


def once(name: str) -> dict[str, Any]:
    """Run one program in this process and return the reported leaks."""
    import torch
    from torch.utils.data import DataLoader

    from ocrlab.debug.instruments.leaks import leak_watch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = net()
    data: Any = Cached()
    loader = DataLoader(data, batch_size=2, num_workers=1) if name in ("worker", "workers") else None
    with leak_watch.watch(model, loader) as watch:
        if name == "workers":
            data.__class__ = type("Plain", (Cached,), {"__getitem__": lambda self, index: torch.rand(3, 300, 300)})
            worker(model, loader)
        elif loader is not None:
            worker(model, loader)
        else:
            ({f.__name__: f for f in (graph, outputs, hook, validation)} | CLEAN)[name](model)
    leaks = [{"line": leak.location, "text": str(leak), "after": leak.steps} for leak in watch.leaks]
    return {"name": name, "leaks": leaks, "looked": watch.census_seconds, "notes": watch.notes}


def planted(name: str) -> str:
    """Return the place of a planted line."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    number = next(n for n, text in enumerate(lines, 1) if text.endswith(f"# planted: {name}"))
    return f"{Path(__file__)}:{number}"


def in_child(name: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", __file__, "--once", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        return {"name": name, "leaks": [{"line": "", "text": done.stderr[-500:], "after": 0}]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def leak_rows() -> list[tuple[str, str, str]]:
    """Return how many planted leaks were found on their line, and how many clean programs were accused."""
    right, alarms = [], []
    for name in LEAKS:
        result = in_child(name)
        here = [leak["line"] for leak in result["leaks"]] == [planted(name)] and result["leaks"][0][
            "after"
        ] <= STEPS + 1
        right.append(here)
        print(f"{name:15} {'found' if here else 'MISSED'}  {[leak['text'] for leak in result['leaks']]}", flush=True)
    for name in (*CLEAN, "workers"):
        result = in_child(name)
        alarms.append(bool(result["leaks"]))
        print(
            f"{name:15} {'ALARM' if result['leaks'] else 'clean'}  {result.get('notes', '')}{result['leaks'] or ''}",
            flush=True,
        )
    return [
        ("planted leaks found with their line", f"{sum(right)} of {len(right)}", MUST["leaks"]),
        ("false alarms on clean runs", f"{sum(alarms)} of {len(alarms)}", MUST["alarms"]),
    ]


def cost_row(steps: int = 16) -> tuple[str, str, str]:
    """Return what the step-level monitor costs, of a training step of the default detector.

    Its own seconds are taken, and those of the steps around them: a difference of two trainings would be noise.
    """
    import torch

    from ocrlab.config.schema import Config
    from ocrlab.debug.instruments.leaks import leak_watch
    from ocrlab.model.dbnet import Detector

    config = Config()
    torch.set_num_threads(2)
    model = Detector(config.encoder, config.decoder, config.width)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    images = torch.rand(config.batch_size, 3, config.crop, config.crop) * 255
    with leak_watch.watch(model) as watch:
        began = time.perf_counter()
        for _ in range(steps):
            sum(part.float().square().mean() for part in model(images)).backward()
            optimizer.step()
            optimizer.zero_grad()
        whole = time.perf_counter() - began
    share = watch.cost / (whole - watch.census_seconds)
    looked = f"; censuses {watch.census_seconds:.1f} s" if watch.census_seconds else ""
    cost = f"{100 * share:.3f} % ({1e6 * watch.cost / watch.ticks:.0f} us of {1e3 * whole / steps:.0f} ms{looked})"
    return "cost of the step-level monitor", cost, MUST["cost"]


def rows() -> list[tuple[str, str, str]]:
    """Return every row of this file."""
    return [*leak_rows(), cost_row()]


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--once", help="run one program in this process and print the reported leaks as JSON")
    parser.add_argument("--cost", action="store_true", help="the cost alone")
    words = parser.parse_args()
    if words.once:
        print(json.dumps(once(words.once)))
        return
    for what, measured, must in [cost_row()] if words.cost else rows():
        print(f"{what:40} {measured:32} must: {must}")


if __name__ == "__main__":
    main()
