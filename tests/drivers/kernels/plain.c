// Kernels of the driver tests: plain C in the executable-library ABI.
#include "remora_executable.h"

#define KERNEL(name)                                                                     \
  static int name(const iree_hal_executable_environment_v0_t* environment,               \
                  const iree_hal_executable_dispatch_state_v0_t* dispatch,               \
                  const iree_hal_executable_workgroup_state_v0_t* workgroup)
#define UNUSED (void)environment, (void)dispatch, (void)workgroup

KERNEL(empty) {
  UNUSED;
  return 0;
}

// out[i] = a[i] + b[i]; 1024 elements a workgroup; constant 0 is the number of elements.
KERNEL(add) {
  (void)environment;
  const int32_t* a = dispatch->binding_ptrs[0];
  const int32_t* b = dispatch->binding_ptrs[1];
  int32_t* out = dispatch->binding_ptrs[2];
  const uint32_t first = workgroup->workgroup_id_x * 1024u;
  for (uint32_t i = first; i < first + 1024u && i < dispatch->constants[0]; ++i) out[i] = a[i] + b[i];
  return 0;
}

// Returns constant 1 in the workgroup whose x is constant 0, and 0 elsewhere; counts its calls in the binding.
KERNEL(fail) {
  (void)environment;
  __atomic_fetch_add((uint32_t*)dispatch->binding_ptrs[0], 1u, __ATOMIC_RELAXED);
  return workgroup->workgroup_id_x == dispatch->constants[0] ? (int)dispatch->constants[1] : 0;
}

// Adds 1 to each workgroup's own cell of a dense x, y, z table, and checks its length.
KERNEL(mark) {
  (void)environment;
  const uint64_t x = workgroup->workgroup_id_x, y = workgroup->workgroup_id_y, z = workgroup->workgroup_id_z;
  const uint64_t cell = x + dispatch->workgroup_count_x * (y + dispatch->workgroup_count_y * z);
  if ((cell + 1) * sizeof(uint32_t) > dispatch->binding_lengths[0]) return 5;
  ((uint32_t*)dispatch->binding_ptrs[0])[cell] += 1;
  return 0;
}

// Waits until word 0 is not zero, then writes 1 to word 1: the test decides when it ends.
KERNEL(gate) {
  (void)environment, (void)workgroup;
  uint32_t* words = dispatch->binding_ptrs[0];
  __atomic_store_n(&words[2], 1u, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&words[0], __ATOMIC_SEQ_CST) == 0) {
  }
  words[1] = 1;
  return 0;
}

// Two pages of local memory: writes its id over all of it, reads it back and stores the sum.
KERNEL(scratch) {
  (void)environment;
  uint32_t* local = workgroup->local_memory;
  const uint32_t count = 2u * 4096u / 4u;
  if (workgroup->local_memory_size < 2u * 4096u) return 9;
  for (volatile uint32_t i = 0; i < count; ++i) local[i] = workgroup->workgroup_id_x;
  uint32_t sum = 0;
  for (volatile uint32_t i = 0; i < count; ++i) sum += local[i];
  ((uint32_t*)dispatch->binding_ptrs[0])[workgroup->workgroup_id_x] = sum;
  return 0;
}

// Stores what the host says about itself: workgroup counts, sizes, concurrency, processor word 0.
KERNEL(report) {
  (void)workgroup;
  uint64_t* out = dispatch->binding_ptrs[0];
  out[0] = dispatch->workgroup_count_x;
  out[1] = dispatch->workgroup_count_y;
  out[2] = dispatch->workgroup_count_z;
  out[3] = dispatch->workgroup_size_x;
  out[4] = dispatch->constant_count;
  out[5] = dispatch->binding_count;
  out[6] = dispatch->max_concurrency;
  out[7] = environment->processor.data[0];
  return 0;
}

// Writes all of its local memory, a page and what the dispatch adds, and stores its size.
KERNEL(local) {
  (void)environment;
  volatile uint8_t* memory = workgroup->local_memory;
  for (uint32_t i = 0; i < workgroup->local_memory_size; ++i) memory[i] = 1;
  ((uint32_t*)dispatch->binding_ptrs[0])[workgroup->workgroup_id_x] = workgroup->local_memory_size;
  return 0;
}

static const iree_hal_executable_dispatch_v0_t entries[] = {empty, add, fail, mark, gate, scratch, report, local};
static const char* const names[] = {"empty", "add", "fail", "mark", "gate", "scratch", "report", "local"};
static const iree_hal_executable_dispatch_attrs_v0_t attributes[] = {
    {0},
    {.constant_count = 1, .binding_count = 3},
    {.constant_count = 2, .binding_count = 1},
    {.binding_count = 1},
    {.binding_count = 1},
    {.local_memory_pages = 2, .binding_count = 1},
    {.binding_count = 1},
    {.local_memory_pages = 1, .binding_count = 1},
};

#ifndef ABI_VERSION
#define ABI_VERSION IREE_HAL_EXECUTABLE_LIBRARY_VERSION_0_6
#endif
#ifndef SANITIZER
#define SANITIZER 0
#endif
#ifndef CONSTANT_COUNT
#define CONSTANT_COUNT 0
#endif

static const iree_hal_executable_library_header_t header = {.version = ABI_VERSION, .name = "plain", .sanitizer = SANITIZER};
static const iree_hal_executable_library_v0_t library = {
    .header = &header,
#ifdef IMPORT
    .imports = {.count = 1, .symbols = (const char* const[]){IMPORT}},
#endif
    .exports = {.count = sizeof(entries) / sizeof(entries[0]), .ptrs = entries, .attrs = attributes, .names = names},
    .constant_count = CONSTANT_COUNT,
};

#ifndef NO_QUERY
const iree_hal_executable_library_header_t** iree_hal_executable_library_query(
    uint32_t max_version, const iree_hal_executable_environment_v0_t* environment) {
#ifdef REFUSE
  return NULL;
#endif
  (void)max_version, (void)environment;
  return (const iree_hal_executable_library_header_t**)&library;
}
#endif
