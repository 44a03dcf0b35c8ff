// c = a @ b, float32, SIZE x SIZE, row-major, for devices with items and shared memory. The cpu artifacts are matmul.mlir's.
//
// A workgroup makes a tile of TILE x TILE results, an item 4 x 4 of them: rows of b are read side by side, a goes in transposed.
#include <remora.h>

#define SIZE 512
#define TILE 64
#define DEPTH 16
#define ITEMS 256
#define TILES 8

kernel matmul(in f32 a[SIZE * SIZE] aligned(64), in f32 b[SIZE * SIZE] aligned(64), out f32 c[SIZE * SIZE] aligned(64))
    grid(TILES, TILES) workgroup(ITEMS) {
  SHARED(f32, left, DEPTH * TILE);
  SHARED(f32, right, DEPTH * TILE);
  PRIVATE(f32, sum, 16);
  FOR_ITEMS(t) for (u32 i = 0; i < 16; ++i) OWN(sum, t)[i] = 0.0f;
  for (u32 k = 0; k < SIZE; k += DEPTH) {
    FOR_ITEMS(t) for (u32 i = t; i < DEPTH * TILE; i += ITEMS) {
      left[i % DEPTH * TILE + i / DEPTH] = a[(GROUP_Y * TILE + i / DEPTH) * SIZE + k + i % DEPTH];
      right[i] = b[(k + i / TILE) * SIZE + GROUP_X * TILE + i % TILE];
    }
    FOR_ITEMS(t) for (u32 depth = 0; depth < DEPTH; ++depth)
      for (u32 i = 0; i < 16; ++i)
        OWN(sum, t)[i] += left[depth * TILE + t / 16 * 4 + i / 4] * right[depth * TILE + t % 16 * 4 + i % 4];
  }
  FOR_ITEMS(t) for (u32 i = 0; i < 16; ++i)
    c[(GROUP_Y * TILE + t / 16 * 4 + i / 4) * SIZE + GROUP_X * TILE + t % 16 * 4 + i % 4] = OWN(sum, t)[i];
}
