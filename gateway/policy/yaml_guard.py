"""YAML from a stranger: size, depth, aliases and merges bounded, duplicate keys refused.

The text is first read as events (no recursion), then as a node graph whose expanded size is
counted before anything is built, so that a few lines of anchors cannot become gigabytes.
"""

from __future__ import annotations

from typing import Any

import yaml

from gateway.errors import PolicyError

TEXT_BYTES_MAX = 256 * 1024
DEPTH_MAX = 32
NODES_MAX = 50_000
ALIASES_MAX = 200
_MERGE_TAG = "tag:yaml.org,2002:merge"

# libyaml's parser where it is built in; the same grammar and the same safe constructors.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(text: bytes) -> tuple[object, dict[str, int]]:
    """The document as plain values, and the line of each path (`routes[0].prefer` → 12)."""
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
        lines: dict[str, int] = {}
        _check_node(node, "", lines, [0], set())
        return yaml.load(decoded, Loader=_Loader), lines  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise PolicyError(_said_plainly(error)) from error
    except (ValueError, RecursionError) as error:
        # PyYAML's own constructors: an impossible date, a number too long to read.
        raise PolicyError(f"the policy has a value YAML cannot read: {error}") from error


def _check_events(text: str) -> None:
    depth = num_aliases = num_documents = 0
    event: Any
    for num_events, event in enumerate(yaml.parse(text, Loader=_Loader)):
        where = event.start_mark.line + 1
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            num_aliases += 1
        elif isinstance(event, yaml.DocumentStartEvent):
            num_documents += 1
        if depth > DEPTH_MAX:
            raise PolicyError(f"line {where}: nested deeper than {DEPTH_MAX} levels; flatten it")
        if num_aliases > ALIASES_MAX:
            raise PolicyError(f"line {where}: more than {ALIASES_MAX} aliases; write them out")
        if num_events > NODES_MAX:
            raise PolicyError(f"line {where}: more than {NODES_MAX:,} values; split the policy")
        if num_documents > 1:
            raise PolicyError(f"line {where}: a second document begins; a policy is one document")


def _check_node(
    node: Any, path: str, lines: dict[str, int], count: list[int], above: set[int]
) -> None:
    """Counts nodes as often as aliases repeat them; refuses duplicates and cycles."""
    count[0] += 1
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if count[0] > NODES_MAX:
        raise PolicyError(
            f"line {line}: aliases expand to more than {NODES_MAX:,} values; write them out"
        )
    if isinstance(node, yaml.ScalarNode):
        return
    if id(node) in above:
        raise PolicyError(f"line {line}: an alias contains itself; write the value out")
    above.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _check_node(item, f"{path}[{index}]", lines, count, above)
    else:
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise PolicyError(f"line {key.start_mark.line + 1}: a key must be plain text")
            name = key.value
            at = f"{path}.{name}" if path else name
            if name in seen:
                raise PolicyError(
                    f"{at}: stands here twice (line {key.start_mark.line + 1}); keep one"
                )
            seen.add(name)
            _check_node(value, path if key.tag == _MERGE_TAG else at, lines, count, above)
    above.discard(id(node))


def _said_plainly(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    return f"{where}not valid YAML: {problem}"
