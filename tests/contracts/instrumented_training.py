"""A small training under one instrument after another, each compared before and after: `python FILE WORKERS NAME...`.

Read by `test_instruments_leave_nothing.py`.
"""

import atexit
import contextlib
import faulthandler
import gc
import importlib
import itertools
import logging
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
import tracemalloc
import warnings

import torch
import torch.nn.functional
import torch.utils.data
from torch import nn
from torch.utils import _python_dispatch
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

import ocrlab
from ocrlab.debug.instruments.dataloader import loader_watch
from ocrlab.debug.instruments.layers import layer_watch
from ocrlab.debug.instruments.leaks import leak_watch
from ocrlab.debug.instruments.memory import memory_watch
from ocrlab.debug.instruments.profiler import step_profiler

WORKERS, INSTRUMENTS = int(sys.argv[1]), sys.argv[2:]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.drop, self.last = nn.Dropout(0.1), nn.Linear(16, 3)

    def forward(self, x):
        return self.last(self.drop(self.norm(self.first(x)).relu()))


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
samples = TensorDataset(torch.randn(64, 8), torch.randint(3, (64,)))
source = DataLoader(
    ConcatDataset([Subset(samples, range(48))]), batch_size=8, shuffle=True, num_workers=WORKERS,
    persistent_workers=WORKERS > 0, multiprocessing_context="fork" if WORKERS else None,
)  # fmt: skip
batch = (samples.tensors[0][:16].clone(), samples.tensors[1][:16].clone())


def loss(net, inputs):
    return torch.nn.functional.cross_entropy(net(inputs[0]), inputs[1])


def batches():
    while True:
        yield from source


def train(steps, after=lambda: None):
    for _, batch_ in zip(range(steps), batches(), strict=False):
        optimizer.zero_grad()
        loss(model, batch_).backward()
        optimizer.step()
        after()


def names(thing):
    return {name: value for name, value in vars(thing).items() if callable(value)}


def hooks(thing):
    return {name: list(value) for name, value in vars(thing).items() if "hook" in name and isinstance(value, dict)}


MODULES = """
    builtins os shutil random signal time threading warnings gc tempfile multiprocessing numpy numpy.random torch
    torch.nn torch.nn.functional torch.nn.modules.module torch.nn.modules.dropout torch.optim torch.optim.optimizer
    torch.cuda torch.autograd torch.autograd.graph torch.utils.data torch.utils.data.dataloader
    torch.overrides torch.compiler torch.profiler
"""
KINDS = (nn.Module, nn.Linear, nn.Dropout, Net, torch.Tensor, nn.Parameter, torch.optim.Optimizer, torch.optim.AdamW)
KINDS += (DataLoader, Subset, ConcatDataset, TensorDataset, torch.autograd.Function)


def state():
    """Return everything that an instrument could leave behind, by name."""
    state = {f"names of {name}": names(importlib.import_module(name)) for name in MODULES.split()}
    state |= {f"names of class {kind.__name__}": names(kind) for kind in KINDS}
    return state | state_of_training() | state_of_python()


def state_of_training():
    state = {}
    parts = [*model.modules(), optimizer, source, source.dataset, source.dataset.datasets[0], samples]
    state["classes"] = [type(part) for part in parts]
    for number, part in enumerate(parts):
        attributes = {name: id(value) for name, value in vars(part).items() if name != "_iterator"}
        state[f"attributes of {number} {type(part).__name__}"] = attributes
        state[f"hooks of {number} {type(part).__name__}"] = hooks(part)
    if source._iterator is not None:
        state["iterator"] = (type(source._iterator), id(source._iterator._dataset), id(source._iterator._collate_fn))
    state["parameters"] = [
        (id(p), p.requires_grad, p._backward_hooks, p._post_accumulate_grad_hooks)
        for p in (*model.parameters(), *batch, *samples.tensors)
    ]
    state["global hooks"] = {**hooks(torch.nn.modules.module), **hooks(sys.modules["torch.optim.optimizer"])}
    state["modes of torch"] = (
        [*torch.overrides._get_current_function_mode_stack()],
        [*_python_dispatch._get_current_dispatch_mode_stack()],
        torch._C._autograd._top_saved_tensors_default_hooks(True),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_anomaly_enabled(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.autograd._profiler_enabled(),
        torch.is_autocast_enabled("cpu"),
        [module.training for module in model.modules()],
    )
    return state


def state_of_python():
    state = {}
    state["signals"] = {number: signal.getsignal(number) for number in signal.valid_signals()}
    state["signal mask"] = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    state["environment"] = dict(os.environ)
    state["tracing"] = (
        sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile(),
        tracemalloc.is_tracing(),
    )  # fmt: skip
    state["hooks of Python"] = (
        sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook, sys.breakpointhook,
        [*map(id, sys.meta_path)], [*sys.path], sys.stdout, sys.stderr, atexit._ncallbacks(),
    )  # fmt: skip
    state["warnings"] = [*warnings.filters]
    state["logging"] = (logging.root.level, [*logging.root.handlers], logging.root.manager.disable)
    state["garbage"] = (gc.isenabled(), gc.get_threshold(), gc.get_debug(), [*gc.callbacks])
    state["limits"] = (
        sys.getrecursionlimit(), sys.getswitchinterval(), faulthandler.is_enabled(), os.getcwd(),
        [resource.getrlimit(number) for number in range(16)],
    )  # fmt: skip
    state["threads"] = {thread.name for thread in threading.enumerate()}
    state["children"] = {process.pid for process in multiprocessing.active_children()}
    state["files"] = sorted(
        os.readlink(f"/proc/self/fd/{name}")
        for name in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{name}")
    )
    state["temporary files"] = sorted(os.listdir(tempfile.gettempdir()))
    return state


def use(name, last):
    """Train under an instrument; `last` is called in its last step."""
    count, grown = 0, []

    def step():
        nonlocal count
        count += 1
        if name == "leaks":
            grown.append(torch.ones(200_000))
        if name == "profile":
            records.step()
        if count == steps:
            last()

    steps = 40 if name == "leaks" else 5
    if name == "check":

        def checked(net, inputs):
            step()
            return loss(net, inputs)

        print(ocrlab.check_step(model, batch, checked, optimizer=optimizer))
        return
    watched = {
        "layers": lambda: layer_watch.watch(model, "*"),
        "loader": lambda: loader_watch.watch(source),
        "memory": lambda: memory_watch.watch(model, optimizer),
        "leaks": lambda: leak_watch.watch(model, source),
        "profile": lambda: step_profiler.steps(1, 2, model=model),
    }[name]
    with watched() as records:
        train(steps, step)
    if name == "leaks":
        assert records.leaks, "the closer look was taken"
    str(records)


def stop():
    raise KeyboardInterrupt


train(3)
str(torch.ones(1)), torch.compiler.set_stance("default")
torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]).__enter__().__exit__(None, None, None)
for name, way in itertools.product(INSTRUMENTS, (lambda: None, stop)):
    gc.collect()
    before = state()
    with contextlib.suppress(KeyboardInterrupt):
        use(name, way)
    gc.collect()
    after = state()
    changed = [part for part in before if after[part] != before[part]]
    for part in changed:
        print(f"changed by {name}:", part)
        old, new = before[part], after[part]
        if isinstance(old, dict) and isinstance(new, dict):
            old, new = (
                {key: values[key] for key in values if values[key] != other.get(key)}
                for values, other in ((old, new), (new, old))
            )
        print(" ", old, "\n ", new)
    assert not changed, changed
print("nothing is left")
