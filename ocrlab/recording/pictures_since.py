"""What of a picture is another one than at the first snapshot; only that is put back into a program that began anew.

The rest a replay has by itself, and its own: numbers of processes and of open files, times, what environments say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ocrlab.recording.pictures import LEFT_OUT, MAPPINGS, SEQUENCES


def differing(node: Any, first: Any) -> Any:
    """Return a picture without the attributes, and without the values of keys, that are as in the first one."""
    if type(node) is not list or type(first) is not list or node[:1] != first[:1]:
        return node
    kind = node[0]
    if kind == "o" and node[1] == first[1]:
        return ["o", node[1], _attributes(node[2], first[2])]
    if kind == "c":
        return ["c", *map(_attributes, node[1:], first[1:])]
    if kind == "m":
        kept = {path: _attributes(nodes, first[3].get(path, {})) for path, nodes in node[3].items()}
        return [*node[:3], kept, *node[4:]]
    if kind in MAPPINGS.values():
        was = {repr(key): part for key, part in first[1]}
        pairs = [(key, part, was.get(repr(key), LEFT_OUT)) for key, part in node[1]]
        return [kind, [[key, LEFT_OUT if _is_same(part, old) else differing(part, old)] for key, part, old in pairs]]
    if kind in SEQUENCES.values() and type(node[1]) is list and type(first[1]) is list:
        same = len(node[1]) == len(first[1])
        return [kind, [*map(differing, node[1], first[1])], *node[2:]] if same else node
    return node


def _attributes(nodes: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    was = [(name, node, first.get(name, LEFT_OUT)) for name, node in nodes.items()]
    return {name: differing(node, old) for name, node, old in was if not _is_same(node, old)}


def _is_same(node: Any, first: Any) -> bool:
    """Tell whether two pictures show the same; of a tensor only its number is in them."""
    return bool(node == first) and not _has_tensors(node)


def _has_tensors(node: Any) -> bool:
    if isinstance(node, dict):
        return "t" in node or any(map(_has_tensors, node.values()))
    return isinstance(node, list | tuple) and any(map(_has_tensors, node))
