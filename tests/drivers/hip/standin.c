// A stand-in for libamdhip64 that has no GPU: it proves the logic of drivers/hip on machines without one, and nothing about a GPU.
//
// Streams are threads, device memory is host memory within a limit, and a kernel is a C function that is chosen by its name in the
// code object (../standin/core.c): AMD's machine code is never run. It is stricter than ROCm where the driver promises more:
// asynchronous copies take pinned memory only, every address must lie in an allocation that lives, and code must not be unloaded
// while it runs.
#include "../standin/core.c"

static int values = 1;
static char arch[64] = "gfx90a:sramecc+:xnack-";

EXPORT void standin_reset(int count, const char *name, int writes_values) {
  mend(count);
  values = writes_values;
  strncpy(arch, name, sizeof arch - 1);
}

// ---- memory ---------------------------------------------------------------------------------------------------------------------

static int make(void **place, size_t size, int kind) {
  pthread_mutex_lock(&lock);
  int code = broken ? broken : make_range(place, size, kind);
  pthread_mutex_unlock(&lock);
  return code;
}
static int unmake(void *place, int kind) {
  pthread_mutex_lock(&lock);
  int code = unmake_range((uint64_t)place, kind);
  pthread_mutex_unlock(&lock);
  return code;
}
EXPORT int hipMemGetInfo(size_t *free_bytes, size_t *total) { *free_bytes = limit - used[current], *total = limit; return OK; }
EXPORT int hipMalloc(void **place, size_t size) { return make(place, size, DEVICE); }
EXPORT int hipHostMalloc(void **place, size_t size, unsigned flags) { return make(place, size, PINNED); }
EXPORT int hipHostFree(void *place) { return unmake(place, PINNED); }
EXPORT int hipFree(void *place) {  // waits for everything, as ROCm does
  for (int i = 0; i < MOST_STREAMS; ++i) if (streams[i]) settle(streams[i]);
  return unmake(place, DEVICE);
}
EXPORT int hipMemcpyHtoD(void *to, void *from, size_t size) { memcpy(to, from, size); return broken; }

// ---- streams --------------------------------------------------------------------------------------------------------------------

EXPORT int hipStreamCreateWithFlags(void **place, unsigned flags) {
  if (flags != 1) return INVALID_VALUE;
  *place = begin_stream();
  return OK;
}
EXPORT int hipStreamDestroy(stream *s) { end_stream(s); return OK; }
EXPORT int hipStreamQuery(stream *s) { return look(s); }
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
  int pinned = !host || (r && r->kind == PINNED);
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

// ---- device ---------------------------------------------------------------------------------------------------------------------

EXPORT int hipInit(unsigned flags) { return devices < 0 ? INVALID_DEVICE : OK; }
EXPORT int hipGetDeviceCount(int *count) { *count = devices; return devices ? OK : NO_DEVICE; }
EXPORT int hipSetDevice(int device) { current = device; return device < devices ? OK : INVALID_DEVICE; }
EXPORT int hipDeviceGetName(char *name, int size, int device) { strncpy(name, "stand-in, no GPU", size); return OK; }
EXPORT int hipDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 74 ? 65536 : attribute == 10013 && values;  // shared memory of a workgroup; whether streams write values
  return OK;
}
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

static int mentions(const module *m, const char *name) { return memmem(m->image, m->size, name, strlen(name) + 1) != NULL; }

EXPORT int hipModuleLoadData(void **place, const char *image) {
  if (memcmp(image, "\x7f" "ELF", 4)) return INVALID_IMAGE;
  uint64_t sections = *(uint64_t *)(image + 40);
  uint16_t size = *(uint16_t *)(image + 58), count = *(uint16_t *)(image + 60);
  *place = load_module(image, sections + (uint64_t)size * count);
  return OK;
}
EXPORT int hipModuleUnload(module *m) { unload_module(m); return OK; }
EXPORT int hipModuleGetFunction(void **place, module *m, const char *name) {
  char symbol[64];
  strcat(strncpy(symbol, name, 60), ".kd");
  for (size_t i = 0; mentions(m, symbol) && i < COUNT(kernels); ++i)
    if (!strcmp(kernels[i].name, name)) {
      function *f = malloc(sizeof *f);
      *f = (function){m, &kernels[i]};
      *place = f;
      return OK;
    }
  return NOT_FOUND;
}
EXPORT int hipModuleGetGlobal(void **place, size_t *size, module *m, const char *name) {
  return mentions(m, name) && (*place = global_of(m, name, size)) ? OK : NOT_FOUND;
}
EXPORT int hipModuleLaunchKernel(function *f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                                 unsigned shared, stream *s, void **parameters, void **extra) {
  if (parameters || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4] != (void *)3) return INVALID_VALUE;
  size_t size = *(size_t *)extra[3];
  if (size != argument_bytes(f->kernel) || !(bx && by && bz && x && y && z)) return INVALID_VALUE;
  operation o = {.kind = LAUNCH, .function = f, .grid = {x, y, z}};
  memcpy(o.arguments, extra[1], size);
  return put(s, o);
}
