"""Progress lines of a log: now and then, every validation, every warning."""

import io

from rich.console import Console
from rich.progress import Progress

from ocrlab.cli import progress


def test_a_log_gets_few_lines(capsys):
    with progress.training_progress() as show:
        for step in range(1, 101):
            show({"kind": "train", "step": step, "total": 100, "loss": 0.5})
        show({"kind": "validate", "step": 100, "total": 100, "hmean@0.5": 0.25})
        show({"kind": "warning", "text": "[bold] is not markup"})
        show({"kind": "start"})
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines() == [
        "training loss 0.500: 1/100", "training loss 0.500: 100/100", "training hmean@0.5 0.250: 100/100",
        "[bold] is not markup",
    ]  # fmt: skip


def test_a_terminal_gets_a_single_bar_with_the_last_figures():
    file = io.StringIO()
    with Progress(
        "{task.description} {task.completed}", console=Console(file=file, force_terminal=True, width=200)
    ) as bar:
        show = progress._bar(bar)
        show({"kind": "train", "step": 5, "total": 100, "loss": 0.5})
        show({"kind": "validate", "step": 5, "total": 100, "hmean@0.5": 0.25})
        show({"kind": "warning", "text": "[/] careful"})
        show({"kind": "measure", "step": 1, "total": 4})
        show({"kind": "end", "step": 9, "total": 100})
        training, measuring = bar.tasks
    assert training.description == "training loss 0.500 hmean@0.5 0.250"
    assert measuring.description == "measuring"
    assert (training.completed, training.total, measuring.completed, measuring.total) == (5, 100, 1, 4)
    assert "[/] careful" in file.getvalue()
