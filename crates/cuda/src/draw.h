
// Random numbers at positions, as `random` draws them: words by Philox4x32-10, and what they become.
struct words {
  unsigned int of[4];
};
__device__ __forceinline__ words philox(const long long* key, unsigned int operation, unsigned long long block) {
  unsigned int a = (unsigned int)block, b = (unsigned int)(block >> 32), c = operation, d = (unsigned int)key[1];
  unsigned int first = (unsigned int)key[0], second = (unsigned int)((unsigned long long)key[0] >> 32);
  for (int round = 0; round < 10; ++round) {
    const unsigned long long one = (unsigned long long)a * 0xd2511f53u, two = (unsigned long long)c * 0xcd9e8d57u;
    a = (unsigned int)(two >> 32) ^ b ^ first;
    c = (unsigned int)(one >> 32) ^ d ^ second;
    b = (unsigned int)two;
    d = (unsigned int)one;
    first += 0x9e3779b9u;
    second += 0xbb67ae85u;
  }
  return {{a, b, c, d}};
}
// Position `p` of a group of 64 has word `p / 16` of block `p % 16` of the group.
struct drawn {
  words all;
  unsigned int number;
  __device__ __forceinline__ unsigned int word() const { return all.of[number]; }
};
__device__ __forceinline__ drawn at_position(const long long* key, unsigned int operation, unsigned long long position) {
  const unsigned int place = (unsigned int)(position % 64);
  return {philox(key, operation, position / 64 * 16 + place % 16), place / 16};
}

// The natural logarithm of a number above 0, up to 1, of 24 bits of a word.
__device__ __forceinline__ float log_of_unit(unsigned int word) {
  const unsigned int bits = __float_as_uint((float)(int)((word >> 8) + 1u) * 5.9604644775390625e-8f);
  const float mantissa = __uint_as_float((bits & 0x007fffffu) | 0x3f000000u);
  const bool is_low = mantissa < 0.70710677f;
  const float exponent = (float)((int)(bits >> 23) - 126 - (is_low ? 1 : 0));
  const float x = (is_low ? mantissa + mantissa : mantissa) - 1.0f;
  const float square = x * x;
  float sum = 7.0376836e-2f;
  sum = sum * x + -1.151461e-1f;
  sum = sum * x + 1.1676999e-1f;
  sum = sum * x + -1.2420141e-1f;
  sum = sum * x + 1.4249323e-1f;
  sum = sum * x + -1.6668057e-1f;
  sum = sum * x + 2.0000714e-1f;
  sum = sum * x + -2.4999994e-1f;
  sum = sum * x + 3.333333e-1f;
  const float rest = sum * x * square + exponent * -2.1219444e-4f - 0.5f * square;
  return x + rest + exponent * 0.6933594f;
}
// Sine and cosine of an angle around the circle.
struct side {
  float sine, cosine;
};
__device__ __forceinline__ side around(unsigned int word) {
  const float angle = (float)(int)(word << 2) * (0.78539818525f / 2147483648.0f);
  const float square = angle * angle;
  const float s = ((-1.9515296e-4f * square + 8.332161e-3f) * square - 1.6666655e-1f) * square * angle + angle;
  const float c =
      ((2.4433157e-5f * square - 1.3887316e-3f) * square + 4.1666646e-2f) * square * square - 0.5f * square + 1.0f;
  const unsigned int quarter = word >> 30;
  const side turned = quarter & 1u ? side{c, -s} : side{s, c};
  return quarter & 2u ? side{-turned.sine, -turned.cosine} : turned;
}
__device__ __forceinline__ float bernoulli(drawn of, unsigned int last, float all) { return of.word() <= last ? all : 0.0f; }
__device__ __forceinline__ float uniform(drawn of, float low, float high, float width, float unit, int digits) {
  const float number = (float)(int)(of.word() >> (32 - digits)) * unit * width + low;
  return number >= high ? low : number;
}
__device__ __forceinline__ float normal(drawn of, float mean, float deviation) {
  const unsigned int first = of.number % 2;
  const float radius = __fsqrt_rn(-2.0f * log_of_unit(of.all.of[first])) * deviation;
  const side turned = around(of.all.of[first + 2]);
  return radius * (of.number < 2 ? turned.cosine : turned.sine) + mean;
}
__device__ __forceinline__ float exponential(drawn of, float rate) { return __fdiv_rn(-log_of_unit(of.word()), rate); }
__device__ __forceinline__ float cauchy(drawn of, float median, float sigma) {
  const side turned = around(of.word());
  return __fdiv_rn(turned.sine, turned.cosine == 0.0f ? 1.17549435e-38f : turned.cosine) * sigma + median;
}
__device__ __forceinline__ float geometric(drawn of, float per_log) {
  const float number = ceilf(log_of_unit(of.word()) * per_log);
  return number > 1.0f ? number : 1.0f;
}
__device__ __forceinline__ long long integer(drawn of, long long low, unsigned long long range) {
  return (long long)((unsigned long long)low + ((unsigned long long)of.word() * range >> 32));
}
__device__ __forceinline__ void put(long long* to, float value) { *to = (long long)value; }
__device__ __forceinline__ void put(long long* to, long long value) { *to = value; }
