"""A CUDA program by ctypes: puts a text into the memory of its device, or looks for it there.

usage: tenant.py LIBRARY put|find TEXT
It ends without freeing its memory, as a killed job does.
"""

import ctypes
import sys

SIZE = 1 << 30
OFFSET = 4_096

library, act, text = sys.argv[1:]
cuda, data = ctypes.CDLL(library), text.encode()


def call(name, *args):
    code = getattr(cuda, name)(*args)
    assert code == 0, f"{name} fails with {code}"


device, context, at = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(SIZE))
place, length = ctypes.c_uint64(at.value + OFFSET), ctypes.c_size_t(len(data))
if act == "put":
    call("cuMemcpyHtoD_v2", place, data, length)
else:
    buffer = ctypes.create_string_buffer(len(data))
    call("cuMemcpyDtoH_v2", buffer, place, length)
    print("found" if buffer.raw == data else "absent")
