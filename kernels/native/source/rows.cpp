// Ops on rows alone: the norm with the residual before it, and the gate of a feed-forward layer.
#include <cmath>

#include "pool.h"
#include "simd.h"
#include "values.h"

namespace lr {
namespace {

constexpr int64_t kElementsPerRange = 32768;
constexpr int kSums = 4;

int64_t rows_per_range(int64_t width) { return kElementsPerRange / (width > 0 ? width : 1) + 1; }

// Sum of squares in an order that only the row's width decides.
template <typename Element>
float sum_of_squares(const Element* x, int64_t width) {
  Floats sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums * kLanes <= width; i += kSums * kLanes)
    for (int j = 0; j < kSums; ++j) {
      Floats value = load_floats(x + i + j * kLanes);
      sums[j] = multiply_add(value, value, sums[j]);
    }
  for (; i + kLanes <= width; i += kLanes) {
    Floats value = load_floats(x + i);
    sums[0] = multiply_add(value, value, sums[0]);
  }
  if (i < width) {
    Floats value = load_some(x + i, width - i);
    sums[1] = multiply_add(value, value, sums[1]);
  }
  return sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// `to` may be `x` or `y`.
template <typename Element>
void add_row(const Element* x, const Element* y, int64_t width, Element* to) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes)
    store_floats(to + i, load_floats(x + i) + load_floats(y + i));
  if (i < width)
    store_some(to + i, load_some(x + i, width - i) + load_some(y + i, width - i), width - i);
}

template <typename Element, typename Weight>
void scale_row(const Element* x, const Weight* weight, float centre, float factor, int64_t width,
               Element* to) {
  const Floats all = splat(factor), shift = splat(centre);
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes)
    store_floats(to + i, load_floats(x + i) * all * (load_floats(weight + i) + shift));
  if (i < width)
    store_some(to + i,
               load_some(x + i, width - i) * all * (load_some(weight + i, width - i) + shift),
               width - i);
}

// As Python packs it. All of [rows, width], contiguous; x, residual, sum and out of one kind.
struct Norm {
  const void* x;
  const void* weight;
  const void* residual;  // or null
  void* sum;             // of both; may be `x` or `residual`; without a residual a copy of x, or x
  void* out;
  int64_t rows, width;
  float eps, centre;  // the factor is weight + centre
  int32_t kind, weight_kind;
};

// gate_up [rows, 2 width] → out [rows, width], both contiguous and of one kind.
struct Gate {
  const void* gate_up;
  void* out;
  int64_t rows, width;
  int32_t is_gelu, kind;
};

template <typename Element, typename Weight>
void norm_rows(const Norm& norm, int64_t begin, int64_t end) {
  int64_t width = norm.width;
  for (int64_t row = begin; row < end; ++row) {
    const Element* x = (const Element*)norm.x + row * width;
    Element* sum = (Element*)norm.sum + row * width;
    if (norm.residual != nullptr)
      add_row(x, (const Element*)norm.residual + row * width, width, sum);
    else if (sum != x)
      std::memmove(sum, x, (size_t)width * sizeof(Element));
    float mean = sum_of_squares(sum, width) / (float)width;
    float factor = 1.0f / std::sqrt(mean + norm.eps);
    scale_row(sum, (const Weight*)norm.weight, norm.centre, factor, width,
              (Element*)norm.out + row * width);
  }
}

LR_INLINE Floats silu(Floats x) { return x / (exponential(-x) + 1.0f); }

// x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)): the tanh form, by one exponential.
LR_INLINE Floats gelu_tanh(Floats x) {
  Floats inner = multiply_add(x * x * x, splat(0.044715f), x);
  return x / (exponential(inner * -1.5957691216f) + 1.0f);
}

template <typename Element, bool kIsGelu>
void gate_rows(const Gate& call, int64_t begin, int64_t end) {
  int64_t width = call.width;
  for (int64_t row = begin; row < end; ++row) {
    const Element* gate = (const Element*)call.gate_up + row * 2 * width;
    const Element* up = gate + width;
    Element* to = (Element*)call.out + row * width;
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
      Floats value = load_floats(gate + i);
      store_floats(to + i, (kIsGelu ? gelu_tanh(value) : silu(value)) * load_floats(up + i));
    }
    if (i < width) {
      Floats value = load_some(gate + i, width - i);
      Floats gated = (kIsGelu ? gelu_tanh(value) : silu(value)) * load_some(up + i, width - i);
      store_some(to + i, gated, width - i);
    }
  }
}

}  // namespace
}  // namespace lr

using namespace lr;

extern "C" LR_EXPORT int32_t lr_rms_norm(const Norm* given) {
  const Norm& norm = *given;
  parallel_ranges(norm.rows, rows_per_range(norm.width), [&](int64_t begin, int64_t end) {
    if (norm.kind == kBFloat16 && norm.weight_kind == kBFloat16)
      norm_rows<BFloat16, BFloat16>(norm, begin, end);
    else if (norm.kind == kBFloat16)
      norm_rows<BFloat16, float>(norm, begin, end);
    else if (norm.weight_kind == kBFloat16)
      norm_rows<float, BFloat16>(norm, begin, end);
    else
      norm_rows<float, float>(norm, begin, end);
  });
  return 0;
}

extern "C" LR_EXPORT int32_t lr_gated_mul(const Gate* given) {
  const Gate& call = *given;
  parallel_ranges(call.rows, rows_per_range(call.width), [&](int64_t begin, int64_t end) {
    if (call.kind == kBFloat16 && call.is_gelu)
      gate_rows<BFloat16, true>(call, begin, end);
    else if (call.kind == kBFloat16)
      gate_rows<BFloat16, false>(call, begin, end);
    else if (call.is_gelu)
      gate_rows<float, true>(call, begin, end);
    else
      gate_rows<float, false>(call, begin, end);
  });
  return 0;
}
