// What the stand-ins for the libraries of GPU vendors share (hip/standin.c, cuda/standin.c), which include this file: streams that are
// threads, device memory that is host memory within a limit, and remora's sample kernels as C functions that are chosen by name.
//
// It is strict. All that an operation touches must lie in memory that lives and may be touched when the operation's turn comes, the
// code that it runs must be loaded then, and what breaks one of these rules is an illegal address: nothing is done after it.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { OK, INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE = 100, INVALID_DEVICE, INVALID_IMAGE = 200, NOT_FOUND = 500, NOT_READY = 600,
       ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719 };
enum { MOST_RANGES = 1 << 14, MOST_STREAMS = 256, MOST_DEVICES = 2, MOST_ARGUMENTS = 64, MOST_PARAMETERS = 4, SPOILED = 1 << 20 };
enum { READ = 1, WRITE = 2, READ_WRITE = 3 };
#define EXPORT __attribute__((visibility("default")))
#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef struct { uint64_t address, size; int device; enum { DEVICE, PINNED, REGISTERED, MAPPED } kind; int access; void *of; } range;
typedef struct { uint32_t words[5], total, table[16]; const char *image; size_t size; int loaded; } module;
typedef struct { const char *name, *parameters; int most; void (*run)(module *, const void *, const uint32_t *); int fault; }
    kernel;
typedef struct { module *of; const kernel *kernel; int shared; } function;
typedef struct { uint64_t address, size; int access; } span;
typedef struct operation {
  struct operation *next;
  enum { FILL, COPY, MARK, LAUNCH, HOOK } kind;
  uint64_t target, source, size, value;
  uint32_t width, grid[3];
  int loose;  // of a copy: the sides (READ: its source, WRITE: its target) that are host memory which nobody knows
  void *bytes;  // a copy's own source, freed with the operation
  function *function;
  int (*ready)(const struct operation *), (*hook)(struct operation *);  // of a HOOK, with `lock` held; it runs although streams are held
  void *context;
  char arguments[MOST_ARGUMENTS];
} operation;
typedef struct { pthread_t thread; operation *first, *last; int ended, device; void *capture; } stream;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t stir = PTHREAD_COND_INITIALIZER;
static range ranges[MOST_RANGES];
static int range_count;  // no range lies behind it
static stream *streams[MOST_STREAMS];
static uint64_t used[MOST_DEVICES], limit = 256 << 20;
static int devices = 1, broken, break_at_launch, held;
static __thread int current;

// ---- what a test sets and asks --------------------------------------------------------------------------------------------------

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
EXPORT int standin_ranges(int kind) {
  int n = 0;
  for (int i = 0; i < range_count; ++i) n += ranges[i].size && (int)ranges[i].kind == kind;
  return n;
}
static void mend(int count) { devices = count, broken = break_at_launch = held = 0; }

// ---- kernels of remora's samples, and of tests/drivers/kernels/wild.ptx ---------------------------------------------------------

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
static void spin(module *m, const void *p, const uint32_t *grid) {
  while (!__atomic_load_n(*(uint32_t *const *)p, __ATOMIC_ACQUIRE)) sched_yield();
}

// Parameters, one letter each: r w m, an address whose words are read, written or both, as many as the first constant says and the
// grid covers; R W, the same without a look at the grid; v, written, the size of a module's words; f, read, one word; u, a constant.
static const kernel kernels[] = {
  {"add_i32", "rrwu", 256, add_i32}, {"mix_u32", "rwuu", 256, mix_u32}, {"empty", "", 1, empty},
  {"fill_index", "wuu", 256, fill_index}, {"saxpy_f32", "rmuu", 256, saxpy_f32}, {"reveal", "v", 1, reveal},
  {"affine_u32", "RWu", 1, affine_u32}, {"tally", "u", 1, tally}, {"look_up", "RWu", 1, look_up},
  {"wild", "", 1024, empty, ILLEGAL_ADDRESS}, {"stop", "", 1024, empty, LAUNCH_FAILED}, {"spin", "f", 1024, spin}};

static size_t width_of(char parameter) { return parameter == 'u' ? 4 : 8; }
static size_t offset_of(const kernel *k, size_t parameter) {  // of the last and one: their size
  size_t at = 0;
  for (size_t i = 0; i < parameter; ++i) at += width_of(k->parameters[i]);
  return at;
}
static size_t argument_bytes(const kernel *k) { return offset_of(k, strlen(k->parameters)); }

static uint32_t first_constant(const operation *o) {
  const char *parameters = o->function->kernel->parameters, *found = strchr(parameters, 'u');
  uint32_t value = 0;
  if (found) memcpy(&value, o->arguments + offset_of(o->function->kernel, found - parameters), 4);
  return value;
}
static int spans_of_launch(const operation *o, span *found) {
  const kernel *k = o->function->kernel;
  uint32_t words = first_constant(o);
  int count = 0;
  for (size_t i = 0; k->parameters[i]; ++i) {
    char parameter = k->parameters[i];
    if (parameter == 'u') continue;
    span *s = &found[count++];
    memcpy(&s->address, o->arguments + offset_of(k, i), 8);
    s->access = strchr("rRf", parameter) ? READ : parameter == 'm' ? READ_WRITE : WRITE;
    s->size = parameter == 'f' ? 4 : parameter == 'v' ? 20 : 4ull * (strchr("RW", parameter) ? words : covered(o->grid, words));
  }
  return count;
}
static int spans_of(const operation *o, span *found) {  // what it touches
  int count = 0;
  if (o->kind == LAUNCH) return spans_of_launch(o, found);
  if (o->kind == HOOK) return 0;
  if (!(o->loose & WRITE)) found[count++] = (span){o->target, o->size, WRITE};
  if (o->kind == COPY && !(o->loose & READ)) found[count++] = (span){o->source, o->size, READ};
  return count;
}

// ---- memory; `lock` is held -----------------------------------------------------------------------------------------------------

static int in_module(uint64_t, uint64_t);

static range *range_at(uint64_t address) {
  for (int i = 0; i < range_count; ++i)
    if (address - ranges[i].address < ranges[i].size) return &ranges[i];
  return NULL;
}
static range *range_of(uint64_t address, uint64_t size) {
  range *r = range_at(address);
  return r && address + size <= r->address + r->size ? r : NULL;
}
static int lives(uint64_t address, uint64_t size, int access) {  // mappings lie beside each other
  if (!size || in_module(address, size)) return 1;
  for (;;) {
    range *r = range_at(address);
    if (!r || (r->access & access) != access) return 0;
    uint64_t rest = r->address + r->size - address;
    if (rest >= size) return 1;
    if (r->kind != MAPPED) return 0;
    address += rest, size -= rest;
  }
}
static range *keep(range wanted) {
  int i = 0;
  while (i < MOST_RANGES && ranges[i].size) ++i;
  if (i == MOST_RANGES) return NULL;
  if (i >= range_count) range_count = i + 1;
  ranges[i] = wanted;
  return &ranges[i];
}
static void forget(range *r) {
  r->size = 0;
  while (range_count && !ranges[range_count - 1].size) --range_count;
}
static int awaited(uint64_t address, uint64_t size) {  // whether an operation that is not done touches it
  span found[MOST_PARAMETERS];
  for (int i = 0; i < MOST_STREAMS; ++i)
    for (const operation *o = streams[i] ? streams[i]->first : NULL; o; o = o->next)
      for (int n = spans_of(o, found); n-- > 0;)
        if (found[n].size && found[n].address < address + size && address < found[n].address + found[n].size) return 1;
  return 0;
}
static void spoil(void *place, size_t size) { memset(place, 0xa5, size < SPOILED ? size : SPOILED); }  // fresh memory has anything
static int make_range(void **place, size_t size, int kind) {
  if (kind == DEVICE && used[current] + size > limit) return OUT_OF_MEMORY;
  *place = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (!keep((range){(uint64_t)*place, size, current, kind, READ_WRITE})) return OUT_OF_MEMORY;
  if (kind == DEVICE) used[current] += size, spoil(*place, size);
  return OK;
}
static int unmake_range(uint64_t address, int kind) {
  range *r = range_at(address);
  if (!r || r->address != address || (int)r->kind != kind) return INVALID_VALUE;
  munmap((void *)address, r->size);
  if (kind == DEVICE) used[r->device] -= r->size;
  forget(r);
  return OK;
}

// ---- streams --------------------------------------------------------------------------------------------------------------------

static int allowed(const operation *o) {
  span found[MOST_PARAMETERS];
  if (o->kind == LAUNCH && !o->function->of->loaded) return 0;
  for (int n = spans_of(o, found); n-- > 0;)
    if (!lives(found[n].address, found[n].size, found[n].access)) return 0;
  return 1;
}
static int perform(operation *o) {
  if (o->kind == LAUNCH && break_at_launch) return break_at_launch;
  if (o->kind == LAUNCH && o->function->kernel->fault) return o->function->kernel->fault;
  if (o->kind == LAUNCH) o->function->kernel->run(o->function->of, o->arguments, o->grid);
  if (o->kind == COPY) memmove((void *)o->target, (void *)o->source, o->size);
  if (o->kind == MARK) __atomic_store_n((uint64_t *)o->target, o->value, __ATOMIC_RELEASE);
  for (uint64_t at = 0; o->kind == FILL && at < o->size; at += o->width) memcpy((char *)o->target + at, &o->value, o->width);
  return OK;
}
static void drop(operation *o) { free(o->bytes); free(o); }
static int may_begin(const operation *o) { return o && !broken && (o->kind == HOOK ? !o->ready || o->ready(o) : !held); }

static void *work(void *context) {
  stream *s = context;
  pthread_mutex_lock(&lock);
  while (!s->ended) {
    operation *o = s->first;
    if (!may_begin(o)) { pthread_cond_wait(&stir, &lock); continue; }
    int code = OK;
    if (o->kind == HOOK) code = o->hook(o);
    else if (!allowed(o)) code = ILLEGAL_ADDRESS;
    else {
      pthread_mutex_unlock(&lock);
      code = perform(o);
      pthread_mutex_lock(&lock);
    }
    if (code) broken = code;
    else { s->first = o->next; drop(o); }
    pthread_cond_broadcast(&stir);
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}
static void push(stream *s, operation wanted) {  // `lock` is held
  operation *o = malloc(sizeof *o);
  *o = wanted, o->next = NULL;
  if (s->first) s->last->next = o; else s->first = o;
  s->last = o;
  pthread_cond_broadcast(&stir);
}
static int put(stream *s, operation wanted) {
  pthread_mutex_lock(&lock);
  int code = broken;
  if (!code) push(s, wanted);
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
static stream *begin_stream(void) {
  stream *s = calloc(1, sizeof *s);
  s->device = current;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < MOST_STREAMS; ++i) if (!streams[i]) { streams[i] = s; break; }
  pthread_mutex_unlock(&lock);
  pthread_create(&s->thread, NULL, work, s);
  return s;
}
static void end_stream(stream *s) {
  pthread_mutex_lock(&lock);
  s->ended = 1;
  for (int i = 0; i < MOST_STREAMS; ++i) if (streams[i] == s) streams[i] = NULL;
  pthread_cond_broadcast(&stir);
  pthread_mutex_unlock(&lock);
  pthread_join(s->thread, NULL);
  while (s->first) { operation *o = s->first; s->first = o->next; drop(o); }
  free(s);
}
static int look(stream *s) {
  pthread_mutex_lock(&lock);
  int code = broken ? broken : s->first ? NOT_READY : OK;
  pthread_mutex_unlock(&lock);
  return code;
}

// ---- modules --------------------------------------------------------------------------------------------------------------------

static module *modules[1 << 12];
static int module_count;

static int in_module(uint64_t address, uint64_t size) {
  for (int i = 0; i < module_count; ++i)
    if (modules[i]->loaded && address >= (uint64_t)modules[i] && address + size <= (uint64_t)(modules[i] + 1)) return 1;
  return 0;
}
static module *load_module(const char *image, size_t size) {
  module *m = calloc(1, sizeof *m);
  char *kept = malloc(size);
  m->size = size, m->loaded = 1, m->image = memcpy(kept, image, size);
  for (uint32_t i = 0; i < 16; ++i) m->table[i] = i * i;
  pthread_mutex_lock(&lock);
  modules[module_count++] = m;
  pthread_mutex_unlock(&lock);
  return m;
}
static void unload_module(module *m) { set(&m->loaded, 0); }  // it stays, so that late use is seen
EXPORT int standin_modules(void) { int n = 0; for (int i = 0; i < module_count; ++i) n += modules[i]->loaded; return n; }
static void *global_of(module *m, const char *name, size_t *size) {
  if (!strcmp(name, "remora_words")) return *size = sizeof m->words, m->words;
  if (!strcmp(name, "total")) return *size = sizeof m->total, &m->total;
  if (!strcmp(name, "table")) return *size = sizeof m->table, m->table;
  return NULL;
}
