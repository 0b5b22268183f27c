"""Draft heads that come with this package, each for one target, found by the target's weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from backend.errors import SetupError
from backend.models.fingerprint import weights_fingerprint
from backend.speculate.heads.identity import read_identity

FOLDER = Path(__file__).with_name("bundled")
# The fastest first, as measured for SmolLM2 on two cores (docs/backend-performance.md): a block
# that is drafted at once costs half of drafting token after token.
PREFERRED = ("dspark", "dflash", "eagle3")
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class BundledHead:
    method: str
    directory: Path

    @property
    def why(self) -> str:
        return (
            f"of the draft heads that come with this package {self.method} is the fastest that was "
            "trained for this model"
        )


def bundled_heads(target: Path, folder: Path = FOLDER) -> tuple[BundledHead, ...]:
    """Those that were trained for the model at `target`, the preferred one first.

    Raises BadCheckpoint for a target that cannot be read.
    """
    identities = list(_identities(folder))
    if not identities:
        return ()
    digest = weights_fingerprint(target)
    found = [head for head, weights in identities if digest in weights]
    return tuple(sorted(found, key=lambda each: PREFERRED.index(each.method)))


def choose(method: str, target: Path, folder: Path = FOLDER) -> BundledHead | None:
    """The head for a method, or with "auto" the preferred one; None if "auto" finds none.

    Raises SetupError for a method that no head was trained for.
    """
    heads = bundled_heads(target, folder)
    for each in heads:
        if method in (AUTO, each.method):
            return each
    if method == AUTO:
        return None
    known = ", ".join(each.method for each in heads)
    has = f"those that come with it: {known}" if known else "none comes with this package"
    raise SetupError(
        f"the draft method {method} needs a head for {target.name} ({has}); name one with --draft, "
        f"or train one: looprouter-backend train {method} --help"
    )


def _identities(folder: Path) -> Iterator[tuple[BundledHead, tuple[str, ...]]]:
    if not folder.is_dir():
        return
    for directory in sorted(each for each in folder.glob("*/*") if each.is_dir()):
        identity = read_identity(directory)
        if identity is not None and identity.method in PREFERRED:
            yield BundledHead(identity.method, directory), identity.weights
