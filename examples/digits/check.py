#!/usr/bin/env python3
"""Check a trained network before it serves: the share of test digits that it reads must be high enough.

    check.py MODEL [LEAST]      MODEL: a directory with checkpoint.json, train.py and serve.py; LEAST: 0.93
"""
import os
import sys

sys.path.insert(0, sys.argv[1] if len(sys.argv) > 1 else ".")
import train  # noqa: E402
from serve import model_of  # noqa: E402


def main(argv):
    if len(argv) not in (2, 3):
        print("usage: check.py MODEL [LEAST]", file=sys.stderr)
        return 2
    least = float(argv[2]) if len(argv) == 3 else 0.93
    try:
        state = model_of(os.path.join(argv[1], "checkpoint.json"))
        _, test = train.split(train.load())
    except (train.Bad, OSError) as error:
        print(f"check.py: {error}", file=sys.stderr)
        return 1
    share = train.accuracy(state["weights"], test)
    print(f"epoch {state['epoch']}: test accuracy {share:.1%}, at least {least:.1%} is necessary", flush=True)
    return 0 if share >= least else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
