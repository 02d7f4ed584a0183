#!/usr/bin/env python3
"""Train a small neural network to read handwritten digits.

Needs Python 3.9 or later and nothing else. The arithmetic is plain Python and
runs on the CPU; the header names the device that the job was given.

The network is 64 pixels -> hidden units (ReLU) -> 10 digits (softmax), trained
by mini-batch SGD with momentum on the cross-entropy. After each epoch the whole
state goes into a checkpoint; a later run with the same checkpoint goes on from
there and arrives at the same weights as a run that was never stopped.
"""
import argparse
import json
import math
import os
import random
import signal
import sys
import time
from operator import mul

DATA = "digits.csv"  # 64 pixels from 0 to 16, then the digit
PIXELS, CLASSES = 64, 10
TEST_SHARE, SPLIT_SEED = 0.2, 1797  # the split never depends on --seed
BATCH, MOMENTUM = 16, 0.9
PARAMETERS = ("w1", "b1", "w2", "b2")


class Stopped(Exception):
    """SIGTERM has arrived."""


class Bad(Exception):
    """The input or the checkpoint cannot be used; the text says why."""


# --- Data ---------------------------------------------------------------------

def load(path=DATA):
    """Return (pixels scaled to 0..1, digit) for every line."""
    samples = []
    with open(path, encoding="ascii") as lines:
        for number, line in enumerate(lines, 1):
            row = [int(field) for field in line.split(",")]
            if len(row) != PIXELS + 1:
                raise Bad(f"{path}, line {number}: {len(row)} numbers, not {PIXELS + 1}")
            samples.append(([pixel / 16 for pixel in row[:PIXELS]], row[PIXELS]))
    return samples


def split(samples):
    """Return (train, test), always the same two sets."""
    samples = samples[:]
    random.Random(SPLIT_SEED).shuffle(samples)
    held_out = round(len(samples) * TEST_SHARE)
    return samples[held_out:], samples[:held_out]


# --- Network ------------------------------------------------------------------

def dots(rows, others):
    """Every row's dot product with every other: rows x transpose(others)."""
    return [[sum(map(mul, row, other)) for other in others] for row in rows]


def columns(matrix):
    return list(zip(*matrix))


def new_state(hidden, seed):
    """Random weights (He initialisation), no momentum, no epoch finished."""
    rng = random.Random(seed)

    def layer(outputs, inputs):
        spread = math.sqrt(2 / inputs)
        return [[rng.gauss(0, spread) for _ in range(inputs)] for _ in range(outputs)]

    weights = {"w1": layer(hidden, PIXELS), "b1": [[0.0] * hidden],
               "w2": layer(CLASSES, hidden), "b2": [[0.0] * CLASSES]}
    velocity = {name: [[0.0] * len(row) for row in weights[name]] for name in PARAMETERS}
    return {"epoch": 0, "hidden": hidden, "seed": seed, "weights": weights, "velocity": velocity}


def forward(weights, images):
    """Return the hidden activations and the class probabilities."""
    b1, b2 = weights["b1"][0], weights["b2"][0]
    hidden = [[max(0.0, z + b) for z, b in zip(row, b1)] for row in dots(images, weights["w1"])]
    chances = []
    for row in dots(hidden, weights["w2"]):
        scores = [z + b for z, b in zip(row, b2)]
        top = max(scores)
        powers = [math.exp(score - top) for score in scores]
        total = sum(powers)
        chances.append([power / total for power in powers])
    return hidden, chances


def gradients(weights, images, digits):
    """Return the batch's mean gradient, its summed loss, and how many it got right."""
    hidden, chances = forward(weights, images)
    loss, right, errors = 0.0, 0, []
    for row, digit in zip(chances, digits):
        loss -= math.log(max(row[digit], 1e-300))
        right += row[digit] == max(row)
        errors.append([(p - (k == digit)) / len(digits) for k, p in enumerate(row)])
    back = [[e if h > 0 else 0.0 for e, h in zip(error_row, hidden_row)]
            for error_row, hidden_row in zip(dots(errors, columns(weights["w2"])), hidden)]
    return {"w1": dots(columns(back), columns(images)), "b1": [[sum(c) for c in columns(back)]],
            "w2": dots(columns(errors), columns(hidden)), "b2": [[sum(c) for c in columns(errors)]],
            }, loss, right


def train_epoch(state, samples, rate, stopping=lambda: False):
    """Go once over the samples, changing `state`; return mean loss and accuracy."""
    order = samples[:]
    # The order follows from the seed and the epoch alone, so that a resumed run repeats it.
    random.Random(f"{state['seed']}/{state['epoch']}").shuffle(order)
    weights, velocity = state["weights"], state["velocity"]
    loss, right = 0.0, 0
    for start in range(0, len(order), BATCH):
        if stopping():
            raise Stopped
        images, digits = zip(*order[start:start + BATCH])
        slopes, batch_loss, batch_right = gradients(weights, images, digits)
        loss += batch_loss
        right += batch_right
        for name in PARAMETERS:
            velocity[name] = [[MOMENTUM * v - rate * g for v, g in zip(*rows)]
                              for rows in zip(velocity[name], slopes[name])]
            weights[name] = [[w + v for w, v in zip(*rows)]
                             for rows in zip(weights[name], velocity[name])]
    state["epoch"] += 1
    return loss / len(order), right / len(order)


def accuracy(weights, samples):
    images, digits = zip(*samples)
    _, chances = forward(weights, images)
    return sum(row[digit] == max(row) for row, digit in zip(chances, digits)) / len(samples)


# --- Checkpoint ---------------------------------------------------------------

def save(state, path):
    """Replace the checkpoint in one step: a reader sees the old one or the new one."""
    partial = path + ".tmp"
    with open(partial, "w", encoding="ascii") as out:
        json.dump(state, out)
        out.flush()
        os.fsync(out.fileno())
    os.replace(partial, path)


def restore(path, hidden, seed):
    """Return the checkpoint's state, or None where there is no checkpoint."""
    try:
        with open(path, encoding="ascii") as source:
            state = json.load(source)
        was = state["hidden"], state["seed"]
        shape = [len(state["weights"][name]) for name in PARAMETERS]
        if not isinstance(state["epoch"], int) or shape != [was[0], 1, CLASSES, 1]:
            raise ValueError("it has another shape")
        state["velocity"]["w1"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise Bad(f"{path} is not a checkpoint of this program: {error!r}") from error
    if was != (hidden, seed):
        raise Bad(f"{path} was made with --hidden {was[0]} --seed {was[1]}; "
                  "give the same, or another --checkpoint")
    return state


# --- Program ------------------------------------------------------------------

def say(text):
    print(text, flush=True)


def positive(kind):
    def parse(text):
        value = kind(text)
        if not 0 < value < math.inf:
            raise ValueError(text)
        return value
    parse.__name__ = f"positive {kind.__name__}"
    return parse


def parse_args(argv):
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=positive(int), default=20, help="epochs in all (20)")
    parser.add_argument("--hidden", type=positive(int), default=32, help="hidden units (32)")
    parser.add_argument("--lr", type=positive(float), default=0.03, help="learning rate (0.03)")
    parser.add_argument("--seed", type=int, default=1, help="of weights and order (1)")
    parser.add_argument("--checkpoint", default="checkpoint.json", help="file (checkpoint.json)")
    return parser.parse_args(argv)


def run(args, stopping):
    train, test = split(load())
    say(f"digits: {len(train)} training and {len(test)} test images, "
        f"network {PIXELS} -> {args.hidden} -> {CLASSES}")
    device = os.environ.get("CUDA_VISIBLE_DEVICES")
    say(f"device given: {device or 'none'} (CUDA_VISIBLE_DEVICES); this program computes on the CPU")
    state = restore(args.checkpoint, args.hidden, args.seed)
    if state:
        say(f"resumed from epoch {state['epoch']}")
    else:
        state = new_state(args.hidden, args.seed)
    while state["epoch"] < args.epochs:
        began = time.monotonic()
        loss, train_share = train_epoch(state, train, args.lr, stopping)
        test_share = accuracy(state["weights"], test)
        save(state, args.checkpoint)
        say(f"epoch {state['epoch']}/{args.epochs}  loss {loss:.4f}  train {train_share:.1%}"
            f"  test {test_share:.1%}  {time.monotonic() - began:.1f} s")
        if stopping():
            raise Stopped
    say(f"done: test accuracy {accuracy(state['weights'], test):.1%} after {state['epoch']} epochs")


def main(argv=None):
    args = parse_args(argv)
    # The handler only takes a note; training looks at it between two batches, so that
    # a checkpoint is never cut off and the unfinished epoch is simply left out.
    noted = []
    signal.signal(signal.SIGTERM, lambda number, frame: noted.append(number))
    try:
        run(args, lambda: bool(noted))
    except Stopped:
        kept = args.checkpoint if os.path.exists(args.checkpoint) else "no checkpoint yet"
        say(f"stopped by SIGTERM; kept: {kept}")
        return 128 + signal.SIGTERM
    except (Bad, OSError, ValueError) as error:
        print(f"train.py: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
