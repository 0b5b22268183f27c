// Which keys a row sees.
#pragma once

#include "attention.h"

namespace lr {

// The keys of this step's own rows, in a tree: `room` of them exist. A window counts places in the
// tree, of which a row's own is the number of its bits.
inline void see_own(const Attention& call, const int64_t* bits, int64_t query, int64_t room,
             Visible* seen) {
  uint64_t rows = call.query_len < 64 ? ((uint64_t)1 << call.query_len) - 1 : ~(uint64_t)0;
  uint64_t own = (uint64_t)bits[query] & rows;
  int64_t depth = __builtin_popcountll(own) - 1;
  if (room < 64) own &= room <= 0 ? 0 : ((uint64_t)1 << room) - 1;
  if (call.window > 0) {
    for (int64_t i = 0; i < call.query_len; ++i)
      if (__builtin_popcountll((uint64_t)bits[i] & rows) - 1 <= depth - call.window)
        own &= ~((uint64_t)1 << i);
    int64_t low = seen->start + depth - call.window + 1;
    seen->low = low > 0 ? low : 0;
  }
  seen->own = own;
}

inline Visible visible(const Attention& call, int64_t sequence, int64_t query) {
  int64_t context = call.context_lens[sequence], start = call.query_starts[sequence];
  Visible seen{0, context, start, 0};
  if (call.mask == kBits) {
    seen.high = start < context ? start : context;
    int64_t room = context - start < call.query_len ? context - start : call.query_len;
    see_own(call, call.mask_bits + sequence * call.query_len, query, room, &seen);
  } else {
    if (call.mask == kCausal && start + query + 1 < context) seen.high = start + query + 1;
    int64_t low = start + query - call.window + 1;
    if (call.window > 0 && low > 0) seen.low = low;
  }
  if (seen.low > seen.high) seen.low = seen.high;
  return seen;
}

// Bits [low, high) of a word whose bit 0 is key `base`.
inline uint64_t range_bits(int64_t low, int64_t high, int64_t base) {
  low = low > base ? low - base : 0;
  high = high - base < kKeys ? high - base : kKeys;
  if (low >= high) return 0;
  uint64_t below_high = high == kKeys ? ~(uint64_t)0 : ((uint64_t)1 << high) - 1;
  return below_high & (~(uint64_t)0 << low);
}

inline uint64_t seen_bits(const Visible& seen, int64_t base) {
  uint64_t bits = range_bits(seen.low, seen.high, base);
  int64_t shift = seen.start - base;
  if (seen.own != 0 && shift > -64 && shift < 64)
    bits |= shift >= 0 ? seen.own << shift : seen.own >> -shift;
  return bits;
}

}  // namespace lr
