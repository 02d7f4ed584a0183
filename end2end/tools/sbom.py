#!/usr/bin/env python3
"""Writes the bill of materials of a build as CycloneDX 1.6 JSON: the crates of the four shipped programs and of the
pages, and the npm packages whose files are served. usage: sbom.py FILE

The same sources give the same bytes. The document has a time only with SOURCE_DATE_EPOCH.
"""
from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[2]
# The crates of berth-portal, berth-worker, berth-gateway, libberth_nvml_sim.so and the pages.
SHIPPED = ("berth-server", "berth-worker", "berth-gateway", "berth-nvml-sim", "berth-app")
# web.sh copies files of these packages into the pages.
NPM = ("@xterm/xterm", "uplot")
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"
PURL = re.compile(r"pkg:(cargo|npm)/(%40[\w.-]+/)?[\w.-]+@[\w.~%-]+")

Component = dict[str, Any]


def purl(kind: str, name: str, version: str) -> str:
    """The package URL of a package of a registry."""
    return f"pkg:{kind}/{quote(name, safe='/')}@{quote(version, safe='.-_~')}"


def host() -> str:
    """The target triple of this machine."""
    lines = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout.splitlines()
    return next(line.removeprefix("host: ") for line in lines if line.startswith("host: "))


def metadata(target: str, folder: Path, *features: str) -> dict[str, Any]:
    """The resolved packages for a target."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target, *features]
    return json.loads(subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE).stdout)


def is_macro(package: dict[str, Any]) -> bool:
    """True for a procedural macro: it runs in the compiler only."""
    return any("proc-macro" in target["kind"] for target in package["targets"])


class Crates:
    """The crates behind the shipped ones, by normal dependencies. Several resolutions are added up."""

    def __init__(self, checksums: dict[tuple[str, str], str]) -> None:
        self.checksums = checksums
        self.components: dict[str, Component] = {}
        self.edges: dict[str, set[str]] = {}

    def component(self, package: dict[str, Any]) -> Component:
        """The component of a crate, without its scope."""
        name, version = package["name"], package["version"]
        out: Component = {"type": "library", "bom-ref": purl("cargo", name, version), "name": name, "version": version}
        # An older form of OR.
        license_text = re.sub(r"\s*/\s*", " OR ", package["license"] or "")
        out["licenses"] = [{"expression": license_text}]
        if package["source"] is None:
            # No registry has the crates of this project, so they have no package URL.
            return out
        if package["source"] != REGISTRY:
            raise SystemExit(f"sbom: {name} {version} is from {package['source']}, and not from crates.io")
        out["purl"] = out["bom-ref"]
        out["hashes"] = [{"alg": "SHA-256", "content": self.checksums[name, version]}]
        return out

    def add(self, resolved: dict[str, Any]) -> None:
        """Adds the crates of one resolution. A crate that only macros need gets the scope `excluded`."""
        packages = {package["id"]: package for package in resolved["packages"]}
        nodes = {node["id"]: node for node in resolved["resolve"]["nodes"]}
        waiting = [
            (key, False) for key, package in packages.items() if package["source"] is None and package["name"] in SHIPPED
        ]
        seen: set[tuple[str, bool]] = set()
        while waiting:
            key, in_compiler = waiting.pop()
            in_compiler = in_compiler or is_macro(packages[key])
            if (key, in_compiler) in seen:
                continue
            seen.add((key, in_compiler))
            component = self.component(packages[key])
            known = self.components.setdefault(component["bom-ref"], {**component, "scope": "excluded"})
            if not in_compiler:
                known["scope"] = "required"
            needed = [
                dep["pkg"] for dep in nodes[key]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])
            ]
            refs = (purl("cargo", packages[dep]["name"], packages[dep]["version"]) for dep in needed)
            self.edges.setdefault(component["bom-ref"], set()).update(refs)
            waiting += [(dep, in_compiler) for dep in needed]


def npm_components(lock: dict[str, Any]) -> list[Component]:
    """The components of the served npm packages."""
    out = []
    for name in NPM:
        package = lock["packages"][f"node_modules/{name}"]
        algorithm, _, digest = package["integrity"].partition("-")
        if algorithm != "sha512":
            raise SystemExit(f"sbom: {name} has no SHA-512 in end2end/package-lock.json")
        ref = purl("npm", name, package["version"])
        out.append({
            "type": "library", "bom-ref": ref, "name": name, "version": package["version"], "scope": "required",
            "hashes": [{"alg": "SHA-512", "content": base64.b64decode(digest).hex()}],
            "licenses": [{"expression": package["license"]}], "purl": ref,
        })
    return out


def document(crates: Crates, npm: list[Component], epoch: str | None) -> dict[str, Any]:
    """The whole bill, in the order of the references."""
    shipped = sorted(ref for ref, part in crates.components.items() if part["name"] in SHIPPED and "purl" not in part)
    version = crates.components[shipped[0]]["version"]
    edges = {ref: sorted(needed) for ref, needed in crates.edges.items()}
    edges |= {part["bom-ref"]: [] for part in npm}
    edges["berth"] = sorted([*shipped, *(part["bom-ref"] for part in npm)])
    components = sorted([*crates.components.values(), *npm], key=lambda part: part["bom-ref"])
    main = {
        "type": "application", "bom-ref": "berth", "name": "berth", "version": version,
        "licenses": [{"expression": "Apache-2.0"}],
    }
    head: dict[str, Any] = {"lifecycles": [{"phase": "build"}], "component": main}
    if epoch:
        head["timestamp"] = datetime.fromtimestamp(int(epoch), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    content = {
        "metadata": head,
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": edges[ref]} for ref in sorted(edges)],
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"berth/sbom/{digest}")
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}", "version": 1, **content,
    }


def component_faults(part: Component, ours: bool) -> list[str]:
    """The faults of one component. Only components of this project have neither package URL nor hash."""
    name = part.get("bom-ref") or part.get("name") or "a component"
    out = [f"{name}: no {field}" for field in ("type", "bom-ref", "name", "version", "licenses") if not part.get(field)]
    texts = [entry.get("expression", "") for entry in part.get("licenses", [])]
    if any(not text or "/" in text for text in texts):
        out.append(f"{name}: the license is no SPDX expression")
    if ours:
        return out
    if part.get("scope") not in ("required", "excluded"):
        out.append(f"{name}: no scope")
    if not PURL.fullmatch(part.get("purl", "")):
        out.append(f"{name}: no package URL")
    lengths = {"SHA-256": 64, "SHA-512": 128}
    hashes = part.get("hashes", [])
    if not hashes or any(not re.fullmatch(f"[0-9a-f]{{{lengths[one['alg']]}}}", one["content"]) for one in hashes):
        out.append(f"{name}: no hash")
    return out


def faults(bill: dict[str, Any]) -> list[str]:
    """The faults of a bill: absent fields, and references without a component."""
    out = [f"{field} is not {value}" for field, value in (("bomFormat", "CycloneDX"), ("specVersion", "1.6"), ("version", 1))
           if bill.get(field) != value]
    if not re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill.get("serialNumber", "")):
        out.append("serialNumber is no UUID")
    main = bill["metadata"]["component"]
    out += component_faults(main, True)
    for part in bill["components"]:
        out += component_faults(part, part["name"].startswith("berth-") and "purl" not in part)
    refs = [main["bom-ref"], *(part["bom-ref"] for part in bill["components"])]
    out += [f"{ref} occurs twice" for ref in sorted({ref for ref in refs if refs.count(ref) > 1})]
    edges = {entry["ref"]: entry["dependsOn"] for entry in bill["dependencies"]}
    named = set(edges).union(*edges.values())
    out += [f"{ref} has no component" for ref in sorted(named - set(refs))]
    reached, waiting = set(), [main["bom-ref"]]
    while waiting:
        ref = waiting.pop()
        if ref not in reached:
            reached.add(ref)
            waiting += edges.get(ref, [])
    return out + [f"{ref} is needed by nothing" for ref in sorted(set(refs) - reached)]


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: sbom.py FILE", file=sys.stderr)
        return 2
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    crates = Crates({(p["name"], p["version"]): p["checksum"] for p in lock["package"] if "checksum" in p})
    crates.add(metadata(host(), ROOT))
    crates.add(metadata("wasm32-unknown-unknown", ROOT / "app", "--no-default-features", "--features", "hydrate"))
    npm = npm_components(json.loads((ROOT / "end2end" / "package-lock.json").read_text()))
    bill = document(crates, npm, os.environ.get("SOURCE_DATE_EPOCH"))
    if found := faults(bill):
        print("\n".join(f"sbom: {fault}" for fault in found), file=sys.stderr)
        return 1
    # Replaced by a rename, so that no half of it is ever there.
    file = Path(sys.argv[1])
    new = file.with_name(f".{file.name}.new")
    new.write_text(json.dumps(bill, indent=1, ensure_ascii=False) + "\n")
    new.replace(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
