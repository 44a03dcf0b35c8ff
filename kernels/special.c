// Code that is specialized when it is loaded, and that has memory of its own. One item does all the work of a workgroup.
#include <remora.h>

specialization u32 FACTOR;
specialization i32 OFFSET = -1;
specialization f32 SCALE = 1.0f;
specialization u64 BIG = 0x10000000000;

// What `tally` has been given so far.
global u32 total[1] = {0};
// What `look_up` reads.
global u32 table[16] = {0, 1, 4, 9, 16, 25, 36, 49, 64, 81, 100, 121, 144, 169, 196, 225};

// out[0..5] = the words of the specialization constants.
kernel reveal(out u32 out[5]) {
  out[0] = FACTOR;
  out[1] = (u32)OFFSET;
  out[2] = as_u32(SCALE);
  out[3] = (u32)BIG;
  out[4] = (u32)(BIG >> 32);
}

// out[i] = FACTOR * x[i] + OFFSET modulo 2**32, for i below n. One workgroup.
kernel affine_u32(in u32 x[n], out u32 out[n], u32 n) {
  for (u32 i = 0; i < n; ++i) out[i] = FACTOR * x[i] + (u32)OFFSET;
}

// Each workgroup adds `amount` to `total`.
kernel tally(u32 amount) {
  ATOMIC_ADD(&total[0], amount);
}

// out[i] = table[x[i] modulo 16], for i below n. One workgroup.
kernel look_up(in u32 x[n], out u32 out[n], u32 n) {
  for (u32 i = 0; i < n; ++i) out[i] = table[x[i] % 16];
}
