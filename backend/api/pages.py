"""What the server says of itself: models, health, load, metrics."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from backend.api.answering import send_json
from backend.api.context import Server
from backend.api.exchange import JSON_HEADERS, Exchange, HttpProblem
from backend.api.problems import NoSuchModel
from backend.engine.interface import SpeculationLoad
from backend.errors import Unavailable
from backend.serving.service import Service, Status


async def list_models(server: Server, exchange: Exchange) -> None:
    await send_json(exchange, {"object": "list", "data": [model_json(server.service)]})


async def show_model(server: Server, exchange: Exchange) -> None:
    name = exchange.path.removeprefix("/v1/models/")
    if name != server.service.name:
        raise NoSuchModel(name, server.service.name)
    await send_json(exchange, model_json(server.service))


def model_json(service: Service) -> dict[str, Any]:
    loaded = service.peek()
    made: dict[str, Any] = {
        "id": service.name,
        "object": "model",
        "created": int(service.started_at_unix_s),
        "owned_by": "looprouter",
    }
    if loaded is not None:
        text = loaded.text
        made["context_length"] = loaded.context_len
        made["max_model_len"] = loaded.context_len  # the name that vLLM's clients look for
        made["looprouter"] = {
            "family": loaded.model.family,
            "chat": text.has_chat,
            "tools": text.can_call_tools,
            "reasoning": text.can_reason,
        }
    return made


async def health(server: Server, exchange: Exchange) -> None:
    """200 only while a request would be answered."""
    service = server.service
    status = service.status
    loaded = service.peek()
    made: dict[str, Any] = {
        "status": status.value,
        "model": service.name,
        "version": server.version,
        "uptime_s": round(time.time() - service.started_at_unix_s, 1),
    }
    if service.failure is not None:
        made["error"] = service.failure
    if loaded is not None:
        config = loaded.config
        made |= {
            "family": loaded.model.family,
            "device": config.device,
            "dtype": config.dtype.value,
            "quantization": config.quantization.value,
            "threads": config.num_threads,
            "context_len": loaded.context_len,
            **loaded.notes,
        }
    await exchange.answer(
        200 if status is Status.READY else 503, JSON_HEADERS, msgspec.json.encode(made)
    )


async def show_load(server: Server, exchange: Exchange) -> None:
    """What a router reads: see docs/backend-api.md for every field."""
    service = server.service
    load, loaded = service.load, service.peek()
    if load is None or loaded is None:
        raise Unavailable("the model is still being loaded", retry_after_s=1.0)
    figures = dataclasses.asdict(load)
    steps = figures.pop("decode_step_s")
    figures["speculation"] = _speculation_json(load.speculation)
    figures["speculation"]["acceptance_checks"] = [
        dataclasses.asdict(each) for each in service.acceptance_checks
    ]
    figures["speculation"]["decisions"] = [dataclasses.asdict(each) for each in service.decisions]
    await send_json(
        exchange,
        {
            "model": service.name,
            "version": server.version,
            "status": service.status.value,
            "sequences_max": loaded.config.sequences_max,
            "waiting_max": loaded.config.waiting_max,
            "context_len": loaded.context_len,
            "kv_block_tokens": loaded.config.block_size,
            **figures,
            "decode_step_s": {str(size): seconds for size, seconds in sorted(steps.items())},
        },
    )


def _speculation_json(load: SpeculationLoad) -> dict[str, Any]:
    """Counts and sums as they are, and the rates that follow from them."""
    return {
        "method": load.method,
        "num_drafts_max": load.num_drafts_max,
        "num_drafts_now": load.num_drafts_now,
        "why_now": load.why_now,
        "num_steps_by_why": load.num_steps_by_why,
        "step_s": _by_batch(load.step_s),
        "num_steps": _by_batch(load.num_steps),
        "figures": [
            {
                **dataclasses.asdict(each),
                "acceptance_rate": each.acceptance_rate,
                "acceptance_by_position": each.acceptance_by_position,
                "mean_acceptance_length": each.mean_acceptance_length,
                "round_cost": each.round_cost,
                "speed_up": each.speed_up,
            }
            for each in load.figures
        ],
    }


def _by_batch(table: Mapping[int, Mapping[int, float]]) -> dict[str, dict[str, float]]:
    return {
        str(batch): {str(num_drafts): value for num_drafts, value in sorted(row.items())}
        for batch, row in sorted(table.items())
    }


async def show_metrics(server: Server, exchange: Exchange) -> None:
    service = server.service
    body = service.metrics.exposition(service.load, service.acceptance_checks)
    await exchange.answer(200, [(b"content-type", CONTENT_TYPE_LATEST.encode())], body)


async def not_found(server: Server, exchange: Exchange) -> None:
    raise HttpProblem(
        404, f"there is no {exchange.method} {exchange.path[:200]} here", code="not_found"
    )
