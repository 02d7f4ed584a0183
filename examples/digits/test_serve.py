"""Tests of the server of the digits example: `python3 test_serve.py`. Standard library only."""
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
import publish  # noqa: E402
import train  # noqa: E402


class Serving(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """The directory of a job whose volume has a trained network, by the command of the training job."""
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        body, _ = publish.jobs(["--epochs", "5"], publish.service_with("digits-1", "five epochs"), {})
        for name, text in body["files"].items():
            (cls.folder / name).write_text(text, encoding="utf-8")
        (cls.folder / "model").mkdir()
        subprocess.run(body["command"], cwd=cls.folder, check=True, stdout=subprocess.DEVNULL, timeout=120)
        _, cls.testing = train.split(train.load(str(HERE / "digits.csv")))

    def start(self):
        process = subprocess.Popen(
            [sys.executable, str(self.folder / "model/serve.py")], env={**os.environ, "PORT": "0"}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for cleanup in (process.stdout.close, process.stderr.close, process.wait, process.kill):
            self.addCleanup(cleanup)
        line = process.stdout.readline()
        self.assertRegex(line, r"^serving epoch 5 on port \d+$")
        return process, int(line.split()[-1])

    def ask(self, connection, method, path, body=None):
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def test_it_reads_most_digits_on_one_connection_and_ends_by_sigterm(self):
        process, port = self.start()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self.addCleanup(connection.close)
        self.assertEqual(self.ask(connection, "GET", "/healthz"), (200, {"status": "ready", "epoch": 5}))
        right = 0
        for pixels, digit in self.testing[:100]:
            body = json.dumps({"pixels": [round(pixel * 16) for pixel in pixels]})
            status, answer = self.ask(connection, "POST", "/", body)
            self.assertEqual(status, 200)
            self.assertAlmostEqual(sum(answer["chances"]), 1, places=2)
            right += answer["digit"] == digit
        self.assertGreater(right, 85)
        process.send_signal(signal.SIGTERM)
        connection.close()
        self.assertEqual(process.wait(timeout=20), 0)

    def test_bad_requests_have_an_error_and_the_next_request_has_an_answer(self):
        _, port = self.start()
        pixels = [0] * 64
        bad = ["", "{", "[]", "{}", json.dumps({"pixels": pixels[:63]}), json.dumps({"pixels": pixels[:63] + [17]}),
               json.dumps({"pixels": pixels[:63] + [True]}), json.dumps({"pixels": pixels[:63] + ["1"]}), '{"pixels": [NaN]}']
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self.addCleanup(connection.close)
        for body in bad:
            status, answer = self.ask(connection, "POST", "/", body)
            self.assertEqual(status, 422, body)
            self.assertIn("error", answer)
        self.assertEqual(self.ask(connection, "GET", "/other")[0], 404)
        self.assertEqual(self.ask(connection, "POST", "/", "x" * (20 << 10))[0], 413)
        self.assertEqual(self.ask(connection, "POST", "/", json.dumps({"pixels": pixels}))[0], 200)

    def test_a_model_that_is_absent_or_damaged_serves_nothing(self):
        damaged = self.folder / "damaged.json"
        damaged.write_text("{}")
        for path in (damaged, self.folder / "absent.json"):
            done = subprocess.run(
                [sys.executable, str(HERE / "serve.py"), "--checkpoint", str(path)], env={**os.environ, "PORT": "0"},
                capture_output=True, text=True, timeout=20)
            self.assertEqual(done.returncode, 1)
            self.assertIn("cannot be read", done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    def test_the_check_passes_a_good_model_only(self):
        def check(*least):
            argv = [sys.executable, str(HERE / "check.py"), str(self.folder / "model"), *least]
            return subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, timeout=60)

        self.assertEqual(check("0.5").returncode, 0)
        refused = check("0.999")
        self.assertEqual((refused.returncode, refused.stderr), (1, ""))
        self.assertIn("at least 99.9% is necessary", refused.stdout)

    def test_the_service_mounts_the_volume_of_the_training(self):
        service = publish.service_with("digits-7", "", "a30")
        trained, published = publish.jobs([], service, {})
        used = service["revision"]["job"]["volumes"]
        self.assertEqual(used, [{"name": "digits-7", "path": "model"}])
        self.assertEqual(published["volumes"], used)
        self.assertEqual(trained["volumes"], [{**one, "mode": "rw"} for one in used])
        self.assertEqual({body["offering"] for body in (trained, published, service["revision"]["job"])}, {"a30"})
        self.assertEqual(json.loads(published["files"]["service.json"]), service)


if __name__ == "__main__":
    unittest.main()
