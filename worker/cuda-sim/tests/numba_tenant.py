"""The program of tenant.py by numba, which loads the library of NUMBA_CUDA_DRIVER.

usage: numba_tenant.py put|find TEXT
"""

import sys

import numpy as np
from numba import cuda

act, text = sys.argv[1:]
data = np.frombuffer(text.encode(), dtype=np.uint8)
free, total = cuda.current_context().get_memory_info()
assert 0 < free < total == 80 << 30, (free, total)
assert str(cuda.get_current_device().uuid).startswith("GPU-")
if act == "put":
    cuda.to_device(data)
    cuda.synchronize()
else:
    # Memory as the driver gives it.
    array = cuda.device_array(len(data), dtype=np.uint8)
    print("found" if array.copy_to_host().tobytes() == data.tobytes() else "absent")
