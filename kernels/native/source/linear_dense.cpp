// y = x w^T in float32 sums; w lies as it is, [n, k], in float32 or bfloat16. Lanes run along k. A
// tile has as many sums as a vector has lanes; they are turned and added lane by lane in the end.
// Every sum is made in the same order whatever tile it is in, so a row's result is its own.
#include "pool.h"
#include "simd.h"
#include "transpose.h"
#include "values.h"

namespace lr {

// As Python packs it. Strides count elements.
struct DenseCall {
  const void* x;       // [rows, k]
  const void* weight;  // [n, k]
  const float* bias;   // [n] or null
  void* out;           // [rows, n]
  int64_t rows, k, n, x_stride, out_stride;
  int32_t x_kind, kind, out_kind;  // `kind` is the weight's
};

namespace {

constexpr int64_t kBytesPerRange = 256 << 10;  // of weights

// What one step takes: two vectors of x in the order in which those of w come.
constexpr int kStep = 2 * kLanes;

LR_INLINE void load_step(const float* from, Floats* first, Floats* second) {
  *first = load<Floats>(from);
  *second = load<Floats>(from + kLanes);
}
LR_INLINE void load_step(const BFloat16* from, Floats* first, Floats* second) {
  load_even_odd(from, first, second);
}

template <typename Element, typename Weight>
void read_step(const Element* from, const Weight*, float* to) {
  for (int i = 0; i < kStep; ++i) {
    int place = sizeof(Weight) == 2 ? i % 2 * kLanes + i / 2 : i;
    to[place] = to_float(from[i]);
  }
}
LR_INLINE void read_step(const BFloat16* from, const BFloat16*, float* to) {
  Floats even, odd;
  load_even_odd(from, &even, &odd);
  store(to, even);
  store(to + kLanes, odd);
}
LR_INLINE void read_step(const float* from, const float*, float* to) {
  std::memcpy(to, from, kStep * sizeof(float));
}

// A row of x as the weight's type wants it, with zeros up to a whole step.
template <typename Element, typename Weight>
void read_row(const Element* from, const Weight* kind, int64_t k, float* to) {
  int64_t i = 0;
  for (; i + kStep <= k; i += kStep) read_step(from + i, kind, to + i);
  if (i == k) return;
  Element rest[kStep] = {};
  std::memcpy(rest, from + i, (size_t)(k - i) * sizeof(Element));
  read_step(rest, kind, to + i);
}

template <int Rows, typename Weight>
LR_INLINE void add_step(const float* x, int64_t stride, const Weight* const (&w)[kLanes / Rows],
                        int64_t at, Floats (&sums)[kLanes]) {
  constexpr int kColumns = kLanes / Rows;
  Floats first[Rows], second[Rows];
  for (int r = 0; r < Rows; ++r) {
    first[r] = load<Floats>(x + r * stride);
    second[r] = load<Floats>(x + r * stride + kLanes);
  }
  for (int c = 0; c < kColumns; ++c) {
    Floats w_first, w_second;
    load_step(w[c] + at, &w_first, &w_second);
    for (int r = 0; r < Rows; ++r) {
      Floats& sum = sums[r * kColumns + c];
      sum = multiply_add(second[r], w_second, multiply_add(first[r], w_first, sum));
    }
  }
}

// Lane r * kColumns + c: row r of x times row c of w.
template <int Rows, typename Weight>
LR_INLINE Floats multiply_tile(const float* x, int64_t stride,
                               const Weight* const (&w)[kLanes / Rows], int64_t k, bool is_ahead) {
  constexpr int kColumns = kLanes / Rows;
  Floats sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kStep <= k; i += kStep) {
    if (is_ahead)
      for (int c = 0; c < kColumns; ++c) prefetch(w[c] + kLanes * k + i);
    add_step<Rows>(x + i, stride, w, i, sums);
  }
  if (i < k) {
    Weight rest[kColumns][kStep] = {};
    const Weight* rests[kColumns];
    for (int c = 0; c < kColumns; ++c) {
      std::memcpy(rest[c], w[c] + i, (size_t)(k - i) * sizeof(Weight));
      rests[c] = rest[c];
    }
    add_step<Rows>(x + i, stride, rests, 0, sums);
  }
  Words turned[kLanes];
  for (int j = 0; j < kLanes; ++j) turned[j] = as_words(sums[j]);
  transpose(turned);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int j = 0; j < width; ++j)
      turned[j] = as_words(as_floats(turned[j]) + as_floats(turned[j + width]));
  return as_floats(turned[0]);
}

struct Rows {
  const float* values;
  int64_t stride;
};

template <typename Out>
LR_INLINE void write_run(const DenseCall& call, int64_t row, int64_t column, int64_t count,
                         const float* sums) {
  Out* to = (Out*)call.out + row * call.out_stride + column;
  for (int64_t c = 0; c < count; ++c)
    assign(to + c, call.bias == nullptr ? sums[c] : sums[c] + call.bias[column + c]);
}

// kRows rows times up to kLanes columns; columns that are missing repeat the last one.
template <int kRows, typename Weight, typename Out>
void run_rows(const DenseCall& call, const Rows& x, int64_t row, int64_t column, int64_t columns,
              bool is_ahead) {
  constexpr int kColumns = kLanes / kRows;
  for (int64_t done = 0; done < columns; done += kColumns) {
    const Weight* w[kColumns];
    for (int64_t c = 0; c < kColumns; ++c) {
      int64_t which = done + c < columns ? done + c : columns - 1;
      w[c] = (const Weight*)call.weight + (column + which) * call.k;
    }
    float sums[kLanes];
    store(sums, multiply_tile<kRows>(x.values + row * x.stride, x.stride, w, call.k, is_ahead));
    int64_t count = columns - done < kColumns ? columns - done : kColumns;
    for (int r = 0; r < kRows; ++r)
      write_run<Out>(call, row + r, column + done, count, sums + r * kColumns);
  }
}

template <typename Weight, typename Out>
void run_columns(const DenseCall& call, const Rows& x, int64_t begin, int64_t end) {
  for (int64_t column = begin; column < end; column += kLanes) {
    int64_t columns = end - column < kLanes ? end - column : kLanes;
    int64_t row = 0;
    for (; row + 4 <= call.rows; row += 4)
      run_rows<4, Weight, Out>(call, x, row, column, columns, row == 0);
    if (row + 2 <= call.rows) {
      run_rows<2, Weight, Out>(call, x, row, column, columns, row == 0);
      row += 2;
    }
    if (row < call.rows) run_rows<1, Weight, Out>(call, x, row, column, columns, row == 0);
  }
}

template <typename Weight, typename Out>
int32_t run(const DenseCall& call) {
  int64_t stride = (call.k + kStep - 1) / kStep * kStep;
  auto* values = (float*)scratch(kQuantized, call.rows * stride * 4);
  if (values == nullptr) return 1;
  const Weight* weight = (const Weight*)call.weight;
  parallel_ranges(call.rows, 32, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      if (call.x_kind == kBFloat16)
        read_row((const BFloat16*)call.x + row * call.x_stride, weight, call.k,
                 values + row * stride);
      else
        read_row((const float*)call.x + row * call.x_stride, weight, call.k,
                 values + row * stride);
  });
  Rows x{values, stride};
  int64_t row_bytes = call.k * (int64_t)sizeof(Weight) + 1;
  int64_t grain = (kBytesPerRange / row_bytes + kLanes) / kLanes * kLanes;
  parallel_ranges(call.n, grain, [&](int64_t begin, int64_t end) {
    run_columns<Weight, Out>(call, x, begin, end);
  });
  return 0;
}

}  // namespace
}  // namespace lr

using namespace lr;

// 0, or 1 without memory.
extern "C" LR_EXPORT int32_t lr_linear_dense(const DenseCall* given) {
  const DenseCall& call = *given;
  bool is_bfloat16 = call.out_kind == kBFloat16;
  if (call.kind == kBFloat16)
    return is_bfloat16 ? run<BFloat16, BFloat16>(call) : run<BFloat16, float>(call);
  return is_bfloat16 ? run<float, BFloat16>(call) : run<float, float>(call);
}
