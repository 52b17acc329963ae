"""Tests of the demo tool's cache, environment messages and command line; standard library only.

python3 tools/tests/test_demo_cache.py
"""

import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

TOOLS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, TOOLS)

from demo_model import cache, environment, progress


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def put(self, name, text, folder=None):
        path = os.path.join(folder or self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def finished_checkpoint(self):
        """A folder that says of itself what a finished checkpoint says."""
        files = {}
        for name, text in (("config.json", "{}"), ("model.safetensors", "weights")):
            path = self.put(name, text)
            files[name] = {"bytes": len(text), "sha256": cache.sha256_of(path)}
        self.put(cache.MANIFEST, json.dumps({"format": "f", "recipe": "r", "files": files}))


class Reuse(InFolder):
    def setUp(self):
        super().setUp()
        self.finished_checkpoint()

    def test_finished_checkpoint_is_reused_and_hashed_once(self):
        self.assertTrue(cache.is_finished(self.folder, "f", "r"))
        with mock.patch.object(cache, "sha256_of", side_effect=AssertionError("hashed again")):
            self.assertTrue(cache.is_finished(self.folder, "f", "r"))

    def test_other_recipe_or_format_is_made_anew(self):
        self.assertFalse(cache.is_finished(self.folder, "f", "other"))
        self.assertFalse(cache.is_finished(self.folder, "other", "r"))

    def test_changed_file_is_noticed_although_its_size_is_the_same(self):
        self.assertTrue(cache.is_finished(self.folder, "f", "r"))
        path = self.put("model.safetensors", "WEIGHTS")
        os.utime(path, ns=(1, 1))
        self.assertFalse(cache.is_finished(self.folder, "f", "r"))

    def test_touched_but_equal_file_is_accepted(self):
        self.assertTrue(cache.is_finished(self.folder, "f", "r"))
        os.utime(os.path.join(self.folder, "model.safetensors"), ns=(1, 1))
        self.assertTrue(cache.is_finished(self.folder, "f", "r"))

    def test_missing_or_truncated_file_is_noticed(self):
        self.put("model.safetensors", "weight")
        self.assertFalse(cache.is_finished(self.folder, "f", "r"))
        os.remove(os.path.join(self.folder, "model.safetensors"))
        self.assertFalse(cache.is_finished(self.folder, "f", "r"))

    def test_broken_manifest_is_no_checkpoint(self):
        for text in ("", "[]", "{", '{"format": "f"}'):
            self.put(cache.MANIFEST, text)
            self.assertFalse(cache.is_finished(self.folder, "f", "r"), text)

    def test_folder_that_does_not_exist_is_no_checkpoint(self):
        self.assertFalse(cache.is_finished(os.path.join(self.folder, "none"), "f", "r"))


class Publish(InFolder):
    def test_replaces_the_old_folder_whole(self):
        out = os.path.join(self.folder, "out")
        for content in ("one", "two"):
            partial = cache.partial_folder(out)
            self.put(content, content, partial)
            cache.publish(partial, out)
        self.assertEqual(os.listdir(out), ["two"])
        self.assertEqual(os.listdir(self.folder), ["out"])

    def test_interrupted_build_is_cleared(self):
        out = os.path.join(self.folder, "out")
        self.put("half", "x", cache.partial_folder(out))
        self.assertEqual(os.listdir(cache.partial_folder(out)), [])

    def test_foreign_folder_is_never_replaced(self):
        path = self.put("letter.txt", "mine")
        with self.assertRaisesRegex(cache.DemoError, "not empty"):
            cache.check_replaceable(self.folder)
        with self.assertRaisesRegex(cache.DemoError, "no folder"):
            cache.check_replaceable(path)
        cache.check_replaceable(os.path.join(self.folder, "new"))

    def test_full_disk_is_said_before_the_work(self):
        with self.assertRaisesRegex(cache.DemoError, "free some space"):
            cache.check_free_space(os.path.join(self.folder, "not", "yet", "made"), 1 << 60, "this")


class CacheFolder(unittest.TestCase):
    def test_follows_xdg_and_ignores_relative_values(self):
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": "/some/where", "HOME": "/home/x"}):
            self.assertEqual(cache.cache_folder(), "/some/where/rota/demo")
        for value in ("", "relative"):
            with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": value, "HOME": "/home/x"}):
                self.assertEqual(cache.cache_folder(), "/home/x/.cache/rota/demo")


class PipMessages(unittest.TestCase):
    def test_each_cause_has_its_message(self):
        for output, expected in (
            ("Failed to establish a new connection: [Errno 101]", "offline"),
            ("Temporary failure in name resolution", "offline"),
            ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "not the pinned one"),
            ("OSError: [Errno 28] No space left on device", "disk is full"),
            ("something new", "pip failed"),
        ):
            message = environment.explain_pip(output)
            self.assertIn(expected, message)
            self.assertIn("PIP_FIND_LINKS", message)
            self.assertIn(output.splitlines()[-1], message)

    def test_every_requirement_is_pinned_and_hashed(self):
        with open(cache.REQUIREMENTS, encoding="utf-8") as file:
            text = file.read().replace("\\\n", " ")
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        self.assertGreaterEqual(len(lines), 5)
        for line in lines:
            self.assertRegex(line, r"^[a-z0-9-]+==[0-9.]+ +(--hash=sha256:[0-9a-f]{64} *)+$")


class CommandLine(InFolder):
    def run_tool(self, *arguments, **environ):
        command = [sys.executable, os.path.join(TOOLS, "make_demo_model.py"), *arguments]
        environ = os.environ | {"XDG_CACHE_HOME": self.folder} | environ
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    def test_offline_is_said_clearly_and_nothing_is_half_done(self):
        found = self.run_tool(
            PIP_NO_INDEX="1", PIP_FIND_LINKS=self.folder, PIP_CONFIG_FILE=os.devnull
        )
        self.assertEqual(found.returncode, 1)
        self.assertIn("make_demo_model: the package index cannot be reached", found.stderr)
        self.assertEqual(found.stdout, "")
        self.assertNotIn("Traceback", found.stderr)
        kept = os.listdir(os.path.join(self.folder, "rota", "demo"))
        self.assertFalse([name for name in kept if "partial" in name or "gpt-oss" in name], kept)

    def test_unknown_format_is_refused(self):
        found = self.run_tool("--format", "gguf")
        self.assertEqual(found.returncode, 2)
        self.assertIn("gpt-oss-bf16", found.stderr)

    def test_foreign_output_folder_is_refused(self):
        out = os.path.join(self.folder, "out")
        os.mkdir(out)
        self.put("letter.txt", "mine", out)
        found = self.run_tool("--out", out)
        self.assertEqual(found.returncode, 1)
        self.assertIn("give another --out", found.stderr)
        self.assertEqual(os.listdir(out), ["letter.txt"])


class Bar(unittest.TestCase):
    def test_terminal_gets_a_bar_and_a_pipe_gets_lines(self):
        for live in (True, False):
            stream = io.StringIO()
            stream.isatty = lambda live=live: live
            bar = progress.Progress([("read", 1), ("write", 3)], stream)
            bar.start("read")
            bar.start("write")
            bar.finish()
            text = stream.getvalue()
            self.assertIn("finished in 0 s", text)
            self.assertEqual("25 %  write" in text, live)
            self.assertEqual("demo model: write\n" in text, not live)


if __name__ == "__main__":
    unittest.main()
