"""Stages: the top modules of a model, by the names that a person would use, on at most twenty hooks."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from ocrlab.debug.flight_record import ring_writer
from ocrlab.debug.recorder import rng_state
from ocrlab.debug.recorder.manual_loop import recording
from ocrlab.debug.recorder.module_stages import Stages, shared, top
from ocrlab.model.dbnet import Detector

needed = pytest.mark.skipif(
    rng_state.quick is None, reason="the recorder's part in C was not built: make setup, with cc"
)


def test_the_detectors_stages():
    names = [name for name, _ in top(Detector(width=32))]
    assert {"encoder.layer1", "encoder.layer4", "decoder.fusion", "head.probability", "head.threshold"} <= {*names}
    assert len(names) <= 18


def test_wrappers_are_looked_through_and_compiled_modules_are_not():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert [name for name, _ in top(nn.DataParallel(net))] == ["0", "1"]
    assert [name for name, _ in top(torch.compile(net))] == ["model"]
    assert [name for name, _ in top(nn.Linear(2, 2))] == ["model"]
    assert len(top(nn.Sequential(*[nn.Linear(1, 1) for _ in range(50)]))) == 18


def test_entering_a_stage_is_written_and_every_hook_leaves(tmp_path):
    writer = ring_writer.Writer(tmp_path / "ring-0-0.bin", slots=4)
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(3))
    stages = Stages(writer)
    stages.attach(net)
    assert len(stages.undo) <= 20
    writer.begin(ring_writer.Step(0, 0))
    stages.now.in_step = True
    with pytest.raises(RuntimeError):
        net(torch.ones(4, 2))
    now = ring_writer.read(tmp_path / "ring-0-0.bin").now
    assert (now.stage, now.phase) == ("1", "forward")
    stages.detach()
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._compiled_call_impl for m in net.modules())


def test_copies_and_pickles_of_a_model_are_not_listened_to(tmp_path):
    """An average of the weights is a copy; what it called would be the model that it was made of."""
    writer = ring_writer.Writer(tmp_path / "ring-0-0.bin", slots=4)
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    stages = Stages(writer)
    stages.attach(net)
    others = copy.deepcopy(net), copy.copy(net), pickle.loads(pickle.dumps(net))
    with torch.no_grad():
        net[0].weight.zero_()
        net[0].bias.fill_(5)
    assert not any(m._compiled_call_impl for other in (others[0], others[2]) for m in other.modules())
    assert others[1]._compiled_call_impl is None  # its layers are those of net
    assert (net(torch.ones(1, 2)) == 5).all() and not (others[0](torch.ones(1, 2)) == 5).all()
    stages.detach()


def test_a_compiled_model_holds_nothing_of_ours_and_stays_whole(tmp_path):
    """Compiled after it is listened to, as a whole and in place; nothing breaks the graph."""
    writer = ring_writer.Writer(tmp_path / "ring-0-0.bin", slots=4)
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    stages = Stages(writer)
    stages.attach(net)
    stages.now.in_step = True
    whole = torch.compile(net, backend="eager", fullgraph=True)
    whole(torch.ones(4, 2))
    net.compile(backend="eager", fullgraph=True)
    net(torch.ones(4, 2))
    ours = net._compiled_call_impl
    stages.detach()
    assert net._compiled_call_impl is ours, "what the user has compiled stays"
    assert not any(m._compiled_call_impl for m in net)


def test_what_is_compiled_already_is_listened_to_and_given_back(tmp_path):
    writer = ring_writer.Writer(tmp_path / "ring-0-0.bin", slots=4)
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    net[1].compile(backend="eager")
    compiled = net[1]._compiled_call_impl
    stages = Stages(writer)
    stages.attach(net)
    writer.begin(ring_writer.Step(0, 0))
    net(torch.ones(4, 2))
    assert ring_writer.read(tmp_path / "ring-0-0.bin").now.stage == "1"
    stages.detach()
    assert net[1]._compiled_call_impl is compiled


@pytest.mark.parametrize("kind", ["own call", "compiled", "several cards"])
def test_where_a_module_is_not_called_in_the_usual_way_hooks_listen(tmp_path, monkeypatch, kind):
    class Own(nn.Linear):
        def __call__(self, *args):
            return super().__call__(*args) + 1

    writer = ring_writer.Writer(tmp_path / "ring-0-0.bin", slots=4)
    inner = Own(2, 2) if kind == "own call" else nn.Linear(2, 2)
    net = torch.compile(inner, backend="eager") if kind == "compiled" else nn.Sequential(inner, nn.ReLU())
    if kind == "several cards":  # DataParallel's replicas would call what the first card's module left
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    stages = Stages(writer)
    stages.attach(net)
    writer.begin(ring_writer.Step(0, 0))
    net(torch.ones(4, 2))
    assert ring_writer.read(tmp_path / "ring-0-0.bin").now.stage == ("model" if kind == "compiled" else "1")
    heard = [net if kind == "compiled" else net[0]]
    assert all(m._forward_pre_hooks for m in heard)
    stages.detach()
    assert not any(m._forward_pre_hooks or m._compiled_call_impl for m in net.modules())


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_scripted_model_takes_no_hooks_and_is_heard(tmp_path):
    writer = ring_writer.Writer(tmp_path / "ring-0-0.bin", slots=4)
    net = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    stages = Stages(writer)
    stages.attach(net)
    writer.begin(ring_writer.Step(0, 0))
    net(torch.ones(4, 2))
    assert ring_writer.read(tmp_path / "ring-0-0.bin").now.stage == "model"
    stages.detach()
    assert net._compiled_call_impl is None


class Up(nn.Module):
    def __init__(self, fails=False):
        super().__init__()
        self.stem, self.out, self.fails = nn.Linear(2, 2), nn.Linear(2, 2), fails

    def forward(self, x):
        x = self.stem(x)
        if self.fails:
            raise RuntimeError("in the second")
        return self.out(x)


class Judge(Up):
    pass


def test_all_of_several_models_are_heard_on_twenty_hooks_in_all(tmp_path):
    writer = ring_writer.Writer(tmp_path / "ring-0-0.bin", slots=4)
    generator, judge = Up(), Judge(fails=True)
    stages = Stages(writer)
    stages.attach(generator, judge)
    writer.begin(ring_writer.Step(0, 0))
    stages.now.in_step = True
    made = generator(torch.ones(4, 2))
    now = ring_writer.read(tmp_path / "ring-0-0.bin").now
    assert (now.stage, now.phase) == ("Up.out", "loss")
    with pytest.raises(RuntimeError, match="in the second"):
        judge(made)
    now = ring_writer.read(tmp_path / "ring-0-0.bin").now
    assert (now.stage, now.phase) == ("Judge.stem", "forward")
    assert stages.whole is generator
    stages.detach()
    assert not any(m._compiled_call_impl for net in (generator, judge) for m in net.modules())
    large = [Detector(width=32), Detector(width=32), nn.DataParallel(Up())]
    stages.attach(*large)
    assert 14 <= len(stages.undo) <= 20
    names = [name for name, _ in shared(large)]
    assert len(names) == 14 and len([name for name in names if name.startswith("Detector[1].")]) == 6
    assert "Up.stem" in names and "Detector[0].encoder" in names
    stages.attach(*[nn.Linear(1, 1) for _ in range(30)])
    assert len(stages.undo) <= 20
    stages.detach()


def test_a_part_that_two_models_have_is_heard_once():
    one, other = Up(), Judge()
    other.stem = one.stem
    assert [name for name, _ in shared([one, other])] == ["Up.stem", "Up.out", "Judge.out"]
    assert [name for name, _ in shared([one, nn.Linear(2, 2)])] == ["Up.stem", "Up.out", "Linear"]


def test_a_loop_that_ends_in_its_second_model_is_recorded_with_that_one_s_stage(tmp_path):
    generator, judge = Up(), Judge()
    optimizer = torch.optim.SGD([*generator.parameters(), *judge.parameters()], 0.1)
    with (
        pytest.raises(RuntimeError, match="in the second"),
        recording(tmp_path, [generator, judge], optimizer) as rec,
    ):
        for x in rec.batches([torch.ones(4, 2)] * 6):
            judge.fails = rec.micro == 4
            rec.loss(judge(generator(x)).mean()).backward()
            optimizer.step()
    found = ring_writer.read(ring_writer.find(tmp_path)[0])
    assert (found.now.micro, found.now.stage, found.now.phase) == (4, "Judge.stem", "forward")


@needed
@pytest.mark.parametrize("how", ["before", "after", "in place", "a function", "not looked at"])
def test_a_compiled_model_stays_whole_beside_stages_in_c(tmp_path, how):
    torch._dynamo.reset()  # other tests have compiled what calls a module as often as it may be
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    called = torch.compile(net, backend="eager", fullgraph=True) if how == "before" else net
    with recording(tmp_path, net, optimizer, snapshot_every=10**9) as rec:
        assert isinstance(net[0][0]._compiled_call_impl, rng_state.quick.Stage)
        if how == "not looked at":
            rec.tape.learning.close()
        if how in ("after", "not looked at"):
            called = torch.compile(net, backend="eager", fullgraph=True)
        elif how == "in place":
            net.compile(backend="eager", fullgraph=True)
        elif how == "a function":
            called = torch.compile(lambda x: net(x) * 2, backend="eager", fullgraph=True)
        for batch in rec.batches([torch.ones(2, 4)] * 70):
            rec.loss(called(batch).sum()).backward()
            optimizer.step()
    assert not any(isinstance(m._compiled_call_impl, rng_state.quick.Stage) for m in net.modules())


@needed
def test_a_stage_in_c_is_told_and_left_in_copies(tmp_path):
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen = []
    net[1][1].register_forward_hook(lambda *_: seen.append(ring_writer.read(ring_writer.find(tmp_path)[0]).now.stage))
    with recording(tmp_path, net, optimizer, snapshot_every=10**9) as rec:
        for batch in rec.batches([torch.ones(1, 2)] * 3):
            rec.loss(net(batch).sum()).backward()
            optimizer.step()
        copied = copy.deepcopy(net)
        assert copied[0].__dict__.get("_compiled_call_impl") is None
        stage = net[0]._compiled_call_impl
        with pytest.raises(TypeError):
            type(stage)()
    assert seen[:3] == ["1.1"] * 3
    assert torch.equal(stage(torch.ones(1, 2)), net[0](torch.ones(1, 2))), "the ring is closed, and it still calls"
    with pytest.raises(ValueError, match="a stage is"):
        rec.tape.quick.stage(None, 1)
