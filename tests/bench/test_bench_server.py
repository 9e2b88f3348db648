#!/usr/bin/env python3
"""Goal: build/bench/server measures what happened and says so when something went wrong. Method: it starts the real
server with a tiny model; and it is pointed at a made-up one whose delays and mistakes are known."""
import http.server
import json
import pathlib
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402  (needs the path above)
from harness import BUILD, PROGRAM, SOURCE  # noqa: E402

BENCH = BUILD / "bench/server"
DEMO = SOURCE / "models/evenkeel-demo.gguf"
PATIENCE_S = 120


def bench(*arguments):
    return subprocess.run([str(BENCH), *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S,
                          env=harness.environment(), stdin=subprocess.DEVNULL, check=False)


class Fake(http.server.BaseHTTPRequestHandler):
    """Streams `pieces` pieces, each after `delay` seconds; `mistake` says what goes wrong with every third request."""
    protocol_version = "HTTP/1.1"
    pieces, delay, mistake, vocab = 4, 0.0, None, 50
    bodies, lock = [], threading.Lock()

    def log_message(self, *_):
        pass

    def do_GET(self):
        meta = {"n_vocab": self.vocab} if self.vocab else {}
        self.reply(200, {"data": [{"id": "fake", "meta": meta}]})

    def reply(self, status, answer):
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def event(self, text):
        data = f"data: {text}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            self.bodies.append(body)
            mistake = self.mistake if len(self.bodies) % 3 == 0 else None
        if mistake == "status":
            self.reply(503, {"error": {"message": "not now"}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(self.pieces):
            time.sleep(self.delay)
            self.event(json.dumps({"choices": [{"text": "x"}], "usage": None}))
            if mistake == "event" and i == 1:
                self.event(json.dumps({"error": {"message": "out of order"}}))
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        self.event(json.dumps({"choices": [], "usage": usage}))
        if mistake != "no end":
            self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")


class FakeServer:
    def __init__(self, **fields):
        self.handler = type("Handler", (Fake,), {**fields, "bodies": []})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def bench(self, *arguments):
        return bench("--url", f"http://127.0.0.1:{self.server.server_port}", "--warm-up", 0, *arguments)

    def figures(self, *arguments):
        done = self.bench("--json", *arguments)
        return json.loads(done.stdout), done.returncode


class Made(unittest.TestCase):
    def test_requests_are_as_described(self):
        with FakeServer() as fake:
            arguments = ("--requests", 5, "--streams", 2, "--prompt-tokens", 7, "--new-tokens", 3)
            figures, code = fake.figures(*arguments, "--seed", 9)
            first = fake.handler.bodies[:]
            fake.figures(*arguments, "--seed", 9)
            second = fake.handler.bodies[5:]
            fake.figures(*arguments, "--seed", 10)
            third = fake.handler.bodies[10:]
        self.assertEqual(code, 0)
        self.assertEqual(len(first), 5)
        for body in first:
            self.assertEqual(body["model"], "fake")
            self.assertEqual((body["max_tokens"], body["temperature"], body["ignore_eos"], body["stream"]), (3, 0, True, True))
            self.assertEqual(len(body["prompt"]), 7)
            self.assertTrue(all(0 <= token < 50 for token in body["prompt"]))
        prompts = lambda bodies: sorted(body["prompt"] for body in bodies)
        self.assertEqual(len({str(prompt) for prompt in prompts(first)}), 5)
        self.assertEqual(prompts(first), prompts(second))
        self.assertNotEqual(prompts(first), prompts(third))
        self.assertEqual((figures["output_tokens"], figures["pieces"], figures["short"], figures["errors"]), (15, 20, 0, 0))

    def test_times_are_those_of_the_server(self):
        with FakeServer(pieces=4, delay=0.05) as fake:
            figures, code = fake.figures("--requests", 4, "--streams", 4, "--new-tokens", 4)
        self.assertEqual(code, 0)
        self.assertGreaterEqual(figures["ttft_ms"]["p50"], 50)
        self.assertGreaterEqual(figures["inter_token_ms"]["max"], 45)
        self.assertGreaterEqual(figures["e2e_ms"]["p50"], 200)
        self.assertGreaterEqual(figures["seconds"], 0.2)
        for figure, n in (("requests_per_s", 4), ("output_tokens_per_s", 16), ("total_tokens_per_s", 16 + 4 * 64)):
            self.assertAlmostEqual(figures[figure] * figures["seconds"] / n, 1, delta=0.01)

    def test_an_open_loop_counts_from_when_a_request_was_due(self):
        """One place, answers of 0.1 s, due almost at once: the last of five waits for four others."""
        with FakeServer(pieces=1, delay=0.1) as fake:
            arguments = ("--requests", 5, "--streams", 1, "--new-tokens", 1)
            closed, _ = fake.figures(*arguments)
            opened, _ = fake.figures(*arguments, "--open-loop", 1000)
        self.assertGreaterEqual(opened["ttft_ms"]["max"], 450)
        self.assertEqual((closed["open_loop"], opened["open_loop"]), (None, 1000))

    def test_failures_are_counted_and_explained(self):
        for mistake, reason in (("status", "status 503"), ("event", "out of order"), ("no end", "without [DONE]")):
            with self.subTest(mistake), FakeServer(mistake=mistake) as fake:
                figures, code = fake.figures("--requests", 6, "--streams", 1)
                self.assertEqual(code, 1)
                self.assertEqual(figures["errors"], 2)
                self.assertIn(reason, figures["error"])
        with FakeServer(pieces=0) as fake:
            figures, code = fake.figures("--requests", 2)
            self.assertEqual((code, figures["errors"]), (1, 2))

    def test_the_vocabulary_has_to_be_known(self):
        with FakeServer(vocab=None) as fake:
            done = fake.bench("--requests", 1)
            self.assertEqual(done.returncode, 1)
            self.assertIn("--vocab", done.stderr)
            self.assertEqual(fake.bench("--requests", 1, "--vocab", 10).returncode, 0)
            self.assertLess(max(fake.handler.bodies[0]["prompt"]), 10)

    def test_mistakes_in_arguments(self):
        for arguments in ((), ("--url", "x", "--spawn", "y"), ("--url", "x", "--set", "a=b"), ("--url", "x", "--streams", "0"),
                          ("--url", "x", "--open-loop", "nan"), ("--url", "x", "--what", "1"), ("--url",)):
            with self.subTest(arguments):
                done = bench(*arguments)
                self.assertEqual(done.returncode, 64)
                self.assertIn("usage", done.stderr)
        self.assertEqual(bench("--url", "http://127.0.0.1:1").returncode, 1)


class Spawned(unittest.TestCase):
    def test_one_command_gives_the_whole_figure(self):
        done = bench("--spawn", DEMO, "--program", PROGRAM, "--requests", 6, "--streams", 3, "--new-tokens", 8, "--set",
                     "engine.step_target=unlimited", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        figures = json.loads(done.stdout)
        self.assertEqual((figures["errors"], figures["short"], figures["output_tokens"]), (0, 0, 48))
        self.assertEqual(figures["settings"], ["engine.step_target=unlimited"])
        self.assertGreater(figures["rss_mib"], 0)
        self.assertGreater(figures["load_s"], 0)
        for times in ("ttft_ms", "inter_token_ms", "e2e_ms"):
            self.assertLessEqual(figures[times]["p50"], figures[times]["p99"])
            self.assertLessEqual(figures[times]["p99"], figures[times]["max"])

    def test_a_server_that_does_not_start(self):
        self.assertIn("ended with 78", bench("--spawn", DEMO, "--program", PROGRAM, "--set", "engine.what=1").stderr)
        self.assertIn("no such program", bench("--spawn", DEMO, "--program", "/no/such").stderr)
        self.assertEqual(bench("--spawn", "/no/such.gguf", "--program", PROGRAM).returncode, 1)


if __name__ == "__main__":
    harness.main()
