"""Tests of the rights that attack.py expects of its callers, on the description of the API."""
from __future__ import annotations

import json
import unittest

from attack import BEYOND_VIEWERS, READ_SCOPES, Judge, may_read
from attack_cases import Case, Route, routes
from attack_victim import NARROW, READERS, Caller
from attack_wire import Request
from worker_bench import ROOT

DESCRIPTION = json.loads((ROOT / "docs/openapi.json").read_text(encoding="utf-8"))
ROUTES = {f"{route.method} {route.path.removeprefix('/api/v1')}": route for route in routes(DESCRIPTION)}


class NoVictim:
    """A victim without texts."""

    private: list[str] = []
    hidden: list[str] = []


def fault(route: Route, kind: str) -> str | None:
    """The fault of a success on this route."""
    case = Case(route, Caller(kind, {}), "none", "victim", Request(route.method, route.path))
    return Judge(DESCRIPTION, NoVictim(), []).unearned(case, 200)  # type: ignore[arg-type]


class Rights(unittest.TestCase):
    def test_readers_change_nothing(self) -> None:
        for name, route in ROUTES.items():
            for kind in READERS:
                if route.method != "GET" and not route.is_public():
                    self.assertIsNotNone(fault(route, kind), f"{name} as {kind}")

    def test_viewers_read_jobs_but_neither_money_nor_the_audit_log(self) -> None:
        for kind in ("viewer", "service account"):
            for name in ("GET /orgs/{org}/jobs", "GET /orgs/{org}/members", "GET /me", "GET /offerings"):
                self.assertIsNone(fault(ROUTES[name], kind), name)
            for name in ("GET /orgs/{org}/balance", "GET /orgs/{org}/audit-events", "GET /orgs/{org}/jobs/{job}/submission",
                         "GET /operator/nodes", "POST /orgs/{org}/jobs", "POST /orgs/{org}/tokens", "PUT /me/password"):
                self.assertIsNotNone(fault(ROUTES[name], kind), name)

    def test_a_narrow_token_reads_the_routes_of_its_scope_alone(self) -> None:
        self.assertIsNone(fault(ROUTES["GET /orgs/{org}/nodes"], "narrow token"))
        self.assertIsNotNone(fault(ROUTES["GET /orgs/{org}/jobs"], "narrow token"))

    def test_the_lists_of_rights_have_known_names(self) -> None:
        scopes = {route.operation["x-scope"] for route in ROUTES.values()}
        self.assertLessEqual(READ_SCOPES | {NARROW}, scopes)
        reads = [route for route in ROUTES.values() if route.method == "GET" and BEYOND_VIEWERS.search(route.path)]
        ends = {BEYOND_VIEWERS.search(route.path)[1] for route in reads}  # type: ignore[index]
        self.assertEqual(len(ends), len(BEYOND_VIEWERS.pattern.split("|")))
        self.assertFalse(any(may_read(route, "viewer") for route in reads))


if __name__ == "__main__":
    unittest.main()
