"""What baselines read from an outcome: times in seconds, tokens, and who is to blame."""

from __future__ import annotations

from gateway.core import AttemptOutcome
from gateway.errors import FAILURES, FailureClass

TIMEOUTS = frozenset({FailureClass.TIMEOUT_FIRST_TOKEN.value, FailureClass.TIMEOUT_IDLE.value})
RATE_LIMITED = FailureClass.RATE_LIMITED.value
# Failures that say nothing of the endpoint: the caller's own.
NOT_ITS_FAULT = frozenset(
    failure.value
    for failure, policy in FAILURES.items()
    if not policy.counts_for_breaker and not policy.counts_as_capacity
)


def ttft_s(outcome: AttemptOutcome) -> float | None:
    """Dispatch → first generated token; None where there was none."""
    if outcome.first_generated_at_s is None:
        return None
    return outcome.first_generated_at_s - outcome.dispatched_at_s


def whole_s(outcome: AttemptOutcome, now_s: float) -> float:
    """Dispatch → end."""
    return (outcome.ended_at_s or now_s) - outcome.dispatched_at_s


def output_tokens(outcome: AttemptOutcome) -> int:
    """As the provider counts them; 0 where it does not say."""
    return outcome.usage.output_total if outcome.usage is not None else 0


def is_success(outcome: AttemptOutcome) -> bool:
    return not outcome.failure and not outcome.client_gone


def is_its_failure(outcome: AttemptOutcome) -> bool:
    """The endpoint's fault, a 429 included."""
    return bool(outcome.failure) and outcome.failure not in NOT_ITS_FAULT


def end_to_end_tokens_per_s(outcome: AttemptOutcome, now_s: float) -> float | None:
    """Output tokens over the time from dispatch to end, as OpenRouter defines throughput."""
    tokens, seconds = output_tokens(outcome), whole_s(outcome, now_s)
    return tokens / seconds if tokens > 0 and seconds > 0.0 and is_success(outcome) else None
