// Product of tiles where the rows of B and C are contiguous along n: lanes are columns of C.
#pragma once
#include "prism_step.h"

namespace prism {

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
  // Whole rows that follow one another are one run of memory, which is read fastest.
  const bool run = M <= kPanelRows && b_k == N && N <= kRun;
  // Rows of B at a stride of whole 8 KiB share few sets of the caches: fewer and shorter ones in a
  // pass, which the prefetch is then less far ahead of. More rows of C pay for longer passes.
  const bool crowded = !run && Step::kRows == 2 && M > 4 && M <= kPanelRows &&
                       b_k * sizeof(TB) % 8192 == 0;
  const long width = run ? N : crowded ? kColumns / 2 : kColumns;
  for (long n0 = 0; n0 < N; n0 += width) {
    const long columns = N - n0 < width ? N - n0 : width;
    for (long m0 = 0; m0 < M; m0 += kRowsOfA) {
      const long rows = M - m0 < kRowsOfA ? M - m0 : kRowsOfA;
      const long padded = (rows + kPanelRows - 1) / kPanelRows * kPanelRows;
      // Wide rows fill the caches with fewer of them; more rows of C pay for more passes over it.
      const bool wide = rows <= kPanelRows && columns * sizeof(TB) >= 1024;
      const long depth = crowded ? kDepth / 4 : wide ? kDepth / 2 : kDepth;
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

}  // namespace prism
