// Elementwise functions: branch-free, so that `#pragma omp simd` loops over them vectorize
// without -ffast-math. Infinities and NaN behave as in IEEE arithmetic.
#pragma once
#include <cmath>

#include "prism_types.h"

namespace prism {

// e^x, about 1 ulp; overflows to infinity, underflows gradually to 0.
inline float exp(float x) {
  x = x > 89.0f ? 89.0f : x;      // e^89 overflows
  x = x < -104.0f ? -104.0f : x;  // e^-104 rounds to 0; the comparisons let NaN through
  // Adding 1.5 * 2^23 leaves round(x / ln 2) in the low mantissa bits.
  const float shifted = x * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
  float p = 1.98756912e-4f;
  p = p * r + 1.39819994e-3f;
  p = p * r + 8.33345205e-3f;
  p = p * r + 4.16657962e-2f;
  p = p * r + 1.66666657e-1f;
  p = p * r + 0.5f;
  p = (p * r) * r + r + 1.0f;
  // 2^n in two factors: n reaches 128 and -150, beyond the exponents of one float.
  const int32_t k = static_cast<int32_t>(float_bits(shifted) - 0x4b400000u);
  const int32_t half = k >> 1;
  const float low = bits_float(static_cast<uint32_t>(half + 127) << 23);
  const float high = bits_float(static_cast<uint32_t>(k - half + 127) << 23);
  return (p * low) * high;
}

// x / (1 + e^-x); below -104 the quotient is 0, also for -infinity.
inline float silu(float x) {
  const float y = x < -104.0f ? -104.0f : x;
  return y / (1.0f + exp(-y));
}

// x * Phi(x), Phi the normal distribution function, by erfc (not the tanh form).
// erfc(z) = t * exp(-z*z + P(t)), t = 1 / (1 + z / 2), relative error below 1.2e-7
// (Press et al., Numerical Recipes, 6.2), which keeps the tail for negative x accurate.
inline float gelu(float x) {
  const float a = std::fabs(x);
  const float y = a > 15.0f ? 15.0f : a;  // the tail there is 0
  const float t = 1.0f / (1.0f + y * 0.353553391f);
  float p = 0.17087277f;
  p = p * t - 0.82215223f;
  p = p * t + 1.48851587f;
  p = p * t - 1.13520398f;
  p = p * t + 0.27886807f;
  p = p * t - 0.18628806f;
  p = p * t + 0.09678418f;
  p = p * t + 0.37409196f;
  p = p * t + 1.00002368f;
  p = p * t - 1.26551223f;
  const float tail = 0.5f * y * (t * exp(p - 0.5f * y * y));
  return (x > 0.0f ? x : 0.0f) - tail;
}

// max(x, 0); NaN stays NaN.
inline float relu(float x) { return x < 0.0f ? 0.0f : x; }

// Sum of p[0], p[stride], ... p[(n-1)*stride] in several partial sums.
template <class T>
float sum(const T* p, long n, long stride) {
  constexpr long kLanes = 32;
  float lane[kLanes] = {};
  long i = 0;
  if (stride == 1) {
    for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
      for (long j = 0; j < kLanes; ++j) lane[j] += to_float(p[i + j]);
    }
  } else {
    for (; i + kLanes <= n; i += kLanes) {
      for (long j = 0; j < kLanes; ++j) lane[j] += to_float(p[(i + j) * stride]);
    }
  }
  for (long j = 0; i < n; ++i, ++j) lane[j] += to_float(p[i * stride]);
  for (long half = kLanes / 2; half > 0; half /= 2) {
    for (long j = 0; j < half; ++j) lane[j] += lane[j + half];
  }
  return lane[0];
}

}  // namespace prism
