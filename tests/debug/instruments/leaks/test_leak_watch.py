"""Leaks: each kind is found with its line, bounded growth is not reported, and nothing is left behind."""

import collections
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ocrlab.debug.instruments.leaks import leak_watch
from ocrlab.debug.instruments.leaks.object_census import SEES_GRAPHS
from ocrlab.debug.instruments.leaks.referrers import HolderSearch

SIZE = 256  # an output is 1 MiB
STORED: dict[str, Tensor] = {}


@pytest.fixture(autouse=True)
def swept() -> None:
    """What earlier tests have left shall not go in the middle of a test: memory that shrinks hides what grows."""
    gc.collect()


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1))


def images() -> Iterator[Tensor]:
    for _ in range(45):
        yield torch.ones(1, 3, SIZE, SIZE)


def train(model: nn.Module, after: Callable[[Tensor], Any]) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(45):
        output = model(torch.ones(1, 3, SIZE, SIZE))
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        after(output)


def line_of(mark: str) -> int:
    """Return the line of this file that ends in a mark."""
    with open(__file__, encoding="utf-8") as file:
        return next(n for n, text in enumerate(file, 1) if text.rstrip().endswith(f"# leaks: {mark}"))


graphs = pytest.mark.skipif(not SEES_GRAPHS, reason="this torch shows no saved tensor without unpacking it")


def only(watch: leak_watch.LeakWatch, mark: str, kind: str) -> Any:
    """Return the one leak that was found, if it is the one on the marked line."""
    assert [leak.location for leak in watch.leaks] == [f"{__file__}:{line_of(mark)}"], watch.finding()
    assert watch.leaks[0].kind == kind
    assert watch.leaks[0].code.endswith(f"# leaks: {mark}")
    return watch.leaks[0]


def test_a_list_of_outputs() -> None:
    model, outputs = net(), []

    def keep(output: Tensor) -> None:
        outputs.append(output)  # leaks: list

    with leak_watch.watch(model) as watch:
        train(model, keep)
    leak = only(watch, "list", "tensors")
    assert leak.mib_per_step == pytest.approx(1.0, abs=0.05)
    assert leak.steps <= 50
    assert "outputs" in leak.holder
    assert "detach" in leak.fix
    assert not model._forward_pre_hooks
    assert sys.gettrace() is None


@graphs
def test_a_loss_with_its_graph() -> None:
    model, total = net(), torch.zeros(())
    with leak_watch.watch(model) as watch:
        for batch in images():
            total = total + model(batch).square().mean()  # leaks: graph
    leak = only(watch, "graph", "graph")
    assert leak.holder == "a local variable of test_a_loss_with_its_graph()"
    assert leak.mib_per_step > 1


@graphs
def test_a_validation_without_no_grad() -> None:
    model, total = net().eval(), torch.zeros(())
    with leak_watch.watch(model) as watch:
        for batch in images():
            total += model(batch).square().mean()  # leaks: validation
    assert "no_grad" in only(watch, "validation", "evaluation").fix


@graphs
def test_a_model_that_is_called_twice_a_step_and_leaks_once() -> None:
    model, total = net(), torch.zeros(())

    def look(_output: Tensor) -> None:
        nonlocal total
        total = total + model(torch.ones(1, 3, SIZE, SIZE)).mean()  # leaks: twice

    with leak_watch.watch(model) as watch:
        train(model, look)
    assert watch.ticks == 90
    leak = only(watch, "twice", "graph")
    assert leak.mib_per_step == pytest.approx(2.75, abs=0.6)  # what the ReLU and the convolutions keep, of one call
    with leak_watch.watch(model) as watch:
        train(model, lambda _: model(torch.ones(1, 3, SIZE, SIZE)))
    assert watch.leaks == []


@pytest.mark.slow
def test_images_that_are_cached_on_the_host() -> None:
    model, cache = net(), {}

    def keep(_output: Tensor) -> None:
        cache[len(cache)] = np.full((1024, 1024), len(cache), dtype=np.uint8)  # leaks: images

    with leak_watch.watch(model) as watch:
        train(model, keep)
    assert only(watch, "images", "objects").mib_per_step == pytest.approx(1.0, abs=0.1)


class Cached(Dataset[Tensor]):
    """Keeps every image it has made, in each worker."""

    def __init__(self) -> None:
        self.cache: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return 240

    def __getitem__(self, index: int) -> Tensor:
        if index not in self.cache:
            self.cache[index] = torch.ones(3, 300, 300) * index  # leaks: worker
        return self.cache[index]


def test_a_cache_in_loader_workers() -> None:
    loader = DataLoader(Cached(), batch_size=2, num_workers=1)
    model = nn.Conv2d(3, 4, 5)
    with leak_watch.watch(model, loader) as watch:
        for batch in loader:
            model(batch).mean().backward()
            model.zero_grad()
    assert "loader workers" in only(watch, "worker", "worker").holder
    assert loader.worker_init_fn is None


@pytest.mark.parametrize("most", [0, 100])
def test_no_alarm_where_nothing_leaks(most: int) -> None:
    model, last = net(), collections.deque(maxlen=most)
    with leak_watch.watch(model) as watch:
        train(model, lambda output: last.append(output.detach()))
    assert watch.leaks == [], watch.finding()
    assert str(watch) == "\n".join([watch.finding(), *watch.notes])


class Owner:
    registry: ClassVar[list[Tensor]] = []

    def __init__(self) -> None:
        self.boxes = {"deep": [[torch.ones(3)]]}


def test_what_a_module_a_class_an_instance_and_a_closure_hold_has_a_name() -> None:
    owner, captured = Owner(), [torch.ones(3)]
    Owner.registry.append(torch.ones(3))
    STORED["x"] = torch.ones(3)
    search = HolderSearch()

    def name(thing: Tensor) -> str:
        holder = search.holder(thing)
        return holder.text if holder else ""

    def closure() -> list[Tensor]:
        return captured

    assert name(owner.boxes["deep"][0][0]) == "`boxes` of Owner"
    assert name(Owner.registry[0]) == "`registry` of Owner"
    assert name(STORED["x"]).startswith("`STORED` of module")
    assert name(closure()[0]).startswith("`captured`, which ")


def test_local_variables_are_not_read_and_their_growth_is_found_in_the_source() -> None:
    outputs, losses, steps, last = [], torch.zeros((), requires_grad=True).exp(), 0, collections.deque(maxlen=2)
    for _ in range(3):
        steps += len(outputs)
        losses = losses + torch.ones(())  # leaks: local
        outputs.append(torch.ones(2))  # leaks: local list
        last.append(torch.ones(3))
    search = HolderSearch()
    for holder, mark in ((search.local_holder(None), "local"), (search.holder(outputs[0]), "local list")):
        assert holder is not None and holder.text.startswith("a local variable of test_local_variables"), mark
        assert holder.line.number == line_of(mark)
    bounded = search.holder(last[0])
    assert bounded is not None and bounded.bounded == "its length is 2 at most"
    assert search.holder(losses) is None and search.holder(torch.ones(3)) is None, "the values are not read"


@pytest.mark.slow
def test_figures_that_stay_open() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    model = net()

    def draw(output: Tensor) -> None:
        figure = pyplot.figure(figsize=(6, 4))  # leaks: figures
        figure.add_subplot().imshow(output[0, 0].detach())
        figure.canvas.draw()

    with leak_watch.watch(model) as watch:
        train(model, draw)
    pyplot.close("all")
    assert "open figures" in only(watch, "figures", "figures").holder
