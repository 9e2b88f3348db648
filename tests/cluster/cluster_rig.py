"""What the cluster's tests share: certificates, workers and fronts as real processes, and requests to them."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402

# What data travel over: every test of answers and failures runs with each of tcp, tls and ucx.
FABRIC = os.environ.get("EK_FABRIC", "auto")
os.environ.setdefault("UCX_NET_DEVICES", "lo")
# In how many halves steps go through their layers: changes no answer, and everything has to work with either.
MICROBATCHES = os.environ.get("EK_MICROBATCHES", "auto")

MODEL = harness.SOURCE / "models/evenkeel-demo.gguf"
LONG = 300  # tokens of an answer that something happens to
SLACK = 1 if os.environ.get("EK_SANITIZE", "none") == "none" else 10  # sanitizers are slow
PROMPTS = ["Once upon a time", "1 2 3 4 5", "def main():", "\u7269\u6d41\u8ba2\u5355\u67e5\u8be2", "Long ago in a land " * 12]


def make_certs(folder, *workers, front="front"):
    """A directory of certificates; workers are called by 127.0.0.1, or as NAME=HOST says."""
    names = [word for name in workers for word in ("--worker", name if "=" in name else f"{name}=127.0.0.1")]
    done = harness.run("cluster", "init", "--out", folder, "--front", front, *names)
    assert done.returncode == 0, done.stderr
    return pathlib.Path(folder)


class Worker:
    """`evenkeel worker` on a free port, or on the one that it had before; `prefix` is a command that starts it."""

    def __init__(self, certs, *arguments, model=MODEL, listen="127.0.0.1:0", wait_ready=True, prefix=()):
        self.log = tempfile.TemporaryFile()
        self.arguments = (certs, *arguments)
        self.model = model
        self.prefix = prefix
        command = [*prefix, str(harness.PROGRAM), "worker", "--model", str(model), "--listen", listen, "--certs", str(certs),
                   "--threads", "1", "--set", f"worker.fabric={FABRIC}", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log,
                                        env=harness.environment())
        self.address = ""
        if wait_ready:
            self.ready_line = self.process.stdout.readline().decode()
            match = re.search(r" worker on (\S+):", self.ready_line)
            if not match and "fabric ucx" in self.log_text():
                self.kill()
                print(f"skipped: {self.log_text().strip()}")
                raise unittest.SkipTest("no UCX here")
            if not match:
                self.kill()
                raise AssertionError(f"no ready line but {self.ready_line!r}; log: {self.log_text()}")
            self.address = match.group(1)

    def again(self):
        """The same worker once more, at the same address."""
        return Worker(self.arguments[0], *self.arguments[1:], model=self.model, listen=self.address,
                      prefix=self.prefix)

    def log_text(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def send_signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def end(self):
        """Asked to end; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(harness.PATIENCE_S)
        self.process.stdout.close()
        return code

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
        self.kill()
        if kind is not None:
            print(f"log of worker {self.address}:\n{self.log_text()}")
        self.log.close()
        return False


class Front(harness.Server):
    """`evenkeel serve` with workers. On a machine that is busy with other tests, nothing happens because somebody was
    slow, unless a test says so: later settings win."""

    def __init__(self, certs, workers, *arguments, model=MODEL, **fields):
        addresses = ",".join(worker if isinstance(worker, str) else worker.address for worker in workers)
        super().__init__("--threads", "1", "--workers", addresses, "--certs", str(certs), "--set",
                         f"cluster.fabric={FABRIC}", "--set", f"cluster.microbatches={MICROBATCHES}", "--set", "cluster.hung_after=1m", "--set", "cluster.hedge_after=1m",
                         *arguments, model=model, **fields)

    def __exit__(self, kind, value, trace):
        if kind is not None:
            print(f"log of front:\n{self.log_text()}")
        return super().__exit__(kind, value, trace)


def complete(server, prompt, tokens=48, **fields):
    """(status, text or error) of a greedy completion."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **fields}
    status, _, answer = server.request("POST", "/v1/completions", body)
    answer = json.loads(answer)
    return status, answer["choices"][0]["text"] if status == 200 else answer["error"]


def texts(server, tokens=48):
    """Greedy answers to all prompts."""
    answers = []
    for prompt in PROMPTS:
        status, text = complete(server, prompt, tokens)
        assert status == 200, text
        answers.append(text)
    return answers


def alone(*arguments):
    """The same from a single process."""
    with harness.Server("--threads", "1", *arguments, model=MODEL) as server:
        return texts(server)


def metric(server, name):
    """Sum of a metric's series."""
    text = server.request("GET", "/metrics")[2].decode()
    found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    assert found, f"{name} is not in /metrics"
    return sum(float(value) for value in found)


def states(front):
    cluster = json.loads(front.request("GET", "/v1/cluster")[2])
    return [worker["state"] for worker in cluster["workers"]]


class Traffic:
    """Greedy answers, again and again from several threads, each compared with what it has to be."""

    def __init__(self, front, expected, n_threads=3, prompts=PROMPTS, tokens=48):
        self.front, self.expected, self.prompts, self.tokens = front, expected, prompts, tokens
        self.stop = threading.Event()
        self.n_right = 0
        self.wrong = []
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(n_threads)]

    def run(self, i):
        while not self.stop.is_set():
            i = (i + 1) % len(self.prompts)
            status, text = complete(self.front, self.prompts[i], self.tokens)
            with self.lock:
                if status == 200 and text == self.expected[i]:
                    self.n_right += 1
                else:
                    self.wrong.append((self.prompts[i], status, text))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind, value, trace):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        return False

    def wait_for(self, n):
        """n more right answers."""
        goal = self.n_right + n
        harness.wait_until(lambda: self.n_right >= goal or self.wrong, f"{n} more answers")


class Stream:
    """One long greedy answer whose longest pause between two tokens is known."""

    def __init__(self, front):
        self.front = front
        self.text = ""
        self.pause = 0.0
        self.n_events = 0
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        connection = self.front.connect()
        body = {"prompt": PROMPTS[0], "max_tokens": LONG, "temperature": 0, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        last = time.monotonic()
        for data in harness.events(connection.getresponse()):
            now = time.monotonic()
            self.pause = max(self.pause, now - last)
            last = now
            self.n_events += 1
            if data != "[DONE]":
                for choice in json.loads(data).get("choices", []):
                    self.text += choice["text"]
        connection.close()

    def join(self):
        self.thread.join(harness.PATIENCE_S)
        return self.text
