
// `f16` by its bits, apart from `bf16` by its own.
struct half_bits {
  unsigned short of;
};
__device__ __forceinline__ float number(half_bits half) {
#ifdef __CUDA_ARCH__
  float number;
  asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(half.of));
  return number;
#else
  const unsigned int magnitude = half.of & 0x7fffu, sign = (half.of & 0x8000u) << 16;
  const float small = (float)magnitude * 5.9604644775390625e-8f;
  const unsigned int whole = (magnitude << 13) + (magnitude < 0x7c00u ? 112u << 23 : 224u << 23);
  return __uint_as_float((magnitude < 0x0400u ? __float_as_uint(small) : whole) | sign);
#endif
}
__device__ __forceinline__ void put(half_bits* to, float value) {
#ifdef __CUDA_ARCH__
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->of) : "f"(value));
#else
  const unsigned int word = __float_as_uint(f_round_f16(value)), magnitude = word & 0x7fffffffu;
  const unsigned int small = (unsigned int)(__uint_as_float(magnitude) * 16777216.0f);
  const unsigned int whole = (magnitude - (magnitude < 0x7f800000u ? 112u << 23 : 224u << 23)) >> 13;
  to->of = (unsigned short)((word >> 16 & 0x8000u) | (magnitude < 0x38800000u ? small : whole));
#endif
}
