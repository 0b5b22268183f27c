"""One uniform number for each (seed, position), the same on every device and in every batch.

A counter hash, not a generator with state: what a token is drawn with does not depend on the tokens
drawn before, on the other requests of the step, or on how many tokens a step makes. The mixing
function is the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
generators, OOPSLA 2014), here applied to the seed and again to the sum of that and the position, so
that neighbouring seeds do not give shifted copies of one sequence.

What is drawn beside tokens has streams of its own: to accept a draft by the number that the target
draws its token with would bias the text.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB
_STREAM = 0xD1342543DE82EF95  # odd, without a simple relation to the others
_FRACTION_BITS = 52


def as_int64(value: int) -> int:
    """The integer's lowest 64 bits, read as signed: what an int64 tensor can hold."""
    return ((value + (1 << 63)) % (1 << 64)) - (1 << 63)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical; torch shifts signed integers arithmetically."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """A bijection of 64 bits in which every input bit moves every output bit."""
    x = (x ^ _shift_right(x, 30)) * as_int64(_MULTIPLIER_1)
    x = (x ^ _shift_right(x, 27)) * as_int64(_MULTIPLIER_2)
    return x ^ _shift_right(x, 31)


def uniforms(seeds: Tensor, positions: Tensor) -> Tensor:
    """int64 seeds and positions of one shape → float64 of that shape, above 0 and below 1.

    52 bits and a half: the largest value is 1 - 2**-53, which float64 still tells from 1.
    """
    return _at(mix(seeds + as_int64(_GAMMA)), positions)


def round_uniforms(seeds: Tensor, starts: Tensor, num: int) -> Tensor:
    """int64 seeds [S] and the positions [S] that a round of drafts starts at → float64 [S, num].

    Each column is a stream of its own, and none is that of `uniforms`. A round looks at all of its
    numbers, also at those behind the first rejection; as every round starts at another position,
    none of them comes back.
    """
    streams = torch.arange(1, num + 1, device=seeds.device) * as_int64(_STREAM)
    keys = mix(mix(seeds + as_int64(_GAMMA)).unsqueeze(1) + streams)
    return _at(keys, starts.unsqueeze(1))


def _at(keys: Tensor, positions: Tensor) -> Tensor:
    hashed = mix(keys + (positions + 1) * as_int64(_GAMMA))
    return (_shift_right(hashed, 64 - _FRACTION_BITS).double() + 0.5) * 2.0**-_FRACTION_BITS
