"""Checkpoints that do not fit the model, the optimizer or the machine."""

from __future__ import annotations

import ast

from ocrlab.debug.diagnosis.explanations.explanation import Explanation, changed, count, explains, listed, replaced
from ocrlab.debug.diagnosis.explanations.failure import Failure, Value
from ocrlab.debug.diagnosis.explanations.messages import Fact, state_dict_keys
from ocrlab.debug.diagnosis.explanations.origins import Origin, failing_call, origin, through_functions
from ocrlab.debug.diagnosis.explanations.source import Source, argument, constant, dotted, last_name

WRAPPERS = {
    "module.": ("`nn.DataParallel` or `DistributedDataParallel`", "model.module.state_dict()"),
    "_orig_mod.": ("`torch.compile`", "model._orig_mod.state_dict()"),
    "model.": (
        "a module that holds the network as `self.model` (a LightningModule, a wrapper)",
        "wrapper.model.state_dict()",
    ),
    "net.": ("a module that holds the network as `self.net`", "wrapper.net.state_dict()"),
    "backbone.": ("a module that holds the network as `self.backbone`", "wrapper.backbone.state_dict()"),
    "encoder.": ("a module that holds the network as `self.encoder`", "wrapper.encoder.state_dict()"),
    "_fsdp_wrapped_module.": ("FSDP", "FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT)"),
}
WEIGHTS = ("state_dict", "model_state_dict", "model", "net", "weights", "network")
HEADS = ("fc", "head", "classifier", "heads", "out", "output", "linear", "last", "decoder", "cls")


def prefix_of(longer: list[str], shorter: list[str]) -> str:
    """Return what stands before every key of one list that is in the other."""
    wanted = set(shorter)
    for key in longer[:3]:
        parts = key.split(".")
        for cut in range(1, len(parts)):
            prefix = ".".join(parts[:cut]) + "."
            if key.removeprefix(prefix) in wanted and sum(
                k.startswith(prefix) and k.removeprefix(prefix) in wanted for k in longer
            ) >= max(1, len(longer) * 3 // 4):
                return prefix
    return ""


@explains("state_dict")
def keys_do_not_fit(fact: Fact, failure: Failure) -> Explanation | None:
    """A state dict whose names or sizes are not those of the model."""
    missing, unexpected, mismatched = state_dict_keys(failure.message)
    place = failing_call(failure, failure.frame, "load_state_dict")
    model = place[0].code(place[1].func.value) if place and isinstance(place[1].func, ast.Attribute) else "model"
    state = place[0].code(place[1].args[0]) if place and place[1].args else "state"
    saved_prefix, model_prefix = prefix_of(unexpected, missing), prefix_of(missing, unexpected)
    if saved_prefix:
        wrapper, save = WRAPPERS.get(
            saved_prefix, (f"a module that holds the network as `self.{saved_prefix.rstrip('.')}`", "")
        )
        text = (
            f"The saved weights have the names of the model with `{saved_prefix}` in front "
            f"({count(len(unexpected), 'key')}): they were saved from {wrapper}, and `{model}` is the bare "
            "model."
        )
        after = f"{{k.removeprefix({saved_prefix!r}): v for k, v in {state}.items()}}"
        edit = (
            replaced(
                failure.source(failure.frame),
                failure.frame.line,
                f"load_state_dict({state}",
                f"load_state_dict({after}",
            )
            if failure.frame
            else None
        )
        return Explanation(
            text,
            f"Strip the prefix when loading: `{model}.load_state_dict({after})`"
            + (f", or save without it: `{save}`." if save else "."),
            edit,
        )
    if model_prefix:
        wrapper = WRAPPERS.get(
            model_prefix, (f"a module that holds the network as `self.{model_prefix.rstrip('.')}`", "")
        )[0]
        inner = model_prefix.rstrip(".")
        text = (
            f"The model's names begin with `{model_prefix}`, those of the saved weights do not "
            f"({count(len(unexpected), 'key')}): `{model}` is {wrapper}, and the weights were saved from the "
            "bare model."
        )
        return Explanation(
            text,
            f"Load before the model is wrapped, or into the inner one: `{model}.{inner}.load_state_dict({state})`.",
        )
    entry = _weights_entry(failure, model, unexpected)
    if missing and (entry or any(key in unexpected for key in ("epoch", "optimizer", "optimizer_state_dict"))):
        key, save = entry or ("state_dict", "")
        text = (
            f"`{state}` is a whole checkpoint, a dict with the entries {listed([f'`{k}`' for k in unexpected], 6)}; "
            f"the weights are one of them{save}."
        )
        return Explanation(
            text,
            f"`{model}.load_state_dict({state}[{key!r}])`.",
            replaced(
                failure.source(failure.frame),
                failure.frame.line,
                f"load_state_dict({state})",
                f"load_state_dict({state}[{key!r}])",
            )
            if failure.frame
            else None,
        )
    if mismatched:
        heads = [entry for entry in mismatched if any(part in HEADS for part in entry[0].split("."))] or mismatched
        key, saved, now = heads[0]
        text = (
            f"{count(len(mismatched), 'parameter')} of the checkpoint "
            f"{'has' if len(mismatched) == 1 else 'have'} another size: `{key}` was saved as ({saved}) and the "
            f"model has ({now})."
        )
        if place is not None and constant(argument(place[1], 1, "strict")) is False:
            text += " `strict=False` only allows missing and unexpected keys, not keys of another size."
        first = [part.split(",")[0].strip() for part in (saved, now)]
        table = any(word in heads[0][0].lower() for word in ("emb", "table", "token", "lookup", "vocab", "wte"))
        if table and first[0] != first[1]:
            return Explanation(
                f"{text} It is an embedding: the vocabulary had {first[0]} entries when the checkpoint was saved, "
                "and this "
                f"program builds one of {first[1]}.",
                "Save the vocabulary with the checkpoint and load both; a vocabulary that is built anew from other "
                "data "
                "gives the ids other meanings, even where the size fits.",
            )
        if len(mismatched) <= 4 and not missing and first[0] != first[1]:
            text += (
                f" It is the last layer: the checkpoint was trained for {first[0]} outputs, this model has {first[1]}."
            )
            names = listed([f"`{entry[0]}`" for entry in mismatched])
            if "." not in key:
                return Explanation(text, f"Build the model with {first[0]} outputs, load, and then replace the layer.")
            return Explanation(
                text,
                f"Build the model with {first[0]} outputs, load, and then replace the layer; or leave it out: "
                f"`state = {{k: v for k, v in {state}.items() if not "
                f"k.startswith({key.rpartition('.')[0]!r})}}` and `load_state_dict(state, strict=False)` "
                f"(leaves out {names}).",
            )
        return Explanation(
            f"{text} Checkpoint and model have another architecture or another width.",
            "Build the model with the settings of the training that saved the checkpoint.",
        )
    if missing and not unexpected:
        text = (
            f"The checkpoint lacks {count(len(missing), 'parameter')} of `{model}`: "
            f"{listed([f'`{k}`' for k in missing])}."
        )
        return Explanation(
            text,
            "If these layers are new, load with `strict=False` and check that only they are missing; otherwise "
            "build the model as it was when it was saved.",
        )
    if unexpected and not missing:
        text = (
            f"The checkpoint has {count(len(unexpected), 'parameter')} that `{model}` does not have: "
            f"{listed([f'`{k}`' for k in unexpected])}."
        )
        return Explanation(
            text,
            "Build the model with these layers, or drop the keys: `load_state_dict(state, strict=False)` ignores them.",
        )
    if missing and unexpected:
        text = (
            f"Checkpoint and `{model}` have different layers: the model's "
            f"{listed([f'`{k}`' for k in missing], 2)} and the checkpoint's "
            f"{listed([f'`{k}`' for k in unexpected], 2)} have no counterpart."
        )
        return Explanation(
            text,
            "Build the model with the class and the settings that the checkpoint was saved with, or rename the keys.",
        )
    return None


def _weights_entry(failure: Failure, model: str, keys: list[str]) -> tuple[str, str] | None:
    """Return the key under which a checkpoint has the model's weights, and which line saves them there."""
    entries: list[tuple[bool, str, str]] = []
    for source in failure.all_sources():
        for key, value in (entry for call in source.calls("save") for entry in _entries(failure, source, call)):
            code, other = source.code(value), any(word in key.lower() for word in ("opt", "sched", "scaler"))
            if key in keys and not other and code.endswith(".state_dict()"):
                entries.append((not code.startswith(f"{model}."), key, f"`{code}`, {source.place(value)}"))
    if entries:
        _, key, line = min(entries, key=lambda entry: entry[0])
        return key, f", under {key!r} ({line})"
    key = next((key for key in WEIGHTS if key in keys), "")
    return (key, "") if key else None


def state_dict_without_entry(failure: Failure, source: Source, node: ast.Subscript, key: str) -> Explanation | None:
    """Explain an entry of what is itself a state dict, or a parameter's name in a checkpoint with entries."""
    frame, name = failure.frame, source.code(node.value)
    value = failure.value(name)
    keys = [str(k) for k in value.keys or ()] if value is not None and value.kind == "container" else []
    if frame is None or value is None or not keys:
        return None
    entry = next((k for k in WEIGHTS if k in keys), "")
    if "." in key and entry:
        return Explanation(
            f"`{name}` ({frame.place}) is a whole checkpoint with the entries {listed([repr(k) for k in keys], 6)}; "
            f"{key!r} is the name of a parameter, and the weights are one of the entries.",
            f'Read it from the weights: `{name}["{entry}"]["{key}"]`.',
            replaced(source, frame.line, f"{name}[", f'{name}["{entry}"]['),
        )
    if "." in key or not set(value.types or ["?"]) <= {"Tensor", "Parameter"} or not any("." in k for k in keys):
        return None
    text = (
        f"`{name}` ({frame.place}) has no entry {key!r}: it is itself a state dict, whose keys are the names of "
        f"parameters and buffers ({listed([repr(k) for k in keys])})."
    )
    saves = [(s, c) for s in failure.all_sources() for c in s.calls("save") if dotted(c.func).startswith("torch.")]
    entries = [(s, c, dict(_entries(failure, s, c))) for s, c in saves]
    whole = next(((s, c) for s, c, saved in entries if key in saved), None)
    bare = [(s, c) for s, c, saved in entries if "" in saved and "state_dict" in s.code(saved[""])]
    weights = key in WEIGHTS or any(node in ast.walk(c) for c in source.calls("load_state_dict"))
    code = bare[0][0].code(bare[0][1].args[0]) if bare else "model.state_dict()"
    after = f'{{"{key}": {code}}}' if weights else f'{{"model": {code}, "{key}": ...}}'
    as_it_is = f"`load_state_dict({name})`" if weights else f"`{name}` holds the weights and nothing else"
    if bare:
        text += f" {listed([f'`{s.code(c)}` ({s.place(c)})' for s, c in bare], 2)} saves the bare state dict"
        other = (
            f", and `{whole[0].code(whole[1])}` ({whole[0].place(whole[1])}) a dict with that entry" if whole else ""
        )
        text += f"{other}."
    edit = replaced(source, frame.line, source.code(node), name) if weights and not whole else None
    if bare and whole and weights:
        edit = changed(bare[0][0], bare[0][1].args[0], after)
    first = "Save both files in the same form" if bare and whole else "Save it with that entry"
    return Explanation(
        text,
        f"Load it as it is: {as_it_is}; or save it with that entry: `torch.save({after}, ...)`."
        if weights and not whole
        else f"{first}: `torch.save({after}, ...)`; as it is, {'load it with ' if weights else ''}{as_it_is}.",
        edit,
    )


@explains("optimizer_groups")
def optimizer_groups_differ(fact: Fact, failure: Failure) -> Explanation | None:
    """An optimizer that was built with other parameter groups than the saved one."""
    frame = failure.in_library("load_state_dict", "optimizer.py")
    now = frame.values.get("groups") if frame else None
    saved = frame.values.get("saved_groups") if frame else None
    place = failing_call(failure, failure.frame, "load_state_dict")
    name = place[0].code(place[1].func.value) if place and isinstance(place[1].func, ast.Attribute) else "the optimizer"
    builds = [
        (source, call)
        for source in failure.all_sources()
        for call in source.calls("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adadelta")
    ]
    source = failure.source(failure.frame)
    function = source.function_at(failure.frame.line) if source and failure.frame else None
    owner = place[1].func.value if place and isinstance(place[1].func, ast.Attribute) else None
    definition = origin(failure, place[0], owner, failure.frame) if place and owner is not None else None
    here = next(((s, c) for s, c in builds if definition is not None and c is definition.node), None) or next(
        ((s, c) for s, c in builds if s is source and source is not None and source.function_at(c.lineno) is function),
        None,
    )
    other = next(((s, c) for s, c in builds if here is None or c is not here[1]), None)
    grouped = [
        len(call.args[0].elts)
        for _, call in builds
        if call.args and isinstance(call.args[0], ast.List) and call is not (here[1] if here else None)
    ]
    saved_count = saved.length if saved is not None else grouped[0] if grouped else None
    now_count = (
        now.length
        if now is not None
        else (
            len(here[1].args[0].elts)
            if here and here[1].args and isinstance(here[1].args[0], ast.List)
            else 1
            if here
            else None
        )
    )
    if "size of optimizer's group" in failure.message:
        text = f"`{name}` holds another number of parameters in a group than the saved optimizer."
        numbers = [_group_sizes(value) for value in (now, saved)]
        if all(numbers):
            text = (
                f"`{name}` holds {listed([str(n) for n in numbers[0]])} parameter tensors (by group), the saved "
                f"optimizer {listed([str(n) for n in numbers[1]])}: it was saved when other layers were trained."
            )
        filtered = next(((s, n) for s in failure.all_sources() for n in s.nodes if _sets_requires_grad(n)), None)
        text += (
            f" `{filtered[0].code(filtered[1])}` ({filtered[0].place(filtered[1])}) decides which layers are trained."
            if filtered
            else ""
        )
        return Explanation(
            text,
            "Build the optimizer from the same model (and the same frozen parameters) as when it was saved, or "
            "start with a fresh optimizer and load the weights only.",
        )
    if saved_count is None or now_count is None:
        return Explanation(
            f"The saved optimizer has another number of parameter groups than `{name}`.",
            "Build the optimizer with the same parameter groups as when it was saved, or start with a fresh one and "
            "load the weights only.",
        )
    text = (
        f"The checkpoint holds an optimizer with {count(saved_count, 'parameter group')}, but `{name}`"
        + (f" (`{here[0].code(here[1])}`, {here[0].place(here[1])})" if here else "")
        + f" has {now_count}."
    )
    if other is not None and other[1].args and isinstance(other[1].args[0], ast.List):
        text += f" The groups were made at {other[0].place(other[1])}."
    return Explanation(
        text,
        "Build the optimizer with the same parameter groups before `load_state_dict`, or start with a fresh "
        "optimizer and load the weights only.",
    )


def _group_sizes(groups: Value | None) -> list[int]:
    """Return how many parameters each group of an optimizer has, from its first groups."""
    items = (groups.items or []) if groups is not None else []
    return [n for item in items if isinstance(n := (item.get("lengths") or {}).get("params"), int)]


def _sets_requires_grad(node: ast.AST) -> bool:
    """Whether a node freezes or unfreezes parameters."""
    return isinstance(node, ast.Assign) and any(last_name(target) == "requires_grad" for target in node.targets)


@explains("scheduler_resume")
def scheduler_of_a_new_optimizer(fact: Fact, failure: Failure) -> Explanation | None:
    """A scheduler that continues from `last_epoch` with an optimizer whose state was not loaded."""
    frame = failure.frame
    place = failing_call(failure, frame)
    if place is None or frame is None or not place[1].args:
        return None
    name = place[0].code(place[1].args[0])
    last = argument(place[1], -1, "last_epoch")
    definition = origin(failure, place[0], place[1].args[0], frame)
    text = (
        f"`{place[0].code(place[1])}` ({frame.place}) goes on from an earlier epoch"
        + (f" (`last_epoch={place[0].code(last)}`)" if last is not None else "")
        + f", and for that it needs the `initial_lr` of the optimizer's groups. `{name}`"
        + (f" (`{definition.code}`, {definition.place})" if definition.node is not place[1].args[0] else "")
        + " is new and has no `initial_lr`: its saved state was not loaded."
    )
    saves = [(s, call) for s in failure.all_sources() for call in s.calls("save")]
    lacking = next(((s, c) for s, c in saves if c.args and "optim" not in s.code(c.args[0])), None)
    if lacking is not None:
        text += f" The checkpoint `{lacking[0].code(lacking[1].args[0])}` ({lacking[0].place(lacking[1])}) lacks it."
    return Explanation(
        text,
        f"Save `{name}.state_dict()` and `scheduler.state_dict()` too; on resuming build the scheduler without "
        f"`last_epoch` and load both. For an old checkpoint: `for g in {name}.param_groups: "
        'g["initial_lr"] = g["lr"]` before the scheduler.',
    )


@explains("weights_only")
def class_not_allowed(fact: Fact, failure: Failure) -> Explanation | None:
    """A checkpoint that holds objects and not only tensors."""
    place = failing_call(failure, failure.frame, "load")
    code = place[0].code(place[1]) if place else "torch.load(...)"
    name = str(fact.object)
    if fact.module is not None and any("multiprocessing" in f.file for f in failure.frames):
        return Explanation(
            f"A spawned process imports classes and functions by name, and `{name}` is not defined in the module "
            f"`{fact.module}` that it imports (it was made below `if __name__`, in a function or in a notebook).",
            f"Define `{name}` at the top level of a .py file that can be imported, or use `num_workers=0`.",
        )
    if fact.module is not None:
        text = (
            f"The file holds a whole model of the class `{name}`, which was defined in the script that saved it "
            f"(`{fact.module}`); this program does not define it there."
        )
        return Explanation(
            text,
            f"Import or define `{name}` in this script before loading; better, save `model.state_dict()` and build "
            "the model from its class.",
        )
    text = (
        f"The file holds an object of the class `{name}`, not only tensors, and `{code}` reads tensors only "
        "(`weights_only=True`, the default since torch 2.6), since a pickle can run code."
    )
    saved = _saved_object(failure, name)
    allow = (
        f"for a file that you trust, load with `weights_only=False` or allow the class with "
        f"`torch.serialization.add_safe_globals([{name}])`"
    )
    if saved is None:
        return Explanation(text, f"Save `model.state_dict()` and plain numbers, texts and dicts; {allow}.")
    source, call, key, value, where = saved
    code, kind = source.code(value), name.rpartition(".")[2]
    what = " (a NumPy number, not one of Python)" if "numpy" in name else ""
    text += f" Here that is `{code}`{what}, which `{source.code(call.func)}` stores"
    text += f"{f' under the key {key!r}' if key else ''} ({source.place(value)})"
    text += f"; it comes from `{where.code}` ({where.place})." if where.node is not value else "."
    plain = (
        f"float({code})"
        if "numpy" in name
        else f"vars({code})"
        if kind == "Namespace"
        else f"{code}.state_dict()"
        if _is_module_class(failure, name)
        else f"str({code})"
        if kind.endswith("Path")
        else f"dict({code})"
        if kind in ("defaultdict", "DictConfig", "Box", "EasyDict")
        else ""
    )
    if plain.endswith(".state_dict()"):
        text += f" `{code}` is the whole model as a Python object and not only its weights."
        plain_fix = f"Save its weights, `{plain}`, and load them into a new `{kind}(...)` with `load_state_dict`"
        return Explanation(text, f"{plain_fix}; {allow}.", changed(source, value, plain))
    if not plain:
        return Explanation(
            text, f"Save plain values in its place, for example `vars({code})` of its attributes; {allow}."
        )
    return Explanation(text, f"Save `{plain}` in its place; {allow}.", changed(source, value, plain))


PLAIN_CALLS = set("state_dict item float int str len bool dict list tolist vars asdict time perf_counter round".split())


def _is_module_class(failure: Failure, name: str) -> bool:
    """Return whether a class, by its full name, is a module: one of torch or of the program."""
    if name.startswith(("torch.nn.modules.", "torchvision.models.")):
        return True
    classes = [owner for source in failure.all_sources() for owner in source.classes(name.rpartition(".")[2])]
    bases = [dotted(base) for owner in classes for base in owner.bases]
    return any(base.endswith("Module") or base.startswith("nn.") or "Module" in base for base in bases)


def _saved_object(failure: Failure, name: str) -> tuple[Source, ast.Call, str, ast.expr, Origin] | None:
    """Return the entry of a saved dict that is an object of a class: source, `save`, key, expression and origin."""
    numpy = "numpy" in name
    makers = {name.rpartition(".")[2]} | ({"parse_args", "parse_known_args"} if name.endswith("Namespace") else set())
    makers |= {"Path"} if name.endswith("Path") else set()
    unclear = []
    for source in failure.all_sources():
        for call in (c for c in source.calls("save") if dotted(c.func) in ("torch.save", "save")):
            for key, value in _entries(failure, source, call):
                if isinstance(value, ast.Constant):
                    continue
                where = through_functions(failure, origin(failure, source, value, None))
                node = where.node
                callee = last_name(node.func) if isinstance(node, ast.Call) else ""
                root = dotted(node.func).partition(".")[0] if isinstance(node, ast.Call) else ""
                if callee in makers or (numpy and root in ("np", "numpy")):
                    return source, call, key, value, where
                live = failure.value(dotted(value)) if dotted(value) else None
                if numpy and live is not None and live.kind == "numpy_scalar":
                    return source, call, key, value, where
                counted = isinstance(node, ast.Constant) or callee in PLAIN_CALLS or callee == "range"
                loop = source.binding(dotted(value), value.lineno) if dotted(value) else None
                if not counted and not (loop is not None and loop.kind == "for"):
                    unclear.append((source, call, key, value, where))
    return unclear[0] if numpy and len(unclear) == 1 else None


def _entries(failure: Failure, source: Source, call: ast.Call) -> list[tuple[str, ast.expr]]:
    """Return the keys and expressions of what `torch.save` gets; those that are set later too."""
    if not call.args:
        return []
    saved = origin(failure, source, call.args[0], None)
    if isinstance(saved.node, ast.Dict):
        pairs = zip(saved.node.keys, saved.node.values, strict=True)
        entries = [(str(constant(key)) if key is not None else "", value) for key, value in pairs]
    elif isinstance(saved.node, ast.Call) and last_name(saved.node.func) == "dict":
        entries = [(keyword.arg or "", keyword.value) for keyword in saved.node.keywords]
    else:
        entries = [("", call.args[0])]
    name = dotted(call.args[0])
    for node in source.nodes if name else ():
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Subscript) and dotted(target.value) == name:
            entries.append((str(constant(target.slice)), node.value))
    return entries


@explains("cuda_checkpoint")
def saved_on_a_gpu(fact: Fact, failure: Failure) -> Explanation | None:
    """A checkpoint of a machine with a GPU (or with more of them)."""
    place = failing_call(failure, failure.frame, "load")
    if place is None:
        return None
    before = place[0].code(place[1])
    after = f'{before[:-1]}, map_location="cpu")'
    why = (
        f"cuda:{fact.device}, and this machine has {count(fact.count, 'GPU')}"
        if fact.device is not None
        else "a GPU, and this machine (or this torch) has none"
    )
    return Explanation(
        f"`{before}` ({failure.frame.place if failure.frame else ''}) restores tensors to {why}.",
        f"Load to the CPU and move the model after that: `{after}`.",
        replaced(failure.source(failure.frame), failure.frame.line, before, after) if failure.frame else None,
    )


@explains("no_attribute")
def loaded_dict_is_no_model(fact: Fact, failure: Failure) -> Explanation | None:
    """A state dict that is used like a model."""
    if str(fact.type).rpartition(".")[2] not in ("OrderedDict", "dict") or fact.attribute not in (
        "eval",
        "train",
        "to",
        "cuda",
        "parameters",
        "state_dict",
        "forward",
        "load_state_dict",
        "half",
        "zero_grad",
    ):
        return None
    frame = failure.frame
    code = f"`{frame.expression or frame.code}` ({frame.place})" if frame else "The program"
    owner = (
        dotted(ast.parse(frame.expression or "x", mode="eval").body)
        if frame and frame.expression.isidentifier()
        else "state"
    )
    return Explanation(
        f"{code} treats a dict of weights as a model: `torch.load` returned what was saved, a state dict.",
        "Build the model first and load the weights into it: `model = Net(...); "
        f"model.load_state_dict({owner or 'state'}); model.{fact.attribute}()`.",
    )
