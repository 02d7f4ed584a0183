"""The requests of attack.py: for a route of the description a valid request, spoiled in one way."""
from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from attack_victim import PARAMETER, Caller, Description, Victim, encoded
from attack_wire import Request

MIB = 1 << 20
ID_OF_NOTHING = "01h455vb4pex5vsknk084sn02q"


class Route(NamedTuple):
    """`body`: the media type of the body; None where the route has none."""

    method: str
    path: str
    operation: dict[str, Any]
    body: str | None

    def is_public(self) -> bool:
        return not (security := self.operation.get("security")) or {} in security


class Case(NamedTuple):
    """`aim`: the organization in the path is `victim`, `foreign` or, where the path has none, empty."""

    route: Route
    caller: Caller
    spoiler: str
    aim: str
    request: Request


def routes(description: Description) -> list[Route]:
    found = []
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {})
            found.append(Route(method.upper(), path, operation, next(iter(content), None)))
    return found


def sample(description: Description, schema: Any) -> Any:
    """A value of this form."""
    if not isinstance(schema, dict):
        return {}
    if "$ref" in schema:
        return sample(description, description["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    for name in ("examples", "enum"):
        if schema.get(name):
            return copy.deepcopy(schema[name][-1])
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return sample(description, schema[name][0])
    kinds = schema.get("type", "object")
    kind = kinds if isinstance(kinds, str) else kinds[0]
    if kind == "object":
        fields = schema.get("properties", {})
        return {name: sample(description, fields[name]) for name in schema.get("required", [])}
    if kind == "array":
        return [sample(description, schema.get("items"))] * schema.get("minItems", 1)
    values: dict[str, Any] = {"integer": schema.get("minimum", 1), "number": 1.5, "boolean": True, "null": None}
    return values.get(kind, "a" * max(schema.get("minLength", 1), 1))


# A place in a body: the names and numbers on the way to a value.
Place = tuple[str | int, ...]


def places(value: Any, above: Place = ()) -> list[Place]:
    """All places below a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for name, one in inner for place in ((*above, name), *places(one, (*above, name)))]


def replaced(value: Any, place: Place, new: Any) -> Any:
    """A copy with another value at the place."""
    if not place:
        return new
    changed = copy.copy(value)
    changed[place[0]] = replaced(value[place[0]], place[1:], new)
    return changed


def at_random_place(chance: random.Random, body: Any, new: Any) -> bytes:
    return text(replaced(body, chance.choice(places(body) or [()]), new))


def text(body: Any) -> bytes:
    return json.dumps(body).encode()


def long_text(chance: random.Random) -> str:
    """Lengths about the limits of the description, and one beyond each body limit but that of files."""
    length = chance.choice((63, 64, 100, 101, 254, 255, 1_024, 1_025, 4_096, 65_536, 131_072, 3 * MIB))
    return chance.choice(("a", "é", "\0", "\U0001f6a2")) * length


def deep(chance: random.Random) -> Any:
    value: Any = 1
    for _ in range(chance.choice((100, 400))):
        value = [value] if chance.random() < 0.5 else {"a": value}
    return value


def twice(chance: random.Random, body: Any) -> bytes:
    if not isinstance(body, dict) or not body:
        return b'{"a":1,"a":2}'
    name = chance.choice(sorted(body))
    return b"{" + text(name) + b":" + text(body[name]) + b"," + text(body)[1:]


def cut(chance: random.Random, body: Any) -> bytes:
    whole = text(body)
    return whole[:chance.randrange(len(whole))]


def not_utf8(chance: random.Random, body: Any) -> bytes:
    whole = text(body)
    at = chance.randrange(len(whole) + 1)
    return whole[:at] + chance.choice((b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf8")) + whole[at:]


def wrong_type(chance: random.Random, body: Any) -> bytes:
    return at_random_place(chance, body, chance.choice((True, 1.5, "text", [], {}, [None], {"a": []}, "", "\ud800")))


def extra(chance: random.Random, body: Any) -> bytes:
    names = ("__proto__", "id", "org", "role", "operator", "price_version", "", "a" * 70_000)
    return text(({} if not isinstance(body, dict) else body) | {chance.choice(names): 1})


NUMBERS = (10**40, 2**64, 2**63, 2**53 + 1, 1e308, 2**32)
OF_BODIES: dict[str, Callable[[random.Random, Any], bytes]] = {
    "valid": lambda _, body: text(body),
    "wrong type": wrong_type,
    "null": lambda chance, body: at_random_place(chance, body, None),
    "huge number": lambda chance, body: at_random_place(chance, body, chance.choice(NUMBERS)),
    "negative": lambda chance, body: at_random_place(chance, body, chance.choice((-1, -(2**63), -1e308, -0.0))),
    "long text": lambda chance, body: at_random_place(chance, body, long_text(chance)),
    "deep": lambda chance, body: at_random_place(chance, body, deep(chance)),
    "very deep": lambda chance, _: chance.choice((b"[", b'{"a":')) * chance.choice((5_000, 20_000)),
    "repeated field": twice,
    "cut": cut,
    "not UTF-8": not_utf8,
    "list": lambda _, body: text([body]),
    "further field": extra,
    "absent": lambda _chance, _body: b"",
}
MEDIA = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "",
         "application/json; charset=utf-16", "application/octet-stream", "application/jsonx", "\x7f")
ADDRESSES = ("127.0.0.1", "for=\"[::1]:99999\"", "for=_hidden;for=", ", ,,", "999.9.9.9", "a" * 5_000, "for=\"", "::",
             "1.1.1.1, " * 500)
RANGES = ("bytes=-1", "bytes=0-18446744073709551615", "bytes=9-1", "bytes=" + "0-1," * 2_000, "lines=1-2", "bytes=--",
          "bytes=+1-", "bytes=-0", "bytes=99999999999999999999-")
CONDITIONS = ("*", "\"", "W/\"a\"", "\"a\", " * 900, "")
KEYS = ("", "a" * 255, "a" * 256, "a" * 9_000, "\t", "a b", "\u00e9")
OVERRIDE_NAMES = ("X-HTTP-Method-Override", "X-Method-Override", "X-HTTP-Method")
OVERRIDES = ("DELETE", "PUT", "PATCH", "GET", "X")
OFFSETS = ("-1", "18446744073709551616", "1e3", "", "0x0", "7")
Pairs = dict[str, Any]
OF_HEADERS: dict[str, Callable[[random.Random], Pairs]] = {
    "giant header": lambda chance: {"X-Giant": "a" * chance.choice((8_000, 60_000, 70_000, 200_000))},
    "many headers": lambda chance: {f"X-{n}": "a" for n in range(chance.choice((60, 99, 101, 1_000)))},
    "range": lambda chance: {"Range": chance.choice(RANGES), "If-Range": chance.choice(CONDITIONS)},
    "forwarded": lambda chance: {chance.choice(("Forwarded", "X-Forwarded-For", "X-Real-IP")): chance.choice(ADDRESSES)},
    "condition": lambda chance: {chance.choice(("If-Match", "If-None-Match", "If-Modified-Since")): chance.choice(CONDITIONS)},
    "request key": lambda chance: {"Idempotency-Key": chance.choice(KEYS)},
    "override": lambda chance: {chance.choice(OVERRIDE_NAMES): chance.choice(OVERRIDES)},
    "accept": lambda chance: {"Accept": chance.choice(("text/event-stream", "image/png", "", "*/*;q=2", "a" * 9_000))},
    "offset": lambda chance: {"Upload-Offset": chance.choice(OFFSETS), "Last-Event-ID": chance.choice(OFFSETS)},
    "host": lambda chance: {"Host": chance.choice(("third.example", "", "a" * 5_000, "127.0.0.1:0", "x@y"))},
}
VALUES = ("", "x", "-1", "0", "201", "1e3", "18446744073709551616", "9223372036854775808", "null", "a" * 5_000, "2026-02-30",
          "0000-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "k=v", "=", "\0", "\u202e", "eyJhIjoxfQ", "AAAA" * 20)
SEGMENTS = ("x", "..", "%2e%2e", "%00", "%ff%fe", "a%2fb", "a" * 5_000, "%20", "-1", "99999999999999999999", "null",
            "%f0%9f%9a%a2", "org_8zzzzzzzzzzzzzzzzzzzzzzzzz", f"JOB_{ID_OF_NOTHING.upper()}", f"user_{ID_OF_NOTHING}")


def spoilers(route: Route) -> list[str]:
    """The ways to spoil a request of this route."""
    ways = [*OF_HEADERS, "query"] + (["path"] if "{" in route.path else ["none"])
    return ways + ([*OF_BODIES, "media type", "cut off"] if route.body else [])


class Cases:
    """Requests for all routes and callers in turn, in an order by chance."""

    def __init__(self, description: Description, victim: Victim, chance: random.Random) -> None:
        self.description, self.victim, self.chance = description, victim, chance
        self.pairs = [(route, caller) for route in routes(description) for caller in victim.callers]
        self.left: list[tuple[Route, Caller]] = []

    def next(self) -> Case:
        if not self.left:
            self.left = self.chance.sample(self.pairs, len(self.pairs))
        route, caller = self.left.pop()
        spoiler = self.chance.choice(spoilers(route))
        aim = "" if "{org}" not in route.path else "victim"
        # The objects of the victim under the address of another organization.
        if aim and caller.kind == "foreign" and self.chance.random() < 0.4:
            aim = "foreign"
        return Case(route, caller, spoiler, aim, self.request(route, caller, spoiler, aim))

    def target(self, route: Route, spoiler: str, aim: str) -> str:
        parameters = {p["name"]: p for p in route.operation.get("parameters", [])}
        matches = list(PARAMETER.finditer(route.path))
        spoiled = self.chance.choice(matches)[2] if spoiler == "path" and matches else None

        def value(name: str, known: str | None) -> str:
            if name == spoiled:
                return self.chance.choice(SEGMENTS)
            if name == "org" and aim == "foreign":
                return self.victim.foreign_org
            return quote(known or str(sample(self.description, parameters[name]["schema"])))

        target = PARAMETER.sub(lambda m: f"{m[1]}/{value(m[2], self.victim.find_id(route.path, m))}", route.path)
        queries = {name: p for name, p in parameters.items() if p["in"] == "query"}
        query = {name: str(sample(self.description, p["schema"])) for name, p in queries.items() if p.get("required")}
        if spoiler == "query":
            query[self.chance.choice([*queries, "_method", "zq"])] = self.chance.choice(VALUES)
            if self.chance.random() < 0.2:
                return f"{target}?{urlencode(query)}&{urlencode(query)}&%ff=%"
        return f"{target}?{urlencode(query)}" if query else target

    def request(self, route: Route, caller: Caller, spoiler: str, aim: str) -> Request:
        chance, headers = self.chance, dict(caller.headers)
        body, missing = None, 0
        if route.body:
            content = next(iter(route.operation["requestBody"]["content"].values()))
            valid = sample(self.description, content.get("schema", {"type": "string"}))
            headers["Content-Type"] = chance.choice(MEDIA) if spoiler == "media type" else route.body
            body = OF_BODIES.get(spoiler, OF_BODIES["valid"])(chance, valid)
            missing = chance.choice((1, 1_000, 1 << 40)) if spoiler == "cut off" else 0
        if any(p["name"] == "Upload-Offset" for p in route.operation.get("parameters", [])):
            headers["Upload-Offset"] = "0"
        if spoiler in OF_HEADERS:
            headers |= OF_HEADERS[spoiler](chance)
        return Request(route.method, self.target(route, spoiler, aim), encoded(headers), body, missing)
