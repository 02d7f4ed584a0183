"""A training run that goes on where it was stopped: one epoch is one state written.

The checkpoint directory is $BERTH_CHECKPOINT_DIR, relative to the job's own. A state is written beside its
place and renamed there, so whoever looks finds a whole one.
"""

import argparse
import json
import os
import pathlib
import signal
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--seconds", type=float, default=1.0, help="what an epoch takes")
parser.add_argument(
    "--stall-after", type=int, default=0, help="in its first attempt, begin the epoch after this one and never end it"
)
args = parser.parse_args()

directory = pathlib.Path(os.environ.get("BERTH_CHECKPOINT_DIR", "ckpt"))
directory.mkdir(parents=True, exist_ok=True)
place = directory / "state.json"
state = json.loads(place.read_text()) if place.exists() else {"epoch": 0, "loss": 1.0}
print(f"begins after epoch {state['epoch']}", flush=True)


def save():
    part = place.with_suffix(".part")
    with open(part, "w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    part.rename(place)


def make_room(signum, frame):
    # The state of the last whole epoch is saved already; the one under way is begun again.
    print(f"makes room after epoch {state['epoch']}", flush=True)
    sys.exit(0)


signal.signal(signal.SIGUSR1, make_room)
while state["epoch"] < args.epochs:
    first = os.environ.get("BERTH_ATTEMPT", "1") == "1"
    if first and args.stall_after and state["epoch"] >= args.stall_after:
        time.sleep(600)
    time.sleep(args.seconds)
    state = {"epoch": state["epoch"] + 1, "loss": state["loss"] * 0.8}
    save()
    print(f"epoch {state['epoch']} loss {state['loss']:.4f}", flush=True)

out = pathlib.Path("out")
out.mkdir(exist_ok=True)
(out / "model.json").write_text(json.dumps(state))
