// Drafts one after the other: each is the best of its place's logits and of what the token before
// it adds, a row of a small table times an int8 weight. The sums are lr_linear_int8's own, so the
// drafts are those of its calls one by one, to the last tie.
#include "largest.h"
#include "linear_int8.h"
#include "pool.h"
#include "values.h"

namespace lr {
namespace {

enum Failure : int32_t { kNoMemory = 1, kNoSuchToken = 2 };

// As Python packs it.
struct MarkovCall {
  const float* logits;      // [rows][places][n], n the weight's
  const int64_t* previous;  // [rows], the token before the first place
  const void* table;        // [num_tokens][k], k the weight's
  const int64_t* offsets;   // [n], from a number of a draft to its token; or null
  const Int8Weight* weight;
  int64_t* out;  // [rows][places]
  int64_t rows, places, num_tokens;
  int32_t table_kind;
};

// biases <- biases + logits; where the largest is.
int64_t best_of(const float* logits, float* biases, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    store(biases + i, load<Floats>(biases + i) + load<Floats>(logits + i));
  for (; i < count; ++i) biases[i] += logits[i];
  return first_equal(biases, count, largest(biases, count));
}

}  // namespace
}  // namespace lr

using namespace lr;

// 0 or a Failure.
extern "C" LR_EXPORT int32_t lr_markov_pick(const MarkovCall* given) {
  const MarkovCall& call = *given;
  const int64_t n = call.weight->n, k = call.weight->k, rows = call.rows;
  const int64_t row_bytes = k * (call.table_kind == kBFloat16 ? 2 : 4);
  auto* latents = (char*)scratch(kLatents, rows * row_bytes);
  auto* biases = (float*)scratch(kBiases, rows * n * (int64_t)sizeof(float));
  if (latents == nullptr || biases == nullptr) return kNoMemory;
  const Int8Call product{call.weight, latents, nullptr,         biases,   rows,
                         k,           n,       call.table_kind, kFloat32};
  for (int64_t place = 0; place < call.places; ++place) {
    for (int64_t row = 0; row < rows; ++row) {
      int64_t token = place == 0 ? call.previous[row] : call.out[row * call.places + place - 1];
      if (token < 0 || token >= call.num_tokens) return kNoSuchToken;
      std::memcpy(latents + row * row_bytes, (const char*)call.table + token * row_bytes,
                  (size_t)row_bytes);
    }
    if (lr_linear_int8(&product) != 0) return kNoMemory;
    for (int64_t row = 0; row < rows; ++row) {
      int64_t best = best_of(call.logits + (row * call.places + place) * n, biases + row * n, n);
      call.out[row * call.places + place] =
          best + (call.offsets == nullptr ? 0 : call.offsets[best]);
    }
  }
  return 0;
}
