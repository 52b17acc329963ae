"""What the end-to-end tests share: the program, the demo models, a running server, raw HTTP.

    server = harness.Server(harness.demo_model("gpt-oss-bf16"))
    with server: server.json("GET", "/v1/models")

Run one test by hand with ROTA_BIN=build/release/bin/rota python3 tests/e2e/test_cli.py.
"""
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

ROOT = pathlib.Path(os.environ.get("ROTA_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
ROTA = os.environ.get("ROTA_BIN", str(ROOT / "build/release/bin/rota"))
OUTPUT = pathlib.Path(os.environ.get("ROTA_TEST_OUTPUT", ROOT / "build/e2e"))
GOLDENS = ROOT / "tests/goldens/models"

# The client libraries live in the environment that ./test sets up.
_python = os.environ.get("ROTA_PYTHON")
if _python and os.path.realpath(sys.prefix) != os.path.realpath(pathlib.Path(_python).parents[1]):
    os.execv(_python, [_python] + sys.argv)


def demo_model(layout):
    """Folder of a demo checkpoint, made (or found in the cache) by the project's own tool."""
    made = subprocess.run([sys.executable, str(ROOT / "tools/make_demo_model.py"), "--format", layout],
                          stdout=subprocess.PIPE, text=True, check=True)
    return made.stdout.strip().splitlines()[-1]


def with_tokenizer(model, folder):
    """A folder with a model's files and, as servers want one, a tokenizer: the demo's."""
    folder.mkdir(exist_ok=True)
    demo = pathlib.Path(demo_model("gpt-oss-bf16"))
    for source in [*pathlib.Path(model).iterdir(), demo / "tokenizer.json", demo / "tokenizer_config.json"]:
        if not (folder / source.name).exists():
            os.symlink(source, folder / source.name)
    return folder


def rota(*arguments, check=True, timeout=300, **options):
    """Runs a command of the program to its end; what it printed is in .stdout and .stderr."""
    done = subprocess.run([ROTA, *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
                          **options)
    if check and done.returncode != 0:
        raise AssertionError(f"rota {' '.join(map(str, arguments))} ended with {done.returncode}:\n{done.stderr}")
    return done


class Server:
    """`rota serve` on a free port of the loopback address."""

    def __init__(self, model, *flags, name="demo", env=None):
        self.command = [ROTA, "serve", str(model), "--host", "127.0.0.1", "--port", "0",
                        "--served-model-name", name, *map(str, flags)]
        self.name = name
        self.log = []
        self.port = None
        self.env = {**os.environ, **(env or {})}

    def __enter__(self):
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                                        env=self.env)
        listening = threading.Event()

        def read():
            for line in self.process.stderr:
                self.log.append(line)
                found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", line)
                if found:
                    self.port = int(found.group(1))
                    listening.set()
            listening.set()
        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()
        listening.wait(60)
        if self.port is None:
            raise AssertionError("rota serve did not listen:\n" + "".join(self.log))

    def wait_ready(self, seconds=120):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            if self.request("GET", "/health").status == 200:
                return
            time.sleep(0.05)
        raise AssertionError("the server did not become ready:\n" + "".join(self.log))

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.reader.join(10)
        self.process.stderr.close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def engine_pid(self):
        """The engine's process, whichever thread of the front started it; None while there is none."""
        for children in pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            for child in children.read_text().split():
                try:
                    if b"engine-worker" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes():
                        return int(child)
                except OSError:
                    pass  # it has just ended
        return None

    def request(self, method, path, body=None, headers=None):
        """One request; the answer has .status, .reason, .headers, .body (bytes)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        data = json.dumps(body) if isinstance(body, (dict, list)) else body
        connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        answer.body = answer.read()
        connection.close()
        return answer

    def json(self, method, path, body=None, expect=200):
        answer = self.request(method, path, body)
        if answer.status != expect:
            raise AssertionError(f"{method} {path}: {answer.status}, expected {expect}: {answer.body[:2000]!r}")
        return json.loads(answer.body)

    def raw(self, data, timeout=10):
        """Sends bytes as they are and returns all that comes back until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            connection.sendall(data)
            out = b""
            try:
                while chunk := connection.recv(65536):
                    out += chunk
            except (ConnectionResetError, socket.timeout):
                pass
            return out

    def metric(self, name):
        for line in self.request("GET", "/metrics").body.decode().splitlines():
            if line.startswith(name + "{"):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric {name}")


def main():
    OUTPUT.mkdir(parents=True, exist_ok=True)
    unittest.main(verbosity=2)
