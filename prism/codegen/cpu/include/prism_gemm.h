// Matrix product of tiles with fp32 accumulation.
//
// Two loops share the steps below: `stream` for a B whose rows are contiguous along n (lanes are
// columns of C) and `dots` for a B that is contiguous along k (lanes are rows of C and steps of k).
// Other strides go through small copies. Nothing is skipped for being zero, so NaN and infinity
// propagate as in IEEE arithmetic; what a partial vector reads beyond an edge is never stored.
#pragma once
#include <type_traits>

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

// Accumulators of rows x (NV * W) columns of C, only `columns` of them if Part.
template <int MR, int NV, bool Part>
__attribute__((always_inline)) inline void load_c(vec (&acc)[MR][NV], const float* c, long c_row,
                                                  long rows, long columns, bool accumulate) {
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) {
      acc[r][v] = vec{};
      if (!accumulate || r >= rows) continue;
      const float* p = c + r * c_row + v * W;
      const long left = Part ? columns - v * W : W;
      if (left >= W) {
        acc[r][v] = load(p);
      } else if (left > 0) {
        acc[r][v] = load_part(p, left);
      }
    }
  }
}

template <int MR, int NV, bool Part>
__attribute__((always_inline)) inline void store_c(const vec (&acc)[MR][NV], float* c, long c_row,
                                                   long rows, long columns) {
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) {
    if (r >= rows) break;
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) {
      float* p = c + r * c_row + v * W;
      const long left = Part ? columns - v * W : W;
      if (left >= W) {
        store(p, acc[r][v]);
      } else if (left > 0) {
        store_part(p, acc[r][v], left);
      }
    }
  }
}

template <class Step, int MR, int NV>
__attribute__((always_inline)) inline void add_step(vec (&acc)[MR][NV],
                                                    const typename Step::Packed* a,
                                                    const typename Step::Lanes (&x)[NV]) {
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) {
    const auto element = Step::broadcast(a + r * kDepth);
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) acc[r][v] = Step::add(acc[r][v], element, x[v]);
  }
}

// A panel of C, straight from B; if Keep, the vectors of B go to `kept` for more rows of C.
template <class Step, class TB, int MR, int NV, bool Keep>
void direct_panel(const typename Step::Packed* a, const TB* b, long b_k, long k, float* c,
                  long c_row, long rows, bool accumulate, Lines& ahead,
                  typename Step::Lanes* kept) {
  constexpr int R = Step::kRows, lines_a_step = (R * NV * W * sizeof(TB) + 63) / 64;
  vec acc[MR][NV];
  load_c<MR, NV, false>(acc, c, c_row, rows, 0, accumulate);
  Lines lines = ahead;
  typename Step::Lanes x[NV];
  for (long i = 0; i < k; i += R) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; v += Step::kGroup) {
      Step::rows(b + i * b_k + v * W, b_k, R == 1 || i + 1 < k, x + v);
    }
#pragma GCC unroll 8
    for (int line = 0; line < lines_a_step; ++line) lines.prefetch_next();
    if (Keep) {
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) *kept++ = x[v];
    }
    add_step<Step>(acc, a + i, x);
  }
  ahead = lines;
  store_c<MR, NV, false>(acc, c, c_row, rows, 0);
}

// A panel of C, two vectors wide, from kept vectors of B.
template <class Step, int MR, bool Part>
void kept_panel(const typename Step::Packed* a, const typename Step::Lanes* kept, long k, float* c,
                long c_row, long rows, long columns, bool accumulate) {
  vec acc[MR][2];
  load_c<MR, 2, Part>(acc, c, c_row, rows, columns, accumulate);
  for (long i = 0; i < k; i += Step::kRows, kept += 2) {
    const typename Step::Lanes x[2] = {kept[0], kept[1]};
    add_step<Step>(acc, a + i, x);
  }
  store_c<MR, 2, Part>(acc, c, c_row, rows, columns);
}

// Fewer columns than two vectors: only keeps the vectors of B.
template <class Step, class TB>
void keep_part(const TB* b, long b_k, long k, long columns, typename Step::Lanes* kept) {
  constexpr int R = Step::kRows, G = Step::kGroup;
  for (long i = 0; i < k; i += R) {
    for (int v = 0; v < 2; v += G, kept += G) {
      const long left = columns - v * W;
      if (left > 0) {
        Step::rows_part(b + i * b_k + v * W, b_k, R == 1 || i + 1 < k,
                        left < G * W ? left : G * W, kept);
      } else {
        *kept = typename Step::Lanes{};
      }
    }
  }
}

// All columns of at most kRowsOfA rows of C, for k rows of B.
template <class Step, class TB, int MR>
void panels(const typename Step::Packed* a, const TB* b, long b_k, long k, float* c, long c_row,
            long rows, long columns, bool accumulate) {
  constexpr int NV = panel_vectors(MR);
  constexpr long size = sizeof(TB);
  typename Step::Lanes kept[kDepth / Step::kRows * 2];
  Lines ahead{reinterpret_cast<uintptr_t>(b) + static_cast<uintptr_t>(k * b_k * size), 0,
              columns * size, b_k * size};
  const auto rest = [&](long m, long n, auto part) {
    for (; m < rows; m += kPanelRows) {
      const long left = rows - m < kPanelRows ? rows - m : kPanelRows;
      kept_panel<Step, MR, decltype(part)::value>(
          a + m * kDepth, kept, k, c + m * c_row + n, c_row, left, columns - n, accumulate);
    }
  };
  long n = 0;
  for (; n + NV * W <= columns; n += NV * W) {
    if (rows > MR) {  // only with MR == kPanelRows, whose NV is 2
      direct_panel<Step, TB, MR, NV, NV == 2>(a, b + n, b_k, k, c + n, c_row, MR, accumulate,
                                              ahead, kept);
      rest(MR, n, std::false_type{});
    } else {
      direct_panel<Step, TB, MR, NV, false>(a, b + n, b_k, k, c + n, c_row, rows, accumulate,
                                            ahead, kept);
    }
  }
  if (NV > 2) {
    for (; n + 2 * W <= columns; n += 2 * W) {
      direct_panel<Step, TB, MR, 2, false>(a, b + n, b_k, k, c + n, c_row, rows, accumulate,
                                           ahead, kept);
    }
  }
  for (; n < columns; n += 2 * W) {
    const long left = columns - n < 2 * W ? columns - n : 2 * W;
    keep_part<Step>(b + n, b_k, k, left, kept);
    rest(0, n, std::true_type{});
  }
}

// b_col == 1 and c_col == 1.
template <class Step, class TA, class TB>
void stream(long M, long N, long K, const TA* a, long a_row, long a_k, const TB* b, long b_k,
            float* c, long c_row, bool accumulate) {
  alignas(64) typename Step::Packed packed[kRowsOfA * kDepth];
  for (long n0 = 0; n0 < N; n0 += kColumns) {
    const long columns = N - n0 < kColumns ? N - n0 : kColumns;
    for (long m0 = 0; m0 < M; m0 += kRowsOfA) {
      const long rows = M - m0 < kRowsOfA ? M - m0 : kRowsOfA;
      const long padded = (rows + kPanelRows - 1) / kPanelRows * kPanelRows;
      // Wide rows fill the caches with fewer of them; more rows of C pay for more passes over it.
      const long depth = rows <= kPanelRows && columns * sizeof(TB) >= 1024 ? kDepth / 2 : kDepth;
      for (long k0 = 0; k0 < K; k0 += depth) {
        const long k = K - k0 < depth ? K - k0 : depth;
        const bool add = accumulate || k0 > 0;
        const TB* block = b + k0 * b_k + n0;
        float* out = c + m0 * c_row + n0;
        pack(rows, padded, k, a + m0 * a_row + k0 * a_k, a_row, a_k, packed, kDepth);
        if (rows > 4) {
          panels<Step, TB, kPanelRows>(packed, block, b_k, k, out, c_row, rows, columns, add);
        } else if (rows > 2) {
          panels<Step, TB, 4>(packed, block, b_k, k, out, c_row, rows, columns, add);
        } else if (rows > 1) {
          panels<Step, TB, 2>(packed, block, b_k, k, out, c_row, rows, columns, add);
        } else {
          panels<Step, TB, 1>(packed, block, b_k, k, out, c_row, rows, columns, add);
        }
      }
    }
  }
}

// MR rows of A by W rows of B, k contiguous: a lane of an accumulator is one row of A and one of
// G = W / MR neighbouring steps along k, so that a vector of A (as laid out by `dot_panels`) meets
// G steps of a row of B, repeated MR times.
template <class Step, class TB, int MR>
void dot_panel(const typename Step::Lanes* a, const TB* b, long b_col, long k, float* c, long c_row,
               long rows, bool accumulate, long ahead) {
  constexpr int G = W / MR, E = G * Step::kRows;
  constexpr long size = sizeof(TB);
  constexpr int lines_a_step = W * E * size < 64 ? 1 : W * E * size / 64;
  Lines lines{reinterpret_cast<uintptr_t>(b) + static_cast<uintptr_t>(ahead), 0, k * size,
              b_col * size};
  vec acc[W];
  for (int j = 0; j < W; ++j) acc[j] = vec{};
  // Rows at a stride of whole pages would evict one another between their uses.
  constexpr long kCopy = 256 / size, kStride = kCopy + 64 / size;
  const bool copies = MR > 1 && b_col * size % 2048 == 0;
  alignas(64) TB copy[W * kStride];
  long i = 0;
  while (i + E <= k) {
    const TB* from = b + i;
    long stride = b_col, end = k - E + 1;
    if (copies && i + kCopy <= k) {
      for (int j = 0; j < W; ++j) std::memcpy(copy + j * kStride, from + j * b_col, 256);
      from = copy;
      stride = kStride;
      end = i + kCopy;
    }
    for (; i < end; i += E, from += E, ++a) {
#pragma GCC unroll 16
      for (int line = 0; line < lines_a_step; ++line) lines.prefetch_next();
#pragma GCC unroll 4
      for (int j = 0; j < W; j += 4) {
        const TB* row = from + j * stride;
        acc[j] = Step::add(acc[j], *a, Step::template repeated<G>(row));
        acc[j + 1] = Step::add(acc[j + 1], *a, Step::template repeated<G>(row + stride));
        acc[j + 2] = Step::add(acc[j + 2], *a, Step::template repeated<G>(row + 2 * stride));
        acc[j + 3] = Step::add(acc[j + 3], *a, Step::template repeated<G>(row + 3 * stride));
      }
    }
  }
  if (i < k) {
    for (int j = 0; j < W; ++j) {
      TB last[E] = {};
      std::memcpy(last, b + i + j * b_col, static_cast<size_t>(k - i) * sizeof(TB));
      acc[j] = Step::add(acc[j], *a, Step::template repeated<G>(last));
    }
  }
  transpose(acc);
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) {
    if (r >= rows) break;
    vec total = acc[r * G];
    for (int g = 1; g < G; ++g) total += acc[r * G + g];
    float* p = c + r * c_row;
    store(p, accumulate ? load(p) + total : total);
  }
}

// MR rows of A for all of N, a multiple of W.
template <class Step, class TA, class TB, int MR>
void dot_panels(long rows, long N, long K, const TA* a, long a_row, long a_k, const TB* b,
                long b_col, float* c, long c_row, bool accumulate) {
  using Packed = typename Step::Packed;
  constexpr int E = W / MR * Step::kRows;
  constexpr long size = sizeof(TB), kSteps = 256, kPass = kSteps * E;
  alignas(64) typename Step::Lanes lanes[kSteps];
  Packed row[kPass + 1];
  for (long k0 = 0; k0 < K; k0 += kPass) {
    const long k = K - k0 < kPass ? K - k0 : kPass;
    std::memset(static_cast<void*>(lanes), 0, sizeof lanes);
    for (long m = 0; m < rows; ++m) {
      pack(1, 1, k, a + m * a_row + k0 * a_k, a_row, a_k, row, 0);
      Packed* out = reinterpret_cast<Packed*>(lanes) + m * E;
      long i = 0;
      for (; i + E <= k; i += E, out += W * Step::kRows) {
        std::memcpy(out, row + i, E * sizeof(Packed));
      }
      std::memcpy(out, row + i, static_cast<size_t>(k - i) * sizeof(Packed));
    }
    // Several KiB ahead: the rows after this tile, more of them if they are short.
    const long bytes = k * size, most = (kAheadBytes / bytes + W - 1) / W * W;
    const long ahead = (most > W ? most : W) * b_col * size;
    for (long n = 0; n < N; n += W) {
      dot_panel<Step, TB, MR>(lanes, b + n * b_col + k0, b_col, k, c + n, c_row, rows,
                              accumulate || k0 > 0, ahead);
    }
  }
}

// b_k == 1, c_col == 1 and N a multiple of W.
template <class Step, class TA, class TB>
void dots(long M, long N, long K, const TA* a, long a_row, long a_k, const TB* b, long b_col,
          float* c, long c_row, bool accumulate) {
  for (long m = 0; m < M; m += W) {
    const long rows = M - m < W ? M - m : W;
    const auto call = [&](auto size) {
      constexpr int MR = decltype(size)::value;
      dot_panels<Step, TA, TB, MR>(rows, N, K, a + m * a_row, a_row, a_k, b, b_col, c + m * c_row,
                                   c_row, accumulate);
    };
    if (rows == 1) {
      call(std::integral_constant<int, 1>{});
    } else if (rows == 2) {
      call(std::integral_constant<int, 2>{});
    } else if (rows <= 4) {
      call(std::integral_constant<int, 4>{});
    } else if (rows <= 8) {
      call(std::integral_constant<int, W < 8 ? W : 8>{});
    } else {
      call(std::integral_constant<int, W>{});
    }
  }
}

// Any strides: blocks of B and C are copied to contiguous ones.
template <class Step, class TA, class TB>
void strided(long M, long N, long K, const TA* a, long a_row, long a_k, const TB* b, long b_k,
             long b_col, float* c, long c_row, long c_col, bool accumulate) {
  constexpr long kWide = 64, kDeep = 64;
  TB tile[kDeep * kWide];
  float out[kRowsOfA * kWide];
  for (long n0 = 0; n0 < N; n0 += kWide) {
    const long columns = N - n0 < kWide ? N - n0 : kWide;
    for (long m0 = 0; m0 < M; m0 += kRowsOfA) {
      const long rows = M - m0 < kRowsOfA ? M - m0 : kRowsOfA;
      for (long k0 = 0; k0 < K; k0 += kDeep) {
        const long k = K - k0 < kDeep ? K - k0 : kDeep;
        for (long i = 0; i < k; ++i) {
          const TB* row = b + (k0 + i) * b_k + n0 * b_col;
          for (long n = 0; n < columns; ++n) tile[i * kWide + n] = row[n * b_col];
        }
        stream<Step>(rows, columns, k, a + m0 * a_row + k0 * a_k, a_row, a_k, tile, kWide, out,
                     kWide, k0 > 0);
      }
      for (long m = 0; m < rows; ++m) {
        float* row = c + (m0 + m) * c_row + n0 * c_col;
        for (long n = 0; n < columns; ++n) {
          row[n * c_col] = (accumulate ? row[n * c_col] : 0.0f) + out[m * kWide + n];
        }
      }
    }
  }
}

// The product with a chosen step; see `gemm`.
template <class Step, class TA, class TB>
inline __attribute__((always_inline)) void gemm_by(long M, long N, long K, const TA* a, long a_row,
                                                   long a_k, const TB* b, long b_k, long b_col,
                                                   float* c, long c_row, long c_col,
                                                   bool accumulate) {
  if (b_col == 1 && (c_col == 1 || N == 1)) {
    stream<Step>(M, N, K, a, a_row, a_k, b, b_k, c, c_row, accumulate);
  } else if (b_k == 1 && c_col == 1 && N >= W) {
    const long whole = N / W * W;
    dots<Step>(M, whole, K, a, a_row, a_k, b, b_col, c, c_row, accumulate);
    if (whole < N) {
      strided<Step>(M, N - whole, K, a, a_row, a_k, b + whole * b_col, b_k, b_col, c + whole,
                    c_row, c_col, accumulate);
    }
  } else {
    strided<Step>(M, N, K, a, a_row, a_k, b, b_k, b_col, c, c_row, c_col, accumulate);
  }
}

// c[m,n] (+)= sum over k of a[m,k] * b[k,n], any strides (in elements), any M, N, K >= 0.
// Elements are widened to fp32 and accumulated in fp32. With bf16 instructions an fp32 A times a
// bf16 B is rounded to bf16 first, and denormals in bf16 products count as 0.
// Fast where C has contiguous rows and B contiguous rows or columns, or the same transposed.
// Inlined, so that constant strides leave only the code they need.
template <class TA, class TB>
inline __attribute__((always_inline)) void gemm(long M, long N, long K, const TA* a, long a_row,
                                                long a_k, const TB* b, long b_k, long b_col,
                                                float* c, long c_row, long c_col,
                                                bool accumulate) {
  using Step = typename StepOf<TA, TB>::type;
  // Transposed; an fp32 B, which is then the A, stays fp32.
  using Swapped = std::conditional_t<std::is_same<TB, float>::value, FloatStep<TA>,
                                     typename StepOf<TB, TA>::type>;
  if (K <= 0) {
    for (long m = 0; m < M && !accumulate; ++m) {
      for (long n = 0; n < N; ++n) c[m * c_row + n * c_col] = 0.0f;
    }
  } else if (c_row == 1 && M > 1 && (c_col != 1 || N == 1)) {
    gemm_by<Swapped>(N, M, K, b, b_col, b_k, a, a_k, a_row, c, c_col, c_row, accumulate);
  } else {
    gemm_by<Step>(M, N, K, a, a_row, a_k, b, b_k, b_col, c, c_row, c_col, accumulate);
  }
}

}  // namespace prism
