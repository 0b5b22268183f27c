// Attention over keys and values where they lie in the paged cache: each is read once for all rows
// of an item. The softmax goes on as keys arrive (Milakov and Gimelshein, 2018; Dao et al., 2022).
#include "attention.h"

#include <atomic>

#include "attention_mask.h"
#include "attention_memory.h"
#include "attention_tiles.h"
#include "pool.h"

namespace lr {
namespace {

constexpr int64_t kStateBytesMax = 16 << 20;  // of all chunks together when threads share an item
constexpr int64_t kItemsPerThread = 2;        // fewer items than this: share them by chunks

Item item_at(const Attention& call, int64_t index, int64_t queries_per_item) {
  int64_t parts = (call.query_len + queries_per_item - 1) / queries_per_item;
  Item item;
  item.first = index % parts * queries_per_item;
  item.kv_head = index / parts % call.num_kv_heads;
  item.sequence = index / parts / call.num_kv_heads;
  int64_t left = call.query_len - item.first;
  int64_t queries = left < queries_per_item ? left : queries_per_item;
  item.num_rows = queries * call.group;
  item.begin = INT64_MAX;
  item.end = 0;
  for (int64_t query = 0; query < queries; ++query) {
    Visible seen = visible(call, item.sequence, item.first + query);
    int64_t begin = seen.low < seen.high ? seen.low : seen.start, end = seen.end();
    if (end > begin && begin < item.begin) item.begin = begin;
    if (end > item.end) item.end = end;
    for (int64_t head = 0; head < call.group; ++head) item.seen[query * call.group + head] = seen;
  }
  if (item.begin > item.end) item.begin = item.end;
  return item;
}

using ScoreTile = void (*)(const float*, const float*, int64_t, Ahead, float*);
template <typename Value>
using AddValues = void (*)(const float*, const Value* const*, int64_t, const uint8_t*, int, Ahead,
                           float*);
#if defined(LR_AVX512)
constexpr ScoreTile kScoreTiles[] = {score_tile<1>, score_tile<2>, score_tile<3>,
                                     score_tile<4>, score_tile<5>, score_tile<6>};
template <typename Value>
constexpr AddValues<Value> kAddValues[] = {add_values<1, Value>, add_values<2, Value>,
                                           add_values<3, Value>, add_values<4, Value>,
                                           add_values<5, Value>, add_values<6, Value>};
#else
constexpr ScoreTile kScoreTiles[] = {score_tile<1>, score_tile<2>};
template <typename Value>
constexpr AddValues<Value> kAddValues[] = {add_values<1, Value>, add_values<2, Value>};
#endif

// The keys whose bits are set, in their order; usually all.
struct KeyList {
  const uint8_t* keys;
  int count;
  uint8_t some[kKeys];

  explicit KeyList(uint64_t bits) {
    static const KeyList all;
    if (bits == ~(uint64_t)0) {
      keys = all.some;
      count = kKeys;
      return;
    }
    keys = some;
    for (count = 0; bits != 0; bits &= bits - 1) some[count++] = (uint8_t)__builtin_ctzll(bits);
  }

 private:
  KeyList() : keys(some), count(kKeys) {
    for (int i = 0; i < kKeys; ++i) some[i] = (uint8_t)i;
  }
};

// `rows` <= kTileRows rows from `row` on: scores, weights, values. Neighbours that see the same
// keys go through the values together.
template <typename Cached>
void attend_tile(const Attention& call, const Item& item, const Block<Cached>& block, int64_t row,
                 int64_t rows, const Buffers& buffers, const State& state) {
  int64_t dim = call.padded_dim();
  kScoreTiles[rows - 1](buffers.queries + row * call.head_dim, buffers.turned, call.head_dim,
                        row == 0 ? block.ahead_keys : Ahead{}, buffers.scores);
  uint64_t bits[kTileRows];
  for (int64_t r = 0; r < rows; ++r) {
    bits[r] = seen_bits(item.seen[row + r], block.base);
    if (bits[r] != 0 && !soften(buffers.scores + r * kKeys, bits[r], call.soft_cap,
                                state.maximum + row + r, state.sum + (row + r) * kLanes,
                                state.values + (row + r) * dim, dim))
      bits[r] = 0;
  }
  for (int64_t r = 0; r < rows;) {
    int64_t same = 1;
    while (r + same < rows && bits[r + same] == bits[r]) ++same;
    const KeyList list(bits[r]);
    const float* weights = buffers.scores + r * kKeys;
    float* to = state.values + (row + r) * dim;
    Ahead ahead = row + r == 0 ? block.ahead_values : Ahead{};
    if (block.is_copied)
      kAddValues<float>[same - 1](weights, block.copied, dim, list.keys, list.count, ahead, to);
    else
      kAddValues<Cached>[same - 1](weights, block.values, dim, list.keys, list.count, ahead, to);
    r += same;
  }
}

void clear(const State& state, int64_t rows, int64_t padded_dim) {
  for (int64_t row = 0; row < rows; ++row) state.maximum[row] = -__builtin_inff();
  std::memset(state.sum, 0, (size_t)(rows * kLanes) * sizeof(float));
  std::memset(state.values, 0, (size_t)(rows * padded_dim) * sizeof(float));
}

// Chunk `chunk` of the item's keys into `state`, from nothing.
template <typename Cached>
void attend_chunk(const Attention& call, const Item& item, int64_t chunk, const Buffers& buffers,
                  const State& state) {
  clear(state, item.num_rows, call.padded_dim());
  for (int64_t block = chunk * kChunkBlocks; block < (chunk + 1) * kChunkBlocks; ++block) {
    int64_t base = block * kKeys;
    if (base + kKeys <= item.begin || base >= item.end) continue;
    Block<Cached> keys;
    keys.base = base;
    read_block(call, item, buffers, &keys);
    for (int64_t row = 0; row < item.num_rows; row += kTileRows) {
      int64_t rows = item.num_rows - row < kTileRows ? item.num_rows - row : kTileRows;
      attend_tile(call, item, keys, row, rows, buffers, state);
    }
  }
}

// `total` takes in `part`, the next chunk of keys.
void merge(const State& total, const State& part, int64_t rows, int64_t dim) {
  for (int64_t row = 0; row < rows; ++row) {
    float ours = total.maximum[row], theirs = part.maximum[row];
    if (theirs == -__builtin_inff()) continue;  // saw nothing
    float* sum = total.sum + row * kLanes;
    const float* other_sum = part.sum + row * kLanes;
    float* values = total.values + row * dim;
    const float* other_values = part.values + row * dim;
    float after = ours > theirs ? ours : theirs;
    total.maximum[row] = after;
    Floats keep = exponential(splat(ours - after)), take = exponential(splat(theirs - after));
    store(sum, multiply_add(load<Floats>(other_sum), take, load<Floats>(sum) * keep));
    for (int64_t d = 0; d < dim; d += kLanes)
      store(values + d,
            multiply_add(load<Floats>(other_values + d), take, load<Floats>(values + d) * keep));
  }
}

template <typename Cached>
void attend_item(const Attention& call, const Item& item, const Buffers& buffers) {
  int64_t dim = call.padded_dim();
  State total = State::at(buffers.states);
  State part = State::at(buffers.states + State::num_floats(dim));
  clear(total, item.num_rows, dim);
  constexpr int64_t kChunk = kKeys * kChunkBlocks;
  for (int64_t chunk = item.begin / kChunk; chunk * kChunk < item.end; ++chunk) {
    attend_chunk<Cached>(call, item, chunk, buffers, part);
    merge(total, part, item.num_rows, dim);
  }
}

// How the call is cut, and whether a thread ran out of memory.
struct Work {
  const Attention* call;
  int64_t queries_per_item;
  int64_t num_items;
  int64_t num_chunks;  // of each item, if `states` is not null
  float* states;       // [num_items][num_chunks] states, or null: one thread does a whole item
  std::atomic<bool>* failed;
};

float* thread_memory(const Work& work) {
  auto* memory = (float*)scratch(kAttention, Buffers::num_floats(*work.call) * 4);
  if (memory == nullptr) work.failed->store(true);
  return memory;
}

template <typename Element, typename Cached>
void run_items(const Work& work, int64_t begin, int64_t end) {
  const Attention& call = *work.call;
  float* memory = thread_memory(work);
  if (memory == nullptr) return;
  Buffers buffers = Buffers::at(call, memory);
  for (int64_t index = begin; index < end; ++index) {
    Item item = item_at(call, index, work.queries_per_item);
    read_queries<Element>(call, item, buffers.queries);
    attend_item<Cached>(call, item, buffers);
    write_rows<Element>(call, item, State::at(buffers.states));
  }
}

template <typename Element, typename Cached>
void run_chunks(const Work& work, int64_t begin, int64_t end) {
  const Attention& call = *work.call;
  float* memory = thread_memory(work);
  if (memory == nullptr) return;
  Buffers buffers = Buffers::at(call, memory);
  int64_t size = State::num_floats(call.padded_dim());
  for (int64_t index = begin; index < end; ++index) {
    Item item = item_at(call, index / work.num_chunks, work.queries_per_item);
    read_queries<Element>(call, item, buffers.queries);
    attend_chunk<Cached>(call, item, index % work.num_chunks, buffers,
                         State::at(work.states + index * size));
  }
}

// The same sums in the same order as attend_item's.
template <typename Element>
void merge_chunks(const Work& work, int64_t begin, int64_t end) {
  const Attention& call = *work.call;
  int64_t size = State::num_floats(call.padded_dim());
  float* memory = thread_memory(work);
  if (memory == nullptr) return;
  State total = State::at(Buffers::at(call, memory).states);
  for (int64_t index = begin; index < end; ++index) {
    Item item = item_at(call, index, work.queries_per_item);
    clear(total, item.num_rows, call.padded_dim());
    for (int64_t chunk = 0; chunk < work.num_chunks; ++chunk)
      merge(total, State::at(work.states + (index * work.num_chunks + chunk) * size),
            item.num_rows, call.padded_dim());
    write_rows<Element>(call, item, total);
  }
}

template <typename Element, typename Cached>
void run(Work work) {
  const Attention& call = *work.call;
  int64_t longest = 0;
  for (int64_t s = 0; s < call.num_sequences; ++s)
    if (call.context_lens[s] > longest) longest = call.context_lens[s];
  work.num_chunks = (longest + kKeys * kChunkBlocks - 1) / (kKeys * kChunkBlocks);
  int64_t num_parts = work.num_items * work.num_chunks;
  int64_t state_bytes = num_parts * State::num_floats(call.padded_dim()) * 4;
  bool is_shared = num_threads() > 1 && work.num_items < num_threads() * kItemsPerThread &&
                   work.num_chunks > 1 && state_bytes <= kStateBytesMax;
  if (is_shared) work.states = (float*)scratch(kPartials, state_bytes);
  if (work.states == nullptr)
    return parallel_ranges(work.num_items, 1, [&](int64_t begin, int64_t end) {
      run_items<Element, Cached>(work, begin, end);
    });
  parallel_ranges(num_parts, 1, [&](int64_t begin, int64_t end) {
    run_chunks<Element, Cached>(work, begin, end);
  });
  merge_chunks<Element>(work, 0, work.num_items);
}

// 0; 2: a context that its table does not hold; 3: a block that the cache does not have; 4: more
// heads to a key head than an item has rows.
int32_t check(const Attention& call) {
  if (call.group > kRowsMax) return 4;
  for (int64_t s = 0; s < call.num_sequences; ++s) {
    int64_t context = call.context_lens[s];
    if (context < 0 || context > call.table_width * call.block_size) return 2;
    for (int64_t i = 0; i * call.block_size < context; ++i) {
      int32_t block = call.block_tables[s * call.table_width + i];
      if (block < 0 || block >= call.num_blocks) return 3;
    }
  }
  return 0;
}

}  // namespace
}  // namespace lr

using namespace lr;

// 0, 1 without memory, or what `check` finds.
extern "C" LR_EXPORT int32_t lr_paged_attention(const Attention* given) {
  const Attention& call = *given;
  int32_t wrong = check(call);
  if (wrong != 0) return wrong;
  std::atomic<bool> failed{false};
  int64_t queries = kRowsMax / call.group;
  int64_t parts = (call.query_len + queries - 1) / queries;
  Work work{given, queries, call.num_sequences * call.num_kv_heads * parts, 0, nullptr, &failed};
  if (call.kind == kBFloat16 && call.cache_kind == kBFloat16)
    run<BFloat16, BFloat16>(work);
  else if (call.kind == kBFloat16)
    run<BFloat16, float>(work);
  else if (call.cache_kind == kBFloat16)
    run<float, BFloat16>(work);
  else
    run<float, float>(work);
  return failed.load() ? 1 : 0;
}
