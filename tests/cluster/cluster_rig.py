"""What the cluster's tests share: certificates, workers and fronts as real processes on loopback."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402

# What data travel over: every test of answers and failures runs with each of tcp, tls and ucx.
FABRIC = os.environ.get("EK_FABRIC", "auto")
os.environ.setdefault("UCX_NET_DEVICES", "lo")
# In how many halves steps go through their layers: changes no answer, and everything has to work with either.
MICROBATCHES = os.environ.get("EK_MICROBATCHES", "auto")

MODEL = harness.SOURCE / "models/evenkeel-demo.gguf"
PROMPTS = ["Once upon a time", "1 2 3 4 5", "def main():", "\u7269\u6d41\u8ba2\u5355\u67e5\u8be2", "Long ago in a land " * 12]


def make_certs(folder, *workers, front="front"):
    """A directory of certificates; workers are called by 127.0.0.1."""
    names = [word for name in workers for word in ("--worker", f"{name}=127.0.0.1")]
    done = harness.run("cluster", "init", "--out", folder, "--front", front, *names)
    assert done.returncode == 0, done.stderr
    return pathlib.Path(folder)


class Worker:
    """`evenkeel worker` on a free port, or on the one that it had before."""

    def __init__(self, certs, *arguments, model=MODEL, listen="127.0.0.1:0", wait_ready=True):
        self.log = tempfile.TemporaryFile()
        self.arguments = (certs, *arguments)
        self.model = model
        command = [str(harness.PROGRAM), "worker", "--model", str(model), "--listen", listen, "--certs", str(certs),
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
        return Worker(self.arguments[0], *self.arguments[1:], model=self.model, listen=self.address)

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

    def __init__(self, certs, workers, *arguments, **fields):
        addresses = ",".join(worker if isinstance(worker, str) else worker.address for worker in workers)
        super().__init__("--threads", "1", "--workers", addresses, "--certs", str(certs), "--set",
                         f"cluster.fabric={FABRIC}", "--set", f"cluster.microbatches={MICROBATCHES}", "--set", "cluster.hung_after=1m", "--set", "cluster.hedge_after=1m",
                         *arguments, model=MODEL, **fields)

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
