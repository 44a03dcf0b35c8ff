// The part of the IREE executable-library ABI, version 0.6, that a library of plain kernels needs.
//
// A library exports one function, iree_hal_executable_library_query. It returns a library_t when it can serve the version asked for.
// A kernel is called once a workgroup and returns 0, or an error code that fails the dispatch. Only fixed-size types and no
// includes: the same file compiles freestanding for every target. Layouts are the 64-bit ones of the ABI and are asserted below.
#ifndef REMORA_EXECUTABLE_LIBRARY_H_
#define REMORA_EXECUTABLE_LIBRARY_H_

typedef __UINT8_TYPE__ u8;
typedef __UINT16_TYPE__ u16;
typedef __UINT32_TYPE__ u32;
typedef __UINT64_TYPE__ u64;
typedef __INT32_TYPE__ i32;

#define LIBRARY_VERSION 6u

typedef struct {
  u32 version;
  const char *name;
  u32 features;
  u32 sanitizer;
} library_header_t;

typedef struct {
  const u32 *constants;
  void *import_thunk;
  const void *const *import_functions;
  const void *const *import_contexts;
  u64 processor[8];
} environment_t;

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
  const u64 *binding_lengths;  // bytes
} dispatch_t;

typedef struct {
  u32 x, y;
  u16 z;
  u16 reserved;
  u32 processor_id;
  void *local_memory;
  u32 local_memory_bytes;
} workgroup_t;

typedef int (*kernel_t)(const environment_t *, const dispatch_t *, const workgroup_t *);

typedef struct {
  u64 flags;
  u16 local_memory_pages;  // of 4096 bytes
  u8 constant_count;       // 32-bit words
  u8 binding_count;
  u32 workgroup_size_x, workgroup_size_y;
  u16 workgroup_size_z;
  u16 parameter_count;
  u64 reserved[5];
} attributes_t;

typedef struct {
  u32 count;
  const kernel_t *kernels;
  const attributes_t *attributes;
  const void *parameters, *occupancy;
  const char *const *names;
  const void *tags, *parameter_names, *source_locations, *stage_locations;
} exports_t;

typedef struct {
  const library_header_t *header;
  struct {
    u32 count;
    const char *const *symbols;
  } imports;
  exports_t exports;
  u64 constants;
  const void *sources;
} library_t;

_Static_assert(sizeof(library_header_t) == 24, "library_header_t");
_Static_assert(sizeof(environment_t) == 96, "environment_t");
_Static_assert(sizeof(dispatch_t) == 48, "dispatch_t");
_Static_assert(sizeof(workgroup_t) == 32, "workgroup_t");
_Static_assert(sizeof(attributes_t) == 64, "attributes_t");
_Static_assert(sizeof(exports_t) == 80, "exports_t");

// KERNEL(name) { body }: `dispatch` and `workgroup` are in scope.
#define KERNEL(name) static int name(const environment_t *environment, const dispatch_t *dispatch, const workgroup_t *workgroup)

// What ATTRIBUTES needs to know of a kernel: its constant words and its bindings; the workgroup size is 1 x 1 x 1.
#define ATTRIBUTES(constants, bindings) \
  {.constant_count = (constants), .binding_count = (bindings), .workgroup_size_x = 1, .workgroup_size_y = 1, .workgroup_size_z = 1}

// The one exported symbol. `kernels`, `attributes` and `names` are arrays of equal length in the including file.
#define LIBRARY(library_name)                                                                                             \
  static const library_header_t header = {.version = LIBRARY_VERSION, .name = library_name};                              \
  static const library_t library = {.header = &header,                                                                    \
                                    .exports = {.count = sizeof(kernels) / sizeof(kernels[0]),                            \
                                                .kernels = kernels,                                                       \
                                                .attributes = attributes,                                                 \
                                                .names = names}};                                                         \
  _Static_assert(sizeof(kernels) / sizeof(kernels[0]) == sizeof(names) / sizeof(names[0]), "one name a kernel");          \
  _Static_assert(sizeof(kernels) / sizeof(kernels[0]) == sizeof(attributes) / sizeof(attributes[0]), "attributes each");  \
  __attribute__((visibility("default"))) const library_t *iree_hal_executable_library_query(u32 max_version,              \
                                                                                            const environment_t *env) {   \
    return max_version >= LIBRARY_VERSION ? &library : 0;                                                                 \
  }

#endif
