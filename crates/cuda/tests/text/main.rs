//! Kernels and their functions of CUDA C.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod spans;

use expect_test::{Expect, expect};
use unisono_cuda::{Source, Width, has_form};

/// The functions of a kernel, without the kernel's own text before them.
fn check(kernel: &str, expected: &Expect) {
    let source = Source::of(&[kernel.parse().unwrap()], Width::Wide).unwrap();
    let text = &source.kernels[0].as_ref().unwrap().text;
    let functions: Vec<&str> = text.lines().filter(|line| !line.starts_with("//")).collect();
    expected.assert_eq(&(functions.join("\n") + "\n"));
}

#[test]
fn a_thread_takes_several_points_and_what_is_left_one_by_one() {
    check(
        "\
        kernel [5, 6]\nread a0: f32 {8, 1}\nread a1: f32 {1, 0}\nwrite a2: bf16 {6, 1}\n\
        %0 = load a0\n%1 = load a1\n%2 = mul %0 %1\n%3 = sigmoid %2\nstore a2 %3\n",
        &expect![[r#"
            extern "C" __global__ void __launch_bounds__(256) k0(const float* a0, const float* a1, unsigned short* a2) {
              typedef unsigned int index;
              for (index at = (index)blockIdx.x * 256 + threadIdx.x; at < 10; at += (index)gridDim.x * 256) {
                const index row = at / 2, column = at % 2 * 4;
                const index o0 = row * 8;
                const index o1 = row;
                const index o2 = row * 6;
                const int left = 6 - column < 4 ? (int)(6 - column) : 4;
                float x0[4];
                load<4>(a0 + o0 + column, left, x0);
                const float v1 = number(a1[o1]);
                float y0[4];
                #pragma unroll
                for (int j = 0; j < 4; ++j) {
                  const float v0 = x0[j];
                  const float v2 = v0 * v1;
                  const float v3 = f_sigmoid(v2);
                  y0[j] = v3;
                }
                scatter<4>(a2 + o2 + column, (index)1, left, y0);
              }
            }
        "#]],
    );
}

#[test]
fn eight_numbers_of_two_bytes_are_one_access() {
    check(
        "kernel [64]\nread a0: bf16 {1}\nwrite a1: bf16 {1}\n%0 = load a0\n%1 = neg %0\nstore a1 %1\n",
        &expect![[r#"
            extern "C" __global__ void __launch_bounds__(256) k0(const unsigned short* a0, unsigned short* a1) {
              typedef unsigned int index;
              for (index at = (index)blockIdx.x * 256 + threadIdx.x; at < 8; at += (index)gridDim.x * 256) {
                const index column = at * 8;
                const index o0 = 0;
                const index o1 = 0;
                const int left = 8;
                float x0[8];
                load<8>(a0 + o0 + column, left, x0);
                float y0[8];
                #pragma unroll
                for (int j = 0; j < 8; ++j) {
                  const float v0 = x0[j];
                  const float v1 = f_neg(v0);
                  y0[j] = v1;
                }
                store<8>(a1 + o1 + column, left, y0);
              }
            }
        "#]],
    );
}

#[test]
fn a_short_row_has_some_threads_of_a_warp() {
    check(
        "\
        kernel [1000, 64]\nread a0: f32 {64, 1}\nwrite a1: f32 {64, 1}\n\
        %0 = load a0\n%1 = row_sum %0\n%2 = div %0 %1\nstore a1 %2\n",
        &expect![[r#"
            extern "C" __global__ void __launch_bounds__(128) k0(const float* a0, float* a1) {
              typedef unsigned int index;
              const index own = ((index)blockIdx.x * 128 + threadIdx.x) / 4;
              const unsigned int lane = threadIdx.x % 4;
              const bool live = own < 1000;
              const index row = live ? own : 999;
              const index o0 = row * 64;
              const index o1 = row * 64;
              float h0[4][4];
              float s1[4] = {0.0f, 0.0f, 0.0f, 0.0f};
              #pragma unroll
              for (int piece = 0; piece < 4; ++piece) {
                const index column = lane * 4 + piece * 16;
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
              const float v1 = joined<by_sum, 4>(s1);
              #pragma unroll
              for (int piece = 0; piece < 4; ++piece) {
                const index column = lane * 4 + piece * 16;
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
            }
        "#]],
    );
}

#[test]
fn a_long_row_among_few_has_a_block() {
    check(
        "\
        kernel [9, 1000]\nread a0: f32 {1000, 1}\nwrite a1: f32 {1, 0}\n\
        %0 = load a0\n%1 = row_max %0\nstore a1 %1\n",
        &expect![[r#"
            extern "C" __global__ void __launch_bounds__(128) k0(const float* a0, float* a1) {
              typedef unsigned int index;
              const index own = ((index)blockIdx.x * 128 + threadIdx.x) / 128;
              const unsigned int lane = threadIdx.x % 128;
              const bool live = own < 9;
              const index row = live ? own : 8;
              const index o0 = row * 1000;
              const index o1 = row;
              float s1[1] = {__uint_as_float(0xff800000u)};
              #pragma unroll 4
              for (index column = lane; column < 1000; column += 128) {
                const float v0 = number(a0[o0 + column]);
                s1[0] = f_max(s1[0], v0);
              }
              __shared__ float shared1[128];
              const float v1 = joined_by_block<by_max>(s1[0], shared1);
              __syncthreads();
              if (live && lane == 0) {
                put(a1 + o1, v1);
              }
            }
        "#]],
    );
}

#[test]
fn threads_that_have_a_group_of_rows_hold_their_sums() {
    check(
        "\
        kernel [200, 32]\nread a0: f32 {32, 1}\nadd a1: f32 {0, 1}\n\
        %0 = load a0\n%1 = row_sum %0\n%2 = mul %0 %1\nstore a1 %2\n",
        &expect![[r#"
            extern "C" __global__ void __launch_bounds__(32) k0(const float* a0, float* a1, float* kept) {
              typedef unsigned int index;
              const index at = (index)blockIdx.x * 32 + threadIdx.x;
              const index group = at / 4;
              const unsigned int lane = at % 4;
              float p0[2][4] = {};
              float h0[2][4];
              #pragma unroll 1
              for (int step = 0; step < 8; ++step) {
                const index own = group * 8 + step;
                const bool live = own < 200;
                const index row = live ? own : 199;
                const index o0 = row * 32;
                float s1[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                #pragma unroll
                for (int piece = 0; piece < 2; ++piece) {
                  const index column = lane * 4 + piece * 16;
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
                const float v1 = joined<by_sum, 4>(s1);
                #pragma unroll
                for (int piece = 0; piece < 2; ++piece) {
                  const index column = lane * 4 + piece * 16;
                  const int left = 4;
                  #pragma unroll
                  for (int j = 0; j < 4; ++j) {
                    const float v0 = h0[piece][j];
                    const float v2 = v0 * v1;
                    if (live) p0[piece][j] = p0[piece][j] + v2;
                  }
                }
              }
              if (group < 25) {
                #pragma unroll
                for (int own = 0; own < 8; ++own) {
                  const index column = lane * 4 + own / 4 * 16 + own % 4;
                  kept[0 + group * 32 + column] = p0[own / 4][own % 4];
                }
              }
            }
            extern "C" __global__ void __launch_bounds__(32) k0_totals(const float* a0, float* a1, float* kept) {
              typedef unsigned int index;
              __shared__ float sums[32];
              const unsigned int lane = threadIdx.x % 32;
              const index at = (index)blockIdx.x * 32 + lane;
              const bool live = at < 32;
              for (index sum = threadIdx.x / 32; live && sum < 1; sum += 1) {
                const index end = 25 - sum * 64 < 64 ? 25 : sum * 64 + 64;
                float s = 0.0f;
                #pragma unroll 16
                for (index group = sum * 64; group < end; ++group) s = s + kept[0 + group * 32 + at];
                sums[sum * 32 + lane] = s;
              }
              __syncthreads();
              if (threadIdx.x >= 32 || !live) return;
              float s = 0.0f;
              for (int sum = 0; sum < 1; ++sum) s = s + sums[sum * 32 + lane];
              if (at < 32) put(a1 + at, s);
            }
        "#]],
    );
}

#[test]
fn rows_of_several_warps_are_reduced_through_shared_memory() {
    check(
        "\
        kernel [90, 301]\nread a0: f32 {301, 1}\nwrite a1: f32 {301, 1}\nadd a2: f32 {0, 1}\nadd a3: f32 {0, 0}\n\
        %0 = load a0\n%1 = row_max %0\n%2 = row_sum %0\n%3 = sub %0 %1\nstore a1 %3\nstore a2 %0\nstore a3 %2\n",
        &expect![[r#"
            extern "C" __global__ void __launch_bounds__(128) k0(const float* a0, float* a1, float* a2, float* a3, float* kept) {
              typedef unsigned int index;
              const index group = blockIdx.x;
              const unsigned int lane = threadIdx.x;
              alignas(16) __shared__ float all[608];
              __shared__ float joined_row[2];
              float p2 = 0.0f;
              float p1[3] = {};
              float h0[3];
              #pragma unroll 1
              for (int step = 0; step < 8; ++step) {
                const index own = group * 8 + step;
                const bool live = own < 90;
                const index row = live ? own : 89;
                const index o0 = row * 301;
                const index o1 = row * 301;
                #pragma unroll
                for (int piece = 0; piece < 3; ++piece) {
                  const index column = lane + piece * 128;
                  const bool here = column < 301;
                  const float v0 = here ? number(a0[o0 + column]) : 0.0f;
                  h0[piece] = v0;
                  const float r0 = v0;
                  const float r1 = v0;
                  if (here) all[0 + column] = r0;
                  if (here) all[304 + column] = r1;
                }
                __syncthreads();
                if (threadIdx.x / 32 == 0) {
                  const float own = joined_by_warp<by_max, 301>(all + 0, __uint_as_float(0xff800000u));
                  if (threadIdx.x % 32 == 0) joined_row[0] = own;
                }
                if (threadIdx.x / 32 == 1) {
                  const float own = joined_by_warp<by_sum, 301>(all + 304, 0.0f);
                  if (threadIdx.x % 32 == 0) joined_row[1] = own;
                }
                __syncthreads();
                const float v1 = joined_row[0];
                const float v2 = joined_row[1];
                #pragma unroll
                for (int piece = 0; piece < 3; ++piece) {
                  const index column = lane + piece * 128;
                  const bool here = column < 301;
                  const float v0 = h0[piece];
                  const float v3 = v0 - v1;
                  if (live && here) p1[piece] = p1[piece] + v0;
                  if (live && here) {
                    put(a1 + o1 + column, v3);
                  }
                }
                if (live) p2 = p2 + v2;
              }
              if (group < 12) {
                if (lane == 0) kept[301 + group * 302 + 0] = p2;
                #pragma unroll
                for (int own = 0; own < 3; ++own) {
                  const index column = lane + own * 128;
                  if (column >= 301) break;
                  kept[0 + group * 302 + column] = p1[own];
                }
              }
            }
            extern "C" __global__ void __launch_bounds__(32) k0_totals(const float* a0, float* a1, float* a2, float* a3, float* kept) {
              typedef unsigned int index;
              __shared__ float sums[32];
              const unsigned int lane = threadIdx.x % 32;
              const index at = (index)blockIdx.x * 32 + lane;
              const bool live = at < 302;
              for (index sum = threadIdx.x / 32; live && sum < 1; sum += 1) {
                const index end = 12 - sum * 64 < 64 ? 12 : sum * 64 + 64;
                float s = 0.0f;
                #pragma unroll 16
                for (index group = sum * 64; group < end; ++group) s = s + kept[0 + group * 302 + at];
                sums[sum * 32 + lane] = s;
              }
              __syncthreads();
              if (threadIdx.x >= 32 || !live) return;
              float s = 0.0f;
              for (int sum = 0; sum < 1; ++sum) s = s + sums[sum * 32 + lane];
              if (at < 301) put(a2 + at, s);
              if (at >= 301 && at < 302) put(a3 + (at - 301), s);
            }
        "#]],
    );
}

#[test]
fn rows_that_no_threads_can_hold_are_read_again_for_their_sums() {
    check(
        "\
        kernel [200, 20000]\nread a0: f32 {20000, 1}\nadd a1: f32 {0, 1}\n\
        %0 = load a0\n%1 = row_sum %0\n%2 = mul %0 %1\nstore a1 %2\n",
        &expect![[r#"
            extern "C" __global__ void __launch_bounds__(512) k0(const float* a0, float* a1, float* kept) {
              typedef unsigned int index;
              const index own = blockIdx.x;
              alignas(16) __shared__ float all[2048];
              __shared__ float joined_row[1];
              const unsigned int span = threadIdx.x / 32;
              const index start = span * 1280;
              const index end = start + 1280 < 20000 ? start + 1280 : 20000;
              const unsigned int lane = threadIdx.x % 32;
              const bool live = own < 200;
              const index row = live ? own : 199;
              const index o0 = row * 20000;
              float s1[4] = {0.0f, 0.0f, 0.0f, 0.0f};
              #pragma unroll 4
              for (index column = start + lane * 4; column < end; column += 128) {
                const int left = 4;
                float x0[4];
                load<4>(a0 + o0 + column, left, x0);
                #pragma unroll
                for (int j = 0; j < 4; ++j) {
                  const float v0 = x0[j];
                  s1[j] = s1[j] + v0;
                }
              }
              #pragma unroll
              for (int j = 0; j < 4; ++j) {
                all[0 + span * 128 + lane * 4 + j] = s1[j];
              }
              __syncthreads();
              if (threadIdx.x / 32 == 0) {
                const float own = joined_spans<by_sum, 16>(all + 0, 0.0f);
                if (threadIdx.x % 32 == 0) joined_row[0] = own;
              }
              __syncthreads();
              const float v1 = joined_row[0];
              __syncthreads();
              if (live && threadIdx.x == 0) {
                kept[0 + row] = v1;
              }
            }
            extern "C" __global__ void __launch_bounds__(128) k0_parts(const float* a0, float* a1, float* kept) {
              typedef unsigned int index;
              const index at = (index)blockIdx.x * 128 + threadIdx.x;
              if (at >= 500000) return;
              const index group = at / 20000, column = at % 20000;
              float s0 = 0.0f;
              const index end = group * 8 + 8;
              #pragma unroll 8
              for (index row = group * 8; row < end; ++row) {
                const index o0 = row * 20000;
                const float v1 = kept[0 + row];
                const float v0 = number(a0[o0 + column]);
                const float v2 = v0 * v1;
                s0 = s0 + v2;
              }
              kept[200 + group * 20000 + column * 1] = s0;
            }
            extern "C" __global__ void __launch_bounds__(32) k0_totals(const float* a0, float* a1, float* kept) {
              typedef unsigned int index;
              __shared__ float sums[32];
              const unsigned int lane = threadIdx.x % 32;
              const index at = (index)blockIdx.x * 32 + lane;
              const bool live = at < 20000;
              for (index sum = threadIdx.x / 32; live && sum < 1; sum += 1) {
                const index end = 25 - sum * 64 < 64 ? 25 : sum * 64 + 64;
                float s = 0.0f;
                #pragma unroll 16
                for (index group = sum * 64; group < end; ++group) s = s + kept[200 + group * 20000 + at];
                sums[sum * 32 + lane] = s;
              }
              __syncthreads();
              if (threadIdx.x >= 32 || !live) return;
              float s = 0.0f;
              for (int sum = 0; sum < 1; ++sum) s = s + sums[sum * 32 + lane];
              if (at < 20000) put(a1 + at, s);
            }
        "#]],
    );
}

#[test]
fn pieces_of_a_row_that_change_places_are_loads_with_a_distance() {
    check(
        "\
        kernel [3, 32]\nread a0: f32 {64, 1}\nwrite a1: f32 {64, 1}\n\
        %0 = load a0\n%1 = load a0 +32\n%2 = neg %1\nstore a1 %2\nstore a1 +32 %0\n",
        &expect![[r#"
            extern "C" __global__ void __launch_bounds__(256) k0(const float* a0, float* a1) {
              typedef unsigned int index;
              for (index at = (index)blockIdx.x * 256 + threadIdx.x; at < 24; at += (index)gridDim.x * 256) {
                const index row = at / 8, column = at % 8 * 4;
                const index o0 = row * 64;
                const index o1 = row * 64;
                const int left = 4;
                float x0[4];
                load<4>(a0 + o0 + column, left, x0);
                float x1[4];
                load<4>(a0 + o0 + column + 32, left, x1);
                float y0[4];
                float y1[4];
                #pragma unroll
                for (int j = 0; j < 4; ++j) {
                  const float v0 = x0[j];
                  const float v1 = x1[j];
                  const float v2 = f_neg(v1);
                  y0[j] = v2;
                  y1[j] = v0;
                }
                store<4>(a1 + o1 + column, left, y0);
                store<4>(a1 + o1 + column + 32, left, y1);
              }
            }
        "#]],
    );
}

#[test]
fn positions_have_64_bits_where_32_do_not_hold_them() {
    let text = |size: u64| {
        let kernel = format!(
            "kernel [{size}]\nread a0: bf16 {{1}}\nwrite a1: bf16 {{1}}\n%0 = load a0\nstore a1 %0\n"
        );
        Source::of(&[kernel.parse().unwrap()], Width::Wide).unwrap().text
    };
    assert!(text(1 << 30).contains("typedef unsigned int index;"));
    assert!(text(1 << 32).contains("typedef unsigned long long index;"));
}

#[test]
fn sums_that_lie_across_each_other_have_no_form() {
    let kernel = "\
        kernel [4, 8]\nread a0: f32 {8, 1}\nadd a1: f32 {0, 1}\n\
        %0 = load a0\n%1 = neg %0\nstore a1 %0\nstore a1 +1 %1\n";
    let source = Source::of(&[kernel.parse().unwrap()], Width::Wide).unwrap();
    assert_eq!(source.kernels[0].as_ref().unwrap_err(), "sums of a1 lie across each other");
}

#[test]
fn more_rows_than_a_grid_has_room_for_have_no_form() {
    let kernel = format!(
        "kernel [{}, 8]\nread a0: f32 {{8, 1}}\nwrite a1: f32 {{1, 0}}\n%0 = load a0\n%1 = row_sum %0\nstore a1 %1\n",
        1_u64 << 40
    );
    assert!(!has_form(&kernel.parse().unwrap()));
}
