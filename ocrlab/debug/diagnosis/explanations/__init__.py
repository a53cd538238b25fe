"""Why a program failed, in its own names, numbers and lines, and the edit that fixes it; standard library only.

failure.py            the exception as facts: frames, source lines, live values, notebook cells
source.py             the user's source as a syntax tree
origins.py            where a value comes from
messages.py           what the messages of libraries say; every regular expression of the explanations
explanation.py        what an explanation is; the registry
layers.py             where a layer is built, how it is called
shapes.py ... notebook_state.py   the explanations, by kind of fault

An explanation that fails or contradicts a fact is not shown: `explain` never raises.
"""

from __future__ import annotations

from dataclasses import replace

from ocrlab.debug.diagnosis.explanations import (  # noqa: F401  each registers its explanations
    allocations,
    attributes,
    autograd,
    batch_shapes,
    calls,
    checkpoints,
    iterators,
    labels,
    layer_shapes,
    model_code,
    module_tensors,
    names,
    nonfinite_gradients,
    notebook_state,
    plain_errors,
    results,
    samplers,
    samples,
    shapes,
    tables,
    types_and_devices,
)
from ocrlab.debug.diagnosis.explanations.explanation import ANY, FUNCTIONS, GENERAL, Edit, Explanation
from ocrlab.debug.diagnosis.explanations.failure import Failure
from ocrlab.debug.diagnosis.explanations.known_messages import explain_known
from ocrlab.debug.diagnosis.explanations.messages import Fact, facts

__all__ = ["Edit", "Explanation", "explain"]
IN_NOTEBOOKS, BY_MESSAGE = "notebook_state", "known_messages"


def explain(failure: Failure) -> tuple[str, Explanation] | None:
    """Return an explanation and the module that has it; None where the facts support none. Never raises."""
    failure = autograd.at_the_loss(failure)
    matches = [Fact(ANY, {}), *facts(failure.type, failure.message)]
    for registered in (FUNCTIONS, None, GENERAL):
        if registered is None:  # after the functions for this kind of fault, before those that fit many kinds
            explanation = explain_known(failure)
            if explanation is not None:
                return BY_MESSAGE, _with_cells(explanation, BY_MESSAGE, failure)
            continue
        for fact in matches:
            functions = registered.get(fact.kind, [])
            for function in sorted(functions, key=lambda f: f.__module__.endswith(IN_NOTEBOOKS) != bool(failure.cells)):
                try:
                    explanation = function(fact, failure)
                except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError, OSError):
                    continue
                if explanation is not None:
                    name = function.__module__.rpartition(".")[2]
                    return name, _with_cells(explanation, name, failure)
    shared = _shared_default(failure)
    if shared is not None:
        return "names", shared
    note = _changed_name(failure)
    return (
        (IN_NOTEBOOKS, Explanation(note, "Run the cell that makes it again, or give the later value another name."))
        if note
        else None
    )


def _with_cells(explanation: Explanation, module: str, failure: Failure) -> Explanation:
    """Add which cell, or which default value, has changed a name of the failing line."""
    note = "" if module == IN_NOTEBOOKS else _changed_name(failure)
    shared = _shared_default(failure)
    if shared is not None:
        return Explanation(f"{explanation.text} {shared.text}", shared.fix)
    return replace(explanation, text=f"{explanation.text} {note}") if note else explanation


def _shared_default(failure: Failure) -> Explanation | None:
    try:
        return names.shared_default(failure)
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
        return None


def _changed_name(failure: Failure) -> str:
    try:
        return notebook_state.reassigned(failure)
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
        return ""
