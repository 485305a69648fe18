// All operations except dense layers, each on rows of elements.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "layers.h"

namespace {

// In the order of `OPERATIONS` in program.py.
enum Operation { kLayers, kAdd, kSub, kMul, kDiv, kMax, kMin, kNeg, kAbs, kSqrt,
                 kRsqrt, kExp };

float Exp(float x) {
  x = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
  const float shifted = x * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds
  const float whole = shifted - 12582912.0f;
  const float rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * rest + 1.3981999507e-3f;
  y = y * rest + 8.3334519073e-3f;
  y = y * rest + 4.1665795894e-2f;
  y = y * rest + 1.6666665459e-1f;
  y = y * rest + 5.0000001201e-1f;
  y = y * rest * rest + rest + 1.0f;
  // 2^exponent as the product of two factors, each of them in range.
  const int32_t exponent = static_cast<int32_t>(x == x ? whole : 0.0f);
  const int32_t half = exponent >> 1;
  const auto power = [](int32_t n) {
    const int32_t bits = (n + 127) << 23;
    float found;
    std::memcpy(&found, &bits, sizeof(found));
    return found;
  };
  return y * power(half) * power(exponent - half);
}

template <typename Function>
void Each(Function function, const float* __restrict a, const float* __restrict b,
          float* __restrict out, int64_t size) {
  for (int64_t i = 0; i < size; ++i) out[i] = function(a[i], b[i]);
}

void Compute(int64_t operation, const float* a, const float* b, float* out,
             int64_t size) {
  const auto each = [&](auto function) { Each(function, a, b, out, size); };
  // As in XLA, max and min propagate NaN.
  switch (operation) {
    case kAdd: return each([](float x, float y) { return x + y; });
    case kSub: return each([](float x, float y) { return x - y; });
    case kMul: return each([](float x, float y) { return x * y; });
    case kDiv: return each([](float x, float y) { return x / y; });
    case kMax: return each([](float x, float y) { return x < y || y != y ? y : x; });
    case kMin: return each([](float x, float y) { return y < x || y != y ? y : x; });
    case kNeg: return each([](float x, float) { return -x; });
    case kAbs: return each([](float x, float) { return std::fabs(x); });
    case kSqrt: return each([](float x, float) { return std::sqrt(x); });
    case kRsqrt: return each([](float x, float) { return 1.0f / std::sqrt(x); });
    case kExp: return each([](float x, float) { return Exp(x); });
  }
}

double SumOfSquares(const float* x, int64_t size) {
  float lanes[kTile] = {};
  int64_t i = 0;
  for (; i + kTile <= size; i += kTile)
    for (int lane = 0; lane < kTile; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  double sum = 0.0;
  for (float lane : lanes) sum += lane;
  for (; i < size; ++i) sum += x[i] * x[i];
  return sum;
}

}  // namespace
