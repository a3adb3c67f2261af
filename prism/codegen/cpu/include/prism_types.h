// Element types of tensors and their conversions to and from float.
// All conversions are branch-free arithmetic, so that loops over them vectorize.
#pragma once
#include <cstdint>
#include <cstring>

namespace prism {

struct bf16 {
  uint16_t bits;
};
struct fp16 {
  uint16_t bits;
};

inline uint32_t float_bits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}

inline float bits_float(uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

inline float to_float(float x) { return x; }

inline float to_float(bf16 x) { return bits_float(static_cast<uint32_t>(x.bits) << 16); }

inline float to_float(fp16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t magnitude = x.bits & 0x7fffu;
  // Normal: 13 more bits of mantissa, and the exponent's bias goes from 15 to 127. Infinity and
  // NaN: the exponent goes from 31 to 255, as far again.
  const uint32_t bias = magnitude < 0x7c00u ? 112u << 23 : 224u << 23;
  const uint32_t normal = (magnitude << 13) + bias;
  // Subnormal: a whole number of 2^-24.
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
  return bits_float(sign | (magnitude < 0x0400u ? float_bits(subnormal) : normal));
}

// u without its last N bits, rounded to nearest, ties to even.
template <int N>
uint32_t round_off(uint32_t u) {
  const uint32_t below_half = (1u << (N - 1)) - 1u;
  return (u + below_half + ((u >> N) & 1u)) >> N;
}

// Rounds to nearest, ties to even; NaN stays NaN; what is too large becomes infinity.
template <class T>
T from_float(float x);

template <>
inline float from_float<float>(float x) {
  return x;
}

template <>
inline bf16 from_float<bf16>(float x) {
  const uint32_t u = float_bits(x);
  const uint32_t rounded = round_off<16>(u);
  const uint32_t nan = (u >> 16) | 0x40u;
  return bf16{static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}

template <>
inline fp16 from_float<fp16>(float x) {
  const uint32_t u = float_bits(x);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7fffffffu;
  // From 2^-14 on: the bias goes from 127 to 15. A carry out of the mantissa raises the exponent,
  // up to that of infinity.
  constexpr uint32_t kNormal = 113u << 23;  // 2^-14
  const uint32_t high = magnitude > kNormal ? magnitude : kNormal;
  const uint32_t rounded = round_off<13>(high - (112u << 23));
  const uint32_t normal = rounded < 0x7c00u ? rounded : 0x7c00u;
  // Below: a whole number of 2^-24, so with 13 more bits one of 2^-37, whose last bit is also set
  // if anything is left over.
  const uint32_t low = magnitude < kNormal ? magnitude : kNormal;
  const float steps = bits_float(low) * 0x1p37f;
  const int32_t whole = static_cast<int32_t>(steps);
  const int32_t sticky = static_cast<float>(whole) < steps ? 1 : 0;
  const uint32_t subnormal = round_off<13>(static_cast<uint32_t>(whole | sticky));
  // One of the two is 2^-14, which is 0x0400. A sum, as compilers turn a selection to a branch.
  const uint32_t finite = normal + subnormal - 0x0400u;
  const uint32_t quiet_nan = magnitude > 0x7f800000u ? 0x0200u : 0u;
  return fp16{static_cast<uint16_t>(sign | finite | quiet_nan)};
}

}  // namespace prism
