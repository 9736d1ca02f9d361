
// Numbers from memory and to it.
__device__ __forceinline__ float number(float of) { return of; }
__device__ __forceinline__ float number(unsigned short of) { return __uint_as_float((unsigned int)of << 16); }
__device__ __forceinline__ float number(unsigned char of) { return (float)of; }
__device__ __forceinline__ float number(long long of) { return (float)of; }
__device__ __forceinline__ void put(float* to, float value) { *to = value; }
__device__ __forceinline__ void put(unsigned short* to, float value) {
#ifdef __CUDA_ARCH__
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(*to) : "f"(value));
#else
  *to = (unsigned short)(__float_as_uint(f_round_bf16(value)) >> 16);
#endif
}

// As many elements side by side as one access takes.
template <typename E, int N>
struct alignas(sizeof(E) * N) vector {
  E at[N];
};
template <int N, typename E>
__device__ __forceinline__ void load(const E* from, int left, float (&to)[N]) {
  if (left >= N) {
    const vector<E, N> read = *reinterpret_cast<const vector<E, N>*>(from);
#pragma unroll
    for (int j = 0; j < N; ++j) to[j] = number(read.at[j]);
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) to[j] = j < left ? number(from[j]) : 0.0f;
  }
}
template <int N, typename I, typename E>
__device__ __forceinline__ void gather(const E* from, I stride, int left, float (&to)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) to[j] = j < left ? number(from[j * stride]) : 0.0f;
}
template <typename E, int N>
__device__ __forceinline__ void put_all(vector<E, N>& to, const float (&from)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) put(to.at + j, from[j]);
}
#ifdef __CUDA_ARCH__
template <int N>
__device__ __forceinline__ void put_all(vector<unsigned short, N>& to, const float (&from)[N]) {
  static_assert(N % 2 == 0, "two numbers are rounded at once");
#pragma unroll
  for (int j = 0; j < N; j += 2) {
    unsigned int both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(from[j + 1]), "f"(from[j]));
    *reinterpret_cast<unsigned int*>(to.at + j) = both;
  }
}
#endif
template <int N, typename E>
__device__ __forceinline__ void store(E* to, int left, const float (&from)[N]) {
  if (left >= N) {
    vector<E, N> made;
    put_all(made, from);
    *reinterpret_cast<vector<E, N>*>(to) = made;
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (j < left) put(to + j, from[j]);
    }
  }
}
template <int N, typename I, typename E>
__device__ __forceinline__ void scatter(E* to, I stride, int left, const float (&from)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (j < left) put(to + j * stride, from[j]);
  }
}
