"""The price of one more request on a machine that is paid by the hour."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import EndpointLive, MachineLoad
from gateway.policy.marginal import added_seconds, cost_nanos, num_sequences, step_seconds

TABLE = ((1, 0.010), (2, 0.011), (4, 0.013), (8, 0.020))
ASK = {"prompt_tokens": 100, "output_tokens": 50.0, "others_tokens": 50.0}


def load_of(**said: object) -> MachineLoad:
    fields = {"decode_step_s": TABLE, "prefill_token_s": 0.001, **said}
    return MachineLoad(**fields)  # type: ignore[arg-type]


def live_of(load: MachineLoad | None, in_flight: int = 0) -> EndpointLive:
    return EndpointLive(endpoint_id="own/m", in_flight=in_flight, machine=load)


def test_idle_machine_charges_the_whole_steps_of_a_request() -> None:
    assert added_seconds(live_of(load_of()), **ASK) == pytest.approx(100 * 0.001 + 50 * 0.010)


def test_request_beside_others_pays_for_what_the_larger_batch_takes_longer() -> None:
    busy = load_of(num_running=3, in_flight=3)

    # 3 → 4 sequences: 12 ms → 13 ms a step, for 50 steps.
    assert added_seconds(live_of(busy, 3), **ASK) == pytest.approx(0.1 + 50 * 0.001)


def test_request_that_outlasts_the_others_runs_its_rest_alone() -> None:
    busy = load_of(num_running=3, in_flight=3)
    longer = added_seconds(live_of(busy, 3), **{**ASK, "output_tokens": 80.0})

    assert longer == pytest.approx(0.1 + 50 * 0.001 + 30 * 0.010)


def test_request_beyond_the_largest_batch_pays_its_share_of_a_full_step() -> None:
    full = load_of(num_running=8, num_waiting=4, in_flight=12)

    assert step_seconds(full, 12) == pytest.approx(0.020 * 12 / 8)
    assert added_seconds(live_of(full, 12), **ASK) == pytest.approx(0.1 + 50 * 0.020 / 8)


def test_cache_that_is_full_bounds_the_batch_before_the_table_does() -> None:
    tight = load_of(num_running=3, kv_blocks_total=100, kv_blocks_used=75)

    assert step_seconds(tight, 4) == pytest.approx(0.013)
    assert step_seconds(tight, 8) == pytest.approx(0.013 * 2)


def test_larger_batch_is_never_quicker_however_noisy_the_table() -> None:
    noisy = load_of(decode_step_s=((2, 0.012), (4, 0.010), (6, 0.014)))

    assert [step_seconds(noisy, batch) for batch in (1, 2, 3, 4, 5, 6)] == pytest.approx(
        [0.012, 0.012, 0.012, 0.012, 0.013, 0.014]
    )


def test_what_was_sent_since_the_account_counts_and_what_has_ended_does_not() -> None:
    then = load_of(num_running=4, num_waiting=1, in_flight=3)  # two are of other clients

    assert num_sequences(then, 3) == 5
    assert num_sequences(then, 9) == 11
    assert num_sequences(then, 0) == 2
    assert num_sequences(load_of(num_running=1, in_flight=6), 6) == 6  # not all have arrived there


def test_parallel_choices_are_as_many_sequences() -> None:
    idle = added_seconds(live_of(load_of()), **ASK, num_choices=4)

    assert idle == pytest.approx(0.1 + 50 * 0.013)


def test_embeddings_cost_their_prompt_alone() -> None:
    ask = {**ASK, "output_tokens": 0.0}

    assert added_seconds(live_of(load_of(decode_step_s=())), **ask) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("load", "output_tokens"),
    [(None, 50.0), (MachineLoad(prefill_token_s=0.001), 50.0), (MachineLoad(), 0.0)],
)
def test_machine_that_measured_nothing_has_no_marginal_price(
    load: MachineLoad | None, output_tokens: float
) -> None:
    assert added_seconds(live_of(load), **{**ASK, "output_tokens": output_tokens}) is None


def test_seconds_become_money_rounded_up() -> None:
    assert cost_nanos(2_100_000_000, 1.0) == 583_334
    assert cost_nanos(2_100_000_000, 1e-12) == 1


tables = st.dictionaries(st.integers(1, 64), st.floats(1e-4, 1.0), min_size=1, max_size=8).map(
    lambda found: tuple(sorted(found.items()))
)


@given(
    table=tables,
    present=st.integers(0, 100),
    outputs=st.lists(st.integers(1, 300), min_size=2, max_size=2).map(sorted),
    others=st.integers(1, 300),
)
def test_more_tokens_never_cost_less_and_no_request_costs_less_than_nothing(
    table: tuple[tuple[int, float], ...], present: int, outputs: list[int], others: int
) -> None:
    live = live_of(load_of(decode_step_s=table, num_running=present, in_flight=present), present)
    short, long = (
        added_seconds(live, prompt_tokens=0, output_tokens=float(n), others_tokens=float(others))
        for n in outputs
    )

    assert short is not None
    assert long is not None
    assert 0.0 <= short <= long + 1e-12


@given(table=tables, sequences=st.integers(1, 80))
def test_filling_a_machine_one_by_one_costs_what_its_batch_takes(
    table: tuple[tuple[int, float], ...], sequences: int
) -> None:
    """The marginal seconds of equal requests add up to the time of all of them together."""
    total = 0.0
    for present in range(sequences):
        load = load_of(
            decode_step_s=table, prefill_token_s=0.0, num_running=present, in_flight=present
        )
        added = added_seconds(
            live_of(load, present), prompt_tokens=0, output_tokens=10.0, others_tokens=10.0
        )
        assert added is not None
        total += added
    whole = load_of(decode_step_s=table, num_running=sequences)

    assert total == pytest.approx(10.0 * step_seconds(whole, sequences))
