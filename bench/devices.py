#!/usr/bin/env python3
"""How even a server keeps its devices while traffic changes its kind.

    bench/devices.py [--program build/evenkeel] [--model models/evenkeel-demo.gguf] [--devices 4] [--seconds 12] [--csv FILE]

Starts a server three times, without replicas, with replicas that lie still, and with replicas that move; sends it eight
conversations at a time, first mixed (English, Chinese, code), then a promotion (Chinese logistics only), and prints
busiest/mean of the devices by tokens and by busy time, mean and worst over layers, of the last two seconds. Each
server is stopped before the next one starts. --csv writes a line per second besides: case, second, traffic, mean, worst.
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
         ("replicas lie still", ["experts.rebalance=false"]),
         ("replicas move", ["experts.rebalance=true"]))


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


def ratios(seen, matrix):
    """Busiest over mean of each layer's devices."""
    return [max(row) * len(row) / sum(row) for row in seen["devices"][matrix] if sum(row) > 0]


def report(case, when, seen):
    rows, busy = ratios(seen, "tokens"), ratios(seen, "busy_us")
    experts = [layer["max_over_mean"] for layer in seen["balance"]]
    moved = (seen["rebalance"] or {}).get("moved_replicas", 0)
    print(f"{case:18}  {when:18}  {sum(rows) / len(rows):6.3f}  {max(rows):6.3f}  {sum(busy) / len(busy):6.3f}  {max(busy):6.3f}  "
          f"{sum(experts) / len(experts):8.2f}  {moved:6}", flush=True)


def watch(server, seconds, case, traffic, origin, out):
    """Wait so long; a line per second goes to `out`, if there is one."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(1, max(0, end - time.monotonic())))
        if out:
            seen = ratios(server.get("/v1/experts?window=1s"), "tokens")
            out.write(f"{case},{time.monotonic() - origin:.1f},{traffic},{sum(seen) / len(seen):.4f},{max(seen):.4f}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="build/evenkeel")
    parser.add_argument("--model", default="models/evenkeel-demo.gguf")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--csv", type=argparse.FileType("w", encoding="utf-8"))
    options = parser.parse_args()
    if options.csv:
        options.csv.write("case,second,traffic,mean,worst\n")
    server = Server(options, [])
    n_experts = server.get("/v1/experts")["experts"]
    server.stop()
    print(f"{'':18}  {'':18}  tokens          busy time       experts'")
    print(f"{'':18}  {'':18}    mean   worst    mean   worst  max/mean   moved")
    for case, settings in CASES:
        server = Server(options, [setting.format(experts=n_experts) for setting in settings])
        traffic, origin = Traffic(server), time.monotonic()
        for when, texts in (("mixed", MIXED), ("promotion", PROMOTION)):
            traffic.texts = texts
            for part in ("begins", "goes on"):
                watch(server, 3 if part == "begins" else options.seconds, case, when, origin, options.csv)
                report(case, f"{when} {part}", server.get("/v1/experts?window=2s"))
        traffic.stop()
        server.stop()


if __name__ == "__main__":
    main()
