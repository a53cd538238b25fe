"""Why a training crashed, hung, ran out of memory or learned nothing: record, replay, bisect, watch, diagnose.

Context managers around a running training, each removed when its block ends:

    watch_layers(model)             shapes, ranges, NaN, gradients and time of each module
    watch_dataloader(loader)        whether training waits for its data, and for which sample
    watch_memory(model, optimizer)  the peak of memory, by module
    watch_leaks(model)              what keeps memory from step to step, with its source line
    profile_steps()                 operators, and each line that waits for the device

Functions: `diagnose(path)` names the cause in a log, run folder or executed notebook and never imports torch;
`largest_batch(config)` finds the largest batch that fits, in child processes that may run out of memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ocrlab.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ocrlab.debug.diagnosis.classify import diagnose
    from ocrlab.debug.instruments.dataloader.loader_watch import watch as watch_dataloader
    from ocrlab.debug.instruments.layers.layer_watch import watch as watch_layers
    from ocrlab.debug.instruments.leaks.leak_watch import watch as watch_leaks
    from ocrlab.debug.instruments.memory.memory_watch import watch as watch_memory
    from ocrlab.debug.instruments.profiler.step_profiler import steps as profile_steps
    from ocrlab.debug.memory.largest_batch import largest_batch

__all__ = [
    "diagnose",
    "largest_batch",
    "profile_steps",
    "watch_dataloader",
    "watch_layers",
    "watch_leaks",
    "watch_memory",
]

INSTRUMENTS = "ocrlab.debug.instruments"

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "diagnose": "ocrlab.debug.diagnosis.classify",
        "largest_batch": "ocrlab.debug.memory.largest_batch",
        "profile_steps": f"{INSTRUMENTS}.profiler.step_profiler:steps",
        "watch_dataloader": f"{INSTRUMENTS}.dataloader.loader_watch:watch",
        "watch_layers": f"{INSTRUMENTS}.layers.layer_watch:watch",
        "watch_leaks": f"{INSTRUMENTS}.leaks.leak_watch:watch",
        "watch_memory": f"{INSTRUMENTS}.memory.memory_watch:watch",
    },
)
