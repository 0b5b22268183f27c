"""Surfaces that generate no text: token counts, embeddings, the list of models; and images."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from tests.support.simulated import SimulatedWorld, chat, messages

pytestmark = pytest.mark.anyio


async def test_count_tokens_equals_what_is_billed() -> None:
    world = SimulatedWorld()

    counted = await world.ask("count_tokens", chat("a longer question " * 20))
    await world.ask("messages", messages("a longer question " * 20))

    line = (await world.invoice())[0]
    assert counted.json["input_tokens"] == line["input"] > 50


async def test_embeddings_are_unit_vectors_and_equal_in_both_encodings() -> None:
    world = SimulatedWorld()
    body = {"model": "m", "input": ["one", "two"], "dimensions": 64}

    plain = (await world.ask("embeddings", body)).json
    packed = (await world.ask("embeddings", {**body, "encoding_format": "base64"})).json

    first = np.array(plain["data"][0]["embedding"], dtype="<f4")
    same = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), dtype="<f4")
    assert np.linalg.norm(first) == pytest.approx(1.0, abs=1e-5)
    assert np.array_equal(first, same)
    assert plain["data"][1]["embedding"] != plain["data"][0]["embedding"]
    assert plain["usage"]["prompt_tokens"] == (await world.invoice())[0]["input"]


async def test_models_list_the_one_model_in_the_dialect_of_the_caller() -> None:
    world = SimulatedWorld()

    openai = await world.ask("/v1/models", method="GET")
    anthropic = await world.ask(
        "/v1/models", method="GET", headers={"anthropic-version": "2023-06-01"}
    )

    assert openai.json["data"][0]["owned_by"] == "simulated"
    assert "simulated" in anthropic.json["data"][0]["display_name"]


async def test_images_are_billed_by_number_not_by_their_base64() -> None:
    world = SimulatedWorld()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 90_000}}
    body = chat()
    body["messages"][0]["content"] = [{"type": "text", "text": "what is it"}, image]

    await world.ask("chat", body)

    assert (await world.invoice())[0]["input"] < 400
