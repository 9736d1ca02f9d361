// `a` times two to the power of a whole number that has been added to 12582912. The first product is exact, so that the result is rounded once.
__device__ __forceinline__ float scaled(float a, float shifted) {
  // Only the lowest nine bits of a word count, of which that number has none.
  const int word = (int)__float_as_uint(shifted), half = word >> 1;
  const float first = __uint_as_float(((unsigned int)half << 23) + 0x3f800000u);
  return a * first * __uint_as_float(((unsigned int)(word - half) << 23) + 0x3f800000u);
}
