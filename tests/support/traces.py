"""Where the public traces lie: LOOPROUTER_TRACES, or `shared/data/traces` beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.source_tree import ROOT

TRACES_ENV = "LOOPROUTER_TRACES"


def find_traces() -> Path | None:
    """None where this machine has none. A folder given by name must exist."""
    given = os.environ.get(TRACES_ENV)
    if given:
        assert Path(given).is_dir(), f"{TRACES_ENV} is set, but {given} is no folder"
        return Path(given)
    beside = ROOT.parent / "shared" / "data" / "traces"
    return beside if beside.is_dir() else None


TRACES_DIR = find_traces()
# For parameters: every test runs without traces, and again with them where there are any.
TRACES_DIRS = (None,) if TRACES_DIR is None else (None, TRACES_DIR)
