"""No error of the recorder reaches the training; each is printed in one line, and written with its traceback."""

import subprocess
import sys

import torch
from torch import nn

from ocrlab.debug.flight_record import ring_writer
from ocrlab.debug.recorder.loop_recorder import recording
from ocrlab.debug.recorder.sample_recorder import SampleRecorder, StatusLocation
from ocrlab.run_folder import fail_safe


def test_gradients_of_each_sample_by_vmap_are_not_disturbed(tmp_path, capsys):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def loss(weights, x, y):
        return nn.functional.cross_entropy(torch.func.functional_call(net, weights, (x[None],)), y[None])

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    with recording(tmp_path, net, optimizer) as rec:
        for x, y in rec.batches([(torch.randn(8, 4), torch.randint(0, 2, (8,)))] * 3):
            for name, gradient in each(dict(net.named_parameters()), x, y).items():
                net.get_parameter(name).grad = gradient.mean(0)
            optimizer.step()
    assert "no longer" not in capsys.readouterr().err


def test_an_error_of_the_recorder_is_in_a_private_log_and_the_training_goes_on(tmp_path, monkeypatch, capsys):
    def broken(*_):
        raise KeyError("of the recorder")

    monkeypatch.setattr(ring_writer.Writer, "loss", broken)
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    steps = 0
    with recording(tmp_path, net, optimizer) as rec:
        for batch in rec.batches([torch.ones(1, 2)] * 4):
            rec.loss(net(batch).sum()).backward()
            optimizer.step()
            steps += 1
    log = tmp_path / "flight" / fail_safe.NAME
    text = log.read_text()
    assert steps == 4 and log.stat().st_mode & 0o777 == 0o600
    assert text.count("KeyError: 'of the recorder'") == 2 and "Traceback" in text and "in broken" in text
    stderr_lines = [line for line in capsys.readouterr().err.splitlines() if "off for the rest" in line]
    assert stderr_lines == [
        "ocrlab: flight recorder: off for the rest of this run; training continues: KeyError: 'of the recorder'"
    ]


def test_a_sample_that_cannot_be_noted_is_loaded(tmp_path, capsys):
    """The page of a worker lies on a disk that has become full, say."""
    (tmp_path / "flight").mkdir()
    looked = SampleRecorder(list(range(8)), StatusLocation(tmp_path / "flight"), 0)
    looked.open()
    looked.page.page.close()
    assert [looked.load_batch([1, 2]), looked.load_batch([3])] == [[1, 2], [3]]
    assert capsys.readouterr().err.count("samples are no longer noted: ValueError") == 1
    assert "Traceback" in (tmp_path / "flight" / fail_safe.NAME).read_text()


def test_a_recorded_program_imports_nothing_of_the_replay() -> None:
    code = "import sys, ocrlab.debug.recorder.loop_recorder\nprint([n for n in sys.modules if 'debug.replay' in n])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
