// Dense layers on one tile of elements at a time, with sums kept in registers.

#pragma once

#include <algorithm>
#include <cstdint>

namespace {

// The sums of `kOutputs` outputs for a tile of `kVectors` vectors fit into registers.
#ifdef __AVX512F__
constexpr int kLanes = 16, kOutputs = 8;
#else
constexpr int kLanes = 8, kOutputs = 4;
#endif
constexpr int kVectors = 3;
constexpr int64_t kTile = kLanes * kVectors;

using Vector = float __attribute__((vector_size(4 * kLanes)));
using Unaligned = float __attribute__((vector_size(4 * kLanes), aligned(4)));

Vector Load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
void Store(float* to, Vector x) { *reinterpret_cast<Unaligned*>(to) = x; }
Vector Fill(float x) { return x - Vector{}; }

struct Layer {
  const float* kernel;  // (outputs, inputs)
  const float* bias;
  int64_t num_outputs, num_inputs;
};

// Location of a tile: rows of elements, and the index of its first element.
template <typename Number>
struct Place {
  Number* const* rows;
  int64_t at;
  Number* operator()(int64_t row, int vector) const {
    return rows[row] + at + vector * kLanes;
  }
};
using Input = Place<const float>;
using Output = Place<float>;

// Calls `use(unit, vector, sum)` for all units of a layer, `kOutputs` units at a time.
template <typename Use>
__attribute__((always_inline)) inline void ForEachUnit(const Layer& layer, Input in,
                                                       Use use) {
  const int64_t num_inputs = layer.num_inputs;
  for (int64_t first = 0; first < layer.num_outputs; first += kOutputs) {
    // Pad the last group by repeating its last unit; padding is not used.
    const int64_t num = std::min<int64_t>(kOutputs, layer.num_outputs - first);
    const float* weights[kOutputs];
    Vector sums[kOutputs][kVectors];
    for (int j = 0; j < kOutputs; ++j) {
      const int64_t unit = first + std::min<int64_t>(j, num - 1);
      weights[j] = layer.kernel + unit * num_inputs;
      for (int v = 0; v < kVectors; ++v) sums[j][v] = Fill(layer.bias[unit]);
    }
    for (int64_t i = 0; i < num_inputs; ++i) {
      Vector x[kVectors];
      for (int v = 0; v < kVectors; ++v) x[v] = Load(in(i, v));
      for (int j = 0; j < kOutputs; ++j) {
        const Vector weight = Fill(weights[j][i]);
        for (int v = 0; v < kVectors; ++v) sums[j][v] += weight * x[v];
      }
    }
    for (int j = 0; j < kOutputs; ++j)
      if (j < num)
        for (int v = 0; v < kVectors; ++v) use(first + j, v, sums[j][v]);
  }
}

// Propagates NaN.
Vector Relu(Vector x) { return x < 0.0f ? Vector{} : x; }

template <bool relu>
__attribute__((noinline)) void Apply(const Layer& layer, Input in, Output out) {
  ForEachUnit(layer, in, [&](int64_t unit, int v, Vector sum) {
    Store(out(unit, v), relu ? Relu(sum) : sum);
  });
}

// Applies the last two layers, the second of which has `n` outputs. Hidden units are
// consumed as they are computed, without being stored.
template <int n>
__attribute__((noinline)) void ApplyLast(const Layer& hidden, const Layer& last,
                                         Input in, Output out) {
  Vector sums[n][kVectors];
  for (int j = 0; j < n; ++j)
    for (int v = 0; v < kVectors; ++v) sums[j][v] = Fill(last.bias[j]);
  ForEachUnit(hidden, in, [&](int64_t unit, int v, Vector sum) {
    const Vector x = Relu(sum);
    for (int j = 0; j < n; ++j)
      sums[j][v] += Fill(last.kernel[j * last.num_inputs + unit]) * x;
  });
  for (int j = 0; j < n; ++j)
    for (int v = 0; v < kVectors; ++v) Store(out(j, v), sums[j][v]);
}

}  // namespace
