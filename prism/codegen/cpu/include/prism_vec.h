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

#if defined(PRISM_AVX512) || defined(PRISM_AVX2)
// S bytes, repeated to fill a register.
template <int S>
inline __m256i splat32(const void* p) {
  if constexpr (S == 32) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  } else if constexpr (S == 16) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  } else if constexpr (S == 8) {
    long long bits;
    std::memcpy(&bits, p, sizeof bits);
    return _mm256_set1_epi64x(bits);
  } else if constexpr (S == 4) {
    int bits;
    std::memcpy(&bits, p, sizeof bits);
    return _mm256_set1_epi32(bits);
  } else {
    short bits;
    std::memcpy(&bits, p, sizeof bits);
    return _mm256_set1_epi16(bits);
  }
}
#endif

#if defined(PRISM_AVX512)
template <int S>
inline __m512i splat64(const void* p) {
  if constexpr (S == 64) {
    return _mm512_loadu_si512(p);
  } else if constexpr (S == 32) {
    return _mm512_maskz_broadcast_i64x4(0xff,
                                        _mm256_loadu_si256(static_cast<const __m256i*>(p)));
  } else if constexpr (S == 16) {
    return _mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128(static_cast<const __m128i*>(p)));
  } else if constexpr (S == 8) {
    long long bits;
    std::memcpy(&bits, p, sizeof bits);
    return _mm512_set1_epi64(bits);
  } else {
    int bits;
    std::memcpy(&bits, p, sizeof bits);
    return _mm512_set1_epi32(bits);
  }
}
#endif

// p[0 .. G-1], repeated to fill a vector.
template <int G, class T>
inline vec load_repeated(const T* p) {
#if defined(PRISM_AVX512)
  if constexpr (sizeof(T) == 4) {
    return _mm512_castsi512_ps(splat64<4 * G>(p));
  } else {
    const __m256i bits = splat32<2 * G>(p);
    return load(reinterpret_cast<const T*>(&bits));
  }
#elif defined(PRISM_AVX2)
  if constexpr (sizeof(T) == 4) {
    return _mm256_castsi256_ps(splat32<4 * G>(p));
  } else {
    const __m128i bits = _mm256_castsi256_si128(splat32<2 * G>(p));
    return load(reinterpret_cast<const T*>(&bits));
  }
#else
  vec x;
  for (int i = 0; i < W; ++i) x[i] = to_float(p[i % G]);
  return x;
#endif
}

// The first and the second half of x0 y0 x1 y1 ...
inline void zip(vec x, vec y, vec* first, vec* second) {
#if defined(PRISM_AVX512)
  const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  *first = _mm512_permutex2var_ps(x, low, y);
  *second = _mm512_permutex2var_ps(x, high, y);
#elif defined(PRISM_AVX2)
  const __m256 low = _mm256_unpacklo_ps(x, y), high = _mm256_unpackhi_ps(x, y);
  *first = _mm256_permute2f128_ps(low, high, 0x20);
  *second = _mm256_permute2f128_ps(low, high, 0x31);
#else
  for (int i = 0; i < W / 2; ++i) {
    (*first)[2 * i] = x[i];
    (*first)[2 * i + 1] = y[i];
    (*second)[2 * i] = x[W / 2 + i];
    (*second)[2 * i + 1] = y[W / 2 + i];
  }
#endif
}

// Zipping the first half of the vectors with the second log2(W) times transposes them.
__attribute__((always_inline)) inline void transpose(vec (&x)[W]) {
  vec y[W];
#pragma GCC unroll 4
  for (int level = 1; level < W; level *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < W / 2; ++i) zip(x[i], x[i + W / 2], &y[2 * i], &y[2 * i + 1]);
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) x[i] = y[i];
  }
}

}  // namespace prism
