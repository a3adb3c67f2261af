// Steps of a product along k, and what its loops share: packing of A, prefetch.
#pragma once
#include "prism_types.h"
#include "prism_vec.h"

namespace prism {

// One step along k in fp32: a row of B, widened, times a broadcast element of A.
template <class TB>
struct FloatStep {
  using Packed = float;               // what A is converted to
  using Lanes = vec;                  // B's elements for one vector of C
  static constexpr int kRows = 1;     // rows of B per step
  static constexpr int kGroup = 1;    // vectors of C loaded together
  static void rows(const TB* b, long, bool, Lanes* x) { x[0] = load(b); }
  static void rows_part(const TB* b, long, bool, long n, Lanes* x) { x[0] = load_part(b, n); }
  static Lanes broadcast(const float* a) { return *a - vec{}; }
  template <int G>
  static Lanes repeated(const TB* p) { return load_repeated<G>(p); }
  static vec add(vec c, Lanes a, Lanes b) { return c + a * b; }
};

#if defined(PRISM_AVX512) && defined(__AVX512BF16__)
// One step along k for bf16: two rows of B, interleaved to pairs, and the dot product instruction
// of a broadcast pair of A. An fp32 A is rounded to bf16. The instruction takes denormal inputs
// and results as 0.
struct PairStep {
  using Packed = bf16;
  using Lanes = __m512i;
  static constexpr int kRows = 2;
  static constexpr int kGroup = 2;
  static void interleave(__m512i first, __m512i second, Lanes* x) {
    const __m512i even = _mm512_set1_epi32(0x00200000);
    const __m512i lane = _mm512_set_epi32(0xf000f, 0xe000e, 0xd000d, 0xc000c, 0xb000b, 0xa000a,
                                          0x90009, 0x80008, 0x70007, 0x60006, 0x50005, 0x40004,
                                          0x30003, 0x20002, 0x10001, 0);
    const __m512i low = _mm512_or_si512(lane, even);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(0x00100010));
    x[0] = _mm512_permutex2var_epi16(first, low, second);
    x[1] = _mm512_permutex2var_epi16(first, high, second);
  }
  static void rows(const bf16* b, long b_k, bool both, Lanes* x) {
    interleave(_mm512_loadu_si512(b),
               both ? _mm512_loadu_si512(b + b_k) : _mm512_setzero_si512(), x);
  }
  static void rows_part(const bf16* b, long b_k, bool both, long n, Lanes* x) {
    const __mmask32 mask = mask_of(n);
    interleave(_mm512_maskz_loadu_epi16(mask, b),
               both ? _mm512_maskz_loadu_epi16(mask, b + b_k) : _mm512_setzero_si512(), x);
  }
  static Lanes broadcast(const bf16* a) {
    int pair;
    std::memcpy(&pair, a, sizeof pair);
    return _mm512_set1_epi32(pair);
  }
  template <int G>
  static Lanes repeated(const bf16* p) { return splat64<4 * G>(p); }
  static vec add(vec c, Lanes a, Lanes b) {
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
  }
};
#endif

template <class TA, class TB>
struct StepOf {
  using type = FloatStep<TB>;
};
#if defined(PRISM_AVX512) && defined(__AVX512BF16__)
template <>
struct StepOf<bf16, bf16> {
  using type = PairStep;
};
template <>
struct StepOf<float, bf16> {
  using type = PairStep;
};
#endif

constexpr int kPanelRows = W == 16 ? 8 : 4;  // rows of C in registers
constexpr int kRowsOfA = 32;                 // rows of A packed together
constexpr int kDepth = 64;                   // rows of B in one pass of `stream`, at most
constexpr long kColumns = 2048;              // columns of one pass
constexpr long kRun = 8192;                  // columns of one pass over whole rows, at most
constexpr long kAheadBytes = 8192;           // prefetch distance of `dots`

// Vectors of C in registers beside one another: accumulators that fit the register file.
constexpr int panel_vectors(int rows) {
  return W == 16 ? (rows == 1 ? 8 : 16 / rows) : 8 / rows;
}

// Always inlined: GCC may drop a call to a function that only prefetches. An address beyond the
// tile is harmless, and usually the next tile's.
__attribute__((always_inline)) inline void prefetch(uintptr_t address) {
  // To the second level: rows of B at a stride of 8 KiB share one set of the first.
  __builtin_prefetch(reinterpret_cast<const void*>(address), 0, 2);
}

// Copies rows [0, rows) and [0, k) of A to `packed` with row length `depth`, and zeros up to
// `padded` rows and to an even k.
template <class P, class TA>
void pack(long rows, long padded, long k, const TA* a, long a_row, long a_k, P* packed,
          long depth) {
  const long even = k + (k & 1);
  for (long m = 0; m < padded; ++m) {
    P* out = packed + m * depth;
    if (m >= rows) {
      std::memset(static_cast<void*>(out), 0, static_cast<size_t>(even) * sizeof(P));
      continue;
    }
    const TA* in = a + m * a_row;
    if (a_k == 1) {
#pragma omp simd
      for (long i = 0; i < k; ++i) out[i] = from_float<P>(to_float(in[i]));
    } else {
      for (long i = 0; i < k; ++i) out[i] = from_float<P>(to_float(in[i * a_k]));
    }
    if (even > k) out[k] = from_float<P>(0.0f);
  }
}

// Walks the lines of a block of B row by row, which is the order that memory serves fastest.
struct Lines {
  uintptr_t row;
  long x, width, stride;  // bytes
  __attribute__((always_inline)) void prefetch_next() {
    prefetch(row + x);
    x += 64;
    if (x >= width) {
      x = 0;
      row += stride;
    }
  }
};

}  // namespace prism
