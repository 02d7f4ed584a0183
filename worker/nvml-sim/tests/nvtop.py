"""Drives the library with nvtop on a terminal of its own; started by python.rs."""

import contextlib
import fcntl
import os
import pty
import pwd
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time

import pynvml as n
import pyte

# The fleet of python.rs: MIG with an instance, a board without a fan, one with a fan, and one without a process.
HOPPER, ADA, GAME, TURING = range(4)
NAMES = ["NVIDIA H100 80GB HBM3", "NVIDIA L4", "NVIDIA GeForce RTX 4090", "Tesla T4"]
LINES, COLUMNS = 60, 200
DEADLINE_S = 60
# The part of the screen about one board.
BOARD = re.compile(
    r"Device (?P<index>\d) \[(?P<name>[^\]]+)\] +PCIe GEN (?P<generation>\d)@ ?(?P<width>\d+)x"
    r" RX: (?P<received>[\d.]+ \S+) TX: (?P<sent>[\d.]+ \S+) *\n"
    r" *GPU (?P<mhz>\d+)MHz +MEM (?P<memory_mhz>\d+)MHz? TEMP +(?P<celsius>\d+).C"
    r" FAN +(?P<fan>\S+)% POW +(?P<watts>\d+) / +(?P<limit_watts>\d+) W *\n"
    r" *GPU\[\|* *(?P<busy>\S+)%?\] MEM\[\|* *(?P<used>[\d.]+)Gi/(?P<total>[\d.]+)Gi\]")
PROCESS = re.compile(
    r"^ *(?P<pid>\d+) +(?P<user>\S+) +(?P<board>\d) +(?P<kind>\S+) +(?P<busy>\d+)% +(?P<mib>\d+)MiB", re.MULTILINE)


def same(found, wanted, what):
    assert found == wanted, f"{what}: {found!r} in place of {wanted!r}"


def make_slice():
    """Makes one instance on the Hopper board, and returns its UUID."""
    board = n.nvmlDeviceGetHandleByIndex(HOPPER)
    assert n.nvmlDeviceSetMigMode(board, 1) == 0
    instance = n.nvmlDeviceCreateGpuInstance(board, n.nvmlDeviceGetGpuInstanceProfileInfo(board, 2).id)
    n.nvmlGpuInstanceCreateComputeInstance(instance, n.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 2, 0).id)
    return n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(board, 0))


@contextlib.contextmanager
def holding(code, **environment):
    """A process with memory on a device, ready once it says so."""
    code = f"held = bytearray(96 << 20); print('ready', flush=True)\n{code}"
    process = subprocess.Popen([sys.executable, "-c", code], env=os.environ | environment, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def terminal(*arguments):
    """The program on a terminal. Gives its text as often as it is asked for."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    controller, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm", "LC_ALL": "C.UTF-8"}
    program = subprocess.Popen(["nvtop", *arguments], stdin=side, stdout=side, stderr=side, env=environment,
                               start_new_session=True)
    os.close(side)

    def text():
        while select.select([controller], [], [], 0.2)[0]:
            try:
                stream.feed(os.read(controller, 65_536))
            except OSError:
                raise AssertionError(f"nvtop ended with {program.wait()}: {screen.display}") from None
        return "\n".join(line.rstrip() for line in screen.display)

    try:
        yield text
        os.write(controller, b"q")
        same(program.wait(timeout=DEADLINE_S), 0, "the status of nvtop")
    finally:
        program.kill()
        program.wait()
        os.close(controller)


def read(text):
    """The boards and the processes on the screen."""
    # The screen has two columns of boards.
    lines = [line.ljust(COLUMNS) for line in text.split("\n")]
    middle = next((at for line in lines if (at := line.find("Device 1")) > 0), COLUMNS) - 1
    halves = "\n".join(line[:middle] for line in lines) + "\n" + "\n".join(line[middle:] for line in lines)
    boards = {int(found["index"]): found.groupdict() for found in BOARD.finditer(halves)}
    return boards, {int(found["pid"]): found.groupdict() for found in PROCESS.finditer(text)}


def wait_for(text, wanted):
    """The boards and processes of the first screen that has all of `wanted`."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        now = text()
        boards, processes = read(now)
        if len(boards) == len(NAMES) and wanted(boards, processes):
            return boards, processes
        assert time.monotonic() < deadline, now


def gib(mib):
    return f"{mib / 1_024:.3f}"


def busy_percent(row):
    """The utilization of a row; 0 where it has none."""
    digits = row["busy"].rstrip("%")
    return int(digits) if digits.isdigit() else 0


def check_boards(boards):
    rows = [boards[index] for index in range(len(NAMES))]
    same([row["name"] for row in rows], NAMES, "names")
    same([(row["generation"], row["width"]) for row in rows],
         [("5", "16"), ("4", "16"), ("4", "16"), ("3", "16")], "PCIe")
    same([(row["mhz"], row["memory_mhz"]) for row in rows],
         [("1980", "2619"), ("2040", "6251"), ("3105", "10501"), ("1590", "5001")], "clocks")
    same([row["limit_watts"] for row in rows], ["700", "72", "450", "70"], "power limits")
    same([row["fan"] for row in rows], ["N/A", "N/A", "0", "N/A"], "fans")
    same([row["total"] for row in rows], [gib(mib) for mib in [81_559, 23_034, 24_564, 15_360]], "memory")
    same([rows[HOPPER]["busy"], rows[TURING]["busy"].rstrip("%")], ["N/A", "0"], "utilization, which MIG boards lack")
    same((rows[TURING]["watts"], rows[TURING]["celsius"], rows[TURING]["used"]), ("9", "31", gib(448)), "an idle board")
    same((rows[TURING]["received"], rows[TURING]["sent"]), ("0.000 KiB/s", "0.000 KiB/s"), "PCIe of an idle board")
    # The driver keeps 480 MiB of the board, and the process on its slice has at least what it holds.
    assert 480 + 96 <= float(rows[HOPPER]["used"]) * 1_024 < 480 + 512, rows[HOPPER]
    ada = rows[ADA]
    assert int(ada["watts"]) > 16 and int(ada["celsius"]) > 31 and not ada["received"].startswith("0.000"), ada
    assert 556 + 192 <= float(ada["used"]) * 1_024 < 556 + 1_024, ada


def check_processes(processes, wanted):
    user = pwd.getpwuid(os.getuid()).pw_name
    same(set(processes), set(wanted), "processes")
    for pid, (board, kind) in wanted.items():
        found = processes[pid]
        same((int(found["board"]), found["kind"]), (board, kind), f"process {pid}")
        assert user.startswith(found["user"].rstrip("+")), found
        assert 96 <= int(found["mib"]) < 512, found


n.nvmlInit()
slice_uuid = make_slice()
ada_uuid, game_uuid = (n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(index)) for index in (ADA, GAME))
sleep = "import time; time.sleep(600)"
with (
    tempfile.TemporaryDirectory() as home,
    holding(sleep, CUDA_VISIBLE_DEVICES=slice_uuid) as on_slice,
    holding("while True: pass", CUDA_VISIBLE_DEVICES=ada_uuid) as busy,
    holding(sleep, CUDA_VISIBLE_DEVICES=ada_uuid) as idle,
    holding(sleep, BERTH_NVML_SIM_GRAPHICS=game_uuid) as drawing,
    terminal("--no-plot", "--no-color", "--delay", "5", "--config-file", f"{home}/none") as text,
):
    # Enough for each figure that follows it.
    boards, processes = wait_for(text, lambda bs, ps: busy_percent(bs[ADA]) >= 10 and busy in ps
                                 and busy_percent(ps[busy]) >= 10 and len(ps) == 4)
    check_boards(boards)
    check_processes(processes, {on_slice: (HOPPER, "Compute"), busy: (ADA, "Compute"), idle: (ADA, "Compute"),
                                drawing: (GAME, "Graphic")})
    same([processes[pid]["busy"] for pid in (on_slice, idle, drawing)], ["0", "0", "0"], "idle processes")
n.nvmlShutdown()
print("driven")
