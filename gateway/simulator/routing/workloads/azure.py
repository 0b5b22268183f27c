"""Azure's public traces of 2023 (conversation, code): arrival times and lengths, no prefixes.

AzurePublicDataset, `AzureLLMInferenceTrace_{conv,code}.csv`, CC-BY; Patel et al., "Splitwise",
ISCA 2024. One hour of production each: 19,366 conversation and 8,819 code requests.
"""

from __future__ import annotations

import csv
from datetime import datetime
from functools import lru_cache
from pathlib import Path

import numpy as np

from gateway.simulator.routing.workloads.traces import Trace, TraceError, read_text

FOLDER = "azure-llm-2023"
FILES = {
    "conversation": "AzureLLMInferenceTrace_conv.csv",
    "code": "AzureLLMInferenceTrace_code.csv",
}
COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
STAMP_CHARS = 26  # to the microsecond; the file writes a seventh digit


def azure(traces_dir: Path, kind: str) -> Trace:
    """The trace `kind` ("conversation" or "code") from the folder of traces."""
    return read_azure(traces_dir / FOLDER / FILES[kind])


@lru_cache(maxsize=4)
def read_azure(path: Path) -> Trace:
    """One CSV. Requests of no prompt or no answer would be nothing to route: an error."""
    lines = csv.reader(read_text(path).splitlines())
    if next(lines, None) != COLUMNS:
        raise TraceError(path, f"line 1: must be {','.join(COLUMNS)}")
    stamps: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    first: datetime | None = None
    for number, line in enumerate(lines, 2):
        try:
            stamp, prompt, output = line
            moment = datetime.fromisoformat(stamp[:STAMP_CHARS])
            first = first or moment
            stamps.append((moment - first).total_seconds())
            prompts.append(int(prompt))
            outputs.append(int(output))
        except ValueError as error:
            raise TraceError(path, f"line {number}: {error}") from error
        if prompts[-1] < 1 or outputs[-1] < 1:
            raise TraceError(path, f"line {number}: token counts must be positive")
    if len(stamps) < 2:
        raise TraceError(path, "holds fewer than two requests")
    at_s = np.array(stamps)
    if (np.diff(at_s) < 0.0).any():
        raise TraceError(path, f"line {2 + int(np.argmin(np.diff(at_s))) + 1}: goes back in time")
    return Trace(
        at_s=at_s,
        prompt_tokens=np.array(prompts, dtype=np.int64),
        output_tokens=np.array(outputs, dtype=np.int64),
        span_s=float(at_s[-1] * len(at_s) / (len(at_s) - 1)),  # one mean gap after the last
    )
