// A stand-in for libamdhip64 that has no GPU: it proves the logic of drivers/hip on machines without one, and nothing about a GPU.
//
// Streams are threads, device memory is host memory within a limit, and a kernel is a C function of this file that is chosen by its
// name in the code object: AMD's machine code is never run. It is stricter than ROCm where the driver promises more: asynchronous
// copies take pinned memory only, every address must lie in an allocation that lives, and code must not be unloaded while it runs.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { OK, INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE = 100, INVALID_DEVICE, INVALID_IMAGE = 200, NOT_FOUND = 500, NOT_READY = 600,
       ILLEGAL_ADDRESS = 700 };
enum { MOST_RANGES = 1 << 14, MOST_STREAMS = 256, MOST_DEVICES = 2, MOST_ARGUMENTS = 64 };
#define EXPORT __attribute__((visibility("default")))

typedef struct { uint64_t address, size; int device, pinned; } range;
typedef struct { uint32_t words[5], total, table[16]; const char *image; size_t size; int loaded; } module;
typedef struct { module *of; const struct kernel *kernel; } function;
typedef struct operation {
  struct operation *next;
  enum { FILL, COPY, MARK, LAUNCH } kind;
  uint64_t target, source, size, value;
  uint32_t width, grid[3];
  function *function;
  char arguments[MOST_ARGUMENTS];
} operation;
typedef struct { pthread_t thread; operation *first, *last; int ended; } stream;
typedef struct kernel { const char *name; size_t bytes; void (*run)(module *, const void *, const uint32_t *); } kernel;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t stir = PTHREAD_COND_INITIALIZER;
static range ranges[MOST_RANGES];
static stream *streams[MOST_STREAMS];
static uint64_t used[MOST_DEVICES], limit = 256 << 20;
static int devices = 1, values = 1, broken, break_at_launch, held;
static char arch[64] = "gfx90a:sramecc+:xnack-";
static __thread int current;

// ---- what a test sets and asks --------------------------------------------------------------------------------------------------

EXPORT void standin_reset(int count, const char *name, int writes_values) {
  devices = count, values = writes_values, broken = break_at_launch = held = 0;
  strncpy(arch, name, sizeof arch - 1);
}
static void set(int *place, int value) {
  pthread_mutex_lock(&lock);
  *place = value;
  pthread_cond_broadcast(&stir);
  pthread_mutex_unlock(&lock);
}
EXPORT void standin_break(int code) { set(&broken, code); }
EXPORT void standin_break_at_launch(int code) { set(&break_at_launch, code); }
EXPORT void standin_hold(int on) { set(&held, on); }
EXPORT uint64_t standin_bytes(int device) { return used[device]; }
EXPORT int standin_streams(void) { int n = 0; for (int i = 0; i < MOST_STREAMS; ++i) n += streams[i] != NULL; return n; }
EXPORT int standin_ranges(int pinned) {
  int n = 0;
  for (int i = 0; i < MOST_RANGES; ++i) n += ranges[i].size && ranges[i].pinned == pinned;
  return n;
}

// ---- kernels of remora's samples ------------------------------------------------------------------------------------------------

static uint32_t covered(const uint32_t *grid, uint32_t n) {
  uint64_t most = 16384ull * grid[0];
  return n < most ? n : (uint32_t)most;
}

static void add_i32(module *m, const void *p, const uint32_t *grid) {
  const struct { uint32_t *a, *b, *out, n; } __attribute__((packed)) *k = p;
  for (uint32_t i = 0; i < covered(grid, k->n); ++i) k->out[i] = k->a[i] + k->b[i];
}
static void mix_u32(module *m, const void *p, const uint32_t *grid) {
  const struct { uint32_t *x, *out; uint32_t n, rounds; } *k = p;
  for (uint32_t i = 0; i < covered(grid, k->n); ++i) {
    uint32_t v = k->x[i];
    for (uint32_t r = 0; r < k->rounds; ++r) { v ^= v >> 16; v *= 0x7feb352du; v ^= v >> 15; v *= 0x846ca68bu; v ^= v >> 16; }
    k->out[i] = v;
  }
}
static void empty(module *m, const void *p, const uint32_t *grid) {}
static void fill_index(module *m, const void *p, const uint32_t *grid) {
  const struct { uint32_t *out, n, first; } *k = p;
  for (uint32_t i = 0; i < covered(grid, k->n); ++i) k->out[i] = k->first + i;
}
static void saxpy_f32(module *m, const void *p, const uint32_t *grid) {
  const struct { float *x, *y; uint32_t n; float alpha; } *k = p;
  for (uint32_t i = 0; i < covered(grid, k->n); ++i) k->y[i] = k->alpha * k->x[i] + k->y[i];
}
static void reveal(module *m, const void *p, const uint32_t *grid) { memcpy(*(uint32_t *const *)p, m->words, sizeof m->words); }
static void affine_u32(module *m, const void *p, const uint32_t *grid) {
  const struct { uint32_t *x, *out, n; } __attribute__((packed)) *k = p;
  for (uint32_t i = 0; i < k->n; ++i) k->out[i] = m->words[0] * k->x[i] + m->words[1];
}
static void tally(module *m, const void *p, const uint32_t *grid) {
  m->total += *(const uint32_t *)p * grid[0] * grid[1] * grid[2];
}
static void look_up(module *m, const void *p, const uint32_t *grid) {
  const struct { uint32_t *x, *out, n; } __attribute__((packed)) *k = p;
  for (uint32_t i = 0; i < k->n; ++i) k->out[i] = m->table[k->x[i] % 16];
}
static const kernel kernels[] = {{"add_i32", 28, add_i32}, {"mix_u32", 24, mix_u32}, {"empty", 0, empty},
  {"fill_index", 16, fill_index}, {"saxpy_f32", 24, saxpy_f32}, {"reveal", 8, reveal}, {"affine_u32", 20, affine_u32},
  {"tally", 4, tally}, {"look_up", 20, look_up}};

// ---- memory; `lock` is held -----------------------------------------------------------------------------------------------------

static range *range_of(uint64_t address, uint64_t size) {
  for (int i = 0; i < MOST_RANGES; ++i)
    if (ranges[i].size && address >= ranges[i].address && address + size <= ranges[i].address + ranges[i].size) return &ranges[i];
  return NULL;
}
int in_module(uint64_t, uint64_t);
static int lives(uint64_t address, uint64_t size) {
  if (range_of(address, size)) return 1;
  return in_module(address, size);
}
static int make(void **place, size_t size, int pinned) {
  int code = OUT_OF_MEMORY;
  pthread_mutex_lock(&lock);
  if (broken) code = broken;
  else if (pinned || used[current] + size <= limit)
    for (int i = 0; i < MOST_RANGES && code; ++i)
      if (!ranges[i].size) {
        *place = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        ranges[i] = (range){(uint64_t)*place, size, current, pinned};
        if (!pinned) used[current] += size;
        code = OK;
      }
  pthread_mutex_unlock(&lock);
  return code;
}
static int unmake(void *place) {
  int code = INVALID_VALUE;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < MOST_RANGES && code; ++i)
    if (ranges[i].size && ranges[i].address == (uint64_t)place) {
      munmap(place, ranges[i].size);
      if (!ranges[i].pinned) used[ranges[i].device] -= ranges[i].size;
      ranges[i].size = 0;
      code = OK;
    }
  pthread_mutex_unlock(&lock);
  return code;
}

// ---- streams --------------------------------------------------------------------------------------------------------------------

static int allowed(const operation *o) {
  if (o->kind == LAUNCH) return o->function->of->loaded;
  return lives(o->target, o->size) && (o->kind != COPY || lives(o->source, o->size));
}
static int perform(operation *o) {
  if (o->kind == LAUNCH && break_at_launch) return break_at_launch;
  if (o->kind == LAUNCH) o->function->kernel->run(o->function->of, o->arguments, o->grid);
  if (o->kind == COPY) memmove((void *)o->target, (void *)o->source, o->size);
  if (o->kind == MARK) __atomic_store_n((uint64_t *)o->target, o->value, __ATOMIC_RELEASE);
  for (uint64_t at = 0; o->kind == FILL && at < o->size; at += o->width) memcpy((char *)o->target + at, &o->value, o->width);
  return OK;
}
static void *work(void *context) {
  stream *s = context;
  pthread_mutex_lock(&lock);
  while (!s->ended) {
    operation *o = s->first;
    if (!o || broken || held) { pthread_cond_wait(&stir, &lock); continue; }
    int fits = allowed(o);
    pthread_mutex_unlock(&lock);
    int code = fits ? perform(o) : ILLEGAL_ADDRESS;
    pthread_mutex_lock(&lock);
    if (code) broken = code;
    else { s->first = o->next; free(o); }
    pthread_cond_broadcast(&stir);
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}
static int put(stream *s, operation wanted) {
  int code = OK;
  pthread_mutex_lock(&lock);
  if (broken) code = broken;
  else {
    operation *o = malloc(sizeof *o);
    *o = wanted, o->next = NULL;
    if (s->first) s->last->next = o; else s->first = o;
    s->last = o;
    pthread_cond_broadcast(&stir);
  }
  pthread_mutex_unlock(&lock);
  return code;
}
static int settle(stream *s) {
  pthread_mutex_lock(&lock);
  while (s->first && !broken) pthread_cond_wait(&stir, &lock);
  int code = broken;
  pthread_mutex_unlock(&lock);
  return code;
}
EXPORT int hipStreamCreateWithFlags(void **place, unsigned flags) {
  stream *s = calloc(1, sizeof *s);
  if (flags != 1) return INVALID_VALUE;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < MOST_STREAMS; ++i) if (!streams[i]) { streams[i] = s; break; }
  pthread_mutex_unlock(&lock);
  pthread_create(&s->thread, NULL, work, s);
  *place = s;
  return OK;
}
EXPORT int hipStreamDestroy(stream *s) {
  pthread_mutex_lock(&lock);
  s->ended = 1;
  for (int i = 0; i < MOST_STREAMS; ++i) if (streams[i] == s) streams[i] = NULL;
  pthread_cond_broadcast(&stir);
  pthread_mutex_unlock(&lock);
  pthread_join(s->thread, NULL);
  free(s);
  return OK;
}
EXPORT int hipStreamQuery(stream *s) {
  pthread_mutex_lock(&lock);
  int code = broken ? broken : s->first ? NOT_READY : OK;
  pthread_mutex_unlock(&lock);
  return code;
}
EXPORT int hipStreamSynchronize(stream *s) { return settle(s); }
EXPORT int hipStreamWriteValue64(stream *s, void *place, uint64_t value, unsigned flags) {
  pthread_mutex_lock(&lock);
  range *r = range_of((uint64_t)place, 8);
  int known = r && r->device == current;  // ROCm looks for it among the memory of the thread's GPU
  pthread_mutex_unlock(&lock);
  if (!known) return INVALID_VALUE;
  return put(s, (operation){.kind = MARK, .target = (uint64_t)place, .size = 8, .value = value});
}
static int copy(stream *s, void *target, const void *source, size_t size, const void *host) {
  pthread_mutex_lock(&lock);
  range *r = host ? range_of((uint64_t)host, size) : NULL;
  int pinned = !host || (r && r->pinned);
  pthread_mutex_unlock(&lock);
  if (!pinned) return INVALID_VALUE;
  return put(s, (operation){.kind = COPY, .target = (uint64_t)target, .source = (uint64_t)source, .size = size});
}
EXPORT int hipMemcpyHtoDAsync(void *to, void *from, size_t size, stream *s) { return copy(s, to, from, size, from); }
EXPORT int hipMemcpyDtoHAsync(void *to, void *from, size_t size, stream *s) { return copy(s, to, from, size, to); }
EXPORT int hipMemcpyDtoDAsync(void *to, void *from, size_t size, stream *s) { return copy(s, to, from, size, NULL); }
static int fill(stream *s, void *to, uint64_t value, size_t count, uint32_t width) {
  return put(s, (operation){.kind = FILL, .target = (uint64_t)to, .size = count * width, .value = value, .width = width});
}
EXPORT int hipMemsetD8Async(void *to, unsigned char value, size_t count, stream *s) { return fill(s, to, value, count, 1); }
EXPORT int hipMemsetD16Async(void *to, unsigned short value, size_t count, stream *s) { return fill(s, to, value, count, 2); }
EXPORT int hipMemsetD32Async(void *to, int value, size_t count, stream *s) { return fill(s, to, (uint32_t)value, count, 4); }

// ---- device and memory ----------------------------------------------------------------------------------------------------------

EXPORT int hipInit(unsigned flags) { return devices < 0 ? INVALID_DEVICE : OK; }
EXPORT int hipGetDeviceCount(int *count) { *count = devices; return devices ? OK : NO_DEVICE; }
EXPORT int hipSetDevice(int device) { current = device; return device < devices ? OK : INVALID_DEVICE; }
EXPORT int hipDeviceGetName(char *name, int size, int device) { strncpy(name, "stand-in, no GPU", size); return OK; }
EXPORT int hipDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 74 ? 65536 : attribute == 10013 && values;  // shared memory of a workgroup; whether streams write values
  return OK;
}
EXPORT int hipMemGetInfo(size_t *free_bytes, size_t *total) { *free_bytes = limit - used[current], *total = limit; return OK; }
EXPORT int hipMalloc(void **place, size_t size) { return make(place, size, 0); }
EXPORT int hipHostMalloc(void **place, size_t size, unsigned flags) { return make(place, size, 1); }
EXPORT int hipHostFree(void *place) { return unmake(place); }
EXPORT int hipFree(void *place) {  // waits for everything, as ROCm does
  for (int i = 0; i < MOST_STREAMS; ++i) if (streams[i]) settle(streams[i]);
  return unmake(place);
}
EXPORT int hipMemcpyHtoD(void *to, void *from, size_t size) { memcpy(to, from, size); return broken; }
static int describe(char *properties, size_t at) {
  memset(properties, 0, 1472);
  strcpy(properties, "stand-in, no GPU");
  strcpy(properties + at, arch);
  return OK;
}
#ifdef OLD_RUNTIME
EXPORT int hipGetDeviceProperties(char *properties, int device) { return describe(properties, 396); }
#else
EXPORT int hipGetDevicePropertiesR0600(char *properties, int device) { return describe(properties, 1160); }
#endif
EXPORT const char *hipGetErrorName(int code) { return code == OUT_OF_MEMORY ? "hipErrorOutOfMemory" : "hipError"; }
EXPORT const char *hipGetErrorString(int code) {
  static __thread char text[16];
  snprintf(text, sizeof text, "%d", code);
  return text;
}

// ---- modules --------------------------------------------------------------------------------------------------------------------

static module *modules[1 << 12];
static int module_count;

int in_module(uint64_t address, uint64_t size) {
  for (int i = 0; i < module_count; ++i)
    if (modules[i]->loaded && address >= (uint64_t)modules[i] && address + size <= (uint64_t)(modules[i] + 1)) return 1;
  return 0;
}
static int mentions(const module *m, const char *name) { return memmem(m->image, m->size, name, strlen(name) + 1) != NULL; }

EXPORT int hipModuleLoadData(void **place, const char *image) {
  if (memcmp(image, "\x7f" "ELF", 4)) return INVALID_IMAGE;
  uint64_t sections = *(uint64_t *)(image + 40);
  uint16_t size = *(uint16_t *)(image + 58), count = *(uint16_t *)(image + 60);
  module *m = calloc(1, sizeof *m);
  m->size = sections + (uint64_t)size * count, m->loaded = 1;
  char *kept = malloc(m->size);
  m->image = memcpy(kept, image, m->size);
  for (uint32_t i = 0; i < 16; ++i) m->table[i] = i * i;
  pthread_mutex_lock(&lock);
  modules[module_count++] = m;
  pthread_mutex_unlock(&lock);
  *place = m;
  return OK;
}
EXPORT int hipModuleUnload(module *m) { m->loaded = 0; return OK; }  // it stays, so that late use is seen
EXPORT int hipModuleGetFunction(void **place, module *m, const char *name) {
  char symbol[64];
  strcat(strncpy(symbol, name, 60), ".kd");
  for (size_t i = 0; mentions(m, symbol) && i < sizeof kernels / sizeof *kernels; ++i)
    if (!strcmp(kernels[i].name, name)) {
      function *f = malloc(sizeof *f);
      *f = (function){m, &kernels[i]};
      *place = f;
      return OK;
    }
  return NOT_FOUND;
}
EXPORT int hipModuleGetGlobal(void **place, size_t *size, module *m, const char *name) {
  if (!mentions(m, name)) return NOT_FOUND;
  if (!strcmp(name, "remora_words")) return *place = m->words, *size = sizeof m->words, OK;
  if (!strcmp(name, "total")) return *place = &m->total, *size = sizeof m->total, OK;
  if (!strcmp(name, "table")) return *place = m->table, *size = sizeof m->table, OK;
  return NOT_FOUND;
}
EXPORT int hipModuleLaunchKernel(function *f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                                 unsigned shared, stream *s, void **parameters, void **extra) {
  if (parameters || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4] != (void *)3) return INVALID_VALUE;
  size_t size = *(size_t *)extra[3];
  if (size != f->kernel->bytes || !(bx && by && bz && x && y && z)) return INVALID_VALUE;
  operation o = {.kind = LAUNCH, .function = f, .grid = {x, y, z}};
  memcpy(o.arguments, extra[1], size);
  return put(s, o);
}
