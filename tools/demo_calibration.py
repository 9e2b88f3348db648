#!/usr/bin/env python3
"""What calibration does to the bundled model, shown and checked.

    tools/demo_calibration.py BUILD_DIR [--short] [--work FOLDER] [--write]

- On the healthy model: gates as even as asked for (max/mean 1.2), for at most 1 % of perplexity by biases; by both methods and by
  weights alone as even, for whatever that costs.
- On copies whose gates have collapsed (tools/collapse_gates.py): the detectors see it; repaired to be as even as the healthy
  model's worst layer, every layer's max/mean is at most 1.3 times the healthy model's and the perplexity within 2 % of its.
- For comparison, and without a claim: the same repair without mending rows, and a layer that learns its gate from nothing.

Each claim is printed with its figures; the exit code is 1 when one does not hold. --short runs less text, fewer steps and
only one claim of each kind: a quarter of an hour becomes a minute. --write puts the table into docs/CALIBRATION.md and draws docs/images/calibration-*.svg.
"""
import argparse
import csv
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import draw_routing

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Debian's interpreter has the numpy that apt installs.
PYTHON = "/usr/bin/python3" if pathlib.Path("/usr/bin/python3").exists() else sys.executable
PAGE = ROOT / "docs/CALIBRATION.md"
TARGET, EVEN_COST, REPAIR_EVENNESS = 1.2, 0.01, 1.3
REPAIR_COST = 0.02

class Lab:
    def __init__(self, build, work, short):
        self.program, self.work, self.short = build / "evenkeel", work, short
        self.healthy = ROOT / "models/evenkeel-demo.gguf"
        size = ["--dialogues", "200", "--kilobytes", "10"] if short else []
        made = subprocess.run([PYTHON, ROOT / "tools/calibration_text.py", work / "text", *size], check=True,
                              capture_output=True, text=True).stdout
        self.text = [word for path in made.split() for word in ("--text", path)]
        self.failed = 0

    def run(self, *arguments, codes=(0,)):
        done = subprocess.run([str(word) for word in (self.program, "calibrate", *arguments)], capture_output=True, text=True,
                              check=False)
        if done.returncode not in codes:
            sys.exit(f"{' '.join(map(str, arguments))}: ended with {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)

    def collapse(self, factor):
        path = self.work / f"broken{factor}.gguf"
        subprocess.run([PYTHON, ROOT / "tools/collapse_gates.py", self.healthy, path, "--factor", str(factor)],
                       check=True, capture_output=True)
        return path

    def inspect(self, model):
        return self.run("inspect", "--model", model, *self.text, "--json", codes=(0, 1))

    def calibrate(self, name, model, *options, target=TARGET):
        schedule = ["--steps", "400", "--batch", "512", "--tokens", "20000"] if self.short else []
        found = self.run("--model", model, *self.text, "--out", self.work / f"{name}.gguf", "--log", self.work / f"{name}.csv",
                         "--target", f"{target:.2f}", "--json", *schedule, *options)
        (self.work / f"{name}.json").write_text(json.dumps(found))
        return found

    def claim(self, holds, words):
        self.failed += not holds
        print(f"{'holds ' if holds else 'FAILED'}  {words}", flush=True)


def worst(layers, when):
    return max(layer[when]["max_over_mean"] for layer in layers)


def show_healthy(lab):
    seen = lab.inspect(lab.healthy)
    kinds = sorted({alert["kind"] for alert in seen["alerts"]} - {"imbalance"})
    lab.claim(not kinds, "nothing but imbalance is found in the healthy model's gates" +
              (f", but also {', '.join(kinds)}" if kinds else ""))
    results = {}
    for method in ("bias",) if lab.short else ("bias", "router", "both"):
        found = results[f"healthy, {method}"] = lab.calibrate(f"healthy-{method}", lab.healthy, "--method", method)
        cost = found["perplexity"]["after"] / found["perplexity"]["before"] - 1
        even = worst(found["layers"], "after")
        # So few tokens judge a gate to within a fiftieth.
        limit = TARGET * (1.02 if lab.short else 1)
        lab.claim(even <= limit, f"healthy, {method}: worst max/mean {worst(found['layers'], 'before'):.2f} -> {even:.3f}, "
                                  f"at most {limit:g}")
        if method != "bias":
            print(f"shown   healthy, {method}: perplexity {100 * cost:+.2f} %", flush=True)
            continue
        lab.claim(cost <= EVEN_COST, f"healthy, {method}: perplexity {100 * cost:+.2f} %, at most +{100 * EVEN_COST:g} %")
    return results


def show_repair(lab, healthy):
    results = {}
    for factor in (0.02,) if lab.short else (0.02, -30):
        name = f"one row x {factor:g}"
        model = lab.collapse(factor)
        seen = lab.inspect(model)
        alarmed = {alert["layer"] for alert in seen["alerts"] if alert["kind"] == "imbalance"}
        lab.claim(not seen["well"] and len(alarmed) == len(seen["layers"]),
                  f"{name}: the detectors raise imbalance in layers {sorted(alarmed)}")
        found = results[f"{name}, both"] = lab.calibrate(f"collapsed{factor}", model, "--method", "both",
                                                         target=max(TARGET, worst(healthy["layers"], "before")))
        ratio = max(after["after"]["max_over_mean"] / before["before"]["max_over_mean"]
                    for after, before in zip(found["layers"], healthy["layers"]))
        cost = found["perplexity"]["after"] / healthy["perplexity"]["before"] - 1
        lab.claim(ratio <= REPAIR_EVENNESS, f"{name}: repaired max/mean is {ratio:.2f} of the healthy model's, at most "
                                            f"{REPAIR_EVENNESS} in the worst layer")
        lab.claim(abs(cost) <= REPAIR_COST, f"{name}: perplexity {found['perplexity']['before']:.1f} -> "
                                            f"{found['perplexity']['after']:.2f}, {100 * cost:+.2f} % of the healthy model's, "
                                            f"at most {100 * REPAIR_COST:g} %")
    return results


def compare(lab):
    return {
        "one row x 0.02, both, not mended": lab.calibrate("unmended", lab.collapse(0.02), "--method", "both", "--mend", "1e9"),
        "healthy, router, layer 1 from nothing": lab.calibrate("reset", lab.healthy, "--method", "router", "--reset", "1"),
    }


# ---- the page ----

def table(results, healthy):
    base = healthy["perplexity"]["before"]
    lines = ["| model, method | max/mean before | after | zero-hit before | after | KL, nats | perplexity before | after | of healthy |",
             "|---|---|---|---|---|---|---|---|---|"]
    for name, found in results.items():
        layers, cost = found["layers"], found["perplexity"]
        lines.append(
            f"| {name} | {' '.join(f'''{layer['before']['max_over_mean']:.2f}''' for layer in layers)} "
            f"| {' '.join(f'''{layer['after']['max_over_mean']:.2f}''' for layer in layers)} "
            f"| {sum(layer['before']['zero_hit'] for layer in layers)} | {sum(layer['after']['zero_hit'] for layer in layers)} "
            f"| {' '.join(f'''{layer['kl']:.4f}''' for layer in layers)} "
            f"| {cost['before']:.2f} | {cost['after']:.2f} | {100 * (cost['after'] / base - 1):+.2f} % |")
    return "\n".join(lines)


def draw_shares(healthy, broken):
    plot = draw_routing.Plot("Layer 1: share of the token-slots, experts from busiest to idlest", (1, 32), (0, 0.26), "expert, by rank",
                             "share")
    plot.ticks([1, 8, 16, 24, 32], [0, 0.05, 0.1, 0.15, 0.2, 0.25])
    curves = [("collapsed", broken["layers"][1]["slots_before"]), ("healthy", healthy["layers"][1]["slots_before"]),
              ("repaired", broken["layers"][1]["slots"])]
    for number, (name, slots) in enumerate(curves):
        shares = sorted((count / sum(slots) for count in slots), reverse=True)
        colour = draw_routing.COLOURS[number]
        plot.line([(plot.x(rank + 1), plot.y(share)) for rank, share in enumerate(shares)], colour, 2)
        plot.text(plot.x(20), 80 + 18 * number, name, 13, colour, bold=True)
    plot.write("calibration-shares.svg")


def draw_course(work, name):
    rows = list(csv.DictReader((work / f"{name}.csv").open()))
    rows = [row for row in rows if row["round"] == "1" and row["method"] == "router"]
    last = max(int(row["done"]) for row in rows)
    plot = draw_routing.Plot("Teaching the healthy model's gates: max/mean of what is kept back", (0, last), (1, 1.8), "step", "max/mean")
    plot.ticks(range(0, last + 1, max(100, last // 400 * 100)), [1, 1.2, 1.4, 1.6, 1.8])
    plot.line([(plot.x(0), plot.y(TARGET)), (plot.x(last), plot.y(TARGET))], draw_routing.FAINT, 1, "4 4")
    for number, layer in enumerate(sorted({row["layer"] for row in rows}, key=int)[:4]):
        colour = draw_routing.COLOURS[number]
        points = [(plot.x(int(row["done"])), plot.y(min(1.8, float(row["max_over_mean"])))) for row in rows if row["layer"] == layer]
        plot.line(points, colour, 2)
        plot.text(plot.x(last) - 60, 70 + 18 * number, f"layer {layer}", 13, colour, bold=True)
    plot.write("calibration-course.svg")


def write_page(lab, results):
    healthy = results["healthy, bias"]
    page, n = re.subn(r"(<!-- results -->\n).*?(<!-- end of results -->)",
                      lambda match: match.group(1) + table(results, healthy) + "\n" + match.group(2), PAGE.read_text(), flags=re.DOTALL)
    if n != 1:
        sys.exit(f"{PAGE}: has no place for the table")
    PAGE.write_text(page)
    draw_shares(healthy, results["one row x 0.02, both"])
    draw_course(lab.work, "healthy-router")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="evenkeel-calibration-") as folder:
        work = arguments.work or pathlib.Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        lab = Lab(arguments.build.resolve(), work.resolve(), arguments.short)
        results = show_healthy(lab)
        results |= show_repair(lab, results["healthy, bias"])
        if not arguments.short:
            results |= compare(lab)
        print(table(results, results["healthy, bias"]))
        if arguments.write:
            write_page(lab, results)
    return 1 if lab.failed else 0


if __name__ == "__main__":
    sys.exit(main())
