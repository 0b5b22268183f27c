"""The test bundle's tokenizer: byte-level BPE with a ChatML-like template."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.bundle.corpus import TARGET, Message, messages_of, turns

# The last one is written by nobody: heads that draft blocks take it for their mask.
END_OF_TEXT, START, END, MASK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"
VOCABULARY = 1280
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_ROLES = ["system\n", "user\n", "assistant\n"]
_SAMPLES = 12_000  # turns; more of them change no merge that matters


def rendered(messages: list[Message]) -> str:
    """As the template writes them, without an opening for the next answer."""
    return "".join(f"{START}{each['role']}\n{each['content']}{END}\n" for each in messages)


def train_tokenizer(seed: int) -> Tokenizer:
    """Digits are tokens of their own, so that sums are written figure by figure."""
    fast = Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        show_progress=False,
        special_tokens=[END_OF_TEXT, START, END, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made = itertools.islice(turns(TARGET, seed), _SAMPLES)
    texts = (each["content"] for _, turn in made for each in messages_of([turn]))
    fast.train_from_iterator(itertools.chain(_ROLES * _SAMPLES, texts), trainer)
    return fast


def save_tokenizer(fast: Tokenizer, directory: Path) -> None:
    """tokenizer.json without blanks, and tokenizer_config.json."""
    described = json.loads(fast.to_str())
    content = json.dumps(described, ensure_ascii=False, separators=(",", ":"))
    (directory / "tokenizer.json").write_text(content + "\n", encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "model_max_length": 512,
        "chat_template": TEMPLATE,
    }
    text = json.dumps(config, indent=2)
    (directory / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
