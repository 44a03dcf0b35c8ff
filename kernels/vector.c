// Element-wise kernels. A workgroup takes ELEMENTS of them, the last one what is left; results are exact on every target.
#include "executable_library.h"

#define ELEMENTS 16384u

typedef struct {
  u32 begin, end;
} range_t;

// The elements of this workgroup. In 64 bits, since a grid may reach past 2**32 elements.
static range_t range_of(const workgroup_t *workgroup, u32 n) {
  u64 begin = (u64)workgroup->x * ELEMENTS, end = begin + ELEMENTS;
  return (range_t){begin < n ? (u32)begin : n, end < n ? (u32)end : n};
}

// out[i] = a[i] + b[i] modulo 2**32.
KERNEL(add_i32) {
  const u32 *restrict a = dispatch->bindings[0], *restrict b = dispatch->bindings[1];
  u32 *restrict out = dispatch->bindings[2];
  range_t range = range_of(workgroup, dispatch->constants[0]);
  for (u32 i = range.begin; i < range.end; ++i) out[i] = a[i] + b[i];
  return 0;
}

// out[i] = a 32-bit integer hash of x[i], applied `rounds` times.
KERNEL(mix_u32) {
  const u32 *restrict x = dispatch->bindings[0];
  u32 *restrict out = dispatch->bindings[1];
  range_t range = range_of(workgroup, dispatch->constants[0]);
  u32 rounds = dispatch->constants[1];
  for (u32 i = range.begin; i < range.end; ++i) {
    u32 v = x[i];
    for (u32 round = 0; round < rounds; ++round) {
      v ^= v >> 16;
      v *= 0x7feb352du;
      v ^= v >> 15;
      v *= 0x846ca68bu;
      v ^= v >> 16;
    }
    out[i] = v;
  }
  return 0;
}

// Nothing: what a dispatch itself costs.
KERNEL(empty) { return 0; }

// out[i] = first + i modulo 2**32.
KERNEL(fill_index) {
  u32 *restrict out = dispatch->bindings[0];
  range_t range = range_of(workgroup, dispatch->constants[0]);
  u32 first = dispatch->constants[1];
  for (u32 i = range.begin; i < range.end; ++i) out[i] = first + i;
  return 0;
}

// y[i] = alpha * x[i] + y[i], rounded after the product and after the sum, as NumPy does.
KERNEL(saxpy_f32) {
  const float *restrict x = dispatch->bindings[0];
  float *restrict y = dispatch->bindings[1];
  range_t range = range_of(workgroup, dispatch->constants[0]);
  float alpha = *(const float *)&dispatch->constants[1];
  for (u32 i = range.begin; i < range.end; ++i) y[i] = alpha * x[i] + y[i];
  return 0;
}

static const kernel_t kernels[] = {add_i32, mix_u32, empty, fill_index, saxpy_f32};
static const char *const names[] = {"add_i32", "mix_u32", "empty", "fill_index", "saxpy_f32"};
static const attributes_t attributes[] = {ATTRIBUTES(1, 3), ATTRIBUTES(2, 2), ATTRIBUTES(0, 0), ATTRIBUTES(2, 1), ATTRIBUTES(2, 2)};
LIBRARY("vector")
