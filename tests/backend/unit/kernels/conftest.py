"""The ops of each implementation that this machine has."""

from __future__ import annotations

import pytest

from kernels.dispatch import Ops, build, select
from tests.support.native_kernels import native_ops


@pytest.fixture(params=["reference", pytest.param("native", marks=pytest.mark.compiler)])
def ops(request: pytest.FixtureRequest) -> Ops:
    return (
        build(native_ops(), "native") if request.param == "native" else select("cpu", "reference")
    )
