#!/usr/bin/env python3
"""Goal: the terminal client shows what a server sends, whole and only that, and Ctrl-C ends an answer and nothing
else. Method: pipes and pseudo-terminals against the real server, and against a made-up one that misbehaves."""
import contextlib
import http.server
import json
import os
import pty
import re
import signal
import subprocess
import threading
import time
import unittest

import harness
from harness import Server, run, wait_until


class RealServer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__(None, None, None)

    def test_pipe_equals_api(self):
        """What the pipe prints is what the API answers."""
        fields = {"temperature": 0, "max_tokens": 24}
        status, _, body = self.server.chat("hello", **fields)
        self.assertEqual(status, 200)
        wanted = json.loads(body)["choices"][0]["message"]["content"]
        arguments = ["chat", "--url", self.server.url, "--temperature", "0", "--max-tokens", "24"]
        for done in (run(*arguments, stdin="hello\n"), run(*arguments, "hello"),
                     run(*arguments[:1], *arguments[3:], "hello", env={"EVENKEEL_URL": self.server.url + "/v1"})):
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(done.stdout, wanted + "\n")

    def test_seed_repeats(self):
        arguments = ["chat", "--url", self.server.url, "--temperature", "1.5", "--seed", "7", "--max-tokens", "16", "hi"]
        self.assertEqual(run(*arguments).stdout, run(*arguments).stdout)

    def test_refusal_is_said(self):
        done = run("chat", "--url", self.server.url, "--model", "no-such-model", "hello")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"^evenkeel: the server answered 404: .*model")
        self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_reader_goes_away(self):
        """`evenkeel chat | head -c 1` ends soon, and the server does not go on computing."""
        command = [str(harness.PROGRAM), "chat", "--url", self.server.url, "--max-tokens", "400", "--temperature", "1", "hi"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=harness.environment())
        process.stdout.close()
        code = process.wait(harness.PATIENCE_S)
        self.assertEqual(code, 74)
        self.assertIn(b"writing to standard output failed", process.stderr.read())
        process.stderr.close()

    def test_status(self):
        done = run("status", "--url", self.server.url)
        self.assertEqual((done.returncode, done.stdout), (0, f"{self.server.url}: ok\n"))
        found = json.loads(run("status", "--json", "--url", self.server.url).stdout)
        self.assertEqual(found, {"url": self.server.url, "ready": True, "status": "ok"})

    def test_experts_top(self):
        self.server.chat("count this", max_tokens=8)
        done = run("experts", "top", "--url", self.server.url)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = re.findall(r"^ *(\d+) +(\d+) +([\d.]+) ", done.stdout, re.MULTILINE)
        self.assertEqual([int(layer) for layer, _, _ in rows], list(range(len(rows))))
        self.assertTrue(rows)
        whole = json.loads(run("experts", "top", "--json", "--url", self.server.url).stdout)
        self.assertEqual(len(rows), whole["layers"])
        for (_, tokens, max_over_mean), counts, balance in zip(rows, whole["tokens"], whole["balance"]):
            self.assertEqual(int(tokens), sum(counts))
            self.assertAlmostEqual(float(max_over_mean), balance["max_over_mean"], delta=0.01)
        self.assertGreater(sum(map(sum, whole["tokens"])), 0)
        recent = json.loads(run("experts", "top", "--window", "60", "--json", "--url", self.server.url).stdout)
        self.assertEqual(recent["window_s"], 60)


    def test_experts_watch(self):
        command = [str(harness.PROGRAM), "experts", "top", "--watch", "--url", self.server.url]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=harness.environment())
        tables = 0
        while tables < 2:
            tables += process.stdout.readline().startswith("layer ")
        process.send_signal(signal.SIGINT)
        rest, problems = process.communicate(timeout=harness.PATIENCE_S)
        self.assertEqual((process.returncode, problems), (0, ""))
        self.assertNotIn("\x1b", rest)


class Terminal:
    """A chat in a pseudo-terminal."""

    def __init__(self, url, *arguments):
        try:
            self.pid, self.fd = pty.fork()
        except OSError as problem:
            raise unittest.SkipTest(f"no pseudo-terminals here: {problem}") from None
        if self.pid == 0:
            os.environ.clear()
            os.environ.update({"PATH": "/usr/bin:/bin", "TERM": "dumb"})
            os.execv(str(harness.PROGRAM), ["evenkeel", "chat", "--url", url, *arguments])
        self.seen = ""
        self.code = None
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        pending = b""
        while True:
            try:
                piece = os.read(self.fd, 4096)
            except OSError:
                return
            if not piece:
                return
            self.seen += piece.decode(errors="replace")

    def type(self, text):
        os.write(self.fd, text.encode())

    def expect(self, pattern):
        wait_until(lambda: re.search(pattern, self.seen), f"{pattern!r} in {self.seen[-500:]!r}")
        text, self.seen = self.seen, ""
        return text

    def wait(self):
        def ended():
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            return pid
        wait_until(ended, "the chat's end")
        os.close(self.fd)
        return self.code


class Interactive(unittest.TestCase):
    def test_conversation(self):
        with Server() as server:
            chat = Terminal(server.url, "--max-tokens", "8", "--temperature", "0")
            chat.expect("/help lists the commands\r\n> $")
            chat.type("hello\n")
            chat.expect(r"\[8 tokens, [\d.]+ tokens/s, first after [\d.]+ s, cut at the token limit\]\r\n> $")
            chat.type("/stats\n")
            chat.expect(r"\[1 answers, \d+ prompt tokens \(\d+ from the cache\), 8 completion tokens, ")
            chat.type("/system be brief\n")
            chat.expect(r"\[new system message, new conversation\]")
            chat.type("/reset\n")
            chat.expect(r"\[new conversation\]")
            chat.type("/system\n")
            chat.expect(r"\[no system message, new conversation\]")
            chat.type("/what\n")
            chat.expect(r"/quit  +leave")
            chat.type("/quit\n")
            self.assertEqual(chat.wait(), 0)

    def test_ctrl_c_ends_the_answer_only(self):
        """Against a server that would speak for a minute: the client hangs up at once, and goes on to ask again."""
        with serving(LongWinded) as (server, url):
            chat = Terminal(url)
            chat.expect("> $")
            chat.type("a long story\n")
            wait_until(lambda: "word word word" in chat.seen, "some text")
            chat.type("\x03")
            chat.expect(r"\[canceled\]\r\n> $")
            wait_until(lambda: server.n_hung_up == 1, "the client to hang up")
            chat.type("\x03")
            chat.expect(r"\(/quit or Ctrl-D ends the chat\)\r\n> $")
            chat.type("again\n")
            wait_until(lambda: "word word" in chat.seen, "another answer")
            chat.type("\x03")
            chat.expect(r"\[canceled\]\r\n> $")
            roles = [message["role"] for message in server.last_messages]
            self.assertEqual(roles, ["user", "assistant", "user"])
            self.assertTrue(server.last_messages[1]["content"].startswith("word word"))
            chat.type("\x04")
            self.assertEqual(chat.wait(), 0)


@contextlib.contextmanager
def serving(handler):
    """(server, url) of a made-up HTTP server in threads of its own."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.n_hung_up = 0
    server.last_messages = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def delta(text):
    return ("data: " + json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=False) + "\n\n").encode()


class LongWinded(http.server.BaseHTTPRequestHandler):
    """One word every 20 ms for a minute, unless the client hangs up."""

    def do_POST(self):
        self.server.last_messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for _ in range(3000):
                self.wfile.write(delta("word "))
                self.wfile.flush()
                time.sleep(0.02)
        except OSError:
            self.server.n_hung_up += 1

    def log_message(self, *_):
        pass


class MadeUp(http.server.BaseHTTPRequestHandler):
    """Answers every POST with the bytes of `script`, one piece at a time."""
    script = []
    status = 200

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.status)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for piece in self.script:
            try:
                self.wfile.write(piece)
                self.wfile.flush()
            except OSError:
                return

    def log_message(self, *_):
        pass


class MisbehavingServer(unittest.TestCase):
    def ask(self, script, status=200):
        with serving(type("Handler", (MadeUp,), {"script": script, "status": status})) as (_, url):
            return run("chat", "--url", url, "hello")

    def test_one_byte_at_a_time(self):
        text = "héllo 👩‍👩‍👧 中\u0085 data: [DONE]"
        whole = delta(text) + b": ping\n\ndata: [DONE]\n\n"
        done = self.ask([whole[i:i + 1] for i in range(len(whole))])
        self.assertEqual((done.returncode, done.stderr, done.stdout), (0, "", text + "\n"))

    def test_error_in_the_stream(self):
        error = {"error": {"message": 'it "broke"', "type": "server_error", "param": None, "code": None}}
        done = self.ask([delta("so far"), b"data: " + json.dumps(error).encode() + b"\n\ndata: [DONE]\n\n"])
        self.assertEqual(done.returncode, 69)
        self.assertIn('it "broke"', done.stderr)
        self.assertTrue(done.stdout.startswith("so far"))

    def test_stream_breaks_off(self):
        done = self.ask([delta("so far")])
        self.assertEqual(done.returncode, 69)
        self.assertIn("broke off", done.stderr)

    def test_event_is_no_json(self):
        done = self.ask([b"data: {oops\n\n"])
        self.assertEqual(done.returncode, 69)
        self.assertIn("not JSON", done.stderr)

    def test_html_error_page(self):
        done = self.ask([b"<html>Bad Gateway\x1b[31m</html>"], status=502)
        self.assertEqual(done.returncode, 69)
        self.assertIn("the server answered 502: <html>Bad Gateway?[31m</html>", done.stderr)

    def test_odd_chunks_are_passed_over(self):
        done = self.ask([b'data: {"choices":[]}\n\n', b'data: {"choices":[{"delta":{}}],"usage":null}\n\n',
                         b'data: []\n\n', delta("ok"), b"data: [DONE]\n\n"])
        self.assertEqual((done.returncode, done.stdout), (0, "ok\n"))


class Waiting(unittest.TestCase):
    def test_wait_gives_up(self):
        begun = time.monotonic()
        done = run("status", "--wait", "--timeout", "1", "--url", "http://127.0.0.1:9")
        self.assertEqual(done.returncode, 69)
        self.assertGreaterEqual(time.monotonic() - begun, 1)

    def test_wait_until_ready(self):
        with Server() as server:
            self.assertEqual(run("status", "--wait", "--url", server.url).returncode, 0)
        done = run("status", "--url", server.url)
        self.assertEqual(done.returncode, 69)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    harness.main()
