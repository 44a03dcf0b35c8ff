// One kernel that stores ANSWER; without an attribute table, as a hand-written library may be.
#include "remora_executable.h"

static int answer(const iree_hal_executable_environment_v0_t* environment, const iree_hal_executable_dispatch_state_v0_t* dispatch,
                  const iree_hal_executable_workgroup_state_v0_t* workgroup) {
  (void)environment, (void)workgroup;
  *(uint32_t*)dispatch->binding_ptrs[0] = ANSWER;
  return 0;
}

static const iree_hal_executable_dispatch_v0_t entries[] = {answer};
static const char* const names[] = {"answer"};
static const iree_hal_executable_library_header_t header = {.version = IREE_HAL_EXECUTABLE_LIBRARY_VERSION_0_6, .name = "answer"};
static const iree_hal_executable_library_v0_t library = {
    .header = &header, .exports = {.count = 1, .ptrs = entries, .names = names}};

const iree_hal_executable_library_header_t** iree_hal_executable_library_query(
    uint32_t max_version, const iree_hal_executable_environment_v0_t* environment) {
  (void)max_version, (void)environment;
  return (const iree_hal_executable_library_header_t**)&library;
}
