"""Passes over the batches of a loop, also where it is left or goes wrong."""

import gc
import itertools
import threading
import weakref

import pytest
import torch
from torch import nn

from ocrlab.debug.recorder.loop_recorder import recording
from tests.debug.recorder.recorded_runs import newest


@pytest.fixture
def loop(tmp_path):
    """A loop whose model is one weight."""
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording(tmp_path, net, optimizer, snapshot_every=10**9) as rec:
        rec.folder, rec.net, rec.optimizer = tmp_path, net, optimizer
        yield rec


def step(rec, batch, *, steps=True):
    rec.loss(rec.net(batch).sum()).backward()
    if steps:
        rec.optimizer.step()


def written(rec):
    return [(s.number, s.micro, s.epoch) for s in newest(rec.folder).steps]


def ones(count):
    return [torch.ones(1, 1)] * count


def test_the_micro_batches_of_a_step_share_its_number(loop):
    for number, batch in enumerate(loop.batches(ones(100))):
        step(loop, batch, steps=number % 4 == 3)
    assert written(loop) == [(number // 4, number, 0) for number in range(100)]
    assert loop.passes == [[100, 100]] and not loop.in_pass


def test_a_loop_that_is_left_is_gone_on_with(loop):
    for number, batch in enumerate(loop.batches(ones(100))):
        step(loop, batch)
        if number == 69:
            break
    assert loop.passes == [[70, 100]] and loop.in_pass
    for batch in itertools.islice(loop.batches(ones(100)), 5):
        step(loop, batch)
    gc.collect()
    assert written(loop)[68:] == [(number, number, 0) for number in range(68, 75)]
    for _ in loop.epochs(3):
        for batch in loop.batches(ones(2)):
            step(loop, batch)
    assert written(loop)[75:] == [(75 + at, 75 + at, at // 2) for at in range(6)]
    assert loop.micro == 80


def test_nothing_is_loaded_before_somebody_asks(loop):
    asked = []

    def batches():
        asked.append(1)
        yield from ones(2)

    class Lazy:
        def __iter__(self):
            return batches()

    walk = iter(loop.batches(Lazy()))
    assert not asked and loop.passes == []
    assert len(list(walk)) == 2 and asked == [1]
    assert next(walk, None) is None, "a walk that has ended stays there"
    assert loop.now.epoch == 1


def test_an_error_of_the_loader_is_the_programs_and_ends_the_walk(loop):
    def batches():
        yield from ones(70)
        raise OSError("no more pages")

    count = 0
    walk = iter(loop.batches(batches()))
    with pytest.raises(OSError, match="no more pages"):
        for batch in walk:
            step(loop, batch)
            count += 1
    assert count == 70 and next(walk, "ended") == "ended"
    assert loop.in_pass, "it did not come to its end"
    assert newest(loop.folder).now.phase == "data"


def test_a_walk_that_is_closed_gives_its_loader_back(loop):
    class Loader(list):
        pass

    loader = Loader(ones(90))
    walk = iter(loop.batches(loader))
    for _ in range(70):
        step(loop, next(walk))
    walk.close()
    assert next(walk, "ended") == "ended"
    assert loop.now.number == 70 and loop.now.clean
    reference = weakref.ref(loader)
    loop.step_recorder.loaders.clear()
    del loader, walk
    gc.collect()
    assert reference() is None


def test_a_walk_may_go_on_in_another_thread(loop):
    walk = iter(loop.batches(ones(80)))
    for _ in range(40):
        step(loop, next(walk))
    failed = []

    def rest():
        try:
            for batch in walk:
                step(loop, batch)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=rest)
    thread.start()
    thread.join()
    assert not failed and written(loop)[-1] == (79, 79, 0)


DATA = [torch.full((1, 1), float(i)) for i in range(3)]


def test_a_for_loop_continues_after_next_once(loop):
    batches = loop.batches(DATA)
    assert int(next(batches)) == 0
    assert [int(b) for b in batches] == [1, 2]
    assert [int(b) for b in batches] == [0, 1, 2]
    assert [int(next(batches)) for _ in DATA] == [0, 1, 2]
    assert next(batches, None) is None
    assert next(batches, None) is None
