"""Drives the library with NVIDIA's own binding for Python, `nvidia-ml-py`; started by python.rs."""

import pynvml as n


def refused(error, call, *args):
    try:
        call(*args)
    except n.NVMLError as found:
        assert found.value == error, found
        return
    raise AssertionError(f"{call.__name__} was not refused")


n.nvmlInit()
assert n.nvmlDeviceGetCount() == 2
hopper, ampere = n.nvmlDeviceGetHandleByIndex(0), n.nvmlDeviceGetHandleByIndex(1)
assert n.nvmlDeviceGetName(hopper) == "NVIDIA H100 80GB HBM3"
assert n.nvmlDeviceGetMemoryInfo(hopper).total == 81_559 << 20
assert n.nvmlDeviceGetUtilizationRates(hopper).gpu == 0
assert n.nvmlDeviceGetMigMode(ampere) == [1, 1]
assert n.nvmlDeviceGetTotalEccErrors(hopper, 1, 0) == 0
refused(n.NVML_ERROR_NOT_SUPPORTED, n.nvmlDeviceGetUtilizationRates, ampere)

assert n.nvmlDeviceSetMigMode(hopper, 1) == 0
small = n.nvmlDeviceGetGpuInstanceProfileInfo(hopper, 0)
assert small.memorySizeMB == 9_984, small.memorySizeMB
instance = n.nvmlDeviceCreateGpuInstance(hopper, small.id)
compute = n.nvmlGpuInstanceCreateComputeInstance(instance, 0)
slice_ = n.nvmlDeviceGetMigDeviceHandleByIndex(hopper, 0)
assert n.nvmlDeviceGetUUID(slice_).startswith("MIG-")
assert n.nvmlDeviceGetMemoryInfo(slice_).total == 9_984 << 20
assert n.nvmlDeviceGetName(slice_) == "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
refused(n.NVML_ERROR_IN_USE, n.nvmlGpuInstanceDestroy, instance)
refused(n.NVML_ERROR_IN_USE, n.nvmlDeviceSetMigMode, hopper, 0)
n.nvmlComputeInstanceDestroy(compute)
n.nvmlGpuInstanceDestroy(instance)
refused(n.NVML_ERROR_NOT_FOUND, n.nvmlGpuInstanceDestroy, instance)

events = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(hopper, n.nvmlEventTypeXidCriticalError, events)
refused(n.NVML_ERROR_TIMEOUT, n.nvmlEventSetWait_v2, events, 20)
n.nvmlEventSetFree(events)
n.nvmlShutdown()
print("driven")
