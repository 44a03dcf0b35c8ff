// Code that is specialized when it is loaded, and that has memory of its own. Word by word: FACTOR u32, OFFSET i32, SCALE f32, and
// BIG u64 in two words, the low one first.
#version 450
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require

layout(local_size_x = 1) in;
layout(constant_id = 0) const uint FACTOR = 0u;
layout(constant_id = 1) const uint OFFSET = 0u;
layout(constant_id = 2) const uint SCALE = 0u;
layout(constant_id = 3) const uint BIG_LOW = 0u;
layout(constant_id = 4) const uint BIG_HIGH = 0u;

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer In { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Out { uint at[]; };

// What `tally` has been given so far.
layout(set = 0, binding = 0) buffer Total { uint value[1]; } total;
// What `look_up` reads.
layout(set = 0, binding = 1) buffer Table { uint value[16]; } table;

#if defined(KERNEL_remora_initialize)
// Runs once when the code is loaded: what the memory holds at first. The driver has zeroed it.
void main() {
  for (uint i = 0u; i < 16u; ++i) table.value[i] = i * i;
}

#elif defined(KERNEL_reveal)
// out[0..5] = the words of the specialization constants.
layout(push_constant) uniform Push { Out o; } push;
void main() {
  push.o.at[0] = FACTOR;
  push.o.at[1] = OFFSET;
  push.o.at[2] = SCALE;
  push.o.at[3] = BIG_LOW;
  push.o.at[4] = BIG_HIGH;
}

#elif defined(KERNEL_affine_u32)
// out[i] = FACTOR * x[i] + OFFSET modulo 2**32, for i below n. One workgroup.
layout(push_constant) uniform Push { In x; Out o; uint n; } push;
void main() {
  for (uint i = 0u; i < push.n; ++i) push.o.at[i] = FACTOR * push.x.at[i] + OFFSET;
}

#elif defined(KERNEL_tally)
// Each workgroup adds `amount` to `total`.
layout(push_constant) uniform Push { uint amount; } push;
void main() {
  atomicAdd(total.value[0], push.amount);
}

#elif defined(KERNEL_look_up)
// out[i] = table[x[i] modulo 16], for i below n. One workgroup.
layout(push_constant) uniform Push { In x; Out o; uint n; } push;
void main() {
  for (uint i = 0u; i < push.n; ++i) push.o.at[i] = table.value[push.x.at[i] % 16u];
}
#endif
