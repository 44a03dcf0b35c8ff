// The worker pool of the cpu driver: one call runs all workgroups of a dispatch over all cores, without Python; and one call runs all
// operations of a recording.
//
// A dispatch is a job on its caller's stack, linked into the pool's list while workgroups are left. The caller works on its own job;
// workers join any job in the list. Jobs of several callers run beside each other. The caller unlinks its job when nothing is
// left to hand out, so that nobody joins any more, and then waits for those who did.
//
// Wake-ups. Two words count events: `posted` (a job was linked) and `left` (a worker left a job). A sleeper reads the word, then looks
// at the state, then sleeps on the value it read; a waker changes the state, then the word, then looks whether anybody sleeps. All
// of these are sequentially consistent, so one of the two sees the other. No wake-up is lost.

#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "include/remora_executable.h"

#define EXPORT __attribute__((visibility("default")))
#define SPIN_NS 20000u         // how long a worker looks for the next job before it sleeps
#define ALONE_NS 20000.0       // a dispatch shorter than this is not worth waking anybody
#define OUTLIER_FACTOR 4.0     // a cost this many times the known one, in a dispatch of at least OUTLIER_NS, is an outlier
#define OUTLIER_NS 10000.0
#define CHUNKS_PER_WORKER 8u   // workgroups are handed out in chunks: even load against few atomic operations
#define PAGE_BYTES 4096u
#define NO_LOCAL_MEMORY INT_MIN  // result of a dispatch whose workgroup local memory could not be allocated

// What does not change between two dispatches of a kernel. Mirrored in _ffi.py.
typedef struct remora_kernel_t {
  struct remora_pool_t* pool;
  iree_hal_executable_dispatch_v0_t entry;
  const iree_hal_executable_environment_v0_t* environment;
  _Atomic double ns_per_workgroup;  // moving cost of one workgroup on one core; negative until the first dispatch
  uint32_t local_memory_bytes;
  uint32_t workgroup_size_x;
  uint32_t workgroup_size_y;
  uint16_t workgroup_size_z;
  uint16_t constant_count;
  uint32_t binding_count;
  _Atomic uint32_t outliers;  // samples in a row that were far above the known cost
} remora_kernel_t;

// One dispatch: this head, the constants (padded to 8 bytes), the binding pointers, the binding lengths. Packed by queue.py.
typedef struct {
  remora_kernel_t* kernel;
  uint32_t grid_x;
  uint32_t grid_y;
  uint32_t grid_z;
  uint32_t reserved;
} remora_call_t;

// One operation of a recording: this head, then its body; `bytes` counts both and is a multiple of 8. Packed by command_buffer.py.
typedef struct {
  uint32_t kind;
  uint32_t bytes;
  uint32_t record;  // its number in the recording, to name it when it fails
  uint32_t reserved;
} remora_operation_t;

enum { DISPATCH_OPERATION = 0, FILL_OPERATION = 1, COPY_OPERATION = 2 };  // the first one's body is a remora_call_t

typedef struct {
  char* target;
  uint64_t size;
  uint32_t pattern;
  uint32_t step;  // bytes of the pattern: 1, 2 or 4
} remora_fill_t;

typedef struct {
  char* target;
  const char* source;
  uint64_t size;
} remora_copy_t;

// A place in a recording that the binding table fills in: the address of entry `slot` plus `offset` goes to byte `at`, and unless
// `size_at` is 0, the size goes there: `size`, or the rest of the entry where `size` is negative.
typedef struct {
  uint64_t at;
  uint64_t size_at;
  uint64_t slot;
  uint64_t offset;
  int64_t size;
} remora_relocation_t;

typedef struct {
  uint64_t address;
  uint64_t size;
} remora_entry_t;

typedef struct job_t {
  struct job_t* next;
  struct job_t** link;  // what points at this job; NULL when it is not in the list
  const remora_kernel_t* kernel;
  const iree_hal_executable_dispatch_state_v0_t* state;
  uint64_t total;
  uint64_t chunk;
  _Atomic uint64_t handed_out;
  atomic_int result;           // the first nonzero return of a workgroup
  _Atomic uint32_t helpers;    // workers inside the job
  uint32_t joined;             // workers that ever were, guarded by the pool's lock
} job_t;

typedef struct {
  struct remora_pool_t* pool;
  pthread_t thread;
  uint32_t ordinal;
} worker_t;

typedef struct remora_pool_t {
  pthread_mutex_t lock;  // guards the list and `joined`
  job_t* jobs;
  _Atomic uint32_t posted;
  _Atomic uint32_t sleepers;
  _Atomic uint32_t left;
  _Atomic uint32_t waiters;
  atomic_bool stopping;
  bool spins;
  uint32_t worker_count;
  worker_t workers[];
} remora_pool_t;

static void futex_wait(_Atomic uint32_t* word, uint32_t seen) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t* word, int count) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

static void set_result(job_t* job, int code) {
  int none = 0;
  atomic_compare_exchange_strong(&job->result, &none, code);
}

static void run_range(job_t* job, uint64_t first, uint64_t end, iree_hal_executable_workgroup_state_v0_t* workgroup) {
  const remora_kernel_t* kernel = job->kernel;
  const uint64_t size_x = job->state->workgroup_count_x;
  const uint64_t size_xy = size_x * job->state->workgroup_count_y;
  uint32_t x = (uint32_t)(first % size_x);
  uint32_t y = (uint32_t)(first % size_xy / size_x);
  uint32_t z = (uint32_t)(first / size_xy);
  for (uint64_t i = first; i < end; ++i) {
    if (atomic_load_explicit(&job->result, memory_order_relaxed) != 0) return;
    workgroup->workgroup_id_x = x;
    workgroup->workgroup_id_y = y;
    workgroup->workgroup_id_z = (uint16_t)z;
    int code = kernel->entry(kernel->environment, job->state, workgroup);
    if (code != 0) {
      set_result(job, code);
      return;
    }
    if (++x == size_x) {
      x = 0;
      if (++y == job->state->workgroup_count_y) {
        y = 0;
        ++z;
      }
    }
  }
}

// Take chunks until none is left or a workgroup failed. The memory is this participant's own for as long as it takes part.
static void take_part(job_t* job, uint32_t processor) {
  iree_hal_executable_workgroup_state_v0_t workgroup = {.processor_id = processor};
  const uint32_t local_bytes = job->kernel->local_memory_bytes;
  if (local_bytes != 0) {
    workgroup.local_memory = aligned_alloc(PAGE_BYTES, local_bytes);
    workgroup.local_memory_size = local_bytes;
    if (workgroup.local_memory == NULL) {
      set_result(job, NO_LOCAL_MEMORY);
      return;
    }
  }
  for (;;) {
    uint64_t first = atomic_fetch_add(&job->handed_out, job->chunk);
    if (first >= job->total || atomic_load_explicit(&job->result, memory_order_relaxed) != 0) break;
    uint64_t left = job->total - first;
    run_range(job, first, first + (left < job->chunk ? left : job->chunk), &workgroup);
  }
  free(workgroup.local_memory);
}

static job_t* join_job(remora_pool_t* pool) {
  pthread_mutex_lock(&pool->lock);
  job_t* job = pool->jobs;
  while (job != NULL && (atomic_load(&job->handed_out) >= job->total || atomic_load(&job->result) != 0)) job = job->next;
  if (job != NULL) {
    ++job->joined;
    atomic_fetch_add(&job->helpers, 1);
  }
  pthread_mutex_unlock(&pool->lock);
  return job;
}

static void leave_job(remora_pool_t* pool, job_t* job) {
  atomic_fetch_sub(&job->helpers, 1);  // from here on the job may be gone
  atomic_fetch_add(&pool->left, 1);
  if (atomic_load(&pool->waiters) != 0) futex_wake(&pool->left, INT_MAX);
}

static void await_job(remora_pool_t* pool, uint32_t seen) {
  if (pool->spins) {
    const uint64_t until = now_ns() + SPIN_NS;
    do {
      for (int i = 0; i < 64; ++i) {
        if (atomic_load_explicit(&pool->posted, memory_order_relaxed) != seen) return;
        relax();
      }
    } while (now_ns() < until);
  }
  atomic_fetch_add(&pool->sleepers, 1);
  while (atomic_load(&pool->posted) == seen) futex_wait(&pool->posted, seen);
  atomic_fetch_sub(&pool->sleepers, 1);
}

static void* work(void* argument) {
  worker_t* self = argument;
  remora_pool_t* pool = self->pool;
  for (;;) {
    uint32_t seen = atomic_load(&pool->posted);
    if (atomic_load(&pool->stopping)) return NULL;
    job_t* job = join_job(pool);
    if (job == NULL) {
      await_job(pool, seen);
    } else {
      take_part(job, self->ordinal);
      leave_job(pool, job);
    }
  }
}

static void link_job(remora_pool_t* pool, job_t* job) {
  pthread_mutex_lock(&pool->lock);
  job->next = pool->jobs;
  job->link = &pool->jobs;
  if (job->next != NULL) job->next->link = &job->next;
  pool->jobs = job;
  pthread_mutex_unlock(&pool->lock);
  atomic_fetch_add(&pool->posted, 1);
  if (atomic_load(&pool->sleepers) != 0) {
    uint64_t useful = job->total - 1;
    futex_wake(&pool->posted, useful < pool->worker_count ? (int)useful : (int)pool->worker_count);
  }
}

static void unlink_job(remora_pool_t* pool, job_t* job) {
  pthread_mutex_lock(&pool->lock);
  *job->link = job->next;
  if (job->next != NULL) job->next->link = job->link;
  pthread_mutex_unlock(&pool->lock);
}

static void wait_for_helpers(remora_pool_t* pool, job_t* job) {
  for (int i = 0; pool->spins && i < 2000; ++i) {
    if (atomic_load(&job->helpers) == 0) return;
    relax();
  }
  atomic_fetch_add(&pool->waiters, 1);
  for (;;) {
    uint32_t seen = atomic_load(&pool->left);
    if (atomic_load(&job->helpers) == 0) break;
    futex_wait(&pool->left, seen);
  }
  atomic_fetch_sub(&pool->waiters, 1);
}

static void run_job(remora_pool_t* pool, job_t* job) {
  const double cost_ns = atomic_load_explicit(&job->kernel->ns_per_workgroup, memory_order_relaxed);
  const bool alone = cost_ns >= 0 && cost_ns * (double)job->total < ALONE_NS;
  if (pool->worker_count == 0 || job->total <= 1 || alone) {
    job->chunk = job->total;
    take_part(job, 0);
    return;
  }
  job->chunk = job->total / ((uint64_t)CHUNKS_PER_WORKER * (pool->worker_count + 1));
  if (job->chunk == 0) job->chunk = 1;
  link_job(pool, job);
  take_part(job, 0);
  unlink_job(pool, job);
  wait_for_helpers(pool, job);
}

// The cost follows its samples by halves when they rise, by quarters when they fall. One sample far above the rest is most likely a
// thread that lost its core for a moment, and is left out; a second one in a row counts.
static void learn_cost(remora_kernel_t* kernel, double elapsed_ns, double sample_ns) {
  const double known = atomic_load_explicit(&kernel->ns_per_workgroup, memory_order_relaxed);
  const bool far = known >= 0 && sample_ns > OUTLIER_FACTOR * known && elapsed_ns > OUTLIER_NS;
  if (far && atomic_fetch_add_explicit(&kernel->outliers, 1, memory_order_relaxed) == 0) return;
  if (!far) atomic_store_explicit(&kernel->outliers, 0, memory_order_relaxed);
  double next = sample_ns;
  if (known >= 0 && !far) next = known + (sample_ns - known) * (sample_ns > known ? 0.5 : 0.25);
  atomic_store_explicit(&kernel->ns_per_workgroup, next, memory_order_relaxed);
}

// Run a packed dispatch to its end on this thread and the workers. Returns 0 or the first nonzero return of a workgroup.
EXPORT int remora_dispatch(const remora_call_t* call) {
  remora_kernel_t* kernel = call->kernel;
  const char* constants = (const char*)(call + 1);
  const char* pointers = constants + (((size_t)kernel->constant_count * 4 + 7) & ~(size_t)7);
  const uint32_t threads = kernel->pool->worker_count + 1;
  const iree_hal_executable_dispatch_state_v0_t state = {
      .workgroup_size_x = kernel->workgroup_size_x,
      .workgroup_size_y = kernel->workgroup_size_y,
      .workgroup_size_z = kernel->workgroup_size_z,
      .constant_count = kernel->constant_count,
      .workgroup_count_x = call->grid_x,
      .workgroup_count_y = call->grid_y,
      .workgroup_count_z = (uint16_t)call->grid_z,
      .max_concurrency = (uint8_t)(threads < UINT8_MAX ? threads : UINT8_MAX),
      .binding_count = (uint8_t)kernel->binding_count,
      .constants = (const uint32_t*)constants,
      .binding_ptrs = (void* const*)pointers,
      .binding_lengths = (const size_t*)(pointers + (size_t)kernel->binding_count * sizeof(void*)),
  };
  job_t job = {.kernel = kernel, .state = &state};
  job.total = (uint64_t)call->grid_x * call->grid_y * call->grid_z;
  if (job.total == 0) return 0;
  const uint64_t start = now_ns();
  run_job(kernel->pool, &job);
  const int result = atomic_load(&job.result);
  const double elapsed_ns = (double)(now_ns() - start);
  if (result == 0) learn_cost(kernel, elapsed_ns, elapsed_ns * (job.joined + 1) / (double)job.total);
  return result;
}

static void run_fill(const remora_fill_t* fill) {
  if (fill->step == 1) {
    memset(fill->target, (int)(fill->pattern & 0xFF), fill->size);
  } else if (fill->step == 2) {
    const uint16_t pattern = (uint16_t)fill->pattern;
    for (uint64_t i = 0; i + 2 <= fill->size; i += 2) memcpy(fill->target + i, &pattern, 2);
  } else {
    for (uint64_t i = 0; i + 4 <= fill->size; i += 4) memcpy(fill->target + i, &fill->pattern, 4);
  }
}

// Fill the places of a recording in from the binding table.
EXPORT void remora_relocate(char* stream, const remora_relocation_t* places, uint64_t count, const remora_entry_t* table) {
  for (uint64_t i = 0; i < count; ++i) {
    const remora_relocation_t* place = &places[i];
    const remora_entry_t* entry = &table[place->slot];
    const uint64_t address = entry->address + place->offset;
    memcpy(stream + place->at, &address, sizeof(address));
    if (place->size_at != 0) {
      const uint64_t size = place->size < 0 ? entry->size - place->offset : (uint64_t)place->size;
      memcpy(stream + place->size_at, &size, sizeof(size));
    }
  }
}

// Run the operations of a recording one after the other. Returns 0, or the result of the dispatch that failed, with its record.
EXPORT int remora_play(const char* stream, uint64_t bytes, uint32_t* failed_record) {
  const char* end = stream + bytes;
  while (stream < end) {
    const remora_operation_t* operation = (const remora_operation_t*)stream;
    const void* body = operation + 1;
    if (operation->kind == DISPATCH_OPERATION) {
      const int result = remora_dispatch(body);
      if (result != 0) {
        *failed_record = operation->record;
        return result;
      }
    } else if (operation->kind == FILL_OPERATION) {
      run_fill(body);
    } else {
      const remora_copy_t* copy = body;
      memcpy(copy->target, copy->source, copy->size);
    }
    stream += operation->bytes;
  }
  return 0;
}

// Workers take no signals, so that the program's handlers run on its own threads; faults stay with the thread that made them.
static void block_signals(sigset_t* before) {
  sigset_t blocked;
  sigfillset(&blocked);
  const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP};
  for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); ++i) sigdelset(&blocked, faults[i]);
  pthread_sigmask(SIG_SETMASK, &blocked, before);
}

// Join the workers and free the pool. No dispatch may be running.
EXPORT void remora_pool_destroy(remora_pool_t* pool) {
  atomic_store(&pool->stopping, true);
  atomic_fetch_add(&pool->posted, 1);
  futex_wake(&pool->posted, INT_MAX);
  for (uint32_t i = 0; i < pool->worker_count; ++i) pthread_join(pool->workers[i].thread, NULL);
  pthread_mutex_destroy(&pool->lock);
  free(pool);
}

// A pool for `threads` cores: the thread that dispatches and `threads` - 1 workers. NULL when memory or threads are used up.
EXPORT remora_pool_t* remora_pool_create(uint32_t threads) {
  const uint32_t workers = threads > 0 ? threads - 1 : 0;
  remora_pool_t* pool = calloc(1, sizeof(remora_pool_t) + workers * sizeof(worker_t));
  if (pool == NULL) return NULL;
  pthread_mutex_init(&pool->lock, NULL);
  pool->spins = sysconf(_SC_NPROCESSORS_ONLN) > 1;
  sigset_t before;
  block_signals(&before);
  while (pool->worker_count < workers) {
    worker_t* worker = &pool->workers[pool->worker_count];
    worker->pool = pool;
    worker->ordinal = pool->worker_count + 1;
    if (pthread_create(&worker->thread, NULL, work, worker) != 0) break;
    ++pool->worker_count;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (pool->worker_count < workers) {
    remora_pool_destroy(pool);
    return NULL;
  }
  return pool;
}
