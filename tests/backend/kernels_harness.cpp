// C entry points to the tile kernels, for test_kernels.py.
#include "prism_tile.h"

namespace {

template <class TA, class TB>
void call(const long* s, const void* a, const void* b, float* c, bool accumulate) {
  prism::gemm(s[0], s[1], s[2], static_cast<const TA*>(a), s[3], s[4], static_cast<const TB*>(b),
              s[5], s[6], c, s[7], s[8], accumulate);
}

template <class TA>
void call_b(int tb, const long* s, const void* a, const void* b, float* c, bool accumulate) {
  if (tb == 0) call<TA, float>(s, a, b, c, accumulate);
  if (tb == 1) call<TA, prism::bf16>(s, a, b, c, accumulate);
  if (tb == 2) call<TA, prism::fp16>(s, a, b, c, accumulate);
}

}  // namespace

// Type codes: 0 float, 1 bf16, 2 fp16. s: M, N, K, a_row, a_k, b_k, b_col, c_row, c_col.
extern "C" void harness_gemm(int ta, int tb, const long* s, const void* a, const void* b, float* c,
                             int accumulate) {
  if (ta == 0) call_b<float>(tb, s, a, b, c, accumulate != 0);
  if (ta == 1) call_b<prism::bf16>(tb, s, a, b, c, accumulate != 0);
  if (ta == 2) call_b<prism::fp16>(tb, s, a, b, c, accumulate != 0);
}

#define UNARY(NAME)                                                  \
  extern "C" void harness_##NAME(long n, const float* x, float* y) { \
    _Pragma("omp simd") for (long i = 0; i < n; ++i) y[i] = prism::NAME(x[i]); \
  }
UNARY(exp)
UNARY(silu)
UNARY(gelu)
UNARY(relu)

#define CONVERT(T)                                                             \
  extern "C" void harness_to_##T(long n, const float* x, prism::T* y) {        \
    _Pragma("omp simd") for (long i = 0; i < n; ++i) y[i] = prism::from_float<prism::T>(x[i]); \
  }                                                                            \
  extern "C" void harness_from_##T(long n, const prism::T* x, float* y) {      \
    _Pragma("omp simd") for (long i = 0; i < n; ++i) y[i] = prism::to_float(x[i]); \
  }
CONVERT(bf16)
CONVERT(fp16)
