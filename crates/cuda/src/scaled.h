// `a` times two to the power of a whole number. The first product is exact, so that the result is rounded once.
__device__ __forceinline__ float scaled(float a, float n) {
  const int power = (int)(__float_as_uint(n + 12582912.0f) - 0x4b400000u);
  const int half = power >> 1;
  const float first = __uint_as_float((unsigned int)(half + 127) << 23);
  return a * first * __uint_as_float((unsigned int)(power - half + 127) << 23);
}
