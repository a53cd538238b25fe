"""Stages: the top modules of a model, by the names that a person would use, on at most twenty hooks."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

from ocrlab.debug.flight_record import ring_format, ring_reader, ring_writer
from ocrlab.debug.recorder.loop_recorder import recording
from ocrlab.debug.recorder.stage_hooks import StageHooks, stages_of_models, top_modules
from ocrlab.model.dbnet import Detector


class Watched:
    """The stages of some models in a ring of their own, in the middle of step 0."""

    def __init__(self, folder, *models):
        self.path = folder / "ring-0-0.bin"
        writer = ring_writer.Writer(self.path, slots=4)
        self.stages = StageHooks(writer)
        self.stages.attach(*models)
        writer.begin(ring_format.Step(0, 0))
        self.stages.now.in_step = True

    @property
    def place(self):
        now = ring_reader.read_ring(self.path).now
        return now.stage, now.phase


def hooked(*models):
    return any(m._forward_hooks or m._forward_pre_hooks for model in models for m in model.modules())


def test_wrappers_are_looked_through_and_compiled_modules_are_not():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert [name for name, _ in top_modules(nn.DataParallel(net))] == ["0", "1"]
    assert [name for name, _ in top_modules(torch.compile(net))] == ["model"]
    assert [name for name, _ in top_modules(nn.Linear(2, 2))] == ["model"]
    assert len(top_modules(nn.Sequential(*[nn.Linear(1, 1) for _ in range(50)]))) == 18


def test_entering_a_stage_is_written_and_every_hook_leaves(tmp_path):
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(3))
    watched = Watched(tmp_path, net)
    assert len(watched.stages.handles) <= 20
    with pytest.raises(RuntimeError):
        net(torch.ones(4, 2))
    assert watched.place == ("1", "forward")
    watched.stages.detach()
    assert not hooked(net)


LOADS = "import io, sys, torch; net = torch.load(io.BytesIO(sys.stdin.buffer.read()), weights_only=False); "
LOADS += "net(torch.ones(1, 2)); sys.exit(any(name.startswith('ocrlab') for name in sys.modules))"


def test_copies_and_pickles_of_a_model_are_not_listened_to(tmp_path):
    """An average of the weights is a copy; a whole model that was saved is loaded where there is no ocrlab."""
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    watched, file = Watched(tmp_path, net), io.BytesIO()
    torch.save(net, file)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        other(torch.ones(1, 2))
        assert watched.place[0] == ""
    done = subprocess.run([sys.executable, "-c", LOADS], input=file.getvalue(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    shallow = copy.copy(net)
    watched.stages.detach()
    assert not hooked(shallow)


@pytest.mark.parametrize("kind", ["own call", "compiled", "compiled in place"])
def test_modules_called_through_forward_or_compile_keep_their_stages(tmp_path, kind):
    class Own(nn.Linear):
        def __call__(self, *args):
            return super().__call__(*args) + 1

    inner = Own(2, 2) if kind == "own call" else nn.Linear(2, 2)
    net = torch.compile(inner, backend="eager") if kind == "compiled" else nn.Sequential(inner, nn.ReLU())
    if kind == "compiled in place":
        net[1].compile(backend="eager")
    watched = Watched(tmp_path, net)
    net(torch.ones(4, 2))
    expected = {"compiled": "model", "own call": "1", "compiled in place": "01"}  # the compiled part may run as it is
    assert watched.place[0] in expected[kind]
    watched.stages.detach()
    assert not hooked(net)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_scripted_model_takes_no_hooks_and_is_recorded_without_stages(tmp_path):
    net = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    watched = Watched(tmp_path, net)
    net(torch.ones(4, 2))
    assert watched.place == ("", "forward")


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


def test_several_models_share_twenty_hooks(tmp_path):
    generator, judge = Up(), Judge(fails=True)
    watched = Watched(tmp_path, generator, judge)
    stages = watched.stages
    image = generator(torch.ones(4, 2))
    assert watched.place == ("Up.out", "loss")
    with pytest.raises(RuntimeError, match="in the second"):
        judge(image)
    assert watched.place == ("Judge.stem", "forward")
    stages.detach()
    assert not hooked(generator, judge)
    large = [Detector(width=32), Detector(width=32), nn.DataParallel(Up())]
    stages.attach(*large)
    assert 14 <= len(stages.handles) <= 20
    names = [name for name, _ in stages_of_models(large)]
    assert len(names) == 14 and len([name for name in names if name.startswith("Detector[1].")]) == 6
    assert "Up.stem" in names and "Detector[0].encoder" in names
    stages.attach(*[nn.Linear(1, 1) for _ in range(30)])
    assert len(stages.handles) <= 20
    stages.detach()


@pytest.mark.parametrize("how", ["before", "after", "in place", "a function", "not looked at"])
def test_a_compiled_model_stays_whole_while_it_is_recorded(tmp_path, how):
    torch._dynamo.reset()  # other tests have compiled what calls a module as often as it may be
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    called = torch.compile(net, backend="eager", fullgraph=True) if how == "before" else net
    with recording(tmp_path, net, optimizer, snapshot_every=10**9) as rec:
        if how == "not looked at":
            rec.step_recorder.monitor.close()
        if how in ("after", "not looked at"):
            called = torch.compile(net, backend="eager", fullgraph=True)
        elif how == "in place":
            net.compile(backend="eager", fullgraph=True)
        elif how == "a function":
            called = torch.compile(lambda x: net(x) * 2, backend="eager", fullgraph=True)
        for batch in rec.batches([torch.ones(2, 4)] * 70):
            rec.loss(called(batch).sum()).backward()
            optimizer.step()
    assert not hooked(net)
