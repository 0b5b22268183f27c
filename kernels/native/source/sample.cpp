// One token a row, as the reference defines it: weights are exp((logit - max) / t) * 2^44, rounded
// to integers, filters take some out, and the token is where the sum of the others in vocabulary
// order passes uniform * total. Integer sums have no order, so nothing depends on how rows are
// grouped.
//
// exp is computed here to within one unit in the last place of a double; a weight may so differ by
// 1 in 2^44 from another implementation's.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "largest.h"
#include "pool.h"
#include "simd.h"

namespace lr {
namespace {

constexpr int kHalf = kLanes / 2;
typedef double Doubles __attribute__((vector_size(kHalf * 8)));
typedef int64_t Longs __attribute__((vector_size(kHalf * 8)));
typedef uint64_t LongWords __attribute__((vector_size(kHalf * 8)));
typedef float HalfFloats __attribute__((vector_size(kHalf * 4)));

constexpr double kOne = 17592186044416.0;    // 2^44, the weight of the largest logit
constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
constexpr double kFaintest = -64.0;            // exp of it is far below half a unit of weight
constexpr int kNumBins = 1024;
constexpr int kBanks = 4;  // neighbours seldom wait for each other's sum
constexpr float kBinnedSpan = 32.0f;  // in units of the temperature; behind it all weights are 0

LR_INLINE Doubles doubles(double value) { return value - Doubles{}; }

LR_INLINE Doubles multiply_add(Doubles a, Doubles b, Doubles c) {
#if defined(LR_AVX512)
  return (Doubles)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(LR_AVX2)
  return (Doubles)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__ARM_NEON) && defined(__aarch64__)
  return (Doubles)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
  return a * b + c;
#endif
}

// exp(x) * 2^44 to the nearest integer, for x <= 0: Cody-Waite reduction by ln 2, then the series
// up to the 13th power on [-ln2/2, ln2/2]. NaN gives 0.
LR_INLINE Longs weight_of(Doubles x) {
  Doubles bounded = x > doubles(kFaintest) ? x : doubles(kFaintest);
  Doubles shifted = multiply_add(bounded, doubles(1.4426950408889634), doubles(kRound));
  Doubles whole = shifted - doubles(kRound);
  Doubles rest = multiply_add(whole, doubles(-6.93147180369123816490e-01), bounded);
  rest = multiply_add(whole, doubles(-1.90821492927058770002e-10), rest);
  Doubles sum = doubles(1.0 / 6227020800.0);
  for (double factor : {1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0,
                        1.0 / 40320.0, 1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0,
                        1.0 / 6.0, 0.5, 1.0, 1.0})
    sum = multiply_add(sum, rest, doubles(factor));
  LongWords power = ((LongWords)shifted << 52) + ((uint64_t)1023 << 52);
  Doubles scaled = sum * (Doubles)power * doubles(kOne);
  return (Longs)((LongWords)(scaled + doubles(kRound)) - (LongWords)doubles(kRound));
}

int64_t sum_of_weights(const int64_t* weights, int64_t count) {
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) total += weights[i];
  return total;
}

int64_t weigh(const float* logits, int64_t count, float best, double temperature,
              int64_t* weights) {
  const Doubles top = doubles((double)best), divisor = doubles(temperature);
  auto weighed = [&](const float* from) {
    Doubles below = __builtin_convertvector(load<HalfFloats>(from), Doubles) - top;
    return weight_of(temperature == 1.0 ? below : below / divisor);
  };
  Longs sum = {};
  int64_t i = 0;
  for (; i + kHalf <= count; i += kHalf) {
    Longs found = weighed(logits + i);
    store(weights + i, found);
    sum += found;
  }
  int64_t total = 0;
  for (int j = 0; j < kHalf; ++j) total += sum[j];
  if (i < count) {
    float last[kHalf] = {};
    std::memcpy(last, logits + i, (size_t)(count - i) * sizeof(float));
    Longs found = weighed(last);
    for (int64_t j = 0; i + j < count; ++j) total += weights[i + j] = found[j];
  }
  return total;
}

// Sets to 0 what is below either bound; the new total.
int64_t keep_from(float least_logit, int64_t least_weight, const float* logits, int64_t count,
                  int64_t* weights) {
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) {
    int64_t weight = logits[i] >= least_logit ? weights[i] : 0;
    weight = weight >= least_weight ? weight : 0;
    weights[i] = weight;
    total += weight;
  }
  return total;
}

struct Candidate {
  float logit;
  int64_t mass;
};

// The largest logit such that those from it up have a mass of at least `target`; a token's mass is
// its weight, or 1 without weights. Bins of falling logits tell which few of them to sort.
float threshold(const float* logits, const int64_t* weights, int64_t count, float best,
                double temperature, int64_t target, Candidate* candidates) {
  int64_t masses[kBanks][kNumBins] = {};
  const float scale = (float)(kNumBins / (kBinnedSpan * temperature));
  auto bin_of = [=](float logit) {
    float place = (best - logit) * scale;
    return place < (float)(kNumBins - 1) ? (int)place : kNumBins - 1;  // also what is no number
  };
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    int64_t size = std::min(kBlock, count - begin);
    int32_t bins[kBlock];
    for (int64_t i = 0; i < size; ++i) bins[i] = bin_of(logits[begin + i]);
    if (weights == nullptr)
      for (int64_t i = 0; i < size; ++i) ++masses[i % kBanks][bins[i]];
    else
      for (int64_t i = 0; i < size; ++i) masses[i % kBanks][bins[i]] += weights[begin + i];
  }
  for (int bank = 1; bank < kBanks; ++bank)
    for (int i = 0; i < kNumBins; ++i) masses[0][i] += masses[bank][i];
  int bin = 0;
  int64_t reached = 0;
  while (bin < kNumBins - 1 && reached + masses[0][bin] < target) reached += masses[0][bin++];
  int64_t num_candidates = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    int64_t end = std::min(begin + kBlock, count);
    int found = 0;
    for (int64_t i = begin; i < end; ++i) found |= bin_of(logits[i]) == bin;
    for (int64_t i = begin; found && i < end; ++i)
      if (bin_of(logits[i]) == bin && logits[i] == logits[i])
        candidates[num_candidates++] = Candidate{logits[i], weights == nullptr ? 1 : weights[i]};
  }
  std::sort(candidates, candidates + num_candidates,
            [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
  float result = best;
  for (int64_t i = 0; i < num_candidates && reached < target; ++i) {
    result = candidates[i].logit;
    reached += candidates[i].mass;
  }
  return result;
}

// The first index at which the running sum is above uniform * total.
int64_t place_of(double uniform, const int64_t* weights, int64_t count, int64_t total) {
  if (total <= 0) return 0;
  int64_t target = std::min((int64_t)(uniform * (double)total), total - 1);
  int64_t reached = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    int64_t size = std::min(kBlock, count - begin);
    int64_t inside = sum_of_weights(weights + begin, size);
    if (reached + inside > target)
      for (int64_t i = begin; i < begin + size; ++i)
        if ((reached += weights[i]) > target) return i;
    reached += inside;
  }
  return count - 1;
}

// As Python packs it. Absent filters are null.
struct SampleCall {
  const float* logits;        // [rows][stride]
  const double* uniforms;     // [rows]
  const double* temperature;  // [rows]; null: all rows are greedy
  const int64_t* top_k;
  const double* top_p;
  const double* min_p;
  int64_t* out;
  int64_t rows, stride, count;
};

int64_t sample_row(const SampleCall& call, int64_t row, int64_t* weights, Candidate* candidates) {
  const float* logits = call.logits + row * call.stride;
  const int64_t count = call.count;
  const float best = largest(logits, count);
  const double temperature = call.temperature == nullptr ? 0.0 : call.temperature[row];
  if (temperature == 0.0) return first_equal(logits, count, best);
  int64_t total = weigh(logits, count, best, temperature, weights);
  if (call.top_k != nullptr && call.top_k[row] > 0 && call.top_k[row] < count) {
    float least = threshold(logits, nullptr, count, best, temperature, call.top_k[row], candidates);
    total = keep_from(least, 0, logits, count, weights);
  }
  if (call.top_p != nullptr && call.top_p[row] < 1.0) {
    int64_t target = (int64_t)std::ceil(call.top_p[row] * (double)total);
    target = std::max<int64_t>(std::min(target, total), 1);
    float least = threshold(logits, weights, count, best, temperature, target, candidates);
    total = keep_from(least, 0, logits, count, weights);
  }
  if (call.min_p != nullptr && call.min_p[row] > 0.0) {
    auto least = (int64_t)std::ceil(call.min_p[row] * kOne);
    total = keep_from(-INFINITY, least, logits, count, weights);
  }
  return place_of(call.uniforms[row], weights, count, total);
}

}  // namespace
}  // namespace lr

using namespace lr;

// 0, or 1 without memory.
extern "C" LR_EXPORT int32_t lr_sample(const SampleCall* call) {
  std::atomic<int32_t> failed{0};
  parallel_ranges(call->rows, 1, [&](int64_t begin, int64_t end) {
    bool is_drawing = call->temperature != nullptr;
    bool is_sorting = call->top_k != nullptr || call->top_p != nullptr;
    auto* weights = (int64_t*)scratch(kWeights, is_drawing ? call->count * 8 : 1);
    auto* candidates =
        (Candidate*)scratch(kCandidates, is_sorting ? call->count * (int64_t)sizeof(Candidate) : 1);
    if (weights == nullptr || candidates == nullptr) {
      failed = 1;
      return;
    }
    for (int64_t row = begin; row < end; ++row)
      call->out[row] = sample_row(*call, row, weights, candidates);
  });
  return failed;
}
