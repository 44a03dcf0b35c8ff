// remora.h for the cuda family: CUDA C++, and the words that kernel sources use. Nothing is included.
#define REMORA_CUDA 1

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

#define DEVICE
#define FUNCTION static __device__ inline

#define GROUP_X blockIdx.x
#define GROUP_Y blockIdx.y
#define GROUP_Z blockIdx.z
#define REMORA_ITEM (threadIdx.x + REMORA_ITEMS_X * (threadIdx.y + REMORA_ITEMS_Y * threadIdx.z))

// The first element of this workgroup and the one behind its last. In 64 bits, since a grid may reach past 2**32 elements.
static __device__ inline u32 remora_edge(u64 group, u32 elements, u32 count) {
  u64 edge = group * elements;
  return edge < count ? (u32)edge : count;
}
// The second condition ends the loop where i would pass 2**32.
#define FOR_ELEMENTS(i, count)                                                       \
  for (u32 remora_begin_##i = remora_edge(GROUP_X, REMORA_ELEMENTS, count),          \
           remora_end_##i = remora_edge((u64)GROUP_X + 1, REMORA_ELEMENTS, count),   \
           i = remora_begin_##i + REMORA_ITEM;                                       \
       i < remora_end_##i && i >= remora_begin_##i; i += REMORA_ITEMS)
#define FOR_ITEMS(t) for (u32 t = REMORA_ITEM, remora_once_##t = 1; remora_once_##t; remora_once_##t = 0, __syncthreads())
#define SHARED(type, name, count) __shared__ type name[count]
#define PRIVATE(type, name, count) type name[count]
#define OWN(name, t) (name)

#define ATOMIC_ADD(place, value) atomicAdd((place), (value))
#define FAIL(code)      \
  do {                  \
    if (code) __trap(); \
    return;             \
  } while (0)
#define as_u32(value) __float_as_uint(value)
#define as_f32(value) __uint_as_float(value)
