// Vectors of W floats for the processor compiled for: AVX-512, AVX2 with FMA and F16C, or 16 bytes.
#pragma once
#include "prism_types.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define PRISM_AVX512 1
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define PRISM_AVX2 1
#endif

namespace prism {

#if defined(PRISM_AVX512)
constexpr int W = 16;
#elif defined(PRISM_AVX2)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float vec __attribute__((vector_size(W * 4)));
typedef float vec_u __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef uint32_t vec_u32 __attribute__((vector_size(W * 4)));
typedef uint16_t vec_u16 __attribute__((vector_size(W * 2), aligned(2), may_alias));

inline vec load(const float* p) { return *reinterpret_cast<const vec_u*>(p); }

inline vec load(const bf16* p) {
  const vec_u16 bits = *reinterpret_cast<const vec_u16*>(p);
  return reinterpret_cast<vec>(__builtin_convertvector(bits, vec_u32) << 16);
}

inline vec load(const fp16* p) {
#if defined(PRISM_AVX512)
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(PRISM_AVX2)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  vec x;
  for (int i = 0; i < W; ++i) x[i] = to_float(p[i]);
  return x;
#endif
}

// The first n elements (0 <= n <= W), then zeros; reads nothing beyond them.
template <class T>
inline vec load_part(const T* p, long n) {
  T part[W] = {};
  std::memcpy(part, p, static_cast<size_t>(n) * sizeof(T));
  return load(part);
}

inline void store(float* p, vec x) { *reinterpret_cast<vec_u*>(p) = x; }

inline void store_part(float* p, vec x, long n) {
  std::memcpy(p, &x, static_cast<size_t>(n) * sizeof(float));
}

#if defined(PRISM_AVX512)
inline __mmask32 mask_of(long n) {
  return n >= 32 ? 0xffffffffu : (1u << (n < 0 ? 0 : n)) - 1u;
}
template <>
inline vec load_part(const float* p, long n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask_of(n)), p);
}
template <>
inline vec load_part(const bf16* p, long n) {
  const __m256i bits = _mm256_maskz_loadu_epi16(static_cast<__mmask16>(mask_of(n)), p);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
template <>
inline vec load_part(const fp16* p, long n) {
  return _mm512_maskz_cvtph_ps(0xffff,
                               _mm256_maskz_loadu_epi16(static_cast<__mmask16>(mask_of(n)), p));
}
#endif

// Lane i of the result is the sum of the lanes of x[i].
inline vec sum_lanes(const vec (&x)[W]) {
#if defined(PRISM_AVX512)
  vec q[4];
  for (int i = 0; i < 4; ++i) {
    const vec lo = _mm512_unpacklo_ps(x[4 * i], x[4 * i + 1]) +
                   _mm512_unpackhi_ps(x[4 * i], x[4 * i + 1]);
    const vec hi = _mm512_unpacklo_ps(x[4 * i + 2], x[4 * i + 3]) +
                   _mm512_unpackhi_ps(x[4 * i + 2], x[4 * i + 3]);
    q[i] = _mm512_shuffle_ps(lo, hi, 0x44) + _mm512_shuffle_ps(lo, hi, 0xee);
  }
  const vec lo = _mm512_shuffle_f32x4(q[0], q[1], 0x88) + _mm512_shuffle_f32x4(q[0], q[1], 0xdd);
  const vec hi = _mm512_shuffle_f32x4(q[2], q[3], 0x88) + _mm512_shuffle_f32x4(q[2], q[3], 0xdd);
  return _mm512_shuffle_f32x4(lo, hi, 0x88) + _mm512_shuffle_f32x4(lo, hi, 0xdd);
#elif defined(PRISM_AVX2)
  vec q[2];
  for (int i = 0; i < 2; ++i) {
    const vec lo = _mm256_hadd_ps(x[4 * i], x[4 * i + 1]);
    const vec hi = _mm256_hadd_ps(x[4 * i + 2], x[4 * i + 3]);
    q[i] = _mm256_hadd_ps(lo, hi);
  }
  return _mm256_permute2f128_ps(q[0], q[1], 0x20) + _mm256_permute2f128_ps(q[0], q[1], 0x31);
#else
  vec total;
  for (int i = 0; i < W; ++i) total[i] = (x[i][0] + x[i][1]) + (x[i][2] + x[i][3]);
  return total;
#endif
}

}  // namespace prism
