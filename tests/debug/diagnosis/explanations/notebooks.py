"""Notebooks that fail: their cells, in which order they were run, and words of a good explanation and its fix."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any


def run(text: str, order: str) -> list[dict[str, Any]]:
    """Run cells, separated by `---` lines, in an order such as `1 2 3 2 4`, and return them as a notebook has them.

    A cell with a line `~~~` was edited: its first run has the text before the line, later runs have the text after it.
    """
    versions = [cell.strip("\n").split("\n~~~\n") for cell in text.split("\n---\n")]
    cells: list[dict[str, Any]] = [{"cell_type": "code", "execution_count": None, "outputs": []} for _ in versions]
    names: dict[str, Any] = {"__name__": "__main__"}
    sources: dict[str, str] = {}
    for count, number in enumerate(map(int, order.split()), 1):
        source = versions[number - 1].pop(0) if len(versions[number - 1]) > 1 else versions[number - 1][0]
        cells[number - 1] |= {"execution_count": count, "source": source, "outputs": []}
        sources[f"cell-{count}"] = source
        first, _, rest = source.partition("\n")
        if first.startswith("%%writefile"):
            Path(first.split()[-1]).write_text(rest)
            continue
        try:
            exec(compile(source, f"cell-{count}", "exec"), names)
        except (Exception, SystemExit) as error:
            output = {"output_type": "error", "ename": type(error).__name__, "evalue": str(error)}
            cells[number - 1]["outputs"] = [output | {"traceback": _traceback(error, sources)}]
    for cell, texts in zip(cells, versions, strict=True):
        cell.setdefault("source", texts[0])
    return cells


def _traceback(error: BaseException, sources: dict[str, str]) -> list[str]:
    """Return a traceback as IPython prints it."""
    parts = [f"{type(error).__name__}{'':20}Traceback (most recent call last)"]
    for frame in traceback.extract_tb(sys.exc_info()[2])[1:]:
        where = f"Cell In[{frame.filename[5:]}], line {frame.lineno}"
        if frame.filename not in sources:
            where = f"File {Path(frame.filename)}:{frame.lineno}, in {frame.name}()"
        elif frame.name != "<module>":
            where += f", in {frame.name}()"
        line = (
            sources[frame.filename].splitlines()[(frame.lineno or 1) - 1] if frame.filename in sources else frame.line
        )
        parts.append(f"{where}\n----> {frame.lineno} {line}\n")
    return [*parts, f"{type(error).__name__}: {error}"]


# name -> (order of the runs, cells, words of the explanation or its fix)
NOTEBOOKS: dict[str, tuple[str, str, list[str]]] = {
    "deleted_to_free_memory": (
        "1 2 3",
        "teacher = [1, 2]\n---\nstudent = sum(teacher)\ndel teacher\n---\nprint(teacher)",
        ["cell 2 (`student = sum(teacher)`) deletes it again: `del teacher`", "out of cell 2"],
    ),
    "a_table_that_a_function_reads": (
        "1 2 3 4 5 6 2 4",
        'import torch\ntexts = ["ab", "abc"]\n---\n'
        "table = {c: i for i, c in enumerate(sorted(set(''.join(texts))))}\n"
        "ids = [torch.tensor([table[c] for c in t]) for t in texts]\n---\n"
        "emb = torch.nn.Embedding(len(table), 4)\n---\n"
        "def run():\n    for x in ids:\n        y = emb(x)\n    return y\nrun()\n---\n"
        "texts.append('xyz')\n---\nlen(texts)",
        [
            "`emb` was made in cell 3 (In[3]) with an earlier value of `table`",
            "had added to `texts`",
            "Run cell 3 again",
        ],
    ),
    "a_column_that_is_dropped_again": (
        "1 2 2",
        "import pandas as pd\ntable = pd.DataFrame({'a': [1], 'b': [2]})\n---\ntable.drop(columns='b', inplace=True)",
        ["drops the column ['b']", "after a first run of its cell the column is already dropped", "this one once"],
    ),
    "a_size_of_before": (
        "1 2 4 3 4",
        "import torch\ncols = torch.rand(8, 3)\n---\nnet = torch.nn.Linear(cols.shape[1], 2)\n---\n"
        "cols = torch.cat([cols, cols], 1)\n---\ndef mean():\n    scores = net(cols)\n    return scores.mean()\nmean()",
        ["`net` was made in cell 2 (In[2]) with an earlier value of `cols`", "now gets 6"],
    ),
    "a_loop_that_takes_a_name": (
        "1 2 3",
        "import torch\nx = torch.rand(9, 4)\ny = torch.randint(0, 2, (9,))\nparts = [(x[:2], y[:2])]\n---\n"
        "for a, y in parts:\n    print(a.mean())\n---\ntorch.nn.functional.cross_entropy(torch.nn.Linear(4, 2)(x), y)",
        ["`for a, y in parts` of cell 2 has overwritten the `y` of cell 1", "other names", "run cell 1 again"],
    ),
    "changed_folder": (
        "1 2 3",
        "import os\nhome = os.getcwd()\n---\nos.chdir(home)\n---\nopen('data/tongue.csv')",
        ["`os.chdir(home)` (cell 2, line 1) has changed that"],
    ),
    "arguments_of_the_kernel": (
        "1 2",
        """import argparse
import sys
sys.argv = ["ipykernel_launcher.py", "-f", "kernel.json"]
---
args = argparse.ArgumentParser(exit_on_error=False).parse_args()""",
        ["reads `sys.argv`", "parse_args([])"],
    ),
    "table_of_an_earlier_vocabulary": (
        "1 2 1 3",
        """words = globals().get("words", ["a"]) + ["b", "c"]
---
import torch
embed = torch.nn.EmbeddingBag(len(words), 4)
---
embed(torch.tensor([len(words) - 1]), torch.tensor([0]))""",
        ["cell 2", "In[2]"],
    ),
    "pop_config": (
        "1 2 3 2",
        """config = {"lr": 0.1, "name": "resnet", "classes": 4}
---
name = config.pop("name")
print(name, config)
---
import torch
torch.nn.Linear(2, config["classes"])""",
        ["removes `name` from `config`", "after cell 1", "In[2]", "Run cell 1 again"],
    ),
    "unsqueeze_twice": (
        "1 2 3 2 3",
        """import torch
from torch import nn
waves = torch.randn(8, 100)
net = nn.Sequential(nn.Conv1d(1, 4, 5), nn.ReLU())
---
waves = waves.unsqueeze(1)
---
net(waves).shape""",
        ["`waves = waves.unsqueeze(1)`", "changes the shape of `waves`", "Run cell 1 again, cell 2 once"],
    ),
    "labels_minus_one": (
        "1 2 3 2 3",
        """import torch
from torch import nn
labels = torch.tensor([1, 2, 3, 2])
out = torch.randn(4, 3)
---
labels -= 1
---
nn.functional.cross_entropy(out, labels)""",
        ["`labels -= 1`", "cell 2 last ran as In[4]", "Run cell 1 again"],
    ),
    "losses_appended": (
        "1 2 3 4 3 4",
        """import numpy as np, pandas as pd
rows, names = [], ["a", "b", "c"]
---
scores = np.arange(3.0)
---
for score in scores:
    rows.append({"score": score})
---
report = pd.DataFrame(rows)
report["name"] = names""",
        ["`rows.append", "6 = 2 x 3", "Run cell 1 again for a fresh `rows`"],
    ),
    "features_concat": (
        "1 2 3 4 3 4",
        """import torch
from torch import nn
x = torch.randn(10, 4)
---
model = nn.Linear(6, 2)
---
x = torch.cat([x, torch.ones(10, 2)], 1)
---
model(x)""",
        ["changes the shape of `x`", "In[3] to In[4]"],
    ),
    "stale_image_size": (
        "1 2 3 4 2 4",
        """import torch
from torch import nn
---
SIZE = 28
~~~
SIZE = 32
---
net = nn.Sequential(nn.Flatten(), nn.Linear(SIZE * SIZE, 10))
---
images = torch.rand(16, 1, SIZE, SIZE)
logits = net(images)""",
        [
            "`net` was made in cell 3 (In[3])",
            "`SIZE = 32`",
            "takes 784 features, and now gets 1024",
            "Run cell 3 again",
        ],
    ),
    "stale_split": (
        "1 2 3 4 2 4",
        """import torch
from torch import nn
x, y = torch.randn(100, 3), torch.randint(0, 2, (100,))
---
keep = torch.arange(80)
~~~
keep = torch.arange(60)
---
train_y = y[keep]
---
out = nn.Linear(3, 2)(x[keep])
loss = nn.functional.cross_entropy(out, train_y)""",
        ["`train_y` was made in cell 3", "earlier value of `keep`"],
    ),
    "csv_reader": (
        "1 2 3",
        """import csv
rows = csv.reader(["a,1", "b,2"])
---
for row in rows:
    print(row)
---
best = max(float(value) for _, value in rows)""",
        ["`rows` is a csv reader", "`for row in rows` (cell 2, line 1)", 'rows = list(csv.reader(["a,1", "b,2"]))'],
    ),
    "parameters_generator": (
        "1 2 3",
        """import torch
from torch import nn
net = nn.Linear(3, 2)
params = net.parameters()
---
print(len(list(params)))
---
opt = torch.optim.SGD(params, lr=0.1)""",
        ["`params` is a generator", "cell 2, line 1", "params = list(net.parameters())"],
    ),
    "next_cell_again": (
        "1 2 3 3 3",
        """loader = [1, 2]
it = iter(loader)
---
a = 1
---
b = next(it)""",
        ["`it` is an iterator", "in every run of the cell", "next(iter(loader))"],
    ),
    "class_again_assert": (
        "1 2 1 3",
        """class Config:
    lr = 0.1
---
settings = Config()
---
assert isinstance(settings, Config)""",
        ["`settings` was made by `Config()` in cell 2 (In[2])", "`isinstance` is false", "run cell 2 again"],
    ),
    "sched_again": (
        "1 2 3 3",
        """import torch
w = torch.nn.Linear(2, 1)
---
opt = torch.optim.SGD(w.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=4)
---
for step in range(4):
    opt.step()
    schedule.step()""",
        ["plans 4 steps", "earlier run of this cell", "Run cell 2 again"],
    ),
}
# the same with words that would combine what does not belong together
NOTEBOOK_FALSE_FRIENDS: dict[str, tuple[str, str, list[str]]] = {
    "friend_typo": (
        "1 2 3 2 4",
        """import pandas as pd
df = pd.DataFrame({"age": [1.0, None], "income": [3.0, 4.0]})
---
df = df.dropna()
---
print(df.shape)
---
df["Age"]""",
        ["each time"],
    ),
    "friend_shape": (
        "1 2 3 2 4",
        """import torch
from torch import nn
x = torch.randn(10, 4)
---
x = (x - x.mean(0)) / x.std(0)
---
net = nn.Linear(5, 2)
---
net(x)""",
        ["each time", "Run cell"],
    ),
    "friend_fresh": (
        "1 2 3 2 4",
        """import torch
from torch import nn
x = torch.randn(10, 4)
---
x = torch.randn(10, 4)
x = x.t()
---
net = nn.Linear(5, 2)
---
net(x)""",
        ["each time"],
    ),
    "sched_too_short": (
        "1 2 3",
        """import torch
w = torch.nn.Linear(2, 1)
---
opt = torch.optim.SGD(w.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=4)
---
for step in range(8):
    opt.step()
    schedule.step()""",
        ["earlier run of"],
    ),
}
