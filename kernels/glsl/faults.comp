// Kernels that go wrong, to see what a runtime makes of it.
#version 450
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require

layout(local_size_x = 1) in;
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Nowhere { uint value; };

#if defined(KERNEL_fail)
// Reports the code it is given: the driver looks at what lies behind this name when a kernel is done.
layout(set = 0, binding = 0) buffer Status { int code; } remora_status;
layout(push_constant) uniform Push { int code; } push;
void main() {
  atomicCompSwap(remora_status.code, 0, push.code);
}

#elif defined(KERNEL_crash_segv) || defined(KERNEL_crash_abort)
// A store to where nothing is. Vulkan kernels have no other way to end a process or lose a device.
void main() {
  Nowhere place = Nowhere(uvec2(16u, 0u));
  place.value = 1u;
}

#elif defined(KERNEL_spin)
// Never returns: the word it waits for is changed by nobody.
layout(set = 0, binding = 1) volatile buffer Gate { uint value; } remora_gate;
void main() {
  while (remora_gate.value == 0u) {}
}
#endif
