//! Long rows, whose spans have threads each.

use expect_test::expect;

use super::check;

#[test]
fn the_spans_of_a_long_row_have_threads_each() {
    check(
        "\
        kernel [9, 2048]\nread a0: f32 {2048, 1}\nwrite a1: f32 {2048, 1}\nwrite a2: f32 {1, 0}\n\
        %0 = load a0\n%1 = row_sum %0\n%2 = div %0 %1\nstore a1 %2\nstore a2 %1\n",
        &expect![[r#"
            extern "C" __global__ void __launch_bounds__(64) k0(const float* a0, float* a1, float* a2) {
              typedef unsigned int index;
              const index own = blockIdx.x;
              alignas(16) __shared__ float all[256];
              __shared__ float joined_row[1];
              const unsigned int span = threadIdx.x / 32;
              const index start = span * 1024;
              const index end = start + 1024 < 2048 ? start + 1024 : 2048;
              const unsigned int lane = threadIdx.x % 32;
              const bool live = own < 9;
              const index row = live ? own : 8;
              const index o0 = row * 2048;
              const index o1 = row * 2048;
              const index o2 = row;
              float h0[8][4];
              float s1[4] = {0.0f, 0.0f, 0.0f, 0.0f};
              #pragma unroll
              for (int piece = 0; piece < 8; ++piece) {
                const index column = start + lane * 4 + piece * 128;
                const int left = 4;
                float x0[4];
                load<4>(a0 + o0 + column, left, x0);
                #pragma unroll
                for (int j = 0; j < 4; ++j) {
                  const float v0 = x0[j];
                  h0[piece][j] = v0;
                  s1[j] = s1[j] + v0;
                }
              }
              #pragma unroll
              for (int j = 0; j < 4; ++j) {
                all[0 + span * 128 + lane * 4 + j] = s1[j];
              }
              __syncthreads();
              if (threadIdx.x / 32 == 0) {
                const float own = joined_spans<by_sum, 2>(all + 0, 0.0f);
                if (threadIdx.x % 32 == 0) joined_row[0] = own;
              }
              __syncthreads();
              const float v1 = joined_row[0];
              #pragma unroll
              for (int piece = 0; piece < 8; ++piece) {
                const index column = start + lane * 4 + piece * 128;
                const int left = 4;
                float y0[4];
                #pragma unroll
                for (int j = 0; j < 4; ++j) {
                  const float v0 = h0[piece][j];
                  const float v2 = __fdiv_rn(v0, v1);
                  y0[j] = v2;
                }
                if (live) {
                  store<4>(a1 + o1 + column, left, y0);
                }
              }
              __syncthreads();
              if (live && threadIdx.x == 0) {
                put(a2 + o2, v1);
              }
            }
        "#]],
    );
}

#[test]
fn a_long_row_that_is_not_aligned_is_read_by_neighbours_all_the_same() {
    check(
        "\
        kernel [9, 2049]\nread a0: f32 {2049, 1}\nwrite a1: f32 {1, 0}\n\
        %0 = load a0\n%1 = row_sum %0\nstore a1 %1\n",
        &expect![[r#"
            extern "C" __global__ void __launch_bounds__(96) k0(const float* a0, float* a1) {
              typedef unsigned int index;
              const index own = blockIdx.x;
              alignas(16) __shared__ float all[384];
              __shared__ float joined_row[1];
              const unsigned int span = threadIdx.x / 32;
              const index start = span * 768;
              const index end = start + 768 < 2049 ? start + 768 : 2049;
              const unsigned int lane = threadIdx.x % 32;
              const bool live = own < 9;
              const index row = live ? own : 8;
              const index o0 = row * 2049;
              const index o1 = row;
              float s1[4] = {0.0f, 0.0f, 0.0f, 0.0f};
              #pragma unroll 4
              for (index column = start + lane; column < end; column += 128) {
                const int left = (2049 - column + 31) / 32 < 4 ? (int)((2049 - column + 31) / 32) : 4;
                float x0[4];
                gather<4>(a0 + o0 + column, (index)32, left, x0);
                #pragma unroll
                for (int j = 0; j < 4; ++j) {
                  const float v0 = x0[j];
                  if (j < left) s1[j] = s1[j] + v0;
                }
              }
              #pragma unroll
              for (int j = 0; j < 4; ++j) {
                all[0 + span * 128 + lane + j * 32] = s1[j];
              }
              __syncthreads();
              if (threadIdx.x / 32 == 0) {
                const float own = joined_spans<by_sum, 3>(all + 0, 0.0f);
                if (threadIdx.x % 32 == 0) joined_row[0] = own;
              }
              __syncthreads();
              const float v1 = joined_row[0];
              __syncthreads();
              if (live && threadIdx.x == 0) {
                put(a1 + o1, v1);
              }
            }
        "#]],
    );
}
