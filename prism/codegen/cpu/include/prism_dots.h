// Product of tiles where B is contiguous along k: lanes are rows of C and steps of k.
#pragma once
#include <type_traits>

#include "prism_step.h"

namespace prism {

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

}  // namespace prism
