"""How work reaches the device: commands are written into command buffers, submitted, and waited for by a timeline semaphore.

Each of our queues has a line of its own, and one thread at a time uses it, so command buffers are used again. Nothing is polled:
vkWaitSemaphores sleeps in the driver, without the interpreter's lock. The timeline's value counts submissions.

A submission waits for nothing on the device. Several of our queues may share one VkQueue, and there a submission that waits for a
value still to be signalled stands in front of all that come later; also, it would run even when what it waits for has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import addressof, byref, c_uint64, c_void_p
from typing import TYPE_CHECKING

from remora.drivers.vulkan import _ffi as ffi
from remora.drivers.vulkan.result import check, error_of
from remora.errors import DeviceLostError, Error

if TYPE_CHECKING:
    from remora.drivers.vulkan.commands import Command
    from remora.drivers.vulkan.logical import Logical, VulkanLane

__all__ = ["Line", "order"]

FOREVER_NS = (1 << 64) - 1
STAGES = ffi.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | ffi.VK_PIPELINE_STAGE_TRANSFER_BIT
WRITES = ffi.VK_ACCESS_SHADER_WRITE_BIT | ffi.VK_ACCESS_TRANSFER_WRITE_BIT
READS = ffi.VK_ACCESS_SHADER_READ_BIT | ffi.VK_ACCESS_TRANSFER_READ_BIT
HOST = ffi.VK_PIPELINE_STAGE_HOST_BIT
HOST_READS = ffi.VK_ACCESS_HOST_READ_BIT
HOST_WRITES = ffi.VK_ACCESS_HOST_WRITE_BIT


class Line:
    """A timeline, command buffers, and the VkQueue that takes them. `lost` is told once when the device is lost."""

    def __init__(self, logical: Logical, lane: VulkanLane, lost: Callable[[Error], None]) -> None:
        self.vk = logical.vk
        self._logical = logical.hold()
        self._lane = lane
        self._lost = lost
        self._value = 0
        self._pool = self._new_pool()
        self._slots: list[int] = []
        self._timeline = self._new_timeline()
        self._begin = ffi.VkCommandBufferBeginInfo(flags=ffi.VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT)
        self._closed = False

    def run(self, *work: Command) -> None:
        """Record commands, each after the one before, run them, and wait until they are done.

        Raises DeviceLostError and what recording raises; then nothing ran.
        """
        self.record(0, work)
        self.wait(self.submit(1))

    def record(self, slot: int, work: Sequence[Command]) -> None:
        """Write commands into the command buffer of a slot, which is not running. Slots are taken from 0 on."""
        while len(self._slots) <= slot:
            self._slots.append(self._new_commands())
        vk, commands = self.vk, self._slots[slot]
        check(vk.vkBeginCommandBuffer(commands, byref(self._begin)), "recording")
        order(vk, commands, HOST | STAGES, HOST_WRITES | WRITES, STAGES, READS | WRITES)
        try:
            for number, each in enumerate(work):
                if number:
                    order(vk, commands)
                each.record(vk, commands)
        except BaseException:
            vk.vkEndCommandBuffer(commands)  # or it could not be begun again
            raise
        order(vk, commands, STAGES, WRITES, HOST, HOST_READS | HOST_WRITES)
        check(vk.vkEndCommandBuffer(commands), "recording")

    def submit(self, count: int, slot: int = 0) -> int:
        """Run `count` slots from `slot` on, one after the other; the value of the timeline when the first of them is done."""
        first = self._value + 1
        self._value += count
        commands = (c_void_p * count)(*self._slots[slot : slot + count])
        values = (c_uint64 * count)(*range(first, first + count))
        timeline = c_uint64(self._timeline)
        numbers = [
            ffi.VkTimelineSemaphoreSubmitInfo(signalSemaphoreValueCount=1, pSignalSemaphoreValues=addressof(values) + 8 * index)
            for index in range(count)
        ]
        infos = (ffi.VkSubmitInfo * count)(
            *(
                ffi.VkSubmitInfo(
                    pNext=addressof(number),
                    commandBufferCount=1,
                    pCommandBuffers=addressof(commands) + 8 * index,
                    signalSemaphoreCount=1,
                    pSignalSemaphores=addressof(timeline),
                )
                for index, number in enumerate(numbers)
            )
        )
        with self._lane.lock:
            result = self.vk.vkQueueSubmit(self._lane.handle, count, infos, 0)
        self._check(result, "submitting")
        return first

    def wait(self, value: int) -> None:
        """Sleep until the timeline is there. Raises DeviceLostError."""
        wanted, timeline = c_uint64(value), c_uint64(self._timeline)
        info = ffi.VkSemaphoreWaitInfo(semaphoreCount=1, pSemaphores=addressof(timeline), pValues=addressof(wanted))
        self._check(self.vk.vkWaitSemaphores(self._logical.handle, byref(info), FOREVER_NS), "running")

    def close(self) -> None:
        """Nothing runs any more. Safe to repeat."""
        if not self._closed:
            self._closed = True
            self.vk.vkDestroyCommandPool(self._logical.handle, self._pool, None)
            self.vk.vkDestroySemaphore(self._logical.handle, self._timeline, None)
            self._logical.let_go()

    def _check(self, result: int, doing: str) -> None:
        if result < 0:
            error = error_of(result, f"{self._logical.physical.name}, {doing}")
            if isinstance(error, DeviceLostError):
                self._lost(error)
            raise error

    def _new_pool(self) -> int:
        pool = c_uint64()
        info = ffi.VkCommandPoolCreateInfo(
            flags=ffi.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT, queueFamilyIndex=self._logical.family
        )
        check(self.vk.vkCreateCommandPool(self._logical.handle, byref(info), None, byref(pool)), "making a command pool")
        return pool.value

    def _new_commands(self) -> int:
        commands = c_void_p()
        wanted = ffi.VkCommandBufferAllocateInfo(
            commandPool=self._pool, level=ffi.VK_COMMAND_BUFFER_LEVEL_PRIMARY, commandBufferCount=1
        )
        check(self.vk.vkAllocateCommandBuffers(self._logical.handle, byref(wanted), byref(commands)), "making a command buffer")
        return commands.value or 0

    def _new_timeline(self) -> int:
        kind = ffi.VkSemaphoreTypeCreateInfo(semaphoreType=ffi.VK_SEMAPHORE_TYPE_TIMELINE, initialValue=0)
        info, semaphore = ffi.VkSemaphoreCreateInfo(pNext=addressof(kind)), c_uint64()
        check(self.vk.vkCreateSemaphore(self._logical.handle, byref(info), None, byref(semaphore)), "making a timeline semaphore")
        return semaphore.value


def order(
    vk: ffi.DeviceCommands,
    commands: int,
    source: int = STAGES,
    written: int = WRITES,
    target: int = STAGES,
    used: int = READS | WRITES,
) -> None:
    """What was recorded so far is done, and visible, before what follows begins."""
    barrier = ffi.VkMemoryBarrier(srcAccessMask=written, dstAccessMask=used)
    vk.vkCmdPipelineBarrier(commands, source, target, 0, 1, byref(barrier), 0, None, 0, None)
