// remora.h for the opencl and amdgpu families: OpenCL C 1.2, and the words that kernel sources use.
#define REMORA_OPENCL 1
#if !defined(REMORA_AMDGPU)
#pragma OPENCL FP_CONTRACT OFF
#endif

typedef char i8;
typedef uchar u8;
typedef short i16;
typedef ushort u16;
typedef int i32;
typedef uint u32;
typedef long i64;
typedef ulong u64;
typedef float f32;

#define DEVICE __global
#define FUNCTION static inline

#if defined(REMORA_AMDGPU)
// Without AMD's device libraries: the compiler's own names for what the hardware has.
#define GROUP_X ((u32)__builtin_amdgcn_workgroup_id_x())
#define GROUP_Y ((u32)__builtin_amdgcn_workgroup_id_y())
#define GROUP_Z ((u32)__builtin_amdgcn_workgroup_id_z())
#define REMORA_ITEM_X ((u32)__builtin_amdgcn_workitem_id_x())
#define REMORA_ITEM_Y ((u32)__builtin_amdgcn_workitem_id_y())
#define REMORA_ITEM_Z ((u32)__builtin_amdgcn_workitem_id_z())
#define REMORA_BARRIER                                  \
  (__builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"), \
   __builtin_amdgcn_s_barrier(),                        \
   __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup"))
#define ATOMIC_ADD(place, value) __atomic_fetch_add((place), (value), __ATOMIC_RELAXED)
#define as_u32(value) __builtin_astype((f32)(value), u32)
#define as_f32(value) __builtin_astype((u32)(value), f32)
#else
#define GROUP_X ((u32)get_group_id(0))
#define GROUP_Y ((u32)get_group_id(1))
#define GROUP_Z ((u32)get_group_id(2))
#define REMORA_ITEM_X ((u32)get_local_id(0))
#define REMORA_ITEM_Y ((u32)get_local_id(1))
#define REMORA_ITEM_Z ((u32)get_local_id(2))
#define REMORA_BARRIER barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define ATOMIC_ADD(place, value) atomic_add((place), (value))
#define as_u32(value) as_uint((f32)(value))
#define as_f32(value) as_float((u32)(value))
#endif

#define REMORA_ITEM (REMORA_ITEM_X + REMORA_ITEMS_X * (REMORA_ITEM_Y + REMORA_ITEMS_Y * REMORA_ITEM_Z))

// The first element of this workgroup and the one behind its last. In 64 bits, since a grid may reach past 2**32 elements.
static inline u32 remora_edge(u64 group, u32 elements, u32 count) {
  u64 edge = group * elements;
  return edge < count ? (u32)edge : count;
}
// The second condition ends the loop where i would pass 2**32.
#define FOR_ELEMENTS(i, count)                                                       \
  for (u32 remora_begin_##i = remora_edge(GROUP_X, REMORA_ELEMENTS, count),          \
           remora_end_##i = remora_edge((u64)GROUP_X + 1, REMORA_ELEMENTS, count),   \
           i = remora_begin_##i + REMORA_ITEM;                                       \
       i < remora_end_##i && i >= remora_begin_##i; i += REMORA_ITEMS)
#define FOR_ITEMS(t) for (u32 t = REMORA_ITEM, remora_once_##t = 1; remora_once_##t; remora_once_##t = 0, REMORA_BARRIER)
#define SHARED(type, name, count) __local type name[count]
#define PRIVATE(type, name, count) type name[count]
#define OWN(name, t) (name)

#if defined(REMORA_AMDGPU)
// A store to the page that is never mapped: there is no other way to fail here.
#define FAIL(code)                                            \
  do {                                                        \
    if (code) *(volatile __global u32 *)(size_t)16 = (code);  \
    return;                                                   \
  } while (0)
#else
// The driver looks at `remora_status`, an argument of every kernel with a FAIL, when the kernel is done.
#define FAIL(code)                                 \
  do {                                             \
    i32 remora_code = (code);                      \
    if (remora_code) *remora_status = remora_code; \
    return;                                        \
  } while (0)
#endif
