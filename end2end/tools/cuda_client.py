"""A small client of CUDA's driver library for jobs on real boards: fills memory, searches it, computes, and fails.

Standard library only. usage: cuda_client.py fill|search|compute|fail|hold [SECONDS]. The kernels are PTX, which the
driver compiles for its board.
"""
from __future__ import annotations

import ctypes
import os
import sys
import time

MARKER = 0x5EC2E7A1
SAMPLE_BYTES, SAMPLE_EVERY = 4 << 10, 1 << 20
OUT_OF_MEMORY = 2
PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 cycles) {
  .reg .u64 %rd<4>;
  .reg .pred %p;
  ld.param.u64 %rd0, [cycles];
  mov.u64 %rd1, %clock64;
again:
  mov.u64 %rd2, %clock64;
  sub.u64 %rd3, %rd2, %rd1;
  setp.lt.u64 %p, %rd3, %rd0;
  @%p bra again;
  ret;
}
.visible .entry stray(.param .u64 cycles) {
  .reg .u64 %rd<2>;
  .reg .u32 %r<2>;
  mov.u64 %rd1, 4096;
  mov.u32 %r1, 7;
  st.global.u32 [%rd1], %r1;
  ret;
}
\0"""


class Cuda:
    """The first device that CUDA shows, with a context."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.check("cuInit", 0)
        count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        self.check("cuDeviceGetCount", ctypes.byref(count))
        self.count = count.value
        self.check("cuDeviceGet", ctypes.byref(device), 0)
        name, uuid = ctypes.create_string_buffer(100), ctypes.create_string_buffer(16)
        self.check("cuDeviceGetName", name, 100, device)
        self.check("cuDeviceGetUuid_v2", uuid, device)
        self.name, self.uuid = name.value.decode(), uuid.raw.hex()
        self.check("cuCtxCreate_v2", ctypes.byref(context), 0, device)

    def call(self, name: str, *arguments: object) -> int:
        return getattr(self.lib, name)(*arguments)

    def check(self, name: str, *arguments: object) -> None:
        code = self.call(name, *arguments)
        if code:
            raise SystemExit(f"{name}: CUDA error {code}")

    def memory_info(self) -> tuple[int, int]:
        """The free and the total memory in bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.check("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate_all(self) -> list[tuple[int, int]]:
        """Addresses and sizes of all free memory in parts of 1 GiB down to 2 MiB."""
        parts, size = [], 1 << 30
        while size >= 2 << 20:
            address = ctypes.c_uint64()
            code = self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
            if code == OUT_OF_MEMORY:
                size //= 2
            elif code:
                raise SystemExit(f"cuMemAlloc_v2: CUDA error {code}")
            else:
                parts.append((address.value, size))
        return parts

    def launch(self, kernel: bytes, blocks: int, cycles: int) -> None:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check("cuModuleLoadData", ctypes.byref(module), PTX)
        self.check("cuModuleGetFunction", ctypes.byref(function), module, kernel)
        value = ctypes.c_uint64(cycles)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        self.check("cuLaunchKernel", function, blocks, 1, 1, 256, 1, 1, 0, None, parameters, None)
        self.check("cuCtxSynchronize")


def fill(cuda: Cuda) -> str:
    parts = cuda.allocate_all()
    for address, size in parts:
        cuda.check("cuMemsetD32_v2", ctypes.c_uint64(address), MARKER, ctypes.c_size_t(size // 4))
    cuda.check("cuCtxSynchronize")
    return f"filled {sum(size for _, size in parts) >> 20} MiB of {cuda.memory_info()[1] >> 20}"


def search(cuda: Cuda) -> str:
    """Counts the words of a former program in memory that this one did not write."""
    parts, sample, found, words = cuda.allocate_all(), ctypes.create_string_buffer(SAMPLE_BYTES), 0, 0
    marker = MARKER.to_bytes(4, "little")
    for address, size in parts:
        for start in range(0, size, SAMPLE_EVERY):
            cuda.check("cuMemcpyDtoH_v2", sample, ctypes.c_uint64(address + start), ctypes.c_size_t(SAMPLE_BYTES))
            found += sample.raw.count(marker)
            words += SAMPLE_BYTES // 4
    return f"found {found} of {words} sampled words in {sum(size for _, size in parts) >> 20} MiB"


def compute(cuda: Cuda, seconds: float) -> str:
    until, launches = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        cuda.launch(b"spin", 2_048, 20_000_000)
        launches += 1
    return f"computed {launches} times"


def main() -> None:
    task, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 5.0
    cuda = Cuda()
    print(f"{cuda.count} device: {cuda.name} {cuda.uuid} as {os.environ.get('CUDA_VISIBLE_DEVICES')}", flush=True)
    if task == "fill":
        print(fill(cuda), flush=True)
    elif task == "search":
        print(search(cuda), flush=True)
    elif task == "compute":
        print(compute(cuda, seconds), flush=True)
    elif task == "hold":
        # The tests end this process.
        cuda.allocate_all()
        print("holds the memory", flush=True)
        time.sleep(seconds)
    elif task == "fail":
        cuda.launch(b"stray", 1, 0)
    else:
        raise SystemExit(f"unknown task {task}")


if __name__ == "__main__":
    main()
