"""Which modules of a model are meant: by dotted name or glob, by class, or the module itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import nn

from ocrlab.debug.instruments.compiled_modules import is_jit
from ocrlab.errors import ConfigError

Wanted = str | nn.Module | type[nn.Module] | Iterable["Wanted"]
WRAPPERS = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"}  # their child is called `module`
INSIDE = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}  # torch.compile, FSDP, checkpoint_wrapper


@dataclass(frozen=True)
class NamedModule:
    """A module with the name that a person uses for it; a shared module has further ones."""

    name: str
    module: nn.Module
    also: tuple[str, ...] = ()


def callable_modules(model: nn.Module) -> list[NamedModule]:
    """Return all modules that can be called, each once, under names without torch's wrappers; a model is `(Class)`.

    Of a wrapper and what it wraps, which share a name, only the inner one is there: it does the work.
    """
    inner = {
        name or f"({type(unwrap(module)).__name__})": module for name, module in _walk(model) if is_callable(module)
    }
    names: dict[int, list[str]] = {}
    for name, module in inner.items():
        names.setdefault(id(module), []).append(name)
    return [NamedModule(first, inner[first], tuple(also)) for first, *also in names.values()]


def _walk(module: nn.Module, name: str = "", above: frozenset[int] = frozenset()) -> Iterator[tuple[str, nn.Module]]:
    """Yield every module with its name, those that are shared under each of their names, parents first."""
    yield name, module
    for part, child in module.named_children() if is_jit(module) else module._modules.items():
        if child is not None and id(child) not in above:  # one that holds itself would never end
            below = name if _is_wrapped(module, part) else f"{name}.{part}".lstrip(".")
            yield from _walk(child, below, above | {id(module)})


def _is_wrapped(module: nn.Module, part: str) -> bool:
    """Return whether a module is one of torch's wrappers around a part of it."""
    return part in INSIDE or (part == "module" and type(module).__name__ in WRAPPERS)


def jit_module_names(model: nn.Module) -> list[str]:
    """Return the names of the outermost parts of a model that come from torch.jit, whose insides run no hooks."""
    jit_names = [name for name, module in _walk(model) if is_jit(module)]
    return [name for name in jit_names if not any(name.startswith(f"{other}.") for other in jit_names)]


def unwrap(module: nn.Module) -> nn.Module:
    """Return what is inside of torch's wrappers."""
    parts = () if is_jit(module) else module._modules.items()
    return next((unwrap(child) for part, child in parts if child is not None and _is_wrapped(module, part)), module)


def is_callable(module: nn.Module) -> bool:
    """Return whether a module has a forward that runs hooks: not a ModuleList, and not a module of torch.jit."""
    if is_jit(module):
        return False
    return "forward" in vars(module) or type(module).forward is not nn.Module.forward


def select_modules(model: nn.Module, wanted: Wanted) -> list[NamedModule]:
    """Return the modules that are wanted, in the model's order; raises ConfigError with the nearest right names.

    A glob is matched with the whole dotted name, and where nothing matches with its end, so that `decoder.fusion` is
    also found as `net.decoder.fusion`. `*` is every module, the model itself too; that alone is "", as in torch.
    """
    modules = callable_modules(model)
    if not modules:
        jit = is_jit(unwrap(model))
        what = "A model of torch.jit runs no hooks" if jit else "The model has no module that is called"
        need = "the model as it was before torch.jit" if jit else "a module with a forward"
        raise ConfigError(what, got=type(unwrap(model)).__name__, need=need)
    picked = {id(named.module) for named in _matching_modules(model, modules, wanted)}
    return [named for named in modules if id(named.module) in picked]


def _matching_modules(model: nn.Module, modules: list[NamedModule], wanted: Wanted) -> list[NamedModule]:
    if isinstance(wanted, str) and wanted:
        return _by_name(model, modules, wanted)
    if isinstance(wanted, str | nn.Module):
        module = unwrap(wanted if isinstance(wanted, nn.Module) else model)
        matches = [named for named in modules if named.module is module or named.module is wanted]
        what = f"This {type(wanted).__name__} is not a module of the model"
    elif isinstance(wanted, type):
        matches = [named for named in modules if isinstance(named.module, wanted)]
        what = f"The model has no {wanted.__name__} that is called"
    else:
        several = list(wanted) if isinstance(wanted, Iterable) and not isinstance(wanted, bytes) else []
        if not several:  # a list that came out empty would watch nothing, in silence
            need = "a name, a glob, a module, a class of modules, or several of them"
            raise ConfigError("No modules are selected", got=repr(wanted), need=need)
        return [named for item in several for named in _matching_modules(model, modules, item)]
    return matches or _raise_unknown(what, model, modules, "")


def _by_name(model: nn.Module, modules: list[NamedModule], pattern: str) -> list[NamedModule]:
    for glob in (pattern, f"*.{pattern}"):
        matches = [named for named in modules if any(fnmatchcase(name, glob) for name in (named.name, *named.also))]
        if matches:
            return matches
    if pattern in {name for name, module in _walk(model) if not is_callable(module)}:
        do = f"Write {pattern}.* for what is in it"
        raise ConfigError(f"{pattern} has no forward of its own, so it cannot be watched", do=do)
    return _raise_unknown(f"No module is called {pattern}", model, modules, pattern)


def _raise_unknown(what: str, model: nn.Module, modules: list[NamedModule], pattern: str) -> list[NamedModule]:
    """Raise ConfigError with the names that are nearest to `pattern`."""
    names = [name for named in modules for name in (named.name, *named.also)]
    last = pattern.rpartition(".")[2].strip("*[]?")
    near = get_close_matches(pattern, names, n=3, cutoff=0.5)
    near += [name for name in names if last and last in name.rpartition(".")[2]][:3]
    nearest = ", ".join(dict.fromkeys(near)) or ", ".join(names[1:7])
    do = "; ".join(filter(None, [nearest and f"The nearest are {nearest}", '"*" is every module']))
    raise ConfigError(f"{what} ({type(unwrap(model)).__name__}, {len(modules)} modules)", do=do)
