// remora.h for the cpu family: the IREE executable-library ABI, version 0.6, and the words that kernel sources use.
//
// A workgroup is one call. What GPUs do with items side by side is a loop here. No includes: it compiles freestanding everywhere.
#define REMORA_CPU 1

typedef __INT8_TYPE__ i8;
typedef __UINT8_TYPE__ u8;
typedef __INT16_TYPE__ i16;
typedef __UINT16_TYPE__ u16;
typedef __INT32_TYPE__ i32;
typedef __UINT32_TYPE__ u32;
typedef __INT64_TYPE__ i64;
typedef __UINT64_TYPE__ u64;
typedef float f32;
typedef double f64;

typedef struct {
  u32 version;
  const char *name;
  u32 features;
  u32 sanitizer;
} remora_header_t;

typedef struct {
  const u32 *constants;
  void *import_thunk;
  const void *const *import_functions;
  const void *const *import_contexts;
  u64 processor[8];
} remora_environment_t;

typedef struct {
  u32 workgroup_size_x, workgroup_size_y;
  u16 workgroup_size_z;
  u16 constant_count;
  u32 workgroup_count_x, workgroup_count_y;
  u16 workgroup_count_z;
  u8 max_concurrency;
  u8 binding_count;
  const u32 *constants;
  void *const *bindings;
  const u64 *binding_lengths;
} remora_dispatch_t;

typedef struct {
  u32 x, y;
  u16 z;
  u16 reserved;
  u32 processor_id;
  void *local_memory;
  u32 local_memory_bytes;
} remora_workgroup_t;

typedef int (*remora_entry_t)(const remora_environment_t *, const remora_dispatch_t *, const remora_workgroup_t *);

typedef struct {
  u64 flags;
  u16 local_memory_pages;
  u8 constant_count;
  u8 binding_count;
  u32 workgroup_size_x, workgroup_size_y;
  u16 workgroup_size_z;
  u16 parameter_count;
  u64 reserved[5];
} remora_attributes_t;

typedef struct {
  const remora_header_t *header;
  struct {
    u32 count;
    const char *const *symbols;
  } imports;
  struct {
    u32 count;
    const remora_entry_t *entries;
    const remora_attributes_t *attributes;
    const void *parameters, *occupancy;
    const char *const *names;
    const void *tags, *parameter_names, *source_locations, *stage_locations;
  } exports;
  u64 constants;
  struct {
    u32 count;
    const void *files;
  } sources;
} remora_library_t;

_Static_assert(sizeof(remora_header_t) == 24, "remora_header_t");
_Static_assert(sizeof(remora_environment_t) == 96, "remora_environment_t");
_Static_assert(sizeof(remora_dispatch_t) == 48, "remora_dispatch_t");
_Static_assert(sizeof(remora_workgroup_t) == 32, "remora_workgroup_t");
_Static_assert(sizeof(remora_attributes_t) == 64, "remora_attributes_t");
_Static_assert(sizeof(remora_library_t) == 128, "remora_library_t");

// What a kernel is called with, beside its parameters.
typedef struct {
  const u32 *words;
  u32 x, y, z;
  int status;
} remora_group_t;

// Constants are 32-bit words without padding, so one of 64 bits may lie at any word.
typedef struct __attribute__((packed, may_alias)) { u32 value; } remora_u32_t;
typedef struct __attribute__((packed, may_alias)) { i32 value; } remora_i32_t;
typedef struct __attribute__((packed, may_alias)) { f32 value; } remora_f32_t;
typedef struct __attribute__((packed, may_alias)) { u64 value; } remora_u64_t;
typedef struct __attribute__((packed, may_alias)) { i64 value; } remora_i64_t;
typedef struct __attribute__((packed, may_alias)) { f64 value; } remora_f64_t;
#define REMORA_AT(type, words, index) (((const remora_##type##_t *)((words) + (index)))->value)

#define DEVICE
#define FUNCTION static inline __attribute__((unused))
#define GROUP_X (remora->x)
#define GROUP_Y (remora->y)
#define GROUP_Z (remora->z)

// The first element of this workgroup and the one behind its last. In 64 bits, since a grid may reach past 2**32 elements.
static inline __attribute__((unused)) u32 remora_edge(u64 group, u32 elements, u32 count) {
  u64 edge = group * elements;
  return edge < count ? (u32)edge : count;
}
#define FOR_ELEMENTS(i, count)                                                                          \
  for (u32 i = remora_edge(remora->x, REMORA_ELEMENTS, count),                                          \
           remora_end_##i = remora_edge((u64)remora->x + 1, REMORA_ELEMENTS, count);                    \
       i < remora_end_##i; ++i)
#define FOR_ITEMS(t) for (u32 t = 0; t < REMORA_ITEMS; ++t)
#define SHARED(type, name, count) type name[count]
#define PRIVATE(type, name, count) type name[REMORA_ITEMS][count]
#define OWN(name, t) (name)[t]

#define ATOMIC_ADD(place, value) __atomic_fetch_add((place), (value), __ATOMIC_RELAXED)
#define FAIL(code)                 \
  do {                             \
    remora->status = (int)(code);  \
    return;                        \
  } while (0)
static inline __attribute__((unused)) u32 as_u32(f32 value) {
  union { f32 f; u32 u; } both = {value};
  return both.u;
}
static inline __attribute__((unused)) f32 as_f32(u32 value) {
  union { u32 u; f32 f; } both = {value};
  return both.f;
}
