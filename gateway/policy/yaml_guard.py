"""YAML from a stranger: size, depth, aliases and merges bounded, duplicate keys refused.

The text is first read as events (no recursion), then as a node graph whose expanded size is
counted before anything is built, so that a few lines of anchors cannot become gigabytes.
"""

from __future__ import annotations

from typing import Any

import yaml

from gateway.errors import Place, PolicyError
from gateway.policy.problems import Mark

TEXT_BYTES_MAX = 256 * 1024
DEPTH_MAX = 32
NODES_MAX = 50_000
ALIASES_MAX = 200
_MERGE_TAG = "tag:yaml.org,2002:merge"

# libyaml's parser where it is built in; the same grammar and the same safe constructors.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(text: bytes) -> tuple[object, dict[str, Mark]]:
    """The document as plain values, and where each path stands (`routes[0].prefer` → 12, 5)."""
    if len(text) > TEXT_BYTES_MAX:
        raise PolicyError(
            f"the policy is {len(text):,} bytes; at most {TEXT_BYTES_MAX:,} are read. "
            "Remove what is not used"
        )
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PolicyError(
            f"the policy is not UTF-8 (byte {error.start}); save it as UTF-8"
        ) from error
    try:
        _check_events(decoded)
        node = yaml.compose(decoded, Loader=_Loader)
        if node is None:
            raise PolicyError("the policy is empty; it needs at least `version: 1`")
        marks: dict[str, Mark] = {}
        _check_node(node, "", _mark(node), marks, ([0], set()))
        return yaml.load(decoded, Loader=_Loader), marks  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise _not_yaml(error) from error
    except (ValueError, RecursionError) as error:
        # PyYAML's own constructors: an impossible date, a number too long to read.
        raise PolicyError(f"the policy has a value YAML cannot read: {error}") from error


def _check_events(text: str) -> None:
    depth = num_aliases = num_documents = 0
    event: Any
    for num_events, event in enumerate(yaml.parse(text, Loader=_Loader)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            num_aliases += 1
        elif isinstance(event, yaml.DocumentStartEvent):
            num_documents += 1
        if depth > DEPTH_MAX:
            raise _at(event, f"nested deeper than {DEPTH_MAX} levels; flatten it")
        if num_aliases > ALIASES_MAX:
            raise _at(event, f"more than {ALIASES_MAX} aliases; write them out")
        if num_events > NODES_MAX:
            raise _at(event, f"more than {NODES_MAX:,} values; split the policy")
        if num_documents > 1:
            raise _at(event, "a second document begins; a policy is one document")


def _check_node(
    node: Any, path: str, mark: Mark, marks: dict[str, Mark], seen: tuple[list[int], set[int]]
) -> None:
    """
    Counts nodes as often as aliases repeat them; refuses duplicates and cycles.

    What a mapping holds stands where its key does. `seen` are the count and the nodes above.
    """
    count, above = seen
    count[0] += 1
    marks.setdefault(path, mark)
    if count[0] > NODES_MAX:
        raise _at(node, f"aliases expand to more than {NODES_MAX:,} values; write them out")
    if isinstance(node, yaml.ScalarNode):
        return
    if id(node) in above:
        raise _at(node, "an alias contains itself; write the value out")
    above.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _check_node(item, f"{path}[{index}]", _mark(item), marks, seen)
    else:
        names: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _at(key, "a key must be plain text")
            name = key.value
            at = f"{path}.{name}" if path else name
            if name in names:
                message, where = "stands here twice", _mark(key)
                raise PolicyError(
                    f"{at}: {message} (line {where.line}); keep one",
                    places=(Place(f"{message}; keep one", at, *where),),
                )
            names.add(name)
            is_merge = key.tag == _MERGE_TAG
            _check_node(value, path if is_merge else at, _mark(key), marks, seen)
    above.discard(id(node))


def _mark(node: Any) -> Mark:
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1)


def _at(node: Any, message: str) -> PolicyError:
    mark = _mark(node)
    return PolicyError(f"line {mark.line}: {message}", places=(Place(message, "", *mark),))


def _not_yaml(error: yaml.YAMLError) -> PolicyError:
    mark = getattr(error, "problem_mark", None)
    message = f"not valid YAML: {getattr(error, 'problem', None) or str(error)}"
    if mark is None:
        return PolicyError(message)
    place = Place(message, "", mark.line + 1, mark.column + 1)
    return PolicyError(f"line {place.line}, column {place.column}: {message}", places=(place,))
