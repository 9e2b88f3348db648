"""The project's own server with a model, for what is measured from outside."""

import json
import pathlib
import re
import subprocess
import urllib.request

PATIENCE_S = 600


class Server:
    """`evenkeel serve` on a free port of this machine, ended with the block."""

    def __init__(self, program, model, *arguments):
        self.process = subprocess.Popen(
            [str(program), "serve", "--model", str(model), "--listen", "127.0.0.1:0",
             "--log-level", "error", "--set", "gateway.drain_settle=0s", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        found = re.search(r" on (http://\S+):", line)
        if not found:
            self.process.kill()
            raise RuntimeError(f"{program} serve said {line!r}")
        self.url = found.group(1)
        while self.get("/readyz", check=False) is None:
            if self.process.poll() is not None:
                raise RuntimeError(f"{program} serve ended with {self.process.returncode}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self.process.stdout.close()

    def get(self, path, check=True):
        try:
            with urllib.request.urlopen(self.url + path, timeout=PATIENCE_S) as reply:
                return reply.read()
        except OSError:
            if check:
                raise
            return None

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            return json.loads(reply.read())

    def chat(self, messages, tokens_max=120):
        """The likeliest answer to a conversation."""
        reply = self.post("/v1/chat/completions", {
            "messages": messages, "temperature": 0, "max_tokens": tokens_max})
        return reply["choices"][0]["message"]["content"]

    def read(self, ids):
        """Let the model read tokens, for what its experts do with them."""
        self.post("/v1/completions", {"prompt": ids, "temperature": 0, "max_tokens": 1})

    def expert_tokens(self):
        """Token-slots per layer and expert since the start."""
        return json.loads(self.get("/v1/experts?window=all"))["tokens"]


def default_program():
    return pathlib.Path(__file__).resolve().parents[2] / "build" / "evenkeel"
