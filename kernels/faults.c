// Kernels that go wrong, to see what a runtime makes of it. They take no buffers. On cpu: Linux only, without libc.
//
// A cpu kernel returns an error code, an OpenCL one stores it. Elsewhere `fail` and `crash_abort` end as `crash_segv` does.
#include <remora.h>

#if defined(REMORA_CPU) && defined(__x86_64__)
enum { GETPID = 39, GETTID = 186, TGKILL = 234 };

static long syscall3(long number, long a, long b, long c) {
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return result;
}
#elif defined(REMORA_CPU) && defined(__aarch64__)
enum { GETPID = 172, GETTID = 178, TGKILL = 131 };

static long syscall3(long number, long a, long b, long c) {
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
  return x0;
}
#endif

// Reports the code it is given.
kernel fail(i32 code) {
  FAIL(code);
}

// SIGSEGV, or what the device has for it: a store to the page that is never mapped.
kernel crash_segv() {
#if defined(REMORA_OPENCL)
  *(volatile DEVICE u32 *)(size_t)16 = 1;
#elif defined(REMORA_CUDA)
  *(volatile u32 *)16ull = 1;
#else
  *(volatile u32 *)(__UINTPTR_TYPE__)16 = 1;
#endif
}

// SIGABRT on this thread, as abort() raises it.
kernel crash_abort() {
#if defined(REMORA_CPU)
  syscall3(TGKILL, syscall3(GETPID, 0, 0, 0), syscall3(GETTID, 0, 0, 0), 6);
#else
  FAIL(6);
#endif
}

// Never returns: only a kill ends it.
kernel spin() {
#if defined(REMORA_CPU)
  for (;;) __asm__ volatile("" ::: "memory");
#else
  SHARED(u32, place, 1);
  place[0] = 1;
  for (volatile u32 going = 1; going;) place[0] += going;
#endif
}
