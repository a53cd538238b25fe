"""The flight recorder: what it writes at each step so that a crash can be replayed.

loop_recorder.py          `ocrlab.record`, for a hand-written loop
lightning_callback.py     `ocrlab.Recorder`, for Lightning
recording.py              what both have in common: they record a training, or replay it
step_recorder.py          one training's record: both of them write through it

It hooks into

stage_hooks.py            the top modules of a model (forward pre-hooks): which stage was entered last
step_recorder.py          each optimizer (step hooks)
unmarked_loop_hooks.py    model and first optimizer of a loop that does not say where its steps begin
loader_recorder.py        the iterators of one DataLoader, through `instruments/dataloader/loader_proxy.py`
training_health/          parameters and outputs, for what the training learns
"""
