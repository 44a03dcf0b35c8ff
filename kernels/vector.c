// Element-wise kernels. A workgroup takes ELEMENTS of them, the last one what is left; results are exact on every target.
#include <remora.h>

#define ELEMENTS 16384
#define ITEMS 256

// out[i] = a[i] + b[i] modulo 2**32.
kernel add_i32(in u32 a[n], in u32 b[n], out u32 out[n], u32 n) elements(ELEMENTS) workgroup(ITEMS) {
  FOR_ELEMENTS(i, n) out[i] = a[i] + b[i];
}

// out[i] = a 32-bit integer hash of x[i], applied `rounds` times.
kernel mix_u32(in u32 x[n], out u32 out[n], u32 n, u32 rounds) elements(ELEMENTS) workgroup(ITEMS) {
  FOR_ELEMENTS(i, n) {
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
}

// Nothing: what a dispatch itself costs.
kernel empty() {
}

// out[i] = first + i modulo 2**32.
kernel fill_index(out u32 out[n], u32 n, u32 first) elements(ELEMENTS) workgroup(ITEMS) {
  FOR_ELEMENTS(i, n) out[i] = first + i;
}

// y[i] = alpha * x[i] + y[i], rounded after the product and after the sum, as NumPy does.
kernel saxpy_f32(in f32 x[n], inout f32 y[n], u32 n, f32 alpha) elements(ELEMENTS) workgroup(ITEMS) {
  FOR_ELEMENTS(i, n) y[i] = alpha * x[i] + y[i];
}
