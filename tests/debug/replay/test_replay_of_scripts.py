"""A script without a DataLoader, as nanoGPT's train.py is: recorded with two lines, it dies, and is replayed."""

import pytest

from ocrlab.debug.replay.replay_job import replay
from ocrlab.errors import ConfigError
from tests.debug.replay.test_replay_job import make_run, recorded

SCRIPT = """
import io, sys
import torch
from torch import nn
import ocrlab

what, out_dir = sys.argv[1:]
torch.manual_seed(1337)
data = {split: torch.randint(0, 7, (2000,)) for split in ("train", "val")}
iter_num = 0

class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.drop, self.head = nn.Embedding(7, 16), nn.Dropout(0.1), nn.Linear(16, 7)
    def forward(self, x, y):
        logits = self.head(self.drop(self.embed(x)))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())

def get_batch(split):
    ix = torch.randint(len(data[split]) - 9, (4,))
    x = torch.stack([data[split][i : i + 8] for i in ix])
    y = torch.stack([data[split][i + 1 : i + 9] for i in ix])
    if what == split and iter_num == (33 if split == "train" else 40):
        x[1, 3] = 9
    return x, y

@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = {}
    for split in ("train", "val"):
        losses[split] = [model(*get_batch(split))[1].item() for _ in range(2)]
    if what == "metric" and iter_num == 40:
        losses["val"][2]
    model.train()
    return losses

model = Letters()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
rec = ocrlab.record(out_dir, model, optimizer)
X, Y = get_batch("train")
while True:
    if iter_num % 20 == 0:
        losses = estimate_loss()
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        buffer.seek(0)
        model.load_state_dict(torch.load(buffer))
    logits, loss = model(X, Y)
    X, Y = get_batch("train")
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > 60:
        break
"""

STEPS = """
import sys
import torch
from torch import nn
import ocrlab

torch.manual_seed(1)
model = nn.Sequential(nn.Embedding(7, 16), nn.Dropout(0.1), nn.Linear(16, 7))
rec = ocrlab.record(sys.argv[2], model, snapshot_every=20)
for number in rec.steps(80):
    tokens = torch.randint(0, 7, (4, 8))
    if number == 66:
        tokens[1, 3] = 9
    loss = rec.loss(nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten() % 7))
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
    model.zero_grad()
"""


@pytest.mark.parametrize(
    ("what", "step", "phase"), [pytest.param("train", 34, "forward", marks=pytest.mark.slow), ("val", 40, "validation")]
)
def test_a_token_out_of_range_is_named_in_training_and_in_evaluation(tmp_path, what, step, phase):
    answer = replay(recorded(tmp_path, what, text=SCRIPT))
    fault = answer.record["fault"]
    assert f"first fault at step {step}, {phase}, `embed` (Embedding 7->16" in answer.sentence
    assert (fault["path"], fault["op"], fault["phase"]) == ("embed", "aten::embedding", phase)
    assert (fault["kind"], fault["value"], fault["allowed"]) == ("index", "9", "0 to 6")
    assert fault["line"].startswith(str(tmp_path / "train.py:")) and fault["line"].endswith(" forward")
    assert answer.record["equal"] is True, "the losses that the model returned are those of the run"


@pytest.mark.slow
def test_an_error_that_nobody_catches_in_an_evaluation_is_named_with_its_line(tmp_path) -> None:
    answer = replay(recorded(tmp_path, "metric", text=SCRIPT))
    fault = answer.record["fault"]
    assert (fault["step"], fault["phase"], fault["kind"]) == (40, "validation", "exception"), answer.sentence
    assert "IndexError: list index out of range" in answer.sentence
    assert "train.py:" in fault["line"] and fault["line"].endswith("estimate_loss")
    assert "the process ended itself" not in answer.sentence


@pytest.mark.slow
def test_a_loop_over_steps_is_replayed_from_a_snapshot(tmp_path) -> None:
    answer = replay(recorded(tmp_path, "", text=STEPS))
    fault = answer.record["fault"]
    assert (fault["step"], fault["op"], fault["value"]) == (66, "aten::embedding", "9"), answer.sentence
    steps = answer.record["cells"][0]["steps"]
    assert 20 <= steps[0]["number"] <= fault["step"] and all(step["equal"] for step in steps)


def test_a_script_that_takes_longer_than_the_timeout_is_answered_with_what_would_help(tmp_path) -> None:
    run = make_run(tmp_path / "run", from_start=True, cwd=str(tmp_path), time=0.0)
    with pytest.raises(ConfigError, match=r"rec\.steps\(n\).*extra=") as refused:
        replay(run, timeout=1)
    assert "--timeout 63" in str(refused.value) and "runs from its beginning" in str(refused.value)


SWALLOWS = """
import sys
import torch
from torch import nn
import ocrlab

class Table(nn.Module):
    is_dead = False
    def forward(self, x):
        Table.is_dead |= bool((x > 9).any())
        if Table.is_dead:  # as on a card: every later call fails, too
            raise RuntimeError("CUDA error: device-side assert triggered")
        return x

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(2, 2), Table(), nn.Linear(2, 1))
batches = [torch.rand(3, 2) for _ in range(6)]
batches[3][1] = 1e6
with ocrlab.record(sys.argv[2], model) as rec:
    failed = 0
    for x in rec.batches(batches):
        try:
            rec.loss(model(x).sum()).backward()
        except RuntimeError:
            failed += 1
            if failed > int(sys.argv[1]):
                raise
"""


def test_a_sticky_error_that_a_loop_swallows_is_the_fault_of_the_step_that_had_it(tmp_path) -> None:
    answer = replay(recorded(tmp_path, "1", text=SWALLOWS))
    fault = answer.record["fault"]
    assert (fault["step"], fault["path"], fault["kind"]) == (3, "1", "exception")
    assert fault["swallowed"] and fault["names"] == ["sample 1 of the batch"]
    assert "device-side assert triggered; the program continued after it; " in answer.sentence
