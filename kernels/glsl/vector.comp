// Element-wise kernels, one for each KERNEL_ macro. A workgroup takes ELEMENTS of them; results are exact on every device.
#version 450
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require

#define ELEMENTS 16384u
#if defined(KERNEL_empty)
layout(local_size_x = 1) in;
#else
layout(local_size_x = 256) in;
#endif

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer In { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Out { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer FloatIn { float at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer FloatInOut { float at[]; };

// The elements of this invocation. A grid may reach past 2**32 elements, where there is nothing left to do.
#define FOR_EACH(i, n)                                                                                                     \
  uint begin = gl_WorkGroupID.x * ELEMENTS;                                                                                \
  uint count = gl_WorkGroupID.x < (0xffffffffu / ELEMENTS) + 1u && begin < n ? min(n - begin, ELEMENTS) : 0u;              \
  for (uint step = gl_LocalInvocationID.x, i = begin + step; step < count; step += gl_WorkGroupSize.x, i += gl_WorkGroupSize.x)

#if defined(KERNEL_add_i32)
layout(push_constant) uniform Push { In a; In b; Out o; uint n; } push;
void main() {
  FOR_EACH(i, push.n) push.o.at[i] = push.a.at[i] + push.b.at[i];
}

#elif defined(KERNEL_mix_u32)
layout(push_constant) uniform Push { In x; Out o; uint n; uint rounds; } push;
void main() {
  FOR_EACH(i, push.n) {
    uint v = push.x.at[i];
    for (uint round = 0u; round < push.rounds; ++round) {
      v ^= v >> 16;
      v *= 0x7feb352du;
      v ^= v >> 15;
      v *= 0x846ca68bu;
      v ^= v >> 16;
    }
    push.o.at[i] = v;
  }
}

#elif defined(KERNEL_empty)
void main() {}

#elif defined(KERNEL_fill_index)
layout(push_constant) uniform Push { Out o; uint n; uint first; } push;
void main() {
  FOR_EACH(i, push.n) push.o.at[i] = push.first + i;
}

#elif defined(KERNEL_saxpy_f32)
layout(push_constant) uniform Push { FloatIn x; FloatInOut y; uint n; float alpha; } push;
void main() {
  FOR_EACH(i, push.n) {
    precise float product = push.alpha * push.x.at[i];
    precise float sum = product + push.y.at[i];
    push.y.at[i] = sum;
  }
}
#endif
