#!/usr/bin/env python3
"""How even a server keeps its devices while traffic changes its kind.

    bench/devices.py [--program build/evenkeel] [--model models/demo-q8_0.gguf] [--devices 4] [--seconds 12]

Starts a server three times, without replicas, with replicas that lie still, and with replicas that move; sends it eight
conversations at a time, first mixed (English, Chinese, code), then a promotion (Chinese logistics only), and prints
busiest/mean of the devices, mean and worst over layers, as /v1/experts gives them for the last two seconds. Each
server is stopped before the next one starts.
"""
import argparse
import json
import random
import subprocess
import threading
import time
import urllib.request

MIXED = ["Where is my parcel?", "我的快递到哪里了？", "int main(void) { return 0; }", "How do I return an item?",
         "def f(x): return x * 2", "怎么退货？"]
PROMOTION = ["我的快递到哪里了？", "订单什么时候发货？", "快递单号查询", "包裹什么时候到？"]
STREAMS = 8
CASES = (("no replicas", ["experts.slots={experts}", "experts.rebalance=false"]),
         ("replicas, still", ["experts.rebalance=false"]),
         ("replicas, moved", ["experts.rebalance=true"]))


class Server:
    def __init__(self, options, settings):
        command = [options.program, "serve", "--model", options.model, "--listen", "127.0.0.1:0", "--log-level", "error",
                   "--set", f"experts.devices={options.devices}", "--set", "gateway.drain_settle=0s"]
        for setting in settings:
            command += ["--set", setting]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.base = self.process.stdout.readline().split(" on ")[1].split(": ")[0]

    def get(self, path):
        with urllib.request.urlopen(self.base + path) as answer:
            return json.load(answer)

    def ask(self, text):
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 60}
        request = urllib.request.Request(self.base + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            json.load(answer)

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Traffic:
    """STREAMS conversations at a time, one question each, drawn from `texts` as it is then."""

    def __init__(self, server):
        self.server, self.texts, self.running = server, MIXED, True
        self.threads = [threading.Thread(target=self.run, args=(seed,)) for seed in range(STREAMS)]
        for thread in self.threads:
            thread.start()

    def run(self, seed):
        draw = random.Random(seed)
        while self.running:
            self.server.ask(draw.choice(self.texts))

    def stop(self):
        self.running = False
        for thread in self.threads:
            thread.join()


def report(case, when, seen):
    devices = [layer["max_over_mean"] for layer in seen["devices"]["balance"]]
    experts = [layer["max_over_mean"] for layer in seen["balance"]]
    moved = (seen["rebalance"] or {}).get("moved_replicas", 0)
    print(f"{case:16}  {when:22}  {sum(devices) / len(devices):7.3f}  {max(devices):7.3f}  "
          f"{sum(experts) / len(experts):8.2f}  {moved:6}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="build/evenkeel")
    parser.add_argument("--model", default="models/demo-q8_0.gguf")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=12)
    options = parser.parse_args()
    server = Server(options, [])
    n_experts = server.get("/v1/experts")["experts"]
    server.stop()
    print(f"{'':16}  {'':22}  devices' busiest/mean  experts'  moved")
    print(f"{'':16}  {'':22}     mean    worst   max/mean")
    for case, settings in CASES:
        server = Server(options, [setting.format(experts=n_experts) for setting in settings])
        traffic = Traffic(server)
        for when, texts in (("mixed", MIXED), ("promotion", PROMOTION)):
            traffic.texts = texts
            for part in ("begins", "goes on"):
                time.sleep(3 if part == "begins" else options.seconds)
                report(case, f"{when} {part}", server.get("/v1/experts?window=2s"))
        traffic.stop()
        server.stop()


if __name__ == "__main__":
    main()
