"""What a request may carry: OpenAI's fields, the usual extensions, and ours."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from backend.api.fields import Count, Int64, Positive, wrong
from backend.engine.interface import Priority, SpeculationWish
from backend.sampling.params import SamplingParams

NUM_CHOICES_MAX = 128
NUM_STOPS_MAX = 16
STOP_CHARS_MAX = 256
TOOLS_MAX = 128
NUM_DRAFTS_MAX = 64
LOGIT_BIAS_ABS_MAX = 100.0
PRIORITIES = {"interactive": Priority.INTERACTIVE, "batch": Priority.BATCH}

Choices = Annotated[int, msgspec.Meta(ge=1, le=NUM_CHOICES_MAX)]
PriorityName = Literal["interactive", "batch"]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class SpeculationBody(msgspec.Struct):
    """`{"method": …, "n": …}` or `{"off": true}`."""

    method: str | None = None
    n: Annotated[int, msgspec.Meta(ge=0, le=NUM_DRAFTS_MAX)] | None = None
    off: bool | None = None


class CommonBody(msgspec.Struct, kw_only=True):
    """Fields of both surfaces; null is the same as absent."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Positive | None = None
    n: Choices | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Count] | None = None
    ignore_eos: bool | None = None
    priority: PriorityName | None = None
    speculation: SpeculationBody | None = None

    @property
    def kind(self) -> str:
        """Of work, as figures are kept for it."""
        raise NotImplementedError

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage is True

    def stops(self) -> tuple[str, ...]:
        """Raises BadRequest for too many, an empty or a very long one."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(given) > NUM_STOPS_MAX:
            raise wrong("stop", f"lists {len(given)} strings; at most {NUM_STOPS_MAX}")
        for text in given:
            if not 0 < len(text) <= STOP_CHARS_MAX:
                raise wrong("stop", f"strings have 1 to {STOP_CHARS_MAX} characters")
        return tuple(given)

    def wish(self) -> SpeculationWish:
        wanted = self.speculation
        if wanted is None:
            return SpeculationWish()
        if wanted.off and (wanted.method is not None or wanted.n is not None):
            raise wrong("speculation", "says off and names a method or n; send one of them")
        return SpeculationWish(is_off=wanted.off is True, method=wanted.method, num_drafts=wanted.n)

    def params(self, *, max_tokens: int, logprobs: int | None, vocab_size: int) -> SamplingParams:
        """Raises BadRequest naming the field whose value is out of range."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=_or(self.temperature, 1.0),
            top_k=max(0, _or(self.top_k, 0)),  # some clients write -1 for all
            top_p=_or(self.top_p, 1.0),
            min_p=_or(self.min_p, 0.0),
            repetition_penalty=_or(self.repetition_penalty, 1.0),
            presence_penalty=_or(self.presence_penalty, 0.0),
            frequency_penalty=_or(self.frequency_penalty, 0.0),
            logit_bias=_bias(self.logit_bias or {}, vocab_size),
            seed=self.seed,
            logprobs=logprobs,
            stop_token_ids=_known("stop_token_ids", self.stop_token_ids or [], vocab_size),
            ignore_eos=self.ignore_eos is True,
        )


class PartBody(msgspec.Struct):
    type: str
    text: str | None = None


class FunctionCallBody(msgspec.Struct):
    name: str
    arguments: str = ""


class ToolCallBody(msgspec.Struct):
    function: FunctionCallBody
    id: str = ""
    type: Literal["function"] = "function"


class MessageBody(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[PartBody] | None = None
    name: str | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class FunctionBody(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolBody(msgspec.Struct):
    function: FunctionBody
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct):
    name: str


class ToolChoiceBody(msgspec.Struct):
    function: NamedFunction
    type: Literal["function"] = "function"


class ResponseFormat(msgspec.Struct):
    type: str


class ChatBody(CommonBody, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[MessageBody], msgspec.Meta(min_length=1)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    tools: Annotated[list[ToolBody], msgspec.Meta(max_length=TOOLS_MAX)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceBody | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, str | int | float | bool | None] | None = None
    functions: list[Any] | None = None

    @property
    def kind(self) -> str:
        return "tools" if self.tools and self.tool_choice != "none" else "chat"

    @property
    def tokens_wanted(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """None: none; else how many beside the token's own. Raises BadRequest."""
        if self.logprobs is not True:
            if self.top_logprobs:
                raise wrong("top_logprobs", "needs logprobs: true")
            return None
        return self.top_logprobs or 0

    def check(self) -> None:
        """Refuses what would be answered wrongly if it were ignored."""
        if self.response_format is not None and self.response_format.type != "text":
            raise wrong(
                "response_format",
                f"{self.response_format.type!r} is not supported: answers are not constrained to "
                "a grammar; ask for text, and for JSON in the prompt",
            )
        if self.functions:
            raise wrong("functions", "is not supported; send tools")
        if isinstance(self.tool_choice, ToolChoiceBody):
            name = self.tool_choice.function.name
            if name not in {tool.function.name for tool in self.tools or ()}:
                raise wrong("tool_choice", f"names {name[:64]!r}, which is not among the tools")
        elif self.tool_choice == "required" and not self.tools:
            raise wrong("tool_choice", "is required, but there are no tools")


class CompletionsBody(CommonBody, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[Count]]
    logprobs: Count | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Choices | None = None

    @property
    def kind(self) -> str:
        return "completion"

    def prompts(self) -> list[str] | list[list[int]]:
        """Texts, or token ids: one prompt or several of one kind. Raises BadRequest."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        if not given:
            raise wrong("prompt", "is an empty list")
        if all(isinstance(each, str) for each in given):
            return [each for each in given if isinstance(each, str)]
        if all(isinstance(each, int) for each in given):
            return [[each for each in given if isinstance(each, int)]]
        if all(isinstance(each, list) for each in given):
            return [each for each in given if isinstance(each, list)]
        raise wrong("prompt", "mixes texts and token ids; send one kind")

    def check(self) -> None:
        """Refuses what would be answered wrongly if it were ignored."""
        if self.suffix:
            raise wrong("suffix", "is not supported: the model only continues a text")
        if self.best_of is not None and self.best_of > (self.n or 1):
            raise wrong("best_of", "above n is not supported; ask for n answers and choose")
        if self.echo and self.logprobs is not None:
            raise wrong("echo", "with logprobs is not supported: prompts have no logprobs here")


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _bias(given: dict[str, float], vocab_size: int) -> dict[int, float]:
    made: dict[int, float] = {}
    for text, bias in given.items():
        if not text.isascii() or not text.isdecimal() or int(text) >= vocab_size:
            raise wrong("logit_bias", f"holds {text[:20]!r}, which is no token id of this model")
        if not -LOGIT_BIAS_ABS_MAX <= bias <= LOGIT_BIAS_ABS_MAX:
            raise wrong("logit_bias", f"goes from -100 to 100, not {bias}")
        made[int(text)] = bias
    return made


def _known(param: str, token_ids: list[int], vocab_size: int) -> tuple[int, ...]:
    for token_id in token_ids:
        if token_id >= vocab_size:
            raise wrong(param, f"holds {token_id}; this model has ids below {vocab_size}")
    return tuple(token_ids)
