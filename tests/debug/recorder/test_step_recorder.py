"""What both ways of recording share: losses of a device, dead CUDA contexts, kept batches, walks, whole states."""

import contextlib
import os
import sys
import types
from functools import partial

import pytest
import torch
from torch import nn

from ocrlab.debug.recorder import sample_recorder
from ocrlab.debug.recorder.loop_recorder import recording
from ocrlab.debug.recorder.step_recorder import StepRecorder
from tests.debug.recorder.recorded_runs import newest


class Event:
    """Stands for torch.cuda.Event: `passed` and `error` are what the device would say."""

    passed = True
    error: Exception | None = None

    def record(self) -> None:
        """Do nothing: there is no stream."""

    def query(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.passed

    def synchronize(self) -> None:
        self.query()
        Event.passed = True


@pytest.fixture
def device(monkeypatch):
    """Let torch's CUDA calls do nothing on a CPU; returns the devices that were made current."""
    entered, empty = [], torch.empty
    monkeypatch.setattr(Event, "passed", True)
    monkeypatch.setattr(Event, "error", None)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", lambda d: (entered.append(d), contextlib.nullcontext())[1])
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **k: empty(*a, **k))
    return entered


def losses(recorder):
    return [step.loss for step in newest(recorder.folder).steps]


def begin(recorder, micro):
    recorder.begin(number=micro, micro=micro, epoch=0, origin=sample_recorder.BatchOrigin())


def test_a_loss_on_a_device_is_read_when_it_has_arrived(tmp_path, device):
    recorder = StepRecorder(tmp_path, "loop")
    begin(recorder, 0)
    Event.passed = False
    recorder.transfer.send(recorder.micro, torch.ones(1), 0.5)  # of shape (1,), as DataParallel gives it
    begin(recorder, 1)
    assert recorder.on and losses(recorder) == [None, None]
    assert device == [torch.device("cpu")], "the event belongs on the stream of the loss's own device"
    Event.passed = True
    begin(recorder, 2)
    assert losses(recorder) == [0.5, None, None]
    recorder.finish()


ENDED = "DataLoader worker (pid 7) exited unexpectedly with exit code 3."


@pytest.mark.parametrize("where", ["begin", "loss", "snapshot", "monitor"])
def test_that_a_worker_ended_is_the_programs_to_know_wherever_it_comes_up(tmp_path, monkeypatch, where):
    """torch's signal handler raises it in whatever runs; an error of ocrlab does not reach the program."""
    net = nn.Linear(2, 2)
    errors = iter([RuntimeError("ours"), RuntimeError(ENDED)])

    def interrupted(*_args, **_kwargs):
        raise next(errors)

    for wanted in (False, True):
        with recording(tmp_path, net, torch.optim.SGD(net.parameters(), 0.1)) as rec:
            target = {
                "begin": rec.step_recorder.writer,
                "loss": rec.step_recorder.writer,
                "snapshot": rec.step_recorder.snapshots,
            }
            owner = target.get(where, rec.step_recorder.monitor)
            monkeypatch.setattr(owner, {"snapshot": "take", "monitor": "_look_in"}.get(where, where), interrupted)
            with pytest.raises(RuntimeError, match="pid 7") if wanted else contextlib.nullcontext():
                for batch in rec.batches([torch.ones(1, 2)]):
                    rec.loss(net(batch).sum())
            rec.step_recorder.failed(RuntimeError(ENDED))
            assert where in ("begin", "monitor") or not wanted or newest(tmp_path).now.phase == "data"


def test_what_belongs_to_a_step_is_in_the_record_of_its_first_micro_batch(tmp_path):
    """The samples and the loss of each micro-batch are there, also where the process dies in the third one."""
    recorder = StepRecorder(tmp_path, "loop")
    recorder.optimizers = [torch.optim.SGD([torch.ones(1)], lr=0.1)]
    for micro in range(7):
        origin = sample_recorder.BatchOrigin(
            {"kind": "map", "indices": f"[{micro}]"}, samples=[f"page {micro}"], position=micro
        )
        recorder.begin(micro // 4, micro, 0, origin)
        recorder.loss(micro / 10)
    steps = newest(recorder.folder).steps  # while it goes on
    assert [(s.number, s.micro, s.samples, s.loss) for s in steps] == [
        (micro // 4, micro, [f"page {micro}"], micro / 10) for micro in range(7)
    ]
    assert all(s.lr == 0.1 and s.memory == steps[0].memory for s in steps), "they are those of the step"
    recorder.finish()


def test_in_a_graph_that_is_captured_no_loss_is_sent(tmp_path, device, monkeypatch):
    recorder = StepRecorder(tmp_path, "loop")
    begin(recorder, 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    recorder.transfer.send(recorder.micro, torch.ones(()), 1.0)
    assert recorder.on and not recorder.transfer
    recorder.finish()


@pytest.mark.parametrize("how", ["reported", "found in a step", "found at the end"])
def test_in_a_dead_context_nothing_is_asked_or_freed(tmp_path, device, how, capsys):
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    recorder = StepRecorder(tmp_path, "loop")
    begin(recorder, 0)
    recorder.transfer.send(recorder.micro, torch.ones(()), 1.0)
    loss_buffer = recorder.transfer.buffer
    recorder.snapshots.buffers["w"] = buffer = torch.zeros(2)
    recorder.snapshots.pending = {}, 0.0, [Event()]
    before = sys.getrefcount(buffer)
    Event.error = error
    if how == "reported":
        recorder.failed(error)
    elif how == "found in a step":
        begin(recorder, 1)
    recorder.finish()
    assert not recorder.cuda and not recorder.transfer and recorder.snapshots.pending is None
    assert sys.getrefcount(buffer) == before + 1
    del recorder
    assert loss_buffer[0] == 1
    err, log = capsys.readouterr().err, tmp_path / "flight" / "ocrlab-errors.log"
    assert "illegal" not in err, "it is the program's error, which the program gets, too"
    assert err.count("the CUDA context is dead") == (how == "found in a step")
    assert (log.exists() and "illegal" in log.read_text()) == (how != "reported")


class Calls:
    """Stands for torch.cuda: counts each function that is called, and answers as a machine with a GPU in use."""

    def __init__(self, monkeypatch):
        self.answers = []
        for name in [name for name in dir(torch.cuda) if not name.startswith("_")]:
            original = getattr(torch.cuda, name)
            if not isinstance(original, type | types.ModuleType) and callable(original):
                monkeypatch.setattr(torch.cuda, name, partial(self.answer, name))
        for name in ("Event", "device", "Stream"):
            monkeypatch.setattr(torch.cuda, name, partial(self.answer, name))

    def answer(self, name, *_args, **_kwargs):
        self.answers.append(name)
        if name == "Event":
            return Event()
        if name == "device":
            return contextlib.nullcontext()
        answers = {"is_available": True, "is_initialized": True, "is_current_stream_capturing": False}
        answers |= {"memory_stats": {}, "get_rng_state": torch.zeros(16, dtype=torch.uint8), "device_count": 1}
        return answers.get(name, 0)


class OnDevice(torch.Tensor):
    """A tensor that says that it lies on a device."""

    is_cuda = True


DEAD = "CUDA error: an illegal memory access was encountered"


@pytest.mark.parametrize("error", [torch.AcceleratorError(DEAD), RuntimeError(DEAD)])
def test_after_a_sticky_error_no_function_of_cuda_is_called(tmp_path, monkeypatch, error):
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **k: empty(*a, **k))
    cuda = Calls(monkeypatch)
    recorder = StepRecorder(tmp_path, "loop")
    recorder.hook_stages(net)
    recorder.optimizers = [optimizer]
    recorder.monitor_training(net)

    def step(micro):
        begin(recorder, micro)
        loss = net(torch.ones(1, 2)).sum()
        recorder.loss(loss.detach().as_subclass(OnDevice))
        recorder.phase("backward")
        loss.backward()
        recorder.before_step(optimizer, (optimizer,), {})
        recorder.snapshot(micro, lambda: {"w": torch.ones(2).as_subclass(OnDevice)})
        recorder.phase("data")

    step(0)
    assert {"is_initialized", "get_rng_state", "Event"} <= set(cuda.answers), "with a living context they are asked"
    assert recorder.on and recorder.transfer and recorder.monitor is not None
    recorder.failed(error)
    cuda.answers.clear()
    step(1)
    recorder.monitor.validate(True)
    recorder.validate(0, [torch.ones(1)], sample_recorder.BatchOrigin())
    recorder.failed(error)
    recorder.finish()
    assert cuda.answers == []
    assert [record.micro for record in newest(recorder.folder).steps] == [0, 1], "the record goes on"


def test_a_sharded_model_is_recorded_without_snapshots(tmp_path, capsys):
    class FullyShardedDataParallel(nn.Linear):
        def state_dict(self, *_args, **_kwargs):
            pytest.fail("one rank alone would wait for the others")

    model = nn.Sequential(FullyShardedDataParallel(2, 2))
    with recording(tmp_path, model) as rec:
        for batch in rec.batches([torch.ones(1, 2)]):
            rec.loss(model(batch).sum())
    assert "no snapshots with FullyShardedDataParallel" in capsys.readouterr().err
    assert losses(rec.step_recorder) != [] and not list(rec.step_recorder.folder.glob("snapshot-*"))


def test_a_fork_silences_every_tape_and_a_new_tape_registers_nothing(tmp_path, monkeypatch):
    """What is registered for a fork is never taken back: once a recording, a long search would keep thousands."""
    monkeypatch.setattr(os, "register_at_fork", lambda **_: pytest.fail("registered again"))
    tapes = [StepRecorder(tmp_path / name, "loop") for name in "ab"]
    try:
        pid = os.fork()
        if pid == 0:
            os._exit(sum(recorder.on for recorder in tapes))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert all(recorder.on for recorder in tapes)
    finally:
        for recorder in tapes:
            recorder.finish()


def test_a_forked_child_that_calls_the_model_moves_nothing_in_its_parents_record(tmp_path):
    """The ring is shared with it; forked in the middle of a step, its model is still listened to."""
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with recording(tmp_path, net) as rec:
        for batch in rec.batches([torch.ones(1, 2)]):
            net(batch)
            before = newest(tmp_path).now
            pid = os.fork()
            if pid == 0:
                with contextlib.suppress(RuntimeError):
                    net(torch.ones(1, 5))  # fails in the first stage, and would stay in "forward"
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            now = newest(tmp_path).now
            assert (before.phase, before.stage) == (now.phase, now.stage) == ("loss", "1")


def test_a_step_with_a_closure_is_recorded_after_it_ran(tmp_path, capsys):
    """Before it there are none: that must not be reported as a step without gradients. Nor may a hook remain."""
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with recording(tmp_path, net, optimizer) as rec:
        for batch in rec.batches([torch.ones(1, 2)] * 12):

            def closure(batch=batch):
                optimizer.zero_grad()
                output = net(batch)
                assert newest(tmp_path).now.phase in ("forward", "loss")
                loss = rec.loss(output.square().sum())
                loss.backward()
                return loss

            optimizer.step(closure)
            optimizer.zero_grad()
            assert rec.step_recorder.monitor.stats.steps == rec.micro + 1
            assert not optimizer._optimizer_step_post_hooks
        assert rec.step_recorder.monitor.stats.steps == 12 and rec.step_recorder.monitor.stats.bare == 0
    assert "found a gradient" not in capsys.readouterr().err
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks


def test_a_step_that_failed_leaves_no_hook_and_is_not_counted_twice(tmp_path):
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with recording(tmp_path, net, optimizer) as rec:
        for batch in rec.batches([torch.ones(1, 2)] * 4):
            with contextlib.suppress(ZeroDivisionError):
                optimizer.step(lambda: 1 / 0)
            rec.loss(net(batch).sum()).backward()
            optimizer.step()
        assert rec.step_recorder.monitor.stats.steps == 4
        optimizer.step(lambda: torch.ones(()))
        assert not optimizer._optimizer_step_post_hooks
    assert not optimizer._optimizer_step_post_hooks
