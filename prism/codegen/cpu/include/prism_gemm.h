// Matrix product of tiles with fp32 accumulation.
#pragma once
#include "prism_types.h"

namespace prism {

// c[m,n] (+)= sum over k of a[m,k] * b[k,n], any strides (in elements), any M, N, K >= 0.
template <class TA, class TB>
void gemm(long M, long N, long K, const TA* a, long a_row, long a_k, const TB* b, long b_k,
          long b_col, float* c, long c_row, long c_col, bool accumulate) {
  for (long m = 0; m < M; ++m) {
    if (!accumulate) {
      for (long n = 0; n < N; ++n) c[m * c_row + n * c_col] = 0.0f;
    }
    if (b_col == 1 && c_col == 1) {
      for (long k = 0; k < K; ++k) {
        const float x = to_float(a[m * a_row + k * a_k]);
        for (long n = 0; n < N; ++n) c[m * c_row + n] += x * to_float(b[k * b_k + n]);
      }
    } else {
      for (long n = 0; n < N; ++n) {
        float total = 0.0f;
        for (long k = 0; k < K; ++k) {
          total += to_float(a[m * a_row + k * a_k]) * to_float(b[k * b_k + n * b_col]);
        }
        c[m * c_row + n * c_col] += total;
      }
    }
  }
}

}  // namespace prism
