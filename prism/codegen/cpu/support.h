// What generated code uses besides the tile kernels: reductions of an expression, scratch memory.
#pragma once
#include <cmath>
#include <cstdlib>
#include <limits>

namespace prism {

// The larger; NaN from either side stays NaN.
inline float max(float a, float b) { return (b > a) | (b != b) ? b : a; }

inline float square(float x) { return x * x; }

// Sum (or maximum) of f(0) ... f(n-1), in partial results so that the loop vectorizes.
template <class F>
inline float reduce_sum(long n, F f) {
  constexpr long kLanes = 64;
  const long whole = n / kLanes * kLanes;
  float total = 0.0f;
  if (whole > 0) {
    float lane[kLanes] = {};
    for (long i = 0; i < whole; i += kLanes) {
#pragma omp simd
      for (long j = 0; j < kLanes; ++j) lane[j] += f(i + j);
    }
    for (long half = kLanes / 2; half > 0; half /= 2) {
      for (long j = 0; j < half; ++j) lane[j] += lane[j + half];
    }
    total = lane[0];
  }
  if (whole < n) {
#pragma omp simd reduction(+ : total)
    for (long j = whole; j < n; ++j) total += f(j);
  }
  return total;
}

template <class F>
inline float reduce_max(long n, F f) {
  constexpr long kLanes = 32;
  const long whole = n / kLanes * kLanes;
  float total = -std::numeric_limits<float>::infinity();
  if (whole > 0) {
    float lane[kLanes];
    for (long j = 0; j < kLanes; ++j) lane[j] = total;
    for (long i = 0; i < whole; i += kLanes) {
#pragma omp simd
      for (long j = 0; j < kLanes; ++j) lane[j] = max(lane[j], f(i + j));
    }
    for (long j = 0; j < kLanes; ++j) total = max(total, lane[j]);
  }
  for (long j = whole; j < n; ++j) total = max(total, f(j));
  return total;
}

// 64-byte aligned memory of one thread, kept from call to call.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(data_); }
  // Null when there is no memory.
  float* get(long floats) {
    if (floats > size_) {
      std::free(data_);
      const auto bytes = (static_cast<std::size_t>(floats) * sizeof(float) + 63) / 64 * 64;
      data_ = static_cast<float*>(std::aligned_alloc(64, bytes));
      size_ = data_ ? floats : 0;
    }
    return data_;
  }

 private:
  float* data_ = nullptr;
  long size_ = 0;
};

}  // namespace prism
