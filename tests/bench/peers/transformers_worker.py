"""transformers as a peer: MODEL.gguf DTYPE THREADS; a JSON line in, a JSON line out."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import transformers

from backend.models.gguf_checkpoint import GgufCheckpoint
from backend.models.gguf_config import gguf_config
from backend.models.gguf_file import read_gguf
from backend.models.registry import family_of_gguf

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Stamper:
    """What `generate` calls with the prompt first and then with every token."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self._is_prompt = True

    def put(self, _ids: torch.Tensor) -> None:
        if self._is_prompt:
            self._is_prompt = False
        else:
            self.times_s.append(time.monotonic())

    def end(self) -> None:
        pass


def load(
    path: Path, dtype: torch.dtype, config: transformers.PretrainedConfig
) -> transformers.PreTrainedModel:
    """transformers' own model; the file's blocks are turned into numbers by our reader.

    transformers reads GGUF itself only where the package accelerate is installed.
    """
    file = read_gguf(path)
    family = family_of_gguf(str(file.metadata["general.architecture"]))
    checkpoint = GgufCheckpoint(file, family, gguf_config(file, family))
    weights = {}
    for name, stored in checkpoint.tensors().items():
        weights[name] = torch.empty(stored.shape, dtype=torch.float32)
        checkpoint.read_into(name, weights[name])
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=dtype, attn_implementation="sdpa"
    )
    missing, unexpected = model.load_state_dict(weights, strict=False)
    model.tie_weights()
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    return model.eval()


def main(path: Path, dtype: str, threads: int) -> None:
    # Whatever a library prints goes to standard error; the answers have the pipe to themselves.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(threads)
    source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    model = load(path, DTYPES[dtype], transformers.AutoConfig.from_pretrained(**source))
    for line in sys.stdin:
        request = json.loads(line)
        messages = [{"role": "user", "content": request["text"]}]
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        stamper = Stamper()
        with torch.inference_mode():
            ids = model.generate(
                **prompt,
                do_sample=False,
                max_new_tokens=request["max_tokens"],
                eos_token_id=None,
                pad_token_id=0,
                streamer=stamper,
            )
        num_prompt = prompt["input_ids"].shape[1]
        answer = {
            "text": tokenizer.decode(ids[0, num_prompt:], skip_special_tokens=True),
            "times_s": stamper.times_s,
            "prompt_tokens": num_prompt,
        }
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
