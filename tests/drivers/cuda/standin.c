// A stand-in for libcuda that has no GPU: it proves the logic of drivers/cuda on machines without one, and nothing about a GPU.
//
// Streams are threads, device memory is host memory within a limit, and a kernel is a C function that is chosen by its name in the
// cubin or PTX (../standin/core.c): NVIDIA's machine code is never run, PTX is never compiled, and no time that passes here says
// anything. What NVIDIA documents, or an H200 was seen to do, is what calls answer where the driver relies on it: sticky failures,
// captures, graphs whose launches keep the arguments that they had, a pool that keeps what it got back, mappings of whole
// allocations only. It is stricter than CUDA where the driver promises more: every address must lie in memory that lives and may be
// touched, memory may not go and code may not be unloaded before the work that needs it is done, a call that needs a context needs it
// on the calling thread, and nothing works in a process that was forked after cuInit.
#include "../standin/core.c"
#include <unistd.h>

enum { NOT_INITIALIZED = 3, INVALID_CONTEXT = 201, NO_BINARY = 209, INVALID_PTX = 218, UNSUPPORTED_PTX = 222, INVALID_HANDLE = 400,
       NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, UNKNOWN = 999 };
enum { PAGE = 64 << 10, VERSION = 13000, MOST_PTX = 90, SHARED = 48 << 10, MOST_SHARED = 227 << 10, MOST_NODES = 1 << 10,
       MOST_PIECES = 1 << 14 };
typedef uint64_t address;

static int no_memops, contexts[MOST_DEVICES], graphs, runs, events;
enum { MOST_PUSHED = 8 };
static __thread int in_context, pushed, under[MOST_PUSHED];  // whether `current` is; those that were, -1 for none
static pid_t owner;
static char failing[64];
static int passing, failure;
static uint64_t kept[MOST_DEVICES], threshold[MOST_DEVICES];  // what the pools have got back, and keep

// ---- what a test sets and asks --------------------------------------------------------------------------------------------------

static void lose_all(void);
EXPORT void standin_reset(int count, int old) {
  if (broken) lose_all();
  mend(count);
  no_memops = old, *failing = 0;
}
EXPORT int standin_broken(void) { return broken; }
EXPORT void standin_fail(const char *name, int after, int code) {  // the call of this function behind so many others gives this code
  pthread_mutex_lock(&lock);
  strncpy(failing, name, sizeof failing - 1), passing = after, failure = code;
  pthread_mutex_unlock(&lock);
}
EXPORT int standin_contexts(void) { return contexts[0] + contexts[1]; }
EXPORT int standin_graphs(void) { return graphs + runs; }
EXPORT int standin_events(void) { return events; }

static int failure_of(const char *name) {
  pthread_mutex_lock(&lock);
  int code = broken;
  if (!code && !strcmp(name, failing) && !passing--) code = failure, *failing = 0;
  pthread_mutex_unlock(&lock);
  return code;
}
static int entered(const char *name, int needs_context) {
  if (owner != getpid()) return NOT_INITIALIZED;
  if (needs_context && !(in_context && contexts[current])) return INVALID_CONTEXT;
  return failure_of(name);
}
#define CALL(needs_context) do { int code_ = entered(__func__, needs_context); if (code_) return code_; } while (0)

// ---- device and context ---------------------------------------------------------------------------------------------------------

static int cuInit(unsigned flags) {
  if (owner && owner != getpid()) return NOT_INITIALIZED;
  owner = getpid();
  return devices > 0 ? OK : NO_DEVICE;
}
static int cuDriverGetVersion(int *version) { *version = VERSION; return OK; }
static int cuDeviceGetCount(int *count) { CALL(0); *count = devices; return OK; }
static int cuDeviceGet(int *device, int ordinal) { CALL(0); *device = ordinal; return ordinal < devices ? OK : INVALID_DEVICE; }
static int cuDeviceGetName(char *name, int size, int device) { CALL(0); strncpy(name, "stand-in, no GPU", size); return OK; }
static int cuDeviceGetAttribute(int *value, int attribute, int device) {
  CALL(0);
  switch (attribute) {
    case 75: return *value = 9, OK;  // compute capability 9.0, as the H200
    case 76: return *value = 0, OK;
    case 97: return *value = MOST_SHARED, OK;
    case 102: case 115: case 120: return *value = 1, OK;  // virtual memory, pools, clusters
    case 122: return *value = !no_memops, OK;
  }
  return INVALID_VALUE;
}
static int cuDevicePrimaryCtxRetain(void **context, int device) {
  CALL(0);
  __atomic_add_fetch(&contexts[device], 1, __ATOMIC_SEQ_CST);
  return *context = &contexts[device], OK;
}
static int cuDevicePrimaryCtxRelease(int device) {
  if (!contexts[device]) return INVALID_CONTEXT;
  return __atomic_sub_fetch(&contexts[device], 1, __ATOMIC_SEQ_CST), OK;
}
static int cuCtxSetCurrent(int *context) {
  CALL(0);
  if (!context || !*context) return INVALID_CONTEXT;
  return current = context - contexts, in_context = 1, OK;
}
static int cuCtxPushCurrent(int *context) {
  CALL(0);
  if (!context || !*context) return INVALID_CONTEXT;
  if (pushed == MOST_PUSHED) return INVALID_VALUE;
  under[pushed++] = in_context ? current : -1;
  return current = context - contexts, in_context = 1, OK;
}
static int cuCtxPopCurrent(void **context) {
  if (!pushed) return INVALID_CONTEXT;
  *context = &contexts[current];
  int last = under[--pushed];
  if (last >= 0) current = last;
  return in_context = last >= 0, OK;
}
static int cuMemGetInfo(size_t *free_bytes, size_t *total) {
  CALL(1);
  return *free_bytes = limit - used[current] - kept[current], *total = limit, OK;
}

static const struct { int code; const char *name, *text; } results[] = {
  {OK, "CUDA_SUCCESS", "no error"}, {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
  {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
  {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
  {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
  {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
  {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
  {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
  {NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
  {INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
  {UNSUPPORTED_PTX, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
  {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
  {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"}, {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
  {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
  {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
  {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
  {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
  {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
  {UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};
static int tell(int code, int text, const char **place) {
  for (size_t i = 0; i < COUNT(results); ++i)
    if (results[i].code == code) return *place = text ? results[i].text : results[i].name, OK;
  return *place = NULL, INVALID_VALUE;
}
static int cuGetErrorName(int code, const char **place) { return tell(code, 0, place); }
static int cuGetErrorString(int code, const char **place) { return tell(code, 1, place); }

// ---- capture: what a stream that captures gets becomes a node of its graph ------------------------------------------------------

typedef struct { operation work; } node;
typedef struct { node *nodes[MOST_NODES]; int count, invalid, lives; } graph;
typedef struct { graph *of; operation work[MOST_NODES]; int count; uint64_t begun, done; int ended; } run;

static __thread graph *strict;  // what this thread captures, when nothing unsafe may happen meanwhile

static int enqueue(stream *s, operation wanted) {
  graph *g = s->capture;
  if (s->device != current) return INVALID_CONTEXT;
  if (!g) return put(s, wanted);
  if (g->count == MOST_NODES) return INVALID_VALUE;
  node *n = malloc(sizeof *n);
  n->work = wanted;
  return g->nodes[g->count++] = n, OK;
}
static int refuse_capture(stream *s) {  // what waits for a stream ends its capture
  graph *g = s->capture;
  if (!g) return OK;
  return g->invalid = 1, CAPTURE_UNSUPPORTED;
}
static int unsafe(void) { return strict ? strict->invalid = 1, CAPTURE_UNSUPPORTED : OK; }  // as `thread local` mode has it
#define SAFE() do { int code_ = unsafe(); if (code_) return code_; } while (0)
static int cuStreamBeginCapture(stream *s, int mode) {
  CALL(1);
  if (s->capture || mode < 1 || mode > 2) return INVALID_VALUE;
  graph *g = calloc(1, sizeof *g);
  g->lives = 1;
  __atomic_add_fetch(&graphs, 1, __ATOMIC_SEQ_CST);
  if (mode == 1) strict = g;
  return s->capture = g, OK;
}
static char plain_edge[8];  // a CUgraphEdgeData that says nothing
static int cuStreamGetCaptureInfo(stream *s, int *status, uint64_t *id, void **place, void ***before, char **edges, size_t *count) {
  CALL(1);
  graph *g = s->capture;
  *status = g ? g->invalid ? 2 : 1 : 0;
  if (*status != 1) return OK;
  if (id) *id = (uint64_t)g;
  if (place) *place = g;
  if (before) *before = (void **)&g->nodes[g->count ? g->count - 1 : 0];
  if (edges) *edges = plain_edge;
  if (count) *count = g->count > 0;
  return OK;
}
static int cuGraphDestroy(graph *g) {  // it stays, so that late use is seen
  if (!g->lives) return INVALID_VALUE;
  for (int i = 0; i < g->count; ++i) free(g->nodes[i]);
  g->count = g->lives = 0;
  return __atomic_sub_fetch(&graphs, 1, __ATOMIC_SEQ_CST), OK;
}
static int cuStreamEndCapture(stream *s, void **place) {
  CALL(1);
  graph *g = s->capture;
  if (!g) return INVALID_VALUE;
  s->capture = NULL;
  if (strict == g) strict = NULL;
  if (g->invalid) return *place = NULL, cuGraphDestroy(g), CAPTURE_INVALIDATED;
  return *place = g, OK;
}

// ---- graphs: one launch of a graph begins when its last one is done -------------------------------------------------------------

static void end_run(run *r) { if (r->ended && r->begun == r->done) free(r); }  // `lock` is held
static int its_turn(const operation *o) { return ((run *)o->context)->done + 1 == o->value; }
static int begin_launch(operation *o) { return OK; }
static int end_launch(operation *o) {
  run *r = o->context;
  return r->done = o->value, end_run(r), OK;
}
static int cuGraphInstantiateWithFlags(void **place, graph *g, unsigned long long flags) {
  CALL(1);
  run *r = calloc(1, sizeof *r);
  r->of = g;
  for (; r->count < g->count; ++r->count) r->work[r->count] = g->nodes[r->count]->work;
  __atomic_add_fetch(&runs, 1, __ATOMIC_SEQ_CST);
  return *place = r, OK;
}
static int cuGraphLaunch(run *r, stream *s) {
  CALL(1);
  pthread_mutex_lock(&lock);
  int code = broken;
  if (!code) {
    operation edge = {.kind = HOOK, .ready = its_turn, .hook = begin_launch, .context = r, .value = ++r->begun};
    push(s, edge);
    for (int i = 0; i < r->count; ++i) push(s, r->work[i]);
    edge.ready = NULL, edge.hook = end_launch;
    push(s, edge);
  }
  pthread_mutex_unlock(&lock);
  return code;
}
static int cuGraphExecDestroy(run *r) {  // launches that are not done are not touched
  SAFE();
  pthread_mutex_lock(&lock);
  r->ended = 1, --runs;
  if (broken) r->done = r->begun;
  end_run(r);
  pthread_mutex_unlock(&lock);
  return OK;
}

// ---- memory ---------------------------------------------------------------------------------------------------------------------

static int appear(operation *o) {
  range *r = range_at(o->target);
  return r ? r->access = READ_WRITE, OK : ILLEGAL_ADDRESS;
}
static int leave(operation *o) {
  range *r = range_at(o->target);
  if (!r || r->address != o->target || r->kind != DEVICE || awaited(r->address, r->size)) return ILLEGAL_ADDRESS;
  int device = r->device;
  if (threshold[device]) kept[device] += r->size;
  return unmake_range(o->target, DEVICE);
}
static int cuDeviceGetDefaultMemPool(void **pool, int device) { CALL(0); return *pool = &threshold[device], OK; }
static int cuMemPoolSetAttribute(uint64_t *pool, int attribute, const uint64_t *value) {
  CALL(0);
  return attribute == 4 ? *pool = *value, OK : INVALID_VALUE;
}
static int cuMemPoolTrimTo(uint64_t *pool, size_t least) {
  CALL(0);
  int device = pool - threshold;
  if (kept[device] > least) kept[device] = least;
  return OK;
}
static int cuMemAllocFromPoolAsync(address *place, size_t size, uint64_t *pool, stream *s) {
  CALL(1);
  if (!size || pool - threshold != current || s->capture) return INVALID_VALUE;
  void *made = NULL;
  if (used[current] + size > limit) settle(s);  // what is freed before in the stream may be had
  pthread_mutex_lock(&lock);
  int code = make_range(&made, size, DEVICE);
  if (!code) {
    *place = (address)made, range_at(*place)->access = 0;  // nobody may touch it before the stream has come here
    kept[current] -= size < kept[current] ? size : kept[current];
    push(s, (operation){.kind = HOOK, .hook = appear, .target = *place});
  }
  if (used[current] + kept[current] > limit) kept[current] = limit - used[current];
  pthread_mutex_unlock(&lock);
  return code;
}
static int cuMemFreeAsync(address at, stream *s) {
  CALL(1);
  return enqueue(s, (operation){.kind = HOOK, .hook = leave, .target = at});
}
static int cuMemHostAlloc(void **place, size_t size, unsigned flags) {
  CALL(1);
  SAFE();
  pthread_mutex_lock(&lock);
  int code = make_range(place, size, PINNED);
  pthread_mutex_unlock(&lock);
  return code;
}
static int unpin(void *place, int kind) {
  SAFE();
  pthread_mutex_lock(&lock);
  range *r = range_at((address)place);
  int code = OK;
  if (!r || r->address != (address)place || (int)r->kind != kind) code = INVALID_VALUE;
  else if (!broken && awaited(r->address, r->size)) code = broken = ILLEGAL_ADDRESS;
  else if (kind == REGISTERED) forget(r);
  else code = unmake_range(r->address, kind);
  pthread_mutex_unlock(&lock);
  return code;
}
static int cuMemFreeHost(void *place) { return unpin(place, PINNED); }
static int cuMemHostRegister(void *place, size_t size, unsigned flags) {
  CALL(1);
  pthread_mutex_lock(&lock);
  int code = range_at((address)place) ? INVALID_VALUE : OK;
  if (!code && !keep((range){(address)place, size, current, REGISTERED, READ_WRITE})) code = OUT_OF_MEMORY;
  pthread_mutex_unlock(&lock);
  return code;
}
static int cuMemHostUnregister(void *place) { return unpin(place, REGISTERED); }
static int is_pinned(const void *place, size_t size) {
  pthread_mutex_lock(&lock);
  range *r = range_of((address)place, size);
  int pinned = r && (r->kind == PINNED || r->kind == REGISTERED);
  pthread_mutex_unlock(&lock);
  return pinned;
}
static int cuPointerGetAttribute(unsigned *value, int attribute, address at) {
  CALL(1);
  if (attribute != 2) return INVALID_VALUE;
  pthread_mutex_lock(&lock);
  range *r = range_at(at);
  int code = r ? OK : INVALID_VALUE;
  if (r) *value = r->kind == PINNED || r->kind == REGISTERED ? 1 : 2;
  pthread_mutex_unlock(&lock);
  return code;
}
static int cuMemcpyHtoD(address to, const void *from, size_t size) {
  CALL(1);
  pthread_mutex_lock(&lock);
  int code = lives(to, size, WRITE) ? OK : INVALID_VALUE;
  if (!code) memcpy((void *)to, from, size);
  pthread_mutex_unlock(&lock);
  return code;
}

// ---- virtual memory: pieces of physical memory lie in one file that has no name -------------------------------------------------

typedef struct { uint64_t size; int device, mapped, released, touched; } piece;  // `piece[n]` begins at page n of the file
static piece pieces[MOST_PIECES];
static struct { address at; uint64_t size; } reserved[MOST_PIECES];
static int memory_file = -1;

EXPORT int standin_pieces(void) { int n = 0; for (int i = 0; i < MOST_PIECES; ++i) n += pieces[i].size != 0; return n; }
EXPORT int standin_reserved(void) { int n = 0; for (int i = 0; i < MOST_PIECES; ++i) n += reserved[i].size != 0; return n; }

typedef struct { int type, handles; struct { int type, id; } location; } properties;
static int fit(const properties *p) { return p->type == 1 && p->location.type == 1 && p->location.id < devices; }

static int cuMemGetAllocationGranularity(size_t *size, const properties *p, int option) {
  CALL(0);
  return fit(p) ? *size = PAGE, OK : INVALID_VALUE;
}
static int cuMemAddressReserve(address *place, size_t size, size_t alignment, address wanted, unsigned long long flags) {
  CALL(0);
  if (!size || size % PAGE || alignment || wanted || flags) return INVALID_VALUE;
  char *made = mmap(NULL, size + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return OUT_OF_MEMORY;
  size_t before = -(uintptr_t)made % PAGE;
  if (before) munmap(made, before);
  munmap(made + before + size, PAGE - before);
  pthread_mutex_lock(&lock);
  int i = 0;
  while (reserved[i].size) ++i;
  reserved[i].at = *place = (address)(made + before), reserved[i].size = size;
  pthread_mutex_unlock(&lock);
  return OK;
}
static int in_reserved(address at, uint64_t size) {
  for (int i = 0; i < MOST_PIECES; ++i)
    if (reserved[i].size && at >= reserved[i].at && at + size <= reserved[i].at + reserved[i].size) return 1;
  return 0;
}
static int touches_mapping(address at, uint64_t size) {
  for (int i = 0; i < range_count; ++i)
    if (ranges[i].size && ranges[i].kind == MAPPED && ranges[i].address < at + size && at < ranges[i].address + ranges[i].size) return 1;
  return 0;
}
static int cuMemAddressFree(address at, size_t size) {
  CALL(0);
  int code = INVALID_VALUE;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < MOST_PIECES && code && !touches_mapping(at, size); ++i)
    if (reserved[i].size == size && reserved[i].at == at)
      munmap((void *)at, size), reserved[i].size = 0, code = OK;
  pthread_mutex_unlock(&lock);
  return code;
}
static int room_for(uint64_t size) {  // the first piece that may begin a new one
  uint64_t found = 0;
  for (int i = 0; i < MOST_PIECES; ++i) {
    found = pieces[i].size ? 0 : found + PAGE;
    if (pieces[i].size) i += pieces[i].size / PAGE - 1;
    if (found >= size) return i + 1 - size / PAGE;
  }
  return -1;
}
static int cuMemCreate(uint64_t *handle, size_t size, const properties *p, unsigned long long flags) {
  CALL(0);
  if (!size || size % PAGE || !fit(p)) return INVALID_VALUE;
  int device = p->location.id, code = OUT_OF_MEMORY;
  pthread_mutex_lock(&lock);
  if (memory_file < 0) {
    memory_file = memfd_create("stand-in", 0);
    if (ftruncate(memory_file, (off_t)MOST_PIECES * PAGE)) abort();
  }
  int i = used[device] + kept[device] + size > limit ? -1 : room_for(size);
  if (i >= 0) {
    pieces[i] = (piece){size, device};
    used[device] += size;
    *handle = i + 1, code = OK;
  }
  pthread_mutex_unlock(&lock);
  return code;
}
static void end_piece(piece *p) {
  if (!p->released || p->mapped) return;
  used[p->device] -= p->size;
  p->size = 0;
}
static int cuMemRelease(uint64_t handle) {
  CALL(0);
  pthread_mutex_lock(&lock);
  piece *p = &pieces[handle - 1];
  int code = handle && p->size && !p->released ? OK : INVALID_VALUE;
  if (!code) p->released = 1, end_piece(p);
  pthread_mutex_unlock(&lock);
  return code;
}
static int cuMemMap(address at, size_t size, size_t offset, uint64_t handle, unsigned long long flags) {
  CALL(0);
  if (offset) return NOT_SUPPORTED;
  pthread_mutex_lock(&lock);
  piece *p = &pieces[handle - 1];
  int code = handle && p->size == size && !p->released && in_reserved(at, size) && !touches_mapping(at, size) ? OK : INVALID_VALUE;
  if (!code) {
    off_t place = (off_t)(handle - 1) * PAGE;
    mmap((void *)at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory_file, place);
    if (!p->touched) spoil((void *)at, size), p->touched = 1;
    keep((range){at, size, current, MAPPED, 0, p});
    ++p->mapped;
  }
  pthread_mutex_unlock(&lock);
  return code;
}
static int all_whole(address at, uint64_t size) {  // whether mappings fill it, and none begins before or ends behind it
  for (address next = at; next < at + size;) {
    range *r = range_at(next);
    if (!r || r->kind != MAPPED || r->address != next || r->address + r->size > at + size) return 0;
    next += r->size;
  }
  return 1;
}
static int cuMemUnmap(address at, size_t size) {
  CALL(0);
  pthread_mutex_lock(&lock);
  int code = all_whole(at, size) ? OK : INVALID_VALUE;
  if (!code && awaited(at, size)) code = broken = ILLEGAL_ADDRESS;
  for (address next = at; !code && next < at + size;) {
    range *r = range_at(next);
    piece *p = r->of;
    next += r->size;
    mmap((void *)r->address, r->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    --p->mapped, end_piece(p), forget(r);
  }
  pthread_mutex_unlock(&lock);
  return code;
}
typedef struct { int type, id, flags; } access_of;
static int cuMemSetAccess(address at, size_t size, const access_of *wanted, size_t count) {
  CALL(0);
  if (count != 1 || wanted->type != 1 || wanted->id >= devices || (wanted->flags & ~READ_WRITE)) return INVALID_VALUE;
  pthread_mutex_lock(&lock);
  int code = all_whole(at, size) ? OK : INVALID_VALUE;
  for (address next = at; !code && next < at + size;) {
    range *r = range_at(next);
    r->access = wanted->flags, next += r->size;
  }
  pthread_mutex_unlock(&lock);
  return code;
}

static void lose_all(void) {  // what a lost context had is gone
  for (int i = 0; i < MOST_RANGES; ++i) {
    if (ranges[i].size && ranges[i].kind == DEVICE) munmap((void *)ranges[i].address, ranges[i].size);
    if (ranges[i].kind == DEVICE || ranges[i].kind == MAPPED) ranges[i].size = 0;
  }
  for (int i = 0; i < MOST_PIECES; ++i) pieces[i].size = 0;
  for (int i = 0; i < module_count; ++i) modules[i]->loaded = 0;
  for (int i = 0; i < MOST_DEVICES; ++i) used[i] = kept[i] = 0;
  graphs = runs = 0;
}

// ---- streams --------------------------------------------------------------------------------------------------------------------

static int cuStreamCreate(void **place, unsigned flags) {
  CALL(1);
  return flags == 1 ? *place = begin_stream(), OK : INVALID_VALUE;
}
static int cuStreamDestroy(stream *s) {  // what it has not done, it does
  if (s->capture) cuGraphDestroy(s->capture);
  settle(s);
  return end_stream(s), OK;
}
static int cuStreamQuery(stream *s) { CALL(1); int code = refuse_capture(s); return code ? code : look(s); }
static int cuStreamSynchronize(stream *s) { CALL(1); int code = refuse_capture(s); return code ? code : settle(s); }
static int cuStreamWriteValue64(stream *s, address at, uint64_t value, unsigned flags) {
  CALL(1);
  return enqueue(s, (operation){.kind = MARK, .target = at, .size = 8, .value = value});
}
static int cuMemcpyHtoDAsync(address to, const void *from, size_t size, stream *s) {
  CALL(1);
  operation o = {.kind = COPY, .target = to, .source = (address)from, .size = size};
  if (is_pinned(from, size)) return enqueue(s, o);
  o.loose = READ;
  if (!s->capture) {  // the memory may change when this returns; a graph reads it at each launch
    o.bytes = malloc(size);
    o.source = (address)memcpy(o.bytes, from, size);
  }
  int code = enqueue(s, o);
  if (code) free(o.bytes);
  return code;
}
static int cuMemcpyDtoHAsync(void *to, address from, size_t size, stream *s) {
  CALL(1);
  operation o = {.kind = COPY, .target = (address)to, .source = from, .size = size};
  if (is_pinned(to, size)) return enqueue(s, o);
  o.loose = WRITE;
  int code = enqueue(s, o);
  return code || s->capture ? code : settle(s);
}
static int cuMemcpyDtoDAsync(address to, address from, size_t size, stream *s) {
  CALL(1);
  return enqueue(s, (operation){.kind = COPY, .target = to, .source = from, .size = size});
}
static int fill(stream *s, address to, uint64_t value, size_t count, uint32_t width) {
  if (to % width) return INVALID_VALUE;
  return enqueue(s, (operation){.kind = FILL, .target = to, .size = count * width, .value = value, .width = width});
}
static int cuMemsetD8Async(address to, unsigned char value, size_t count, stream *s) { CALL(1); return fill(s, to, value, count, 1); }
static int cuMemsetD16Async(address to, unsigned short value, size_t count, stream *s) { CALL(1); return fill(s, to, value, count, 2); }
static int cuMemsetD32Async(address to, unsigned value, size_t count, stream *s) { CALL(1); return fill(s, to, value, count, 4); }

// ---- events ---------------------------------------------------------------------------------------------------------------------

typedef struct { uint64_t recorded, done; } event;

static int reach(operation *o) { return ((event *)o->context)->done = o->value, OK; }
static int cuEventCreate(void **place, unsigned flags) {
  CALL(1);
  __atomic_add_fetch(&events, 1, __ATOMIC_SEQ_CST);
  return *place = calloc(1, sizeof(event)), OK;
}
static int cuEventRecord(event *e, stream *s) {
  CALL(1);
  if (s->capture) return refuse_capture(s);
  return put(s, (operation){.kind = HOOK, .hook = reach, .context = e, .value = ++e->recorded});
}
static int cuEventSynchronize(event *e) {
  CALL(1);
  pthread_mutex_lock(&lock);
  while (e->done < e->recorded && !broken) pthread_cond_wait(&stir, &lock);
  int code = broken;
  pthread_mutex_unlock(&lock);
  return code;
}
static int cuEventDestroy(event *e) {
  pthread_mutex_lock(&lock);
  int code = !broken && e->done < e->recorded ? broken = ILLEGAL_ADDRESS : OK;
  pthread_mutex_unlock(&lock);
  if (!code && !broken) free(e);
  return __atomic_sub_fetch(&events, 1, __ATOMIC_SEQ_CST), code;
}

// ---- modules --------------------------------------------------------------------------------------------------------------------

typedef struct { module *of; int count; function functions[COUNT(kernels)]; } loaded;  // what a CUmodule is

static int is_word(char c) { return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static int is_ptx(const module *m) { return m->image[0] != '\x7f'; }
static int declares(const char *text, const char *before, const char *name) {  // `name` as a word behind `before`
  for (const char *at = text; (at = strstr(at, before)); ++at)
    for (const char *c = at + strlen(before); *c && !strchr("\n;({=", *c); ++c)
      if (!is_word(c[-1]) && !strncmp(c, name, strlen(name)) && !is_word(c[strlen(name)])) return 1;
  return 0;
}
static int mentions(const module *m, const char *name) { return memmem(m->image, m->size, name, strlen(name) + 1) != NULL; }
static int has_kernel(const module *m, const char *name) {
  char section[64] = ".text.";
  return is_ptx(m) ? declares(m->image, ".entry ", name) : mentions(m, strncat(section, name, 50));
}
static int has_global(const module *m, const char *name) {
  return is_ptx(m) ? declares(m->image, "\n.global ", name) || declares(m->image, "\n.const ", name) : mentions(m, name);
}
static int check_ptx(const char *text, size_t *size) {
  int major, minor;
  const char *version = strstr(text, ".version ");
  if (!version || sscanf(version, ".version %d.%d", &major, &minor) != 2) return INVALID_IMAGE;
  *size = strlen(text) + 1;
  return major * 10 + minor > MOST_PTX ? UNSUPPORTED_PTX : strstr(text, ".target ") ? OK : INVALID_PTX;
}
static int check_cubin(const char *image, size_t *size) {
  uint64_t sections = *(uint64_t *)(image + 40);
  uint16_t entry = *(uint16_t *)(image + 58), count = *(uint16_t *)(image + 60);
  if (*(uint16_t *)(image + 18) != 190 || !sections) return INVALID_IMAGE;
  *size = sections + (uint64_t)entry * count;
  uint32_t processor = *(uint32_t *)(image + 48) >> 8 & 0xff;
  return processor == 90 ? OK : NO_BINARY;
}
static void write_log(unsigned count, const int *options, void **values, const char *text) {
  char *log = NULL;
  size_t size = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == 5) log = values[i];
    if (options[i] == 6) size = (uintptr_t)values[i];
  }
  if (log) snprintf(log, size, "%s", text);
}
static int cuModuleLoadDataEx(void **place, const char *image, unsigned count, const int *options, void **values) {
  CALL(1);
  SAFE();
  size_t size = 0;
  int cubin = !memcmp(image, "\x7f" "ELF", 4), code = cubin ? check_cubin(image, &size) : check_ptx(image, &size);
  if (code && !cubin) write_log(count, options, values, "the stand-in compiles no PTX; this it would not take");
  if (code) return code;
  loaded *l = calloc(1, sizeof *l);
  l->of = load_module(image, size);
  for (size_t i = 0; i < COUNT(kernels); ++i)
    if (has_kernel(l->of, kernels[i].name)) l->functions[l->count++] = (function){l->of, &kernels[i], SHARED};
  return *place = l, OK;
}
static int cuModuleUnload(loaded *l) { CALL(1); SAFE(); return unload_module(l->of), OK; }
static int cuModuleGetFunctionCount(unsigned *count, loaded *l) { CALL(1); return *count = l->count, OK; }
static int cuModuleEnumerateFunctions(void **place, unsigned count, loaded *l) {
  CALL(1);
  for (unsigned i = 0; i < count && (int)i < l->count; ++i) place[i] = &l->functions[i];
  return OK;
}
static int cuModuleGetGlobal(address *place, size_t *size, loaded *l, const char *name) {
  CALL(1);
  return has_global(l->of, name) && (*place = (address)global_of(l->of, name, size)) ? OK : NOT_FOUND;
}
static int cuFuncGetName(const char **place, function *f) { CALL(1); return *place = f->kernel->name, OK; }
static int cuFuncLoad(function *f) { CALL(1); return f->of->loaded ? OK : INVALID_HANDLE; }
static int cuFuncGetParamInfo(function *f, size_t index, size_t *offset, size_t *size) {
  CALL(1);
  if (index >= strlen(f->kernel->parameters)) return INVALID_VALUE;
  return *offset = offset_of(f->kernel, index), *size = width_of(f->kernel->parameters[index]), OK;
}
static int cuFuncGetAttribute(int *value, int attribute, function *f) {
  CALL(1);
  *value = attribute == 0 ? f->kernel->most : attribute == 8 ? f->shared : 0;
  return OK;
}
static int cuFuncSetAttribute(function *f, int attribute, int value) {
  CALL(1);
  if (attribute == 8 && value > MOST_SHARED) return INVALID_VALUE;
  if (attribute == 8) f->shared = value;
  return OK;
}

// ---- launches -------------------------------------------------------------------------------------------------------------------

typedef struct { int id; char pad[4]; uint32_t value[16]; } launch_attribute;
typedef struct { uint32_t grid[3], block[3], shared; stream *in; launch_attribute *attributes; uint32_t count; } launch_config;
typedef struct { function *function; uint32_t grid[3], block[3], shared; void **parameters, **extra; } node_parameters;

static int launch_of(operation *o, function *f, const uint32_t *grid, const uint32_t *block, uint32_t shared, void **parameters,
                     void **extra) {
  if (parameters || !extra || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4]) return INVALID_VALUE;
  size_t size = *(size_t *)extra[3];
  uint64_t items = (uint64_t)block[0] * block[1] * block[2];
  if (size != argument_bytes(f->kernel) || !items || items > (uint64_t)f->kernel->most || shared > (uint32_t)f->shared) return INVALID_VALUE;
  if (!grid[0] || !grid[1] || !grid[2] || grid[1] > 65535 || grid[2] > 65535) return INVALID_VALUE;
  *o = (operation){.kind = LAUNCH, .function = f, .grid = {grid[0], grid[1], grid[2]}};
  memcpy(o->arguments, extra[1], size);
  return OK;
}
static int cuLaunchKernelEx(const launch_config *c, function *f, void **parameters, void **extra) {
  CALL(1);
  operation o;
  for (uint32_t i = 0; i < c->count; ++i)  // a grid is whole clusters
    for (int side = 0; side < 3 && c->attributes[i].id == 4; ++side)
      if (!c->attributes[i].value[side] || c->grid[side] % c->attributes[i].value[side]) return INVALID_VALUE;
  int code = launch_of(&o, f, c->grid, c->block, c->shared, parameters, extra);
  return code ? code : enqueue(c->in, o);
}
static int cuLaunchKernel(function *f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                          stream *s, void **parameters, void **extra) {
  CALL(1);
  operation o;
  int code = launch_of(&o, f, (uint32_t[]){x, y, z}, (uint32_t[]){bx, by, bz}, shared, parameters, extra);
  return code ? code : enqueue(s, o);
}
static int cuOccupancyMaxActiveClusters(int *count, function *f, const launch_config *c) { CALL(1); return *count = 1, OK; }
static int cuGraphExecKernelNodeSetParams(run *r, node *wanted, const node_parameters *p) {
  CALL(1);
  operation o;
  int place = 0;
  while (place < r->of->count && r->of->nodes[place] != wanted) ++place;
  if (place == r->of->count || r->work[place].kind != LAUNCH) return INVALID_VALUE;
  int code = launch_of(&o, p->function, p->grid, p->block, p->shared, p->parameters, p->extra);
  if (!code) r->work[place] = o;
  return code;
}

// ---- how functions are found ----------------------------------------------------------------------------------------------------

#define HAS(name) {#name, name, 0}
static const struct { const char *name; void *function; int since; } functions[] = {
  HAS(cuInit), HAS(cuDriverGetVersion), HAS(cuGetErrorName), HAS(cuGetErrorString), HAS(cuDeviceGet), HAS(cuDeviceGetCount),
  HAS(cuDeviceGetName), HAS(cuDeviceGetAttribute), HAS(cuDevicePrimaryCtxRetain), HAS(cuDevicePrimaryCtxRelease),
  HAS(cuCtxSetCurrent), HAS(cuCtxPushCurrent), HAS(cuCtxPopCurrent), HAS(cuMemGetInfo), HAS(cuDeviceGetDefaultMemPool), HAS(cuMemPoolSetAttribute), HAS(cuMemPoolTrimTo),
  HAS(cuMemAllocFromPoolAsync), HAS(cuMemFreeAsync), HAS(cuMemHostAlloc), HAS(cuMemFreeHost), HAS(cuMemHostRegister),
  HAS(cuMemHostUnregister), HAS(cuPointerGetAttribute), HAS(cuMemcpyHtoD), HAS(cuMemGetAllocationGranularity),
  HAS(cuMemAddressReserve), HAS(cuMemAddressFree), HAS(cuMemCreate), HAS(cuMemRelease), HAS(cuMemMap), HAS(cuMemUnmap),
  HAS(cuMemSetAccess), HAS(cuStreamCreate), HAS(cuStreamDestroy), HAS(cuStreamQuery), HAS(cuStreamSynchronize),
  HAS(cuStreamWriteValue64), HAS(cuMemcpyHtoDAsync), HAS(cuMemcpyDtoHAsync), HAS(cuMemcpyDtoDAsync), HAS(cuMemsetD8Async),
  HAS(cuMemsetD16Async), HAS(cuMemsetD32Async), HAS(cuEventCreate), HAS(cuEventRecord), HAS(cuEventSynchronize),
  HAS(cuEventDestroy), HAS(cuStreamBeginCapture), {"cuStreamGetCaptureInfo", cuStreamGetCaptureInfo, 12030},
  HAS(cuStreamEndCapture), HAS(cuGraphInstantiateWithFlags), HAS(cuGraphLaunch), HAS(cuGraphExecKernelNodeSetParams),
  HAS(cuGraphExecDestroy), HAS(cuGraphDestroy), HAS(cuModuleLoadDataEx), HAS(cuModuleUnload), HAS(cuModuleGetFunctionCount),
  HAS(cuModuleEnumerateFunctions), HAS(cuModuleGetGlobal), HAS(cuFuncGetName), HAS(cuFuncLoad), HAS(cuFuncGetParamInfo),
  HAS(cuFuncGetAttribute), HAS(cuFuncSetAttribute), HAS(cuLaunchKernel), HAS(cuLaunchKernelEx), HAS(cuOccupancyMaxActiveClusters)};

EXPORT int cuGetProcAddress_v2(const char *name, void **place, int version, uint64_t flags, int *found) {
  for (size_t i = 0; i < COUNT(functions); ++i)
    if (!strcmp(functions[i].name, name) && version >= functions[i].since) {
      if (found) *found = 0;
      return *place = functions[i].function, OK;
    }
  if (found) *found = 1;
  return *place = NULL, NOT_FOUND;
}
