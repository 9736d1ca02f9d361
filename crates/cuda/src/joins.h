
// What the threads of a row have gathered, as one number for all of them: each half of the lanes is joined with the other.
struct by_sum {
  static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};
struct by_max {
  static __device__ __forceinline__ float of(float a, float b) { return f_max(a, b); }
};
struct by_min {
  static __device__ __forceinline__ float of(float a, float b) { return f_min(a, b); }
};
template <typename J, int TEAM, int N>
__device__ __forceinline__ float joined(float (&lanes)[N]) {
#pragma unroll
  for (int half = TEAM / 2; half > 0; half /= 2) {
#pragma unroll
    for (int j = 0; j < N; ++j) lanes[j] = J::of(lanes[j], __shfl_down_sync(0xffffffffu, lanes[j], half, TEAM));
  }
#pragma unroll
  for (int half = N / 2; half > 0; half /= 2) {
#pragma unroll
    for (int j = 0; j < half; ++j) lanes[j] = J::of(lanes[j], lanes[j + half]);
  }
  return __shfl_sync(0xffffffffu, lanes[0], 0, TEAM);
}
// The same for a row of 128 threads; `shared` is this reduction's own.
template <typename J>
__device__ __forceinline__ float joined_by_block(float own, float* shared) {
  shared[threadIdx.x] = own;
  __syncthreads();
  const int t = threadIdx.x % 32;
  float quarter[1] = {J::of(J::of(shared[t], shared[t + 64]), J::of(shared[t + 32], shared[t + 96]))};
  return joined<J, 32>(quarter);
}
// The same for a row of more threads, which have put what is reduced into `all`, by column: the threads of a warp join it.
template <typename J>
__device__ __forceinline__ void gather_lanes(const float* all, int count, float (&lanes)[4]) {
#pragma unroll 4
  for (int column = threadIdx.x % 32 * 4; column < count; column += 128) {
    float read[4];
    load<4>(all + column, count - column, read);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (column + j < count) lanes[j] = J::of(lanes[j], read[j]);
    }
  }
}
template <typename J, int COUNT>
__device__ __forceinline__ float joined_by_warp(const float* all, float start) {
  float lanes[4] = {start, start, start, start};
  gather_lanes<J>(all, COUNT, lanes);
  return joined<J, 32>(lanes);
}
// The lanes of a span of such a row: the threads of a warp gather them.
template <typename J, int COUNT, int SPAN>
__device__ __forceinline__ void gather_span(const float* all, int span, float start, float* to) {
  float lanes[4] = {start, start, start, start};
  const int first = span * SPAN;
  gather_lanes<J>(all + first, first + SPAN < COUNT ? SPAN : COUNT - first, lanes);
  store<4>(to + span * 128 + threadIdx.x % 32 * 4, 4, lanes);
}
// One number for the row of the lanes of its spans.
template <typename J, int SPANS>
__device__ __forceinline__ float joined_spans(const float* all, float start) {
  float lanes[4] = {start, start, start, start};
#pragma unroll
  for (int span = 0; span < SPANS; ++span) {
    float own[4];
    load<4>(all + span * 128 + threadIdx.x % 32 * 4, 4, own);
#pragma unroll
    for (int j = 0; j < 4; ++j) lanes[j] = J::of(lanes[j], own[j]);
  }
  return joined<J, 32>(lanes);
}
