"""Finds values that look like credentials, which never belong in a policy. Never repeats them."""

from __future__ import annotations

import re
from collections.abc import Callable

# Prefixes that issuers give their keys, then any long unbroken mix of letters and digits.
_KEY = re.compile(
    r"(?:^|[^A-Za-z0-9])(?:sk-(?:ant-|or-|proj-)?[A-Za-z0-9_-]{12,}|gsk_[A-Za-z0-9]{16,}"
    r"|AIza[A-Za-z0-9_-]{20,}|xai-[A-Za-z0-9]{16,}|hf_[A-Za-z0-9]{16,}|fw_[A-Za-z0-9]{16,}"
    r"|lr-[A-Za-z0-9_-]{24,}|(?:ghp|gho|pat|tgp)_[A-Za-z0-9_]{20,}"
    r"|AKIA[A-Z0-9]{16}|[Bb]earer\s+\S{8,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.)"
)
_LONG_RUN = re.compile(r"[A-Za-z0-9]{32,}")
_SECRET_FIELDS = frozenset(
    {"api_key", "apikey", "key", "secret", "token", "password", "authorization", "bearer"}
)
FIX = "keep it in an environment variable and name that in `key_env`; then change the key"


def looks_like_key(text: str) -> bool:
    """True for what an issuer's key or any long random run looks like."""
    if _KEY.search(text):
        return True
    for run in _LONG_RUN.findall(text):
        has_digit = any(c.isdigit() for c in run)
        has_letter = any(c.isalpha() for c in run)
        if has_digit and has_letter:
            return True
    return False


def find_secrets(value: object, path: str, report: Callable[[str, str], None]) -> bool:
    """Reports each place that holds a credential; true when there was one."""
    found = False
    if isinstance(value, str):
        if looks_like_key(value):
            report(path, f"this looks like a secret; {FIX}")
            return True
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found |= find_secrets(item, f"{path}[{index}]", report)
    elif isinstance(value, dict):
        for key, item in value.items():
            at = f"{path}.{key}" if path else str(key)
            if isinstance(key, str) and looks_like_key(key):
                report(path or "the policy", f"a name here looks like a secret; {FIX}")
                found = True
            elif (
                str(key).lower() in _SECRET_FIELDS and isinstance(item, str) and "match" not in path
            ):
                report(at, f"secrets never stand in a policy; {FIX}")
                found = True
            else:
                found |= find_secrets(item, at, report)
    return found
