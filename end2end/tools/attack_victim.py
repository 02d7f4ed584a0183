"""The organization that attack.py attacks: its objects with marked texts, the callers, and what its owner sees."""
from __future__ import annotations

import datetime
import json
import random
import re
import time
from typing import Any, NamedTuple

from attack_wire import Request, exchange
from rest import Api, Failed

SLICE = "h100-80gb.1g.10gb"
DEADLINE_S, SOON_S, POLL_S = 60.0, 1.0, 0.1
ENDED = ("succeeded", "failed", "cancelled", "timed_out")
Description = dict[str, Any]
# They change without a request: times of the answer, the last use of a token, and the log of the ended job, which is
# counted some time after its end.
MOVING_FIELDS = {"last_used_at", "log_bytes", "now", "request_id", "used_bytes"}
# Refusals are in the audit log of the organization.
REFUSED = "access.denied"
# Readings and states of boards, forecasts, streams, and files that are made for the answer.
MOVING_PATHS = re.compile(r"\{org\}/(boards|cluster|nodes|offerings|capacity|calendar|events)\b|/(metrics|explanation|socket|pdf)$")
PARAMETER = re.compile(r"([a-z-]+)/\{(\w+)\}")


class Caller(NamedTuple):
    """`kind` decides which answers are faults."""

    kind: str
    headers: dict[str, str]


# They have no right in the organization at all.
STRANGERS = ("anonymous", "foreign", "expired", "revoked", "removed", "disabled")
# They may only read a part of the organization. The scope of the narrow token keeps it from most of its role's requests.
READERS = ("viewer", "service account", "narrow token")
NARROW = "fleet:read"
# The owner's cookie in a request of another site.
CROSS_SITE = ({"Origin": "https://other.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"})


class Victim:
    """An organization with one object of each kind, an organization of somebody else, and all callers."""

    def __init__(self, port: int, facts: dict[str, Any], chance: random.Random) -> None:
        self.port, self.chance = port, chance
        self.operator = Api.with_token(port, facts["operator"]["token"])
        self.owner = Api.with_token(port, facts["tenant"]["token"])
        # By the part of a path before the parameter.
        self.ids: dict[str, str] = {"orgs": facts["tenant"]["organization"]}
        self.ids["scim"] = self.ids["orgs"]
        self.org = f"/orgs/{self.ids['orgs']}"
        self.password = self.word()
        # Texts that only members may read, and texts that nobody may read again.
        self.private: list[str] = []
        self.hidden = [facts[who][what] for who in ("operator", "tenant") for what in ("token", "password")]
        self.hidden.append(self.password)
        self.plant_objects()
        self.plant_volume()
        self.plant_jobs()
        self.foreign_org = ""
        self.callers = self.make_callers(facts["tenant"])

    def word(self) -> str:
        """A text that is in no other text."""
        return f"zq{self.chance.getrandbits(64):016x}"

    def private_word(self) -> str:
        self.private.append(self.word())
        return self.private[-1]

    def hide(self, text: str) -> str:
        self.hidden.append(text)
        return text

    def make(self, path: str, body: Any, method: str = "POST") -> Any:
        return self.owner(method, f"{self.org}{path}", body)

    def plant_objects(self) -> None:
        ids, word, make = self.ids, self.private_word, self.make
        ids["secrets"] = word()
        make(f"/secrets/{ids['secrets']}", {"value": self.hide(self.word())}, "PUT")
        # It gets no notice: no budget of this organization is passed.
        hook = make("/webhooks", {"url": f"https://1.1.1.1/{word()}", "kinds": ["budget.passed"]})
        ids["webhooks"] = hook["id"]
        self.hide(hook["secret"])
        key = make("/inference-keys", {"name": word(), "models": [word()]})
        ids["inference-keys"] = key["id"]
        self.hide(key["secret"])
        ids["budgets"] = make("/budgets", {"name": word(), "limit_micros": 500_000_000})["id"]
        make("/billing-details", {"name": word(), "address": word(), "tax_id": word()}, "PUT")
        ids["quota-requests"] = make("/quota-requests", {"credit_micros": 1_000_000, "reason": word()})["id"]
        invitation = make("/invitations", {"email": f"{word()}@example.org", "role": "member"})
        ids["invitations"] = invitation["invitation"]["id"]
        self.hide(invitation["link"].rpartition("#")[2])
        day = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=2)
        window = {"starts_at": f"{day}T00:00:00Z", "ends_at": f"{day}T01:00:00Z"}
        make("/reservations", {"quote": make("/quotes", {"offering": "h100-80gb"} | window)["id"], "name": word()})
        ids["reservations"] = self.owner.items(f"{self.org}/reservations")[0]["id"]
        ids["quotes"] = make("/quotes", {"offering": "a30-24gb.1g.6gb"} | window)["id"]

    def plant_volume(self) -> None:
        """A volume with a file and an unfinished upload."""
        self.ids["volumes"] = self.private_word()
        self.make("/volumes", {"name": self.ids["volumes"], "max_bytes": 1_000_000})
        uploads, text = f"/volumes/{self.ids['volumes']}/uploads", self.private_word().encode()
        for kind in ("uploads", "volumes files"):
            self.ids[kind] = self.private_word()
            self.make(f"{uploads}/{self.ids[kind]}", {"bytes": len(text)}, "PUT")
        headers = self.owner.headers | {"Upload-Offset": "0", "Content-Type": "application/octet-stream"}
        target = f"/api/v1{self.org}{uploads}/{self.ids['volumes files']}"
        answer = exchange(self.port, Request("PATCH", target, encoded(headers), text))
        if answer.status != 200:
            raise Failed(f"the upload was refused ({answer.status}): {answer.body[:500]!r}")

    def plant_jobs(self) -> None:
        """A job that has ended, and one that waits for a node, so that no charge changes during the attack."""
        word, path = self.private_word, self.private_word()
        job = {"name": word(), "offering": SLICE, "script": f"echo {word()}; echo {word()} > {path}", "artifacts": [path],
               "env": {"TEXT": word()}, "labels": {"team": word()}, "max_duration_s": 60}
        done = f"{self.org}/jobs/{self.make('/jobs', job)['id']}"
        self.wait_for(f"the end of {done} and its file",
                      lambda: self.owner("GET", done)["state"] in ENDED and self.owner.items(f"{done}/files"))
        self.ids["jobs files"] = self.owner.items(f"{done}/files")[0]["id"]
        node = self.operator.items("/operator/nodes")[0]
        self.ids["nodes"], self.ids["boards"] = node["id"], node["gpus"][0]["uuid"]
        self.operator("PATCH", f"/operator/nodes/{node['id']}", {"cordoned": True})
        self.make("/jobs", job | {"name": word()})
        self.ids["jobs"] = done.rpartition("/")[2]

    @staticmethod
    def wait_for(what: str, found: Any) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not found():
            if time.monotonic() > deadline:
                raise Failed(f"after {DEADLINE_S:.0f} s still waiting for {what}")
            time.sleep(POLL_S)

    def signed_in(self, email: str, password: str) -> Api:
        api = Api(self.port).sign_in(email, password)
        if api is None:
            raise Failed(f"{email} cannot sign in")
        return api

    def join(self) -> tuple[Api, str]:
        """A further owner, with the id."""
        email = f"{self.private_word()}@example.org"
        link = self.make("/invitations", {"email": email, "role": "owner"})["link"]
        person = {"token": self.hide(link.rpartition("#")[2]), "name": self.private_word(), "password": self.password}
        Api(self.port)("POST", "/invitations/accept", person)
        member = self.signed_in(email, self.password)
        return member, str(member("GET", "/me")["user"]["id"])

    def token(self, role: str, maker: Api, org: str, **more: Any) -> tuple[dict[str, str], str]:
        """The header of a new token, and its id."""
        made = maker("POST", f"/orgs/{org}/tokens", {"name": f"a token of an {role}", "role": role} | more)
        return {"Authorization": f"Bearer {self.hide(made['secret'])}"}, str(made["token"]["id"])

    def make_callers(self, tenant: dict[str, str]) -> list[Caller]:
        """All callers. Each token without rights was one of an owner."""
        org, owner = self.ids["orgs"], self.signed_in(tenant["email"], tenant["password"])
        self.hide(owner.headers["Cookie"].partition("=")[2])
        email = f"{self.word()}@example.org"
        Api(self.port)("POST", "/sign-up", {"email": email, "password": self.password, "name": "Bea", "organization": "Other"})
        bea = self.signed_in(email, self.password)
        self.foreign_org = str(bea("GET", "/me")["memberships"][0]["org"]["id"])
        foreign, _ = self.token("owner", bea, self.foreign_org)
        viewer, self.ids["tokens"] = self.token("viewer", owner, org)
        account = owner("POST", f"{self.org}/service-accounts", {"name": self.private_word(), "role": "viewer"})["id"]
        self.ids["service-accounts"] = account
        service, _ = self.token("viewer", owner, org, service_account=account)
        narrow, _ = self.token("member", owner, org, scopes=[NARROW])
        soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=SOON_S)
        expired, _ = self.token("owner", owner, org, expires_at=soon.isoformat().replace("+00:00", "Z"))
        revoked, revoked_id = self.token("owner", owner, org)
        owner("DELETE", f"{self.org}/tokens/{revoked_id}")
        member, member_id = self.join()
        removed, _ = self.token("owner", member, org)
        self.owner("DELETE", f"{self.org}/members/{member_id}")
        disabled, disabled_id = self.join()
        self.operator("PUT", f"/operator/users/{disabled_id}/disabled", {"reason": self.private_word()})
        self.ids["members"] = self.ids["users"] = disabled_id
        probe = Api(self.port, **expired)
        self.wait_for("the expiry of a token", lambda: probe.exchange("GET", "/api/v1/me")[0] == 401)
        gone = [Caller("expired", expired), Caller("revoked", revoked), Caller("removed", removed),
                Caller("disabled", disabled.headers)]
        readers = [Caller(kind, headers) for kind, headers in zip(READERS, (viewer, service, narrow), strict=True)]
        return [Caller("anonymous", {}), Caller("foreign", foreign), *readers, *gone,
                *(Caller("cross-site", owner.headers | more) for more in CROSS_SITE)]

    def find_id(self, path: str, match: re.Match[str]) -> str | None:
        """The id for a parameter of this path."""
        kind = match[1]
        if kind == "files":
            kind = f"{'volumes' if '/volumes/' in path else 'jobs'} files"
        return self.ids.get(kind)

    def snapshot(self, description: Description) -> dict[str, Any]:
        """All answers to the owner, by path, without what changes by itself."""
        found: dict[str, Any] = {}
        for path, operations in description["paths"].items():
            if "get" not in operations or "{org}" not in path or "/operator/" in path or MOVING_PATHS.search(path):
                continue
            ids = [self.find_id(path, match) for match in PARAMETER.finditer(path)]
            if None in ids:
                continue
            target = PARAMETER.sub(lambda match: f"{match[1]}/{self.find_id(path, match)}", path)
            is_list = any(p["name"] == "cursor" for p in operations["get"].get("parameters", []))
            if is_list and not path.endswith(".csv"):
                try:
                    items = self.owner.items(target.removeprefix("/api/v1"))
                    found[path] = still([item for item in items if item.get("action") != REFUSED])
                except Failed as refusal:
                    found[path] = str(refusal)
                continue
            status, answer, _ = self.owner.exchange("GET", target)
            found[path] = [status, still(answer)]
        return found


def encoded(headers: dict[str, str]) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, value.encode()) for name, value in headers.items())


def still(answer: Any) -> Any:
    """The answer without the fields that change by themselves."""
    if isinstance(answer, dict):
        return {name: still(value) for name, value in answer.items() if name not in MOVING_FIELDS}
    return [still(one) for one in answer] if isinstance(answer, list) else answer


def changed_paths(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """A line for each path whose answer differs."""
    lines = []
    for path in sorted(before.keys() | after.keys()):
        old, new = (json.dumps(one.get(path), sort_keys=True) for one in (before, after))
        if old != new:
            at = next((n for n, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))
            lines.append(f"{path}: …{old[max(at - 80, 0):at + 80]}… became …{new[max(at - 80, 0):at + 80]}…")
    return lines
