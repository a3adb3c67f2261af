// Matrix product of tiles with fp32 accumulation.
//
// Two loops share the steps of prism_step.h: `stream` for a B whose rows are contiguous along n and
// `dots` for a B that is contiguous along k. Other strides go through small copies. Nothing is
// skipped for being zero, so NaN and infinity propagate as in IEEE arithmetic; what a partial
// vector reads beyond an edge is never stored.
#pragma once
#include <type_traits>

#include "prism_dots.h"
#include "prism_step.h"
#include "prism_stream.h"

namespace prism {

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
