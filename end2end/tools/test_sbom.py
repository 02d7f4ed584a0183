"""Tests of the bill of materials, on made-up crates."""
from __future__ import annotations

import copy
import json
import unittest
from typing import Any

import sbom


def package(name: str, version: str = "1.0.0", source: str | None = sbom.REGISTRY, kind: str = "lib") -> dict[str, Any]:
    """A package of `cargo metadata`."""
    return {
        "id": f"{name} {version}", "name": name, "version": version, "source": source, "license": "MIT/Apache-2.0",
        "targets": [{"kind": [kind]}],
    }


def resolved() -> dict[str, Any]:
    """A program with a library, a macro with a library of its own, and libraries for tests and builds only."""
    packages = [
        package("berth-server", source=None), package("axum"), package("serde_derive", kind="proc-macro"), package("syn"),
        package("tempfile"), package("cc"), package("wasi", "0.9.0+snapshot"),
    ]
    edges = {
        "berth-server": [("axum", None), ("serde_derive", None), ("tempfile", "dev"), ("cc", "build")],
        "axum": [("wasi", None)], "serde_derive": [("syn", None)],
    }
    ids = {one["name"]: one["id"] for one in packages}
    nodes = [
        {"id": one["id"], "deps": [{"pkg": ids[name], "dep_kinds": [{"kind": kind}]} for name, kind in edges.get(one["name"], [])]}
        for one in packages
    ]
    return {"packages": packages, "resolve": {"nodes": nodes}}


def checksums(found: dict[str, Any]) -> dict[tuple[str, str], str]:
    """The checksums of the crates of a registry."""
    return {(one["name"], one["version"]): "ab" * 32 for one in found["packages"] if one["source"]}


def bill(epoch: str | None = None) -> dict[str, Any]:
    """The bill of the made-up program, with the npm packages of this project."""
    found = resolved()
    crates = sbom.Crates(checksums(found))
    crates.add(found)
    lock = json.loads((sbom.ROOT / "end2end" / "package-lock.json").read_text())
    return sbom.document(crates, sbom.npm_components(lock), epoch)


class Bill(unittest.TestCase):
    def test_a_bill_has_each_crate_with_hash_and_license(self) -> None:
        made = bill()
        self.assertEqual(sbom.faults(made), [])
        parts = {part["name"]: part for part in made["components"]}
        self.assertEqual(set(parts), {"berth-server", "axum", "serde_derive", "syn", "wasi", "@xterm/xterm", "uplot"})
        self.assertEqual(parts["axum"]["hashes"], [{"alg": "SHA-256", "content": "ab" * 32}])
        self.assertEqual(parts["axum"]["licenses"], [{"expression": "MIT OR Apache-2.0"}])
        self.assertEqual(parts["wasi"]["purl"], "pkg:cargo/wasi@0.9.0%2Bsnapshot")
        self.assertTrue(parts["@xterm/xterm"]["purl"].startswith("pkg:npm/%40xterm/xterm@"))
        self.assertNotIn("purl", parts["berth-server"])

    def test_crates_behind_macros_only_are_excluded(self) -> None:
        scopes = {part["name"]: part["scope"] for part in bill()["components"]}
        self.assertEqual((scopes["axum"], scopes["serde_derive"], scopes["syn"]), ("required", "excluded", "excluded"))

    def test_the_same_sources_give_the_same_bill(self) -> None:
        self.assertEqual(json.dumps(bill()), json.dumps(bill()))
        self.assertNotIn("timestamp", bill()["metadata"])
        self.assertEqual(bill("86400")["metadata"]["timestamp"], "1970-01-02T00:00:00Z")

    def test_a_crate_of_another_source_is_refused(self) -> None:
        found = resolved()
        found["packages"][1]["source"] = "git+https://example.org/axum"
        with self.assertRaises(SystemExit):
            sbom.Crates(checksums(found)).add(found)

    def test_each_fault_is_found(self) -> None:
        cases = [
            (lambda made: made.update(specVersion="1.5"), "specVersion"),
            (lambda made: made.update(serialNumber="1"), "serialNumber"),
            (lambda made: made["components"][0].pop("version"), "no version"),
            (lambda made: made["components"][0].update(licenses=[{"expression": ""}]), "no SPDX expression"),
            (lambda made: made["components"][0]["hashes"][0].update(content="ab"), "no hash"),
            (lambda made: made["components"].append(made["components"][0]), "occurs twice"),
            (lambda made: made["components"].pop(), "has no component"),
            (lambda made: made["dependencies"].clear(), "is needed by nothing"),
        ]
        # A component of a registry is first in each case.
        made = bill()
        made["components"].sort(key=lambda part: "purl" not in part)
        for change, expected in cases:
            changed = copy.deepcopy(made)
            change(changed)
            self.assertTrue(any(expected in fault for fault in sbom.faults(changed)), expected)


if __name__ == "__main__":
    unittest.main()
