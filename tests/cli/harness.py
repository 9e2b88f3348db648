"""What the process tests share: the built program, its fixtures, a running server, and cmocka's summary lines.

A test file ends with `harness.main()`. It prints "[  PASSED  ] N test(s)." and its like, which is what
tools/run_tests.py counts for C and Python alike. Only the standard library is used.
"""
import contextlib
import http.client
import json
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(os.environ.get("EK_SOURCE_ROOT", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("EK_BUILD_ROOT", SOURCE / "build"))
SHARED = pathlib.Path(os.environ.get("EK_SHARED", SOURCE.parent / "shared"))
PROGRAM = BUILD / "evenkeel"
TINY = BUILD / "tests/support/tiny-qwen2moe-f32.gguf"

# Generous: sanitizers slow everything down, and the machine may be busy.
PATIENCE_S = 120


def tiny(name):
    return BUILD / f"tests/support/tiny-{name}.gguf"


def environment(extra=None):
    """The tests' environment without anything that configures the program."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("EVENKEEL_")}
    env.pop("NOTIFY_SOCKET", None)
    env.update(extra or {})
    return env


def run(*arguments, stdin=None, env=None, timeout=PATIENCE_S):
    """Run the program to its end. Bytes or text in, text out."""
    if isinstance(stdin, str):
        stdin = stdin.encode()
    done = subprocess.run([str(PROGRAM), *map(str, arguments)], input=stdin if stdin is not None else b"",
                          capture_output=True, env=environment(env), timeout=timeout, check=False)
    done.stdout = done.stdout.decode()
    done.stderr = done.stderr.decode()
    return done


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def small_disk(case, folder, size):
    """A disk of its own at `folder`, which is made, until the test ends; skips the test, saying so, where none can be mounted."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True,
                          check=False)
    if done.returncode != 0:
        print("skipped: no disk can be mounted here")
        case.skipTest("no disk can be mounted here")
    case.addCleanup(subprocess.run, ["umount", "-l", str(folder)], check=True)
    return folder


def need_shared(name):
    """A file of ../shared; skips the test, saying so, where it is absent."""
    path = SHARED / name
    if not path.exists():
        print(f"skipped: {path} is absent")
        raise unittest.SkipTest(f"{path} is absent")
    return path


def read_terminal(ours):
    """All that is written to a pseudo-terminal until the other side closes it (or says nothing for long); closes ours."""
    shown = b""
    while select.select([ours], [], [], PATIENCE_S)[0]:
        try:
            more = os.read(ours, 4096)
        except OSError:
            break
        if not more:
            break
        shown += more
    os.close(ours)
    return shown


def wait_until(condition, what, timeout=PATIENCE_S):
    """The first true value of condition()."""
    until = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise AssertionError(f"waited {timeout} s for {what}")
        time.sleep(0.02)


class Server:
    """`evenkeel serve` on a free port. As a context manager it is ended, and has to end well, with the block."""

    def __init__(self, *arguments, model=None, env=None, settle="0s", wait_ready=True):
        self.log = tempfile.TemporaryFile()
        command = [str(PROGRAM), "serve", "--listen", "127.0.0.1:0", "--model", str(model or TINY),
                   "--set", f"gateway.drain_settle={settle}", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log,
                                        env=environment(env))
        self.ready_line = ""
        self.address = ""
        if wait_ready:
            self.ready_line = self.process.stdout.readline().decode()
            match = re.search(r" on http://(\S+):", self.ready_line)
            if not match:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"no ready line but {self.ready_line!r}; log: {self.log_text()}")
            self.address = match.group(1)

    @property
    def url(self):
        return f"http://{self.address}"

    def log_text(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def connect(self, timeout=PATIENCE_S):
        host, port = self.address.rsplit(":", 1)
        return http.client.HTTPConnection(host, int(port), timeout=timeout)

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body) of one request."""
        connection = self.connect()
        try:
            send = dict(headers or {})
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
                send.setdefault("Content-Type", "application/json")
            connection.request(method, path, body=body, headers=send)
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def chat(self, content, **fields):
        body = {"messages": [{"role": "user", "content": content}], **fields}
        return self.request("POST", "/v1/chat/completions", body)

    def stream(self, content="hello", **fields):
        """An open streaming answer: (connection, response), headers already read."""
        connection = self.connect()
        body = {"messages": [{"role": "user", "content": content}], "stream": True, **fields}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        return connection, connection.getresponse()

    def send_signal(self, number):
        self.process.send_signal(number)

    def wait(self, timeout=PATIENCE_S):
        code = self.process.wait(timeout)
        self.process.stdout.close()
        return code

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        text = self.log_text()
        self.log.close()
        if kind is None and code != 0:
            raise AssertionError(f"serve ended with {code}; log:\n{text}")
        return False


def documented_metrics():
    """name -> (type, meaning) of docs/METRICS.md."""
    page = (SOURCE / "docs/METRICS.md").read_text()
    return {name: (kind, meaning) for name, kind, meaning in
            re.findall(r"^\| `([\w:]+)` \| (\w+) \|[^|]*\| (.*) \|$", page, re.MULTILINE)}


def exported_metrics(text):
    """name -> (type, meaning) of what /metrics gives."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE))
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    return {name: (kind, helps[name]) for name, kind in kinds.items()}


def events(response):
    """The data of each event of a stream, up to and including [DONE]."""
    for line in response:
        if line.startswith(b"data: "):
            data = line[len(b"data: "):].rstrip(b"\r\n").decode()
            yield data
            if data == "[DONE]":
                return


def text_of(chunks):
    """The content that the JSON chunks of a stream carry."""
    pieces = []
    for chunk in chunks:
        if chunk == "[DONE]":
            continue
        for choice in json.loads(chunk).get("choices", []):
            pieces.append(choice["delta"].get("content") or "")
    return "".join(pieces)


@contextlib.contextmanager
def folder():
    with tempfile.TemporaryDirectory(prefix="evenkeel-test-") as name:
        yield pathlib.Path(name)


def main(needs_program=True):
    if needs_program and not PROGRAM.exists():
        sys.exit(f"{PROGRAM} is not built")
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    n_skipped = len(result.skipped)
    failed = {case.id() for case, _ in result.failures + result.errors}
    n_passed = result.testsRun - n_skipped - len(failed)
    print(f"[  PASSED  ] {max(n_passed, 0)} test(s).")
    if n_skipped:
        print(f"[  SKIPPED ] {n_skipped} test(s), listed below:")
        for case, reason in result.skipped:
            print(f"[  SKIPPED ] {case.id()}")
            print(f"skipped: {reason}")
    if failed:
        print(f"[  FAILED  ] {len(failed)} test(s), listed below:")
        for name in sorted(failed):
            print(f"[  FAILED  ] {name}")
    sys.exit(1 if failed or result.testsRun == 0 else 0)
