"""Drives the library with monitoring programs of other authors; started by python.rs. The arguments name them."""

import json
import subprocess
import sys

import pynvml as n

# The fleet of python.rs: MIG with instances, MIG without instances, and a board without MIG.
HOPPER, AMPERE, ADA = range(3)
NAMES = ["NVIDIA H100 80GB HBM3", "NVIDIA A30", "NVIDIA L4"]
MEMORY_MIB = [81_559, 24_576, 23_034]
LIMIT_WATTS = [700, 165, 72]
SLICES = ["3g.40gb", "1g.10gb"]


def make_slices():
    """Makes one instance of each profile in SLICES on the Hopper board."""
    n.nvmlInit()
    board = n.nvmlDeviceGetHandleByIndex(HOPPER)
    assert n.nvmlDeviceSetMigMode(board, 1) == 0
    for index, name, multiprocessors in [(2, "3g.40gb", 60), (0, "1g.10gb", 16)]:
        profile = n.nvmlDeviceGetGpuInstanceProfileInfo(board, index)
        assert profile.name == f"MIG {name}", profile.name
        instance = n.nvmlDeviceCreateGpuInstance(board, profile.id)
        filling = n.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, index, 0)
        assert filling.multiprocessorCount == multiprocessors, filling.multiprocessorCount
        n.nvmlGpuInstanceCreateComputeInstance(instance, filling.id)


def same(found, wanted, what):
    assert found == wanted, f"{what}: {found!r} in place of {wanted!r}"


def nvitop():
    from nvitop import NA, Device

    boards = Device.all()
    same([board.name() for board in boards], NAMES, "names")
    same([board.memory_total() >> 20 for board in boards], MEMORY_MIB, "memory")
    same([board.power_limit() // 1_000 for board in boards], LIMIT_WATTS, "power limits")
    same([board.mig_mode() for board in boards], ["Enabled", "Enabled", NA], "MIG modes")
    same([board.gpu_utilization() for board in boards], [NA, NA, 0], "utilization, which MIG boards do not have")
    ada = boards[ADA]
    same(ada.bar1_memory_total() >> 20, 32_768, "BAR1")
    same((ada.max_sm_clock(), ada.max_memory_clock()), (2_040, 6_251), "greatest clocks")
    same((ada.encoder_utilization(), ada.decoder_utilization()), (0, 0), "engines for video")
    same((ada.persistence_mode(), ada.compute_mode()), ("Enabled", "Default"), "modes")
    same((ada.display_active(), ada.display_mode()), ("Disabled", NA), "display, whose mode is deprecated")
    same((ada.fan_speed(), ada.performance_state()), (NA, "P0"), "fan and state")
    same((ada.temperature(), ada.total_volatile_uncorrected_ecc_errors()), (31, 0), "temperature and errors")
    same((ada.cuda_driver_version(), ada.cuda_compute_capability()), ("13.0", (8, 9)), "CUDA")
    same(ada.processes(), {}, "processes")
    slices = boards[HOPPER].mig_devices()
    same([part.name() for part in slices], [f"{NAMES[HOPPER]} MIG {name}" for name in SLICES], "slices")
    same([part.memory_total() >> 20 for part in slices], [40_448, 9_984], "memory of slices")
    assert all(part.is_mig_device() and part.uuid().startswith("MIG-") for part in slices)
    same(boards[AMPERE].mig_devices(), [], "slices of the board without instances")
    for device in [*boards, *slices]:
        device.as_snapshot()
    screen = subprocess.run([sys.executable, "-m", "nvitop", "--once"], capture_output=True, text=True, timeout=60)
    assert screen.returncode == 0 and "22.49GiB" in screen.stdout, screen


def gpustat():
    run = subprocess.run([sys.executable, "-m", "gpustat", "--json"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run
    boards = json.loads(run.stdout)["gpus"]
    same([board["name"] for board in boards], NAMES, "names")
    same([board["memory.total"] for board in boards], MEMORY_MIB, "memory")
    same([board["memory.used"] for board in boards], [0, 0, 0], "memory without that of the driver")
    same([board["enforced.power.limit"] for board in boards], LIMIT_WATTS, "power limits")
    same([board["utilization.gpu"] for board in boards], [None, None, 0], "utilization")
    same([board["utilization.enc"] for board in boards], [None, None, 0], "encoders")
    same([board["fan.speed"] for board in boards], [None, None, None], "fans")


def py3nvml():
    # Its own tables of structs and versions, older than those of the other programs.
    from py3nvml import py3nvml as p

    p.nvmlInit()
    boards = [p.nvmlDeviceGetHandleByIndex(index) for index in range(p.nvmlDeviceGetCount())]
    same([p.nvmlDeviceGetName(board) for board in boards], NAMES, "names")
    addresses = [p.nvmlDeviceGetPciInfo(board) for board in boards]
    same([hex(pci.pciDeviceId) for pci in addresses], ["0x233010de", "0x20b710de", "0x27b810de"], "devices")
    same(addresses[ADA].reserved0, 0, "the end of the struct")
    memory = [p.nvmlDeviceGetMemoryInfo(board) for board in boards]
    same([bytes_.total >> 20 for bytes_ in memory], MEMORY_MIB, "memory")
    same([bytes_.used >> 20 for bytes_ in memory], [480, 512, 556], "memory with that of the driver")
    bar1 = [p.nvmlDeviceGetBAR1MemoryInfo(board).bar1Total >> 20 for board in boards]
    same(bar1, [131_072, 32_768, 32_768], "BAR1")
    limits = [p.nvmlDeviceGetPowerManagementLimitConstraints(board) for board in boards]
    same(limits, [[200_000, 700_000], [100_000, 165_000], [40_000, 72_000]], "power limits that can be set")
    defaults = [p.nvmlDeviceGetPowerManagementDefaultLimit(board) // 1_000 for board in boards]
    same(defaults, LIMIT_WATTS, "default power limits")
    clocks = [p.nvmlDeviceGetMaxClockInfo(board, p.NVML_CLOCK_SM) for board in boards]
    same(clocks, [1_980, 1_440, 2_040], "greatest clocks")
    ada = boards[ADA]
    same(p.nvmlDeviceGetSupportedMemoryClocks(ada), [6_251], "clocks of memory")
    same(p.nvmlDeviceGetSupportedGraphicsClocks(ada, 6_251)[0], 2_040, "clocks of multiprocessors")
    same(p.nvmlDeviceGetComputeRunningProcesses(ada), [], "processes")
    same(p.nvmlDeviceGetEccMode(ada), [1, 1], "ECC")
    for call in [p.nvmlDeviceGetFanSpeed, p.nvmlDeviceGetDriverModel, p.nvmlDeviceGetBridgeChipInfo]:
        try:
            call(ada)
        except p.NVMLError as error:
            same(error.value, p.NVML_ERROR_NOT_SUPPORTED, call.__name__)
        else:
            raise AssertionError(f"{call.__name__} has an answer")
    p.nvmlShutdown()


make_slices()
for program in sys.argv[1:]:
    {"nvitop": nvitop, "gpustat": gpustat, "py3nvml": py3nvml}[program]()
print("driven")
