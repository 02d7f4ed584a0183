"""Tests of the digits example: `python3 test_train.py`. Standard library only."""
import copy
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
import train  # noqa: E402


class Data(unittest.TestCase):
    def test_every_row_is_64_pixels_and_a_digit(self):
        rows = [[int(field) for field in line.split(",")]
                for line in (HERE / "digits.csv").read_text().splitlines()]
        self.assertEqual(len(rows), 1797)
        self.assertEqual({len(row) for row in rows}, {65})
        self.assertTrue(all(0 <= pixel <= 16 for row in rows for pixel in row[:64]))
        self.assertEqual({row[64] for row in rows}, set(range(10)))

    def test_the_split_keeps_every_sample_once(self):
        samples = [([index], 0) for index in range(1797)]
        training, testing = train.split(samples)
        self.assertEqual(sorted(training + testing), samples)
        self.assertEqual(len(testing), 359)


class Learning(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.training, cls.testing = train.split(train.load(str(HERE / "digits.csv")))

    def test_gradients_agree_with_finite_differences(self):
        images, digits = zip(*self.training[:8])
        weights = train.new_state(6, 3)["weights"]
        slopes, _, _ = train.gradients(weights, images, digits)
        step = 1e-6
        for name, row, column in (("w1", 2, 20), ("w1", 5, 36), ("b1", 0, 1),
                                  ("w2", 7, 3), ("w2", 0, 5), ("b2", 0, 9)):
            losses = []
            for sign in (1, -1):
                moved = copy.deepcopy(weights)
                moved[name][row][column] += sign * step
                losses.append(train.gradients(moved, images, digits)[1] / len(digits))
            measured = (losses[0] - losses[1]) / (2 * step)
            self.assertAlmostEqual(slopes[name][row][column], measured, places=6, msg=name)

    def test_one_epoch_lowers_the_loss(self):
        images, digits = zip(*self.training)
        state = train.new_state(32, 1)
        before = train.gradients(state["weights"], images, digits)[1]
        train.train_epoch(state, self.training, 0.03)
        after = train.gradients(state["weights"], images, digits)[1]
        self.assertLess(after, before / 2)


class Program(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        shutil.copy(HERE / "digits.csv", self.folder)
        self.checkpoint = self.folder / "checkpoint.json"

    def start(self, *arguments, **env):
        process = subprocess.Popen(
            [sys.executable, str(HERE / "train.py"), *arguments], cwd=self.folder, text=True,
            env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def finish(self, *arguments, **env):
        process = self.start(*arguments, **env)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def state(self, name="checkpoint.json"):
        return json.loads((self.folder / name).read_text())

    def test_twenty_epochs_reach_93_percent(self):
        code, out, err = self.finish(CUDA_VISIBLE_DEVICES="MIG-1234")
        self.assertEqual((code, err), (0, ""))
        self.assertIn("device given: MIG-1234", out)
        last = out.splitlines()[-1]
        self.assertRegex(last, r"^done: test accuracy \d\d\.\d% after 20 epochs$")
        self.assertGreater(float(last.split()[3].rstrip("%")), 93)

    def test_a_resumed_run_equals_an_unbroken_one(self):
        self.assertEqual(self.finish("--epochs", "4", "--checkpoint", "whole.json")[0], 0)
        process = self.start("--epochs", "4")
        for line in process.stdout:
            if line.startswith("epoch 1/"):
                process.kill()  # without any warning
                break
        process.wait()
        kept = self.state()["epoch"]
        self.assertGreaterEqual(kept, 1)
        self.assertLess(kept, 4)
        code, out, _ = self.finish("--epochs", "4")
        self.assertEqual(code, 0)
        self.assertIn(f"resumed from epoch {kept}\nepoch {kept + 1}/4", out)
        self.assertEqual(self.state(), self.state("whole.json"))

    def test_sigterm_leaves_the_last_finished_epoch(self):
        process = self.start("--epochs", "100000")
        last = ""
        for line in process.stdout:
            if line.startswith("epoch 2/"):
                process.send_signal(signal.SIGTERM)
            if line.startswith("epoch "):
                last = line
        self.assertEqual(process.wait(timeout=60), 143)
        state = train.restore(str(self.checkpoint), 32, 1)
        self.assertTrue(last.startswith(f"epoch {state['epoch']}/"), last)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["checkpoint.json", "digits.csv"])

    def test_a_checkpoint_that_does_not_fit_is_refused_and_kept(self):
        self.assertEqual(self.finish("--epochs", "1", "--hidden", "4")[0], 0)
        before = self.checkpoint.read_bytes()
        code, _, err = self.finish("--epochs", "2", "--hidden", "5")
        self.assertEqual(code, 1)
        self.assertIn("--hidden 4", err)
        self.assertEqual(self.checkpoint.read_bytes(), before)
        for text in ("{", "[]", "{}"):
            self.checkpoint.write_text(text)
            code, _, err = self.finish("--epochs", "1")
            self.assertEqual(code, 1)
            self.assertIn("is not a checkpoint", err)
            self.assertNotIn("Traceback", err)


if __name__ == "__main__":
    unittest.main()
