"""A file of policy tests, the policies it names, and what comes of each test."""

from __future__ import annotations

import time
from pathlib import Path

from gateway.app.policy_source import read_policy_file
from gateway.errors import PolicyError, SetupError
from gateway.policy.cases import check_names, instant_of, load_cases
from gateway.policy.cases_run import CaseResult, run_case
from gateway.policy.load import Policy, load_policy
from gateway.prices.book import PriceBook

DAY_S = 86_400.0


def run_cases(path: Path, policy: Path | None, *, now_unix_s: float | None = None) -> tuple[
    CaseResult, ...
]:  # fmt: skip
    """
    Every test of the file, in order.

    `policy` is used instead of those that the file names. List prices are those of the file's `at`,
    else of today's noon (UTC), so that the hour of a run changes nothing. No key need be set.
    Raises PolicyError for either file, SetupError for one that cannot be read.
    """
    spec = load_cases(read_policy_file(path), source=str(path))
    policies = _policies(
        path, [policy or _named(path, case.policy or spec.policy) for case in spec.cases]
    )
    check_names(spec, policies, source=str(path))
    books = {
        each.version: PriceBook(unpriced_cap_picos=each.unpriced_cap_picos)
        for each in policies.values()
    }
    stated = instant_of(spec)
    now_s = time.time() if now_unix_s is None else now_unix_s
    at_unix_s = stated if stated is not None else now_s // DAY_S * DAY_S + DAY_S / 2.0
    return tuple(
        run_case(
            case,
            spec,
            policies[idx],
            books[policies[idx].version].rows,
            at_unix_s=at_unix_s,
        )
        for idx, case in enumerate(spec.cases)
    )


def _named(path: Path, name: str | None) -> Path:
    if name is None:
        raise PolicyError(
            f"{path}: no policy is named; add `policy: FILE` to it, or pass --policy FILE"
        )
    return path.parent / name


def _policies(path: Path, files: list[Path]) -> dict[int, Policy]:
    loaded: dict[Path, Policy] = {}
    for file in files:
        if file in loaded:
            continue
        try:
            text = read_policy_file(file)
        except OSError as error:
            raise SetupError(
                f"cannot read the policy {file}, which {path} names: {error.strerror}"
            ) from error
        loaded[file] = load_policy(text, environ=None, source=str(file))
    return {idx: loaded[file] for idx, file in enumerate(files)}
