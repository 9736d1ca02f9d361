// CUDA C on the processor, for tests: what a program of kernels is compiled with. Threads are fibers, which `threads.cpp` runs.
#pragma once

#include <cmath>
#include <cstring>

#include "processor.h"

#define __global__
#define __device__
// Compilers take long for functions that are put into all others.
#define __forceinline__ __attribute__((noinline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(threads)
#define __shared__ static

extern "C" Processor* processor;
Processor* processor = nullptr;

struct Along {
  unsigned int x;
};
#define threadIdx (Along{processor->thread})
#define blockIdx (Along{processor->block})
#define blockDim (Along{processor->threads})
#define gridDim (Along{processor->blocks})

inline void __syncthreads() { processor->wait(); }
inline void __syncwarp() { processor->exchange(0.0f, 0); }
inline float __shfl_sync(unsigned int, float own, int from, int width) {
  const int lane = static_cast<int>(processor->thread % 32);
  return processor->exchange(own, lane / width * width + from % width);
}
inline float __shfl_down_sync(unsigned int, float own, int by, int width) {
  const int lane = static_cast<int>(processor->thread % 32);
  return processor->exchange(own, lane % width + by < width ? lane + by : lane);
}

inline unsigned int __float_as_uint(float of) {
  unsigned int word;
  std::memcpy(&word, &of, sizeof word);
  return word;
}
inline float __uint_as_float(unsigned int of) {
  float number;
  std::memcpy(&number, &of, sizeof number);
  return number;
}
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
