// Kernels that go wrong, to see what a runtime makes of it. They take no buffers. Linux only, without libc.
#include "executable_library.h"

#if defined(__x86_64__)
enum { GETPID = 39, GETTID = 186, TGKILL = 234 };

static long syscall3(long number, long a, long b, long c) {
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return result;
}
#elif defined(__aarch64__)
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

// Returns the code it is given: a kernel that reports an error.
KERNEL(fail) { return (i32)dispatch->constants[0]; }

// SIGSEGV: a store to the page that is never mapped.
KERNEL(crash_segv) {
  *(volatile u32 *)(__UINTPTR_TYPE__)16 = 1;
  return 0;
}

// SIGABRT on this thread, as abort() raises it.
KERNEL(crash_abort) {
  syscall3(TGKILL, syscall3(GETPID, 0, 0, 0), syscall3(GETTID, 0, 0, 0), 6);
  return 0;
}

// Never returns: only a kill ends it.
KERNEL(spin) {
  for (;;) __asm__ volatile("" ::: "memory");
}

static const kernel_t kernels[] = {fail, crash_segv, crash_abort, spin};
static const char *const names[] = {"fail", "crash_segv", "crash_abort", "spin"};
static const attributes_t attributes[] = {ATTRIBUTES(1, 0), ATTRIBUTES(0, 0), ATTRIBUTES(0, 0), ATTRIBUTES(0, 0)};
LIBRARY("faults")
