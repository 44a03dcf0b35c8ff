// c = a x b, float32, SIZE x SIZE, row-major. A workgroup makes a tile of TILE x TILE results, an invocation 4 x 4 of them: rows of b
// are read side by side, a goes in transposed.
#version 450
#extension GL_EXT_buffer_reference : require

#define SIZE 512u
#define TILE 64u
#define DEPTH 16u
#define ITEMS 256u
layout(local_size_x = 256) in;

layout(buffer_reference, std430, buffer_reference_align = 64) readonly buffer In { float at[]; };
layout(buffer_reference, std430, buffer_reference_align = 64) writeonly buffer Out { float at[]; };

layout(push_constant) uniform Push { In a; In b; Out c; } push;

shared float left[DEPTH * TILE];
shared float right[DEPTH * TILE];

void main() {
  uint t = gl_LocalInvocationID.x, row = gl_WorkGroupID.y * TILE, column = gl_WorkGroupID.x * TILE;
  float sums[16];
  for (uint i = 0u; i < 16u; ++i) sums[i] = 0.0;
  for (uint k = 0u; k < SIZE; k += DEPTH) {
    for (uint i = t; i < DEPTH * TILE; i += ITEMS) {
      left[i % DEPTH * TILE + i / DEPTH] = push.a.at[(row + i / DEPTH) * SIZE + k + i % DEPTH];
      right[i] = push.b.at[(k + i / TILE) * SIZE + column + i % TILE];
    }
    barrier();
    for (uint depth = 0u; depth < DEPTH; ++depth)
      for (uint i = 0u; i < 16u; ++i)
        sums[i] += left[depth * TILE + t / 16u * 4u + i / 4u] * right[depth * TILE + t % 16u * 4u + i % 4u];
    barrier();
  }
  for (uint i = 0u; i < 16u; ++i)
    push.c.at[(row + t / 16u * 4u + i / 4u) * SIZE + column + t % 16u * 4u + i % 4u] = sums[i];
}
