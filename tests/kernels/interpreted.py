"""Folders of tests under Triton's interpreter, which a process has for all kernels or for none.

`make test` and `make check` give each of them a process of its own; so does pytest with such a
folder alone. In a run of other tests beside them they are left out, and the summary says so.
"""

from __future__ import annotations

import inspect
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "TRITON_INTERPRET"


def is_on() -> bool:
    return os.environ.get(VARIABLE) == "1"


def turn_on_for(folder: Path, config: pytest.Config) -> None:
    """Where nothing else is asked for; before any module of tests is imported, and so before the
    first kernel is decorated.
    """
    asked_for = [Path(each.split("::")[0]).resolve() for each in config.args]
    if asked_for and all(path == folder or folder in path.parents for path in asked_for):
        os.environ[VARIABLE] = "1"
    if is_on():
        patch_once_a_launch()


def tell_left_out(folder: str, reporter: pytest.TerminalReporter) -> None:
    if not is_on():
        line = f"not run here: {folder}, which need a process of their own (make test)"
        reporter.write_line(line)


@cache
def patch_once_a_launch() -> None:
    """Triton 3.7.1 lays its interpreter's functions over `triton.language` anew at every call of a
    kernel's function from a kernel, where the launch has done so already; that is a quarter of the
    time of these tests. Here a call does it for modules alone that the launch has not done.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    lay_over = interpreter._patch_lang
    done: set[str] = set()

    @cache
    def modules_seen_by(function: Any) -> frozenset[str]:
        seen = [each for each in function.__globals__.values() if inspect.ismodule(each)]
        return frozenset(each.__name__ for each in seen if each in (tl, tl.core))

    def at_a_launch(function: Any) -> Any:
        done.clear()
        done.update(modules_seen_by(function))
        return lay_over(function)

    def at_a_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not modules_seen_by(self.fn) <= done:
            lay_over(self.fn)
            done.update(modules_seen_by(self.fn))
        return self.rewrite()(*args, **kwargs)

    interpreter._patch_lang = at_a_launch
    interpreter.InterpretedFunction.__call__ = at_a_call
