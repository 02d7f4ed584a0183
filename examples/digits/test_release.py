"""Tests of the release of a checked model: `python3 test_release.py`. Standard library only.

A server in this process answers in place of the portal; end2end/tools/digits_service.py has the whole way on a real one.
"""
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
import publish  # noqa: E402
import release  # noqa: E402

TOKEN = "berth_0123456789"


class Portal(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.note(None)
        items = self.server.revisions if self.path.endswith("/revisions?limit=1") else self.server.services
        self.answer(200, {"items": items})

    def do_POST(self):
        asked = self.note(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self.answer(401, {"detail": "The token is unknown."})
        elif self.path.endswith("/revisions"):
            self.answer(201, {"number": 2})
        else:
            self.answer(201, {"id": "svc_1", "name": asked["name"]})

    def note(self, body):
        self.server.seen.append((self.command, self.path, body, self.headers.get("Idempotency-Key")))
        return body

    def answer(self, status, value):
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class Release(unittest.TestCase):
    def setUp(self):
        self.portal = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Portal)
        self.portal.services, self.portal.revisions, self.portal.seen = [], [], []
        serving = threading.Thread(target=self.portal.serve_forever)
        serving.start()
        self.addCleanup(self.portal.server_close)
        self.addCleanup(serving.join)
        self.addCleanup(self.portal.shutdown)
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.service = publish.service_with("digits-1", "20 epochs")
        (self.folder / "service.json").write_text(json.dumps(self.service), encoding="utf-8")

    def run_release(self, token=TOKEN):
        (self.folder / release.TOKEN_FILE).write_text(token)
        env = {**os.environ, "PORTAL_URL": f"http://127.0.0.1:{self.portal.server_port}", "PORTAL_ORG": "org_1",
               "BERTH_SECRETS": str(self.folder), "BERTH_JOB_ID": "job_1", "no_proxy": "127.0.0.1"}
        argv = [sys.executable, str(HERE / "release.py"), str(self.folder / "service.json")]
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)

    def test_the_first_model_makes_the_service(self):
        done = self.run_release()
        self.assertEqual((done.returncode, done.stdout), (0, "service svc_1 is created\n"))
        self.assertEqual(self.portal.seen[1:], [("POST", "/api/v1/orgs/org_1/services", self.service, "release-job_1")])

    def known(self, volume):
        """The portal has the service already, and its newest revision has this volume."""
        self.portal.services = [{"id": "svc_0", "name": "other"}, {"id": "svc_1", "name": "digits"}]
        self.portal.revisions = [{"number": 1, "spec": publish.service_with(volume, "")["revision"]}]

    def test_the_next_model_makes_a_revision_with_steps(self):
        self.known("digits-0")
        done = self.run_release()
        self.assertEqual((done.returncode, done.stdout), (0, "revision 2 of svc_1 gets 10 % of the requests first\n"))
        revision = self.service["revision"] | {"canary_percent": [10, 50]}
        path = "/api/v1/orgs/org_1/services/svc_1/revisions"
        self.assertEqual(self.portal.seen[2:], [("POST", path, revision, "release-job_1")])

    def test_a_repeated_attempt_makes_no_second_revision(self):
        self.known("digits-1")
        done = self.run_release()
        self.assertEqual((done.returncode, done.stdout), (0, "revision 1 of svc_1 has this model already\n"))
        self.assertNotIn("POST", [command for command, *_ in self.portal.seen])

    def test_a_refusal_is_an_error_without_the_token(self):
        done = self.run_release("berth_stale_token")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("401", done.stderr)
        self.assertIn("The token is unknown.", done.stderr)
        self.assertNotIn("berth_", done.stderr)


if __name__ == "__main__":
    unittest.main()
