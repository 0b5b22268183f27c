"""Data: canonical models and what each provider calls them. One row a model, read by `lookup.py`.

A provider's id may carry its stated precision, `id|fp8`; without one the precision is the row's
`quant`, which is set only where everybody serves the published weights (gpt-oss) or nobody states
it. `*` is the id of the open weights, as vLLM, SGLang and unknown servers use it.
"""

from __future__ import annotations

import msgspec


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One canonical model."""

    canonical: str
    ids: dict[str, str | tuple[str, ...]]
    context: int | None = None
    output: int | None = None
    can: str = ""  # capabilities, separated by spaces; "" = unknown
    quant: str = "unknown"
    is_open: bool = False
    distill: bool | None = None
    surfaces: str = ""
    quirks: str = ""


_TEXT = "tools json_object json_schema"
_THINK = "tools json_object json_schema reasoning"
_SEE = "tools json_object json_schema vision"
_SEE_THINK = "tools json_object json_schema vision reasoning"
_K128 = 131_072
_K256 = 262_144
_M1 = 1_000_000
_M1B = 1_048_576


def _open(canonical: str, hf: str, ids: dict[str, str | tuple[str, ...]], **more: object) -> Row:
    row = {"canonical": canonical, "ids": {"*": hf, **ids}, "is_open": True, **more}
    return msgspec.convert(row, Row)


def _closed(canonical: str, ids: dict[str, str | tuple[str, ...]], **more: object) -> Row:
    return msgspec.convert({"canonical": canonical, "ids": ids, "distill": False, **more}, Row)


# fmt: off
MODELS: tuple[Row, ...] = (
    # ---- Meta Llama -----------------------------------------------------------------------------
    _open("llama-3.1-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct", {
        "groq": "llama-3.1-8b-instant",
        "together": "meta-llama/Meta-Llama-3.1-8B-Instruct-Turbo|fp8",
        "fireworks": "accounts/fireworks/models/llama-v3p1-8b-instruct",
        "openrouter": "meta-llama/llama-3.1-8b-instruct",
        "siliconflow": "meta-llama/Meta-Llama-3.1-8B-Instruct",
        "ollama": ("llama3.1:8b|int4", "llama3.1:latest|int4", "llama3.1|int4"),
    }, context=_K128, can=_TEXT, distill=True),
    _open("llama-3.1-70b-instruct", "meta-llama/Llama-3.1-70B-Instruct", {
        "together": "meta-llama/Meta-Llama-3.1-70B-Instruct-Turbo|fp8",
        "openrouter": "meta-llama/llama-3.1-70b-instruct",
        "ollama": "llama3.1:70b|int4",
    }, context=_K128, can=_TEXT, distill=True),
    _open("llama-3.1-405b-instruct", "meta-llama/Llama-3.1-405B-Instruct", {
        "together": "meta-llama/Meta-Llama-3.1-405B-Instruct-Turbo|fp8",
        "openrouter": "meta-llama/llama-3.1-405b-instruct",
        "ollama": "llama3.1:405b|int4",
    }, context=_K128, can=_TEXT, distill=True),
    _open("llama-3.2-1b-instruct", "meta-llama/Llama-3.2-1B-Instruct", {
        "openrouter": "meta-llama/llama-3.2-1b-instruct",
        "ollama": "llama3.2:1b|int8",
    }, context=_K128, distill=True),
    _open("llama-3.2-3b-instruct", "meta-llama/Llama-3.2-3B-Instruct", {
        "openrouter": "meta-llama/llama-3.2-3b-instruct",
        "ollama": ("llama3.2:3b|int4", "llama3.2:latest|int4", "llama3.2|int4"),
    }, context=_K128, distill=True),
    _open("llama-3.3-70b-instruct", "meta-llama/Llama-3.3-70B-Instruct", {
        "groq": "llama-3.3-70b-versatile",
        "together": (
            "meta-llama/Llama-3.3-70B-Instruct-Turbo|fp8",
            "meta-llama/Meta-Llama-3.3-70B-Instruct-Turbo|fp8",
        ),
        "fireworks": "accounts/fireworks/models/llama-v3p3-70b-instruct",
        "openrouter": "meta-llama/llama-3.3-70b-instruct",
        "ollama": ("llama3.3:70b|int4", "llama3.3:latest|int4", "llama3.3|int4"),
    }, context=_K128, can=_TEXT, distill=True),
    _open("llama-4-scout", "meta-llama/Llama-4-Scout-17B-16E-Instruct", {
        "groq": "meta-llama/llama-4-scout-17b-16e-instruct",
        "together": "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        "openrouter": "meta-llama/llama-4-scout",
    }, can=_SEE, distill=True),
    _open("llama-4-maverick", "meta-llama/Llama-4-Maverick-17B-128E-Instruct", {
        "groq": "meta-llama/llama-4-maverick-17b-128e-instruct",
        "together": "meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8|fp8",
        "fireworks": "accounts/fireworks/models/llama4-maverick-instruct-basic",
        "openrouter": "meta-llama/llama-4-maverick",
    }, can=_SEE, distill=True),
    # ---- OpenAI open weights: published in MXFP4, so everybody serves that ---------------------
    _open("gpt-oss-120b", "openai/gpt-oss-120b", {
        "groq": "openai/gpt-oss-120b",
        "together": "openai/gpt-oss-120b",
        "fireworks": "accounts/fireworks/models/gpt-oss-120b",
        "openrouter": "openai/gpt-oss-120b|unknown",
        "siliconflow": "openai/gpt-oss-120b",
        "ollama": "gpt-oss:120b",
    }, context=_K128, can=_THINK, quant="mxfp4", distill=True),
    _open("gpt-oss-20b", "openai/gpt-oss-20b", {
        "groq": "openai/gpt-oss-20b",
        "fireworks": "accounts/fireworks/models/gpt-oss-20b",
        "openrouter": "openai/gpt-oss-20b|unknown",
        "siliconflow": "openai/gpt-oss-20b",
        "ollama": ("gpt-oss:20b", "gpt-oss:latest", "gpt-oss"),
    }, context=_K128, can=_THINK, quant="mxfp4", distill=True),
    # ---- Qwen -----------------------------------------------------------------------------------
    _open("qwen3-8b", "Qwen/Qwen3-8B", {
        "dashscope": "qwen3-8b",
        "siliconflow": "Qwen/Qwen3-8B",
        "openrouter": "qwen/qwen3-8b",
        "ollama": ("qwen3:8b|int4", "qwen3:latest|int4", "qwen3|int4"),
    }, context=_K128, can=_THINK, distill=True),
    _open("qwen3-14b", "Qwen/Qwen3-14B", {
        "dashscope": "qwen3-14b",
        "siliconflow": "Qwen/Qwen3-14B",
        "openrouter": "qwen/qwen3-14b",
        "ollama": "qwen3:14b|int4",
    }, context=_K128, can=_THINK, distill=True),
    _open("qwen3-32b", "Qwen/Qwen3-32B", {
        "groq": "qwen/qwen3-32b",
        "dashscope": "qwen3-32b",
        "siliconflow": "Qwen/Qwen3-32B",
        "openrouter": "qwen/qwen3-32b",
        "ollama": "qwen3:32b|int4",
    }, context=_K128, can=_THINK, distill=True),
    _open("qwen3-30b-a3b-instruct-2507", "Qwen/Qwen3-30B-A3B-Instruct-2507", {
        "dashscope": "qwen3-30b-a3b-instruct-2507",
        "siliconflow": "Qwen/Qwen3-30B-A3B-Instruct-2507",
        "openrouter": "qwen/qwen3-30b-a3b-instruct-2507",
        "ollama": "qwen3:30b-a3b-instruct-2507-q4_K_M|int4",
    }, context=_K256, can=_TEXT, distill=True),
    _open("qwen3-30b-a3b-thinking-2507", "Qwen/Qwen3-30B-A3B-Thinking-2507", {
        "dashscope": "qwen3-30b-a3b-thinking-2507",
        "siliconflow": "Qwen/Qwen3-30B-A3B-Thinking-2507",
        "openrouter": "qwen/qwen3-30b-a3b-thinking-2507",
    }, context=_K256, can=_THINK, distill=True),
    _open("qwen3-235b-a22b-instruct-2507", "Qwen/Qwen3-235B-A22B-Instruct-2507", {
        "together": "Qwen/Qwen3-235B-A22B-Instruct-2507-tput|fp8",
        "fireworks": "accounts/fireworks/models/qwen3-235b-a22b-instruct-2507",
        "dashscope": "qwen3-235b-a22b-instruct-2507",
        "siliconflow": "Qwen/Qwen3-235B-A22B-Instruct-2507",
        "openrouter": "qwen/qwen3-235b-a22b-2507",
    }, context=_K256, can=_TEXT, distill=True),
    _open("qwen3-235b-a22b-thinking-2507", "Qwen/Qwen3-235B-A22B-Thinking-2507", {
        "together": "Qwen/Qwen3-235B-A22B-Thinking-2507",
        "dashscope": "qwen3-235b-a22b-thinking-2507",
        "siliconflow": "Qwen/Qwen3-235B-A22B-Thinking-2507",
        "openrouter": "qwen/qwen3-235b-a22b-thinking-2507",
    }, context=_K256, can=_THINK, distill=True),
    _open("qwen3-coder-480b-a35b-instruct", "Qwen/Qwen3-Coder-480B-A35B-Instruct", {
        "together": "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8|fp8",
        "fireworks": "accounts/fireworks/models/qwen3-coder-480b-a35b-instruct",
        "dashscope": "qwen3-coder-480b-a35b-instruct",
        "siliconflow": "Qwen/Qwen3-Coder-480B-A35B-Instruct",
        "openrouter": "qwen/qwen3-coder",
    }, context=_K256, can=_TEXT, distill=True),
    _open("qwen3-coder-30b-a3b-instruct", "Qwen/Qwen3-Coder-30B-A3B-Instruct", {
        "dashscope": "qwen3-coder-30b-a3b-instruct",
        "siliconflow": "Qwen/Qwen3-Coder-30B-A3B-Instruct",
        "openrouter": "qwen/qwen3-coder-30b-a3b-instruct",
        "ollama": ("qwen3-coder:30b|int4", "qwen3-coder:latest|int4"),
    }, context=_K256, can=_TEXT, distill=True),
    _open("qwen3-next-80b-a3b-instruct", "Qwen/Qwen3-Next-80B-A3B-Instruct", {
        "together": "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "dashscope": "qwen3-next-80b-a3b-instruct",
        "siliconflow": "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "openrouter": "qwen/qwen3-next-80b-a3b-instruct",
    }, context=_K256, can=_TEXT, distill=True),
    _open("qwen3-vl-235b-a22b-instruct", "Qwen/Qwen3-VL-235B-A22B-Instruct", {
        "dashscope": "qwen3-vl-235b-a22b-instruct",
        "siliconflow": "Qwen/Qwen3-VL-235B-A22B-Instruct",
        "openrouter": "qwen/qwen3-vl-235b-a22b-instruct",
    }, context=_K256, can=_SEE, distill=True),
    _open("qwen3.5-9b", "Qwen/Qwen3.5-9B", {
        "together": "Qwen/Qwen3.5-9B",
        "openrouter": "qwen/qwen3.5-9b",
    }, context=_K256, distill=True),
    _open("qwen3.5-27b", "Qwen/Qwen3.5-27B", {
        "openrouter": "qwen/qwen3.5-27b",
    }, context=_K256, distill=True),
    _open("qwen3.5-35b-a3b", "Qwen/Qwen3.5-35B-A3B", {
        "openrouter": "qwen/qwen3.5-35b-a3b",
    }, context=_K256, distill=True),
    _open("qwen3.5-397b-a17b", "Qwen/Qwen3.5-397B-A17B", {
        "openrouter": "qwen/qwen3.5-397b-a17b",
    }, context=_K256, distill=True),
    _open("qwen3.6-27b", "Qwen/Qwen3.6-27B", {
        "openrouter": "qwen/qwen3.6-27b",
    }, distill=True),
    _open("qwen3.6-35b-a3b", "Qwen/Qwen3.6-35B-A3B", {
        "openrouter": "qwen/qwen3.6-35b-a3b",
    }, distill=True),
    _open("qwen3.8-27b", "Qwen/Qwen3.8-27B", {
        "groq": "qwen/qwen3.8-27b",
        "openrouter": "qwen/qwen3.8-27b",
    }),
    _closed("qwen3-max", {"dashscope": "qwen3-max", "openrouter": "qwen/qwen3-max"},
            context=_K256, can=_TEXT),
    _closed("qwen-plus", {"dashscope": "qwen-plus", "openrouter": "qwen/qwen-plus"}, can=_THINK),
    _closed("qwen-flash", {"dashscope": "qwen-flash"}, can=_THINK),
    _closed("qwen3-coder-plus", {
        "dashscope": "qwen3-coder-plus", "openrouter": "qwen/qwen3-coder-plus",
    }, context=_M1, can=_TEXT),
    _closed("qwen3.7-plus", {
        "together": "Qwen/Qwen3.7-Plus", "fireworks": "accounts/fireworks/models/qwen3p7-plus",
        "dashscope": "qwen3.7-plus", "openrouter": "qwen/qwen3.7-plus",
    }),
    # ---- DeepSeek -------------------------------------------------------------------------------
    _open("deepseek-v3-0324", "deepseek-ai/DeepSeek-V3-0324", {
        "fireworks": "accounts/fireworks/models/deepseek-v3-0324",
        "openrouter": "deepseek/deepseek-chat-v3-0324",
    }, can=_TEXT, distill=True),
    _open("deepseek-v3.1", "deepseek-ai/DeepSeek-V3.1", {
        "together": "deepseek-ai/DeepSeek-V3.1",
        "siliconflow": "deepseek-ai/DeepSeek-V3.1",
        "dashscope": "deepseek-v3.1",
        "openrouter": "deepseek/deepseek-chat-v3.1",
    }, context=_K128, can=_THINK, distill=True),
    _open("deepseek-v3.2", "deepseek-ai/DeepSeek-V3.2", {
        "fireworks": "accounts/fireworks/models/deepseek-v3p2",
        "siliconflow": "deepseek-ai/DeepSeek-V3.2",
        "dashscope": "deepseek-v3.2",
        "openrouter": "deepseek/deepseek-v3.2",
    }, context=_K128, can=_THINK, distill=True),
    _open("deepseek-r1-0528", "deepseek-ai/DeepSeek-R1-0528", {
        "fireworks": "accounts/fireworks/models/deepseek-r1-0528",
        "dashscope": "deepseek-r1-0528",
        "openrouter": "deepseek/deepseek-r1-0528",
    }, can=_THINK, distill=True),
    _open("deepseek-r1-distill-llama-70b", "deepseek-ai/DeepSeek-R1-Distill-Llama-70B", {
        "groq": "deepseek-r1-distill-llama-70b",
        "openrouter": "deepseek/deepseek-r1-distill-llama-70b",
        "ollama": "deepseek-r1:70b|int4",
    }, can="reasoning", distill=True),
    _open("deepseek-v4-flash", "deepseek-ai/DeepSeek-V4-Flash", {
        "deepseek": "deepseek-v4-flash",
        "fireworks": "accounts/fireworks/models/deepseek-v4-flash",
        "openrouter": "deepseek/deepseek-v4-flash",
    }, context=_M1, can=_THINK, distill=True),
    _open("deepseek-v4-pro", "deepseek-ai/DeepSeek-V4-Pro", {
        "deepseek": "deepseek-v4-pro",
        "fireworks": "accounts/fireworks/models/deepseek-v4-pro",
        "openrouter": "deepseek/deepseek-v4-pro",
    }, context=_M1, can=_THINK, distill=True),
    _open("deepseek-v4.1-flash", "deepseek-ai/DeepSeek-V4.1-Flash", {
        "together": "deepseek-ai/DeepSeek-V4.1-Flash",
        "fireworks": "accounts/fireworks/models/deepseek-v4p1-flash",
        "openrouter": "deepseek/deepseek-v4.1-flash",
    }, context=_M1),
    # ---- Moonshot Kimi --------------------------------------------------------------------------
    _open("kimi-k2-0905", "moonshotai/Kimi-K2-Instruct-0905", {
        "moonshot": "kimi-k2-0905-preview",
        "groq": "moonshotai/kimi-k2-instruct-0905",
        "together": "moonshotai/Kimi-K2-Instruct-0905",
        "fireworks": "accounts/fireworks/models/kimi-k2-instruct-0905",
        "siliconflow": "moonshotai/Kimi-K2-Instruct-0905",
        "openrouter": "moonshotai/kimi-k2-0905",
    }, context=_K256, can=_TEXT, distill=True),
    _open("kimi-k2-thinking", "moonshotai/Kimi-K2-Thinking", {
        "moonshot": "kimi-k2-thinking",
        "siliconflow": "moonshotai/Kimi-K2-Thinking",
        "dashscope": "kimi-k2-thinking",
        "openrouter": "moonshotai/kimi-k2-thinking",
    }, context=_K256, can=_THINK, distill=True),
    _open("kimi-k2.5", "moonshotai/Kimi-K2.5", {
        "moonshot": "kimi-k2.5",
        "fireworks": "accounts/fireworks/models/kimi-k2p5",
        "openrouter": "moonshotai/kimi-k2.5",
    }, context=_K256, can=_SEE_THINK),
    _open("kimi-k2.6", "moonshotai/Kimi-K2.6", {
        "moonshot": "kimi-k2.6",
        "fireworks": "accounts/fireworks/models/kimi-k2p6",
        "openrouter": "moonshotai/kimi-k2.6",
    }, context=_K256),
    _open("kimi-k2.7-code", "moonshotai/Kimi-K2.7-Code", {
        "moonshot": "kimi-k2.7-code",
        "fireworks": "accounts/fireworks/models/kimi-k2p7-code",
        "openrouter": "moonshotai/kimi-k2.7-code",
    }, context=_K256),
    _open("kimi-k3", "moonshotai/Kimi-K3", {
        "moonshot": "kimi-k3",
        "together": "moonshotai/Kimi-K3",
        "fireworks": "accounts/fireworks/models/kimi-k3",
        "openrouter": "moonshotai/kimi-k3",
    }, context=_M1B),
    # ---- Zhipu / Z.AI GLM -----------------------------------------------------------------------
    _open("glm-4.5", "zai-org/GLM-4.5", {
        "zhipu": "glm-4.5", "zai": "glm-4.5", "siliconflow": "zai-org/GLM-4.5",
        "fireworks": "accounts/fireworks/models/glm-4p5", "openrouter": "z-ai/glm-4.5",
    }, context=_K128, can=_THINK, distill=True),
    _open("glm-4.5-air", "zai-org/GLM-4.5-Air", {
        "zhipu": "glm-4.5-air", "zai": "glm-4.5-air", "siliconflow": "zai-org/GLM-4.5-Air",
        "together": "zai-org/GLM-4.5-Air-FP8|fp8", "openrouter": "z-ai/glm-4.5-air",
    }, context=_K128, can=_THINK, distill=True),
    _open("glm-4.6", "zai-org/GLM-4.6", {
        "zhipu": "glm-4.6", "zai": "glm-4.6", "siliconflow": "zai-org/GLM-4.6",
        "fireworks": "accounts/fireworks/models/glm-4p6", "dashscope": "glm-4.6",
        "together": "zai-org/GLM-4.6", "openrouter": "z-ai/glm-4.6",
    }, context=200_000, can=_THINK, distill=True),
    _open("glm-4.7", "zai-org/GLM-4.7", {
        "zhipu": "glm-4.7", "zai": "glm-4.7",
        "fireworks": "accounts/fireworks/models/glm-4p7", "openrouter": "z-ai/glm-4.7",
    }, context=200_000, can=_THINK, distill=True),
    _open("glm-5", "zai-org/GLM-5", {
        "zhipu": "glm-5", "zai": "glm-5", "openrouter": "z-ai/glm-5",
    }, context=200_000, can=_THINK),
    _open("glm-5.1", "zai-org/GLM-5.1", {
        "zhipu": "glm-5.1", "zai": "glm-5.1",
        "fireworks": "accounts/fireworks/models/glm-5p1", "openrouter": "z-ai/glm-5.1",
    }, context=200_000),
    _open("glm-5.2", "zai-org/GLM-5.2", {
        "zhipu": "glm-5.2", "zai": "glm-5.2", "together": "zai-org/GLM-5.2",
        "fireworks": "accounts/fireworks/models/glm-5p2", "openrouter": "z-ai/glm-5.2",
    }, context=_M1),
    _open("glm-5.3", "zai-org/GLM-5.3", {
        "zhipu": "glm-5.3", "zai": "glm-5.3", "together": "zai-org/GLM-5.3",
        "fireworks": "accounts/fireworks/models/glm-5p3", "openrouter": "z-ai/glm-5.3",
    }, context=_M1),
    _open("glm-5.3-flash", "zai-org/GLM-5.3-Flash", {
        "zhipu": "glm-5.3-flash", "zai": "glm-5.3-flash", "together": "zai-org/GLM-5.3-Flash",
        "fireworks": "accounts/fireworks/models/glm-5p3-flash",
        "openrouter": "z-ai/glm-5.3-flash",
    }, context=_M1),
    # ---- MiniMax --------------------------------------------------------------------------------
    _open("minimax-m2", "MiniMaxAI/MiniMax-M2", {
        "siliconflow": "MiniMaxAI/MiniMax-M2", "openrouter": "minimax/minimax-m2",
    }, can=_THINK, distill=True),
    _open("minimax-m2.7", "MiniMaxAI/MiniMax-M2.7", {
        "fireworks": "accounts/fireworks/models/minimax-m2p7", "openrouter": "minimax/minimax-m2.7",
    }),
    _open("minimax-m3", "MiniMaxAI/MiniMax-M3", {
        "together": "MiniMaxAI/MiniMax-M3",
        "fireworks": "accounts/fireworks/models/minimax-m3", "openrouter": "minimax/minimax-m3",
    }, context=524_288),
    # ---- Google open weights --------------------------------------------------------------------
    _open("gemma-3-4b-it", "google/gemma-3-4b-it", {
        "openrouter": "google/gemma-3-4b-it",
        "ollama": ("gemma3:4b|int4", "gemma3:latest|int4", "gemma3|int4"),
    }, context=_K128),
    _open("gemma-3-12b-it", "google/gemma-3-12b-it", {
        "openrouter": "google/gemma-3-12b-it", "ollama": "gemma3:12b|int4",
    }, context=_K128),
    _open("gemma-3-27b-it", "google/gemma-3-27b-it", {
        "fireworks": "accounts/fireworks/models/gemma-3-27b-it",
        "openrouter": "google/gemma-3-27b-it", "ollama": "gemma3:27b|int4",
    }, context=_K128),
    _open("gemma-4-26b-a4b-it", "google/gemma-4-26B-A4B-it", {
        "openrouter": "google/gemma-4-26b-a4b-it",
    }, context=_K256),
    _open("gemma-4-31b-it", "google/gemma-4-31B-it", {
        "openrouter": "google/gemma-4-31b-it",
    }, context=_K256),
    # ---- Mistral --------------------------------------------------------------------------------
    _open("mistral-nemo", "mistralai/Mistral-Nemo-Instruct-2407", {
        "mistral": "open-mistral-nemo", "openrouter": "mistralai/mistral-nemo",
        "ollama": ("mistral-nemo:12b|int4", "mistral-nemo:latest|int4"),
    }, context=_K128, can=_TEXT, distill=True),
    _open("mixtral-8x7b-instruct", "mistralai/Mixtral-8x7B-Instruct-v0.1", {
        "together": "mistralai/Mixtral-8x7B-Instruct-v0.1",
        "openrouter": "mistralai/mixtral-8x7b-instruct", "ollama": "mixtral:8x7b|int4",
    }, context=32_768, distill=True),
    _open("mistral-small-3.2-24b", "mistralai/Mistral-Small-3.2-24B-Instruct-2506", {
        "mistral": "mistral-small-2506", "openrouter": "mistralai/mistral-small-3.2-24b-instruct",
        "ollama": "mistral-small3.2:24b|int4",
    }, context=_K128, can=_SEE, distill=True),
    _open("mistral-large-2512", "mistralai/Mistral-Large-3-675B-Instruct-2512", {
        "mistral": "mistral-large-2512", "openrouter": "mistralai/mistral-large-2512",
    }, context=_K256, can=_SEE, distill=True),
    _open("ministral-3-8b", "mistralai/Ministral-3-8B-Instruct-2512", {
        "mistral": "ministral-8b-2512", "openrouter": "mistralai/ministral-8b-2512",
    }, context=_K256, can=_SEE, distill=True),
    _open("ministral-3-14b", "mistralai/Ministral-3-14B-Instruct-2512", {
        "mistral": "ministral-14b-2512", "openrouter": "mistralai/ministral-14b-2512",
    }, context=_K256, can=_SEE, distill=True),
    _closed("mistral-small-2603", {
        "mistral": "mistral-small-2603", "openrouter": "mistralai/mistral-small-2603",
    }, context=_K256, distill=None),
    _closed("mistral-medium-3.1", {
        "mistral": "mistral-medium-2508", "openrouter": "mistralai/mistral-medium-3.1",
    }, context=_K128, can=_SEE, distill=None),
    _closed("mistral-medium-3.5", {
        "mistral": "mistral-medium-3-5", "openrouter": "mistralai/mistral-medium-3-5",
    }, context=_K256, distill=None),
    _closed("codestral-2508", {
        "mistral": "codestral-2508", "openrouter": "mistralai/codestral-2508",
    }, context=256_000, can=_TEXT, distill=None),
    _closed("mistral-embed", {"mistral": "mistral-embed"},
            context=8_192, surfaces="embeddings", distill=None),
    # ---- Small, for laptops ---------------------------------------------------------------------
    _open("smollm2-135m-instruct", "HuggingFaceTB/SmolLM2-135M-Instruct", {
        "ollama": "smollm2:135m",
    }, context=8_192, distill=True),
    # ---- OpenAI ---------------------------------------------------------------------------------
    _closed("gpt-4o", {
        "openai": ("gpt-4o", "gpt-4o-2024-08-06", "gpt-4o-2024-11-20"), "azure": "gpt-4o",
        "openrouter": "openai/gpt-4o",
    }, context=128_000, output=16_384, can=_SEE),
    _closed("gpt-4o-mini", {
        "openai": ("gpt-4o-mini", "gpt-4o-mini-2024-07-18"), "azure": "gpt-4o-mini",
        "openrouter": "openai/gpt-4o-mini",
    }, context=128_000, output=16_384, can=_SEE),
    _closed("gpt-4.1", {
        "openai": ("gpt-4.1", "gpt-4.1-2025-04-14"), "azure": "gpt-4.1",
        "openrouter": "openai/gpt-4.1",
    }, context=1_047_576, output=32_768, can=_SEE),
    _closed("gpt-4.1-mini", {
        "openai": ("gpt-4.1-mini", "gpt-4.1-mini-2025-04-14"), "azure": "gpt-4.1-mini",
        "openrouter": "openai/gpt-4.1-mini",
    }, context=1_047_576, output=32_768, can=_SEE),
    _closed("gpt-4.1-nano", {
        "openai": ("gpt-4.1-nano", "gpt-4.1-nano-2025-04-14"), "azure": "gpt-4.1-nano",
        "openrouter": "openai/gpt-4.1-nano",
    }, context=1_047_576, output=32_768, can=_SEE),
    *(
        _closed(name, {"openai": name, "azure": name, "openrouter": f"openai/{name}"},
                context=context, output=output, can=can, quirks="max_completion_tokens")
        for name, context, output, can in (
            ("o3", 200_000, 100_000, _SEE_THINK),
            ("o4-mini", 200_000, 100_000, _SEE_THINK),
            ("gpt-5", 400_000, 128_000, _SEE_THINK),
            ("gpt-5-mini", 400_000, 128_000, _SEE_THINK),
            ("gpt-5-nano", 400_000, 128_000, _SEE_THINK),
            ("gpt-5.1", 400_000, 128_000, _SEE_THINK),
            ("gpt-5.2", 400_000, 128_000, _SEE_THINK),
            ("gpt-5.4", 1_050_000, None, ""),
            ("gpt-5.4-mini", 400_000, None, ""),
            ("gpt-5.4-nano", 400_000, None, ""),
            ("gpt-5.5", 1_000_000, None, ""),
            ("gpt-5.6-sol", 1_050_000, None, ""),
            ("gpt-5.6-terra", 1_050_000, None, ""),
            ("gpt-5.6-luna", 1_050_000, None, ""),
            ("gpt-6-astra", 1_050_000, None, ""),
            ("gpt-6-sol", 1_050_000, None, ""),
            ("gpt-6-luna", 1_050_000, None, ""),
        )
    ),
    *(
        _closed(name, {"openai": name, "azure": name, "openrouter": f"openai/{name}"},
                context=8_192, surfaces="embeddings")
        for name in ("text-embedding-3-small", "text-embedding-3-large", "text-embedding-ada-002")
    ),
    # ---- Anthropic ------------------------------------------------------------------------------
    *(
        _closed(name, {"anthropic": ids, "openrouter": f"anthropic/{router}"},
                context=context, output=output, can=_SEE_THINK if thinks else _SEE,
                quirks=f"thinking_{thinks}" if thinks in ("budget", "effort") else "")
        for name, ids, router, context, output, thinks in (
            ("claude-3-5-haiku", ("claude-3-5-haiku-latest", "claude-3-5-haiku-20241022"),
             "claude-3.5-haiku", 200_000, 8_192, ""),
            ("claude-haiku-4-5", ("claude-haiku-4-5", "claude-haiku-4-5-20251001"),
             "claude-haiku-4.5", 200_000, 64_000, "budget"),
            ("claude-haiku-5-5", "claude-haiku-5-5", "claude-haiku-5.5", _M1, None, "effort"),
            ("claude-sonnet-4", ("claude-sonnet-4-0", "claude-sonnet-4-20250514"),
             "claude-sonnet-4", 200_000, 64_000, "budget"),
            ("claude-sonnet-4-5", ("claude-sonnet-4-5", "claude-sonnet-4-5-20250929"),
             "claude-sonnet-4.5", 200_000, 64_000, "budget"),
            ("claude-sonnet-4-6", "claude-sonnet-4-6", "claude-sonnet-4.6", _M1, 64_000, "both"),
            ("claude-sonnet-5", "claude-sonnet-5", "claude-sonnet-5", _M1, None, "effort"),
            ("claude-sonnet-5-5", "claude-sonnet-5-5", "claude-sonnet-5.5", _M1, None, "effort"),
            ("claude-opus-4-1", ("claude-opus-4-1", "claude-opus-4-1-20250805"),
             "claude-opus-4.1", 200_000, 32_000, "budget"),
            ("claude-opus-4-5", ("claude-opus-4-5", "claude-opus-4-5-20251101"),
             "claude-opus-4.5", 200_000, 64_000, "budget"),
            ("claude-opus-4-6", "claude-opus-4-6", "claude-opus-4.6", _M1, 128_000, "both"),
            ("claude-opus-4-8", "claude-opus-4-8", "claude-opus-4.8", _M1, None, "effort"),
            ("claude-opus-5", "claude-opus-5", "claude-opus-5", _M1, None, "effort"),
            ("claude-opus-5-5", "claude-opus-5-5", "claude-opus-5.5", _M1, None, "effort"),
        )
    ),
)
# fmt: on
