"""On a real device: the recorder makes no call that torch knows to wait for it, and finds what it finds on the CPU."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import ocrlab
from ocrlab.debug.flight_record import training_findings

pytestmark = [pytest.mark.gpu]


@pytest.mark.parametrize("is_moved_before", [False, True], ids=["batch on the host", "batch on the device"])
@pytest.mark.parametrize("fault", ["", "shuffled", "collapsed", "scales"])
def test_a_classifier_with_validation_is_recorded_without_a_wait(tmp_path, fault, is_moved_before):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 4))
    if fault == "collapsed":
        model[3] = nn.Sequential(nn.Linear(32, 1), nn.LayerNorm(1), nn.Linear(1, 4))
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    inputs = torch.randn(640, 8)
    classes = inputs[:, :4].argmax(1)
    if fault == "shuffled":
        classes = classes[torch.randperm(640)]
    data = TensorDataset(*(t.cuda() if is_moved_before else t for t in (inputs, classes)))
    loader = DataLoader(data, 32, shuffle=True, pin_memory=not is_moved_before)
    if is_moved_before:  # indexing of single samples is torch's own affair
        batches = [data[first : first + 32] for first in range(0, 640, 32)]
    try:
        with ocrlab.record(tmp_path, model, optimizer, snapshot_every=10**9) as rec:
            for epoch in rec.epochs(10):
                model.train()
                for number, (x, y) in enumerate(rec.batches(batches if is_moved_before else loader)):
                    if epoch or number:  # the first snapshot is waited for
                        torch.cuda.set_sync_debug_mode("error")
                    loss = functional.cross_entropy(
                        model(x.to("cuda", non_blocking=True)), y.to("cuda", non_blocking=True)
                    )
                    rec.loss(loss).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                model.eval()
                with rec.validating(), torch.no_grad():
                    for x, _ in batches if is_moved_before else loader:
                        x = x.to("cuda", non_blocking=True)
                        model(x * 50 + 120 if fault == "scales" else x)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    log = tmp_path / "flight" / "ocrlab-errors.log"
    assert not log.exists(), log.read_text(encoding="utf-8")
    text = "\n".join(training_findings.read(tmp_path) or [])
    words = {"shuffled": "one answer for all samples", "collapsed": "the same answer", "scales": "other numbers"}
    assert words.get(fault, "") in text
    assert fault or text == ""
