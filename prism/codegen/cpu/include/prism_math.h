// Elementwise functions: branch-free, so that `#pragma omp simd` loops over them vectorize
// without -ffast-math. Infinities and NaN behave as in IEEE arithmetic.
#pragma once
#include <cmath>

#include "prism_types.h"

namespace prism {

// e^x, about 1 ulp; overflows to infinity, underflows gradually to 0.
// x = n ln 2 + r with an integer n and |r| <= ln 2 / 2, so e^x = 2^n e^r, with
// e^r = 1 + r + r^2 q(r). The coefficients of q, of degree 4, are a minimax fit (Remez exchange in
// double precision, then rounded to float) of the relative error of e^r for |r| <= 0.3468: 4e-9.
inline float exp(float x) {
  x = x > 89.0f ? 89.0f : x;      // e^89 overflows
  x = x < -104.0f ? -104.0f : x;  // e^-104 rounds to 0; the comparisons let NaN through
  // Floats from 2^23 to 2^24 are integers: the addition rounds x / ln 2 to the nearest, n.
  constexpr float kInteger = 0x1.8p23f;
  const float shifted = x * 1.44269504f + kInteger;
  const float n = shifted - kInteger;
  // ln 2 in two parts: the first has 12 bits, so that its product with n is exact.
  const float r = (x - n * 0.693115234f) - n * 3.19461833e-5f;
  float q = 1.38145383e-3f;
  q = q * r + 8.36874545e-3f;
  q = q * r + 4.16683890e-2f;
  q = q * r + 0.166665211f;
  q = q * r + 0.499999940f;
  const float power = 1.0f + (r + (r * r) * q);
  // 2^n in two factors: n reaches 128 and -150, beyond the exponents of one float.
  const int32_t k = static_cast<int32_t>(float_bits(shifted) - float_bits(kInteger));
  const int32_t half = k >> 1;
  const float low = bits_float(static_cast<uint32_t>(half + 127) << 23);
  const float high = bits_float(static_cast<uint32_t>(k - half + 127) << 23);
  return (power * low) * high;
}

// e^(x - m), m the maximum of a row. Where m is -infinity e^x, which is 0 and not NaN.
inline float exp_shifted(float x, float m) {
  return exp(x - (m == -INFINITY ? 0.0f : m));
}

// What sums of e^(x - old) are multiplied by when the maximum becomes `now`. Until the first
// element that is not -infinity there is nothing in them.
inline float rescale(float old, float now) {
  return old == -INFINITY ? 1.0f : exp(old - now);
}

// A causal mask where the key is so far behind the query's own: 0 if the query sees it.
inline float causal(long behind) { return behind >= 0 ? 0.0f : -INFINITY; }

// x / (1 + e^-x); below -104 the quotient is 0, also for -infinity.
inline float silu(float x) {
  const float y = x < -104.0f ? -104.0f : x;
  return y / (1.0f + exp(-y));
}

// x Phi(x), Phi the normal distribution function (not the tanh form): max(x, 0) - |x| Phi(-|x|).
// With y = |x| and t = 1 / (1 + 0.305 y), Phi(-y) = e^(-y^2 / 2) t p(t), as Phi(-y) e^(y^2 / 2)
// falls smoothly from 1/2, in the end like 1 / y. The coefficients of p, of degree 7, are a minimax
// fit (Remez exchange in double precision, then rounded to float) of its relative error for
// 0 <= y <= 14.5: 1.2e-7. 0.305 was the best of the scales tried between 0.25 and 0.7.
inline float gelu(float x) {
  const float a = std::fabs(x);
  const float y = a > 15.0f ? 15.0f : a;  // the tail there is 0
  const float t = 1.0f / (1.0f + 0.305f * y);
  float p = 0.0366388671f;
  p = p * t - 0.152746096f;
  p = p * t + 0.185314924f;
  p = p * t - 0.0376206860f;
  p = p * t + 0.120840400f;
  p = p * t + 0.103473693f;
  p = p * t + 0.122458681f;
  p = p * t + 0.121640243f;
  const float tail = y * ((t * p) * exp(-0.5f * y * y));
  return (x > 0.0f ? x : 0.0f) - tail;
}

// max(x, 0); NaN stays NaN.
inline float relu(float x) { return x < 0.0f ? 0.0f : x; }

}  // namespace prism
