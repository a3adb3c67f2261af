// Element types of tensors and their conversions to and from float.
// All conversions are branch-free bit operations, so that loops over them vectorize.
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
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fffu) << 13;
  // The product with 2^112 moves the exponent bias and normalizes denormals, exactly.
  const uint32_t finite = float_bits(bits_float(magnitude) * 0x1p112f);
  const uint32_t special = magnitude | 0x7f800000u;  // infinity and NaN
  return bits_float(sign | (magnitude >= 0x0f800000u ? special : finite));
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
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t nan = (u >> 16) | 0x40u;
  return bf16{static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}

template <>
inline fp16 from_float<fp16>(float x) {
  const uint32_t u = float_bits(x);
  const uint32_t magnitude = u & 0x7fffffffu;
  // Adding a power of two whose last place is the last place of the result rounds x there.
  const float scaled = (bits_float(magnitude) * 0x1p112f) * 0x1p-110f;  // infinity if >= 2^16
  const uint32_t exponent = (u + u) & 0xff000000u;
  const uint32_t bias = exponent < 0x71000000u ? 0x71000000u : exponent;
  const uint32_t sum = float_bits(bits_float((bias >> 1) + 0x07800000u) + scaled);
  const uint32_t finite = ((sum >> 13) & 0x7c00u) + (sum & 0x0fffu);
  const uint32_t sign = (u >> 16) & 0x8000u;
  return fp16{static_cast<uint16_t>(sign | (magnitude > 0x7f800000u ? 0x7e00u : finite))};
}

}  // namespace prism
