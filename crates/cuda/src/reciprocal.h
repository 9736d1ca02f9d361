// Of a number from 1 to 2^126, rounded once.
__device__ __forceinline__ float reciprocal(float of) {
#ifdef __CUDA_ARCH__
  float estimate;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(of));
  return __fmaf_rn(estimate, -__fmaf_rn(of, estimate, -1.0f), estimate);
#else
  return 1.0f / of;
#endif
}
