// The part of the IREE executable-library ABI, version 0.6, that a kernel author needs. Names and layout follow that ABI.
//
// An artifact is a shared library with one function, `iree_hal_executable_library_query`, which returns a table of entry points. An
// entry point is called once for each workgroup of a dispatch, on any thread. It returns 0, or a code that fails the queue.
// It needs no libc: cc -O3 -shared -fPIC -ffreestanding -nostdlib -I<folder of this file> kernels.c -o kernels.so

#ifndef REMORA_EXECUTABLE_H_
#define REMORA_EXECUTABLE_H_

#include <stddef.h>
#include <stdint.h>

#define IREE_HAL_EXECUTABLE_LIBRARY_VERSION_0_6 6u
#define IREE_HAL_WORKGROUP_LOCAL_MEMORY_PAGE_SIZE 4096u

typedef struct {
  uint32_t version;
  const char* name;
  uint32_t features;
  uint32_t sanitizer;
} iree_hal_executable_library_header_t;

typedef struct {
  uint64_t data[8];
} iree_hal_processor_v0_t;

typedef struct {
  const uint32_t* constants;
  int (*import_thunk)(void);
  const void* const* import_funcs;
  const void* const* import_contexts;
  iree_hal_processor_v0_t processor;
} iree_hal_executable_environment_v0_t;

typedef struct {
  uint32_t workgroup_size_x;
  uint32_t workgroup_size_y;
  uint16_t workgroup_size_z;
  uint16_t constant_count;
  uint32_t workgroup_count_x;
  uint32_t workgroup_count_y;
  uint16_t workgroup_count_z;
  uint8_t max_concurrency;
  uint8_t binding_count;
  const uint32_t* constants;
  void* const* binding_ptrs;
  const size_t* binding_lengths;
} iree_hal_executable_dispatch_state_v0_t;

typedef struct {
  uint32_t workgroup_id_x;
  uint32_t workgroup_id_y;
  uint16_t workgroup_id_z;
  uint16_t reserved;
  uint32_t processor_id;
  void* local_memory;
  uint32_t local_memory_size;
} iree_hal_executable_workgroup_state_v0_t;

typedef int (*iree_hal_executable_dispatch_v0_t)(const iree_hal_executable_environment_v0_t* environment,
                                                 const iree_hal_executable_dispatch_state_v0_t* dispatch_state,
                                                 const iree_hal_executable_workgroup_state_v0_t* workgroup_state);

typedef struct {
  uint64_t flags;
  uint16_t local_memory_pages;
  uint8_t constant_count;
  uint8_t binding_count;
  uint32_t workgroup_size_x;
  uint32_t workgroup_size_y;
  uint16_t workgroup_size_z;
  uint16_t parameter_count;
  uint64_t reserved[5];
} iree_hal_executable_dispatch_attrs_v0_t;

typedef struct {
  uint32_t count;
  const char* const* symbols;
} iree_hal_executable_import_table_v0_t;

typedef struct {
  uint32_t count;
  const iree_hal_executable_dispatch_v0_t* ptrs;
  const iree_hal_executable_dispatch_attrs_v0_t* attrs;
  const void* const* params;
  const void* occupancy;
  const char* const* names;
  const char* const* tags;
  const char* const* const* parameter_names;
  const void* source_locations;
  const void* stage_locations;
} iree_hal_executable_export_table_v0_t;

typedef struct {
  const iree_hal_executable_library_header_t* header;
  iree_hal_executable_import_table_v0_t imports;
  iree_hal_executable_export_table_v0_t exports;
  uint32_t constant_count;
  struct {
    uint32_t count;
    const void* files;
  } sources;
} iree_hal_executable_library_v0_t;

// What the loader calls: NULL when the library is newer than `max_version` or does not fit the environment.
__attribute__((visibility("default"))) const iree_hal_executable_library_header_t** iree_hal_executable_library_query(
    uint32_t max_version, const iree_hal_executable_environment_v0_t* environment);

#endif  // REMORA_EXECUTABLE_H_
