"""A true Llama checkpoint that says what a test wants: its weights give each token a successor.

Attention and the feed-forward block add nothing; embeddings are one-hot, so the output head alone
decides what follows a token. Behind each start token stands a chain of pieces; behind any single
byte follow "x" and "y" with equal probability, without end.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

CONTEXT = 16_384
LAYERS = 2
HEADS, HEAD_DIM, INNER = 2, 16, 16
EOS = "<|end|>"
CONTROL = ("<|begin|>", EOS, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
STARTS = ("<|go|>", "<|go_tools|>", "<|go_think|>", "<|go_words|>")

# The piece `", "arguments": ` is what the server itself writes when it demands a call.
CHAINS: Sequence[Sequence[str]] = (
    ("<|go|>", "Hello", " wor", "ld", ", how", " are", " you?", EOS),
    (
        *("<|go_tools|>", "Let me see.", "<tool_call>", '\n {"na', 'me": "get_', 'weather"'),
        *(', "argu', 'ments": {"ci', 'ty": "Par', 'is"}}', "\n</tool_call>", EOS),
    ),
    ("<|go_think|>", "<think>", "\nHm", ", two.", "\n</think>", "\n\nIt is", " two.", EOS),
    (
        *('{"name": "', "get_weather", '", "arguments": ', '{"city": "Rome"}', "}\n"),
        *("</tool_call>", EOS),
    ),
)

TEMPLATE = """\
{%- if messages[0].role == 'tool' %}{{ raise_exception('no answer before a call') }}{% endif %}
{%- if tools %}<|system|>Tools: {{ tools | tojson }}{% endif %}
{%- for message in messages %}
{{- '<|' + message.role + '|>' }}
{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>
{%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}
{%- if tools %}<|go_tools|>
{%- elif 'think' in messages[-1].content %}<|go_think|>
{%- elif 'words' in messages[-1].content %}<|go_words|>w
{%- else %}<|go|>{% endif %}
{%- endif %}"""


def save_spelling_model(directory: Path) -> None:
    """A Hugging Face directory that `serve` takes."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    _write(
        directory / "tokenizer_config.json",
        {"bos_token": CONTROL[0], "eos_token": EOS, "chat_template": TEMPLATE},
    )
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    _write(
        directory / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": size,
            "hidden_size": size,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS,
            "head_dim": HEAD_DIM,
            "intermediate_size": INNER,
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
            "max_position_embeddings": CONTEXT,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "bos_token_id": tokenizer.token_to_id(CONTROL[0]),
            "eos_token_id": tokenizer.token_to_id(EOS),
        },
    )
    save_file(_weights(tokenizer, size), directory / "model.safetensors")


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def _tokenizer() -> FastTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = FastTokenizer(models.BPE({each: idx for idx, each in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(each, special=True) for each in (*CONTROL, *STARTS)])
    pieces = dict.fromkeys(piece for chain in CHAINS for piece in chain)
    known = {*CONTROL, *STARTS}
    made.add_tokens(
        [AddedToken(each, special=False, normalized=False) for each in pieces if each not in known]
    )
    return made


def _weights(tokenizer: FastTokenizer, size: int) -> dict[str, torch.Tensor]:
    head = torch.zeros(size, size)
    for byte in range(256):  # every single byte is followed by x or y
        for letter in ("x", "y"):
            head[tokenizer.token_to_id(letter), byte] = 2.0
    for chain in CHAINS:
        for piece, following in itertools.pairwise(chain):
            head[tokenizer.token_to_id(following), tokenizer.token_to_id(piece)] = 2.0
    made = {
        "model.embed_tokens.weight": torch.eye(size),
        "model.norm.weight": torch.ones(size),
        "lm_head.weight": head,
    }
    width = HEADS * HEAD_DIM
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        made |= {
            at + "input_layernorm.weight": torch.ones(size),
            at + "post_attention_layernorm.weight": torch.ones(size),
            at + "self_attn.q_proj.weight": torch.randn(width, size) * 0.1,
            at + "self_attn.k_proj.weight": torch.randn(width, size) * 0.1,
            at + "self_attn.v_proj.weight": torch.randn(width, size) * 0.1,
            at + "self_attn.o_proj.weight": torch.zeros(size, width),
            at + "mlp.gate_proj.weight": torch.randn(INNER, size) * 0.1,
            at + "mlp.up_proj.weight": torch.randn(INNER, size) * 0.1,
            at + "mlp.down_proj.weight": torch.zeros(size, INNER),
        }
    return made
