#!/usr/bin/env python3
"""The pictures of docs/ROUTING.md, as SVG.

    tools/draw_routing.py BUILD_DIR [--data ../shared/data/placement] [--devices FILE]

Writes docs/images/routing-*.svg. Figures are measured, not typed in: placements by BUILD_DIR/bench/place, the time line of
devices from FILE, which bench/devices.py --csv wrote. What has no data here is left as it is, and said.
"""
import argparse
import csv
import json
import math
import pathlib
import subprocess
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs/images"
INK, FAINT, PAPER = "#1f2933", "#9aa5b1", "#ffffff"
COLOURS = ["#0b6e99", "#d9730d", "#0f7b6c", "#ad1a72"]
FONT = "font-family='Helvetica, Arial, sans-serif'"


class Picture:
    def __init__(self, width, height, title):
        self.size, self.parts = (width, height), []
        self.parts.append(f"<title>{escape(title)}</title><rect width='{width}' height='{height}' fill='{PAPER}'/>")

    def text(self, x, y, words, size=13, colour=INK, anchor="start", bold=False):
        weight = " font-weight='bold'" if bold else ""
        self.parts.append(f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' fill='{colour}' text-anchor='{anchor}'"
                          f"{weight} {FONT}>{escape(words)}</text>")

    def line(self, points, colour=INK, width=1.0, dash=None, arrow=False):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        extra = (f" stroke-dasharray='{dash}'" if dash else "") + (" marker-end='url(#arrow)'" if arrow else "")
        self.parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='{width}'{extra}/>")

    def box(self, x, y, width, height, colour=INK, fill=PAPER, radius=6):
        self.parts.append(f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' rx='{radius}' "
                          f"fill='{fill}' stroke='{colour}'/>")

    def write(self, name):
        width, height = self.size
        marker = ("<defs><marker id='arrow' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' "
                  f"orient='auto'><path d='M0,0 L8,4 L0,8 z' fill='{INK}'/></marker></defs>")
        IMAGES.mkdir(exist_ok=True)
        (IMAGES / name).write_text(f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' "
                                   f"width='{width}' height='{height}'>{marker}{''.join(self.parts)}</svg>\n")
        print(f"docs/images/{name}")


class Plot(Picture):
    """Axes with ticks; x and y in data units. Log axes take powers of ten."""

    def __init__(self, title, x_range, y_range, x_label, y_label, y_log=False, width=720, height=330):
        super().__init__(width, height, title)
        self.frame = (64, 44, width - 20, height - 48)
        self.x_range, self.y_range, self.y_log = x_range, y_range, y_log
        left, top, right, bottom = self.frame
        self.text(left, 24, title, 15, bold=True)
        self.line([(left, top), (left, bottom), (right, bottom)], FAINT)
        self.text((left + right) / 2, height - 10, x_label, 12, anchor="middle")
        self.text(left, top - 6, y_label, 12, FAINT)

    def x(self, value):
        left, _, right, _ = self.frame
        low, high = self.x_range
        return left + (value - low) / (high - low) * (right - left)

    def y(self, value):
        _, top, _, bottom = self.frame
        low, high = self.y_range
        if self.y_log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        return bottom - (value - low) / (high - low) * (bottom - top)

    def ticks(self, xs, ys, x_form="{:g}", y_form="{:g}"):
        left, _, right, bottom = self.frame
        for value in xs:
            self.text(self.x(value), bottom + 17, x_form.format(value), 11, anchor="middle")
        for value in ys:
            self.line([(left, self.y(value)), (right, self.y(value))], "#e4e7eb")
            self.text(left - 6, self.y(value) + 4, y_form.format(value), 11, anchor="end")

    def curve(self, points, colour, label=None, at=None, dash=None):
        self.line([(self.x(a), self.y(b)) for a, b in points], colour, 2.2, dash)
        if label:
            a, b = at or points[-1]
            self.text(self.x(a) + 6, self.y(b) - 6, label, 12, colour)


def draw_path():
    p = Picture(760, 236, "What happens to a token in one layer")
    p.text(20, 26, "What happens to a token in one layer", 15, bold=True)
    steps = [("gate", ["s = softmax(z)", "or sigmoid(z)"]), ("policy", ["a = s · p(L) + bias", "top-k on a"]),
             ("budget", ["loss = 1 - S / S*", "worst undone first"]), ("capacity", ["next best, later", "round, left out"]),
             ("replicas", ["rows split over", "devices"])]
    for i, (name, lines) in enumerate(steps):
        x = 20 + i * 148
        p.box(x, 60, 126, 74, COLOURS[0])
        p.text(x + 63, 82, name, 14, COLOURS[0], "middle", True)
        for k, words in enumerate(lines):
            p.text(x + 63, 102 + 17 * k, words, 11.5, anchor="middle")
        if i + 1 < len(steps):
            p.line([(x + 126, 97), (x + 146, 97)], arrow=True)
    p.box(168, 178, 274, 44, COLOURS[2])
    p.text(305, 197, "load view: one snapshot each 100 ms,", 11.5, COLOURS[2], "middle")
    p.text(305, 213, "from devices' busy times", 11.5, COLOURS[2], "middle")
    p.line([(231, 178), (231, 136)], arrow=True)
    p.box(464, 178, 274, 44, COLOURS[1])
    p.text(601, 197, "placement: moved layer by layer", 11.5, COLOURS[1], "middle")
    p.text(601, 213, "when counts say that it pays", 11.5, COLOURS[1], "middle")
    p.line([(675, 178), (675, 136)], arrow=True)
    p.text(168, 52, "may change the choice, and costs quality, within bounds", 11.5, FAINT)
    p.text(738, 52, "changes no bit", 11.5, FAINT, "end")
    p.write("routing-path.svg")


def draw_breaker():
    p = Picture(770, 236, "States of a breaker")
    p.text(20, 26, "States of a breaker, one per expert", 15, bold=True)
    states = [("CLOSED", "weight 1", 40), ("DERATED", "0.5 at 0.70 … 0.1 at 0.85", 225), ("OPEN", "0: only without alternative", 440),
              ("HALF_OPEN", "0.1 rising to 1", 625)]
    widths = [110, 155, 160, 115]
    for (name, words, x), width in zip(states, widths):
        p.box(x, 92, width, 56, COLOURS[0])
        p.text(x + width / 2, 116, name, 13, COLOURS[0], "middle", True)
        p.text(x + width / 2, 135, words, 11, anchor="middle")
    p.line([(150, 110), (223, 110)], arrow=True)
    p.text(186, 104, "load ≥ 0.70", 10.5, anchor="middle")
    p.line([(225, 132), (152, 132)], arrow=True)
    p.text(186, 147, "< 0.60", 10.5, anchor="middle")
    p.line([(380, 120), (438, 120)], arrow=True)
    p.text(409, 112, "≥ 0.85", 10.5, anchor="middle")
    p.line([(600, 110), (623, 110)], arrow=True)
    p.text(611, 84, "open time over", 10.5, anchor="middle")
    p.line([(625, 134), (602, 134)], arrow=True)
    p.text(611, 165, "load or a failed probe", 10.5, anchor="middle")
    p.line([(682, 92), (682, 58), (95, 58), (95, 90)], arrow=True)
    p.text(390, 52, "ramp over: 2 s", 10.5, anchor="middle")
    p.text(20, 200, "3 of the last 5 samples have to agree, and no state is left within 500 ms of entering it, so one odd sample changes "
                    "nothing.", 11.5)
    p.text(20, 220, "Each opening soon after the last one stays open twice as long, up to 30 s. Weights fall at once and rise no faster "
                    "than the ramp.", 11.5)
    p.write("routing-breaker.svg")


def draw_penalties():
    plot = Plot("How load bends a score (defaults)", (0, 1.2), (0, 1.05), "utilisation L of the expert's least busy replica", "p(L)")
    plot.ticks([0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2], [0, 0.25, 0.5, 0.75, 1.0])
    loads = [i / 400 * 1.2 for i in range(401)]
    plot.curve([(0, 1), (1.2, 1)], FAINT, "static", (0.02, 1), "5 4")
    plot.curve([(load, 1 if load <= 0.5 else 0.8 * math.exp(-(load - 0.5))) for load in loads], COLOURS[1], "discount", (0.94, 0.52))
    plot.curve([(load, 1 if load < 0.7 else 0.5 - 0.4 * (load - 0.7) / 0.15 if load < 0.85 else 0) for load in loads], COLOURS[0],
               "breaker", (0.855, 0.04))
    plot.text(plot.x(0.72), plot.y(0.9), "derated from 0.70, open from 0.85", 11, COLOURS[0])
    plot.write("routing-penalty.svg")


def draw_placement(build, data):
    done = subprocess.run([build / "bench/place", "--data", data, "--json"], capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)["rows"]
    best = {row["input"]: row for row in rows if row["kind"] == "best"}
    plot = Plot("Worst layer's busiest device above the mean, fresh placements", (0, len(best)), (1e-4, 0.2), "", "busiest / mean - 1",
                y_log=True)
    plot.ticks([], [1e-4, 1e-3, 1e-2, 1e-1], y_form="{:g}")
    for i, (name, row) in enumerate(best.items()):
        for k, (value, colour) in enumerate(((row["eplb_worst"] - 1, COLOURS[1]), (row["worst"] - 1, COLOURS[0]))):
            left, top = plot.x(i + 0.14 + 0.36 * k), plot.y(value)
            plot.box(left, top, plot.x(0.32) - plot.x(0), plot.frame[3] - top, colour, colour, 0)
        plot.text(plot.x(i + 0.5), plot.frame[3] + 15, name.split("_")[1], 11, anchor="middle")
        plot.text(plot.x(i + 0.5), plot.frame[3] + 30, name.split("_")[0], 11, FAINT, "middle")
    plot.text(plot.frame[2] - 190, 40, "EPLB", 12, COLOURS[1], bold=True)
    plot.text(plot.frame[2] - 140, 40, "evenkeel place, best", 12, COLOURS[0], bold=True)
    plot.write("routing-placement.svg")


def draw_devices(path):
    series = {}
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            series.setdefault(row["case"], []).append((float(row["second"]), float(row["mean"]), row["traffic"]))
    last = max(second for points in series.values() for second, _, _ in points)
    turn = min(second for points in series.values() for second, _, traffic in points if traffic == "promotion")
    plot = Plot("Four devices, from mixed traffic to a promotion", (0, last * 1.2), (1.0, 1.3), "seconds", "busiest / mean, mean of layers")
    plot.ticks(range(0, int(last) + 1, 5), [1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3])
    plot.line([(plot.x(turn - 0.5), plot.frame[1]), (plot.x(turn - 0.5), plot.frame[3])], FAINT, 1, "4 4")
    plot.text(plot.x(turn - 0.5) + 5, plot.frame[1] + 12, "promotion begins", 11, FAINT)
    for (case, points), colour in zip(series.items(), (COLOURS[1], COLOURS[3], COLOURS[0])):
        plot.curve([(second, mean) for second, mean, _ in points], colour, case)
    plot.write("routing-devices.svg")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "../shared/data/placement")
    parser.add_argument("--devices", type=pathlib.Path)
    options = parser.parse_args()
    draw_path()
    draw_breaker()
    draw_penalties()
    if options.data.exists():
        draw_placement(options.build, options.data)
    else:
        print(f"{options.data} is absent: routing-placement.svg stays as it is")
    if options.devices:
        draw_devices(options.devices)
    else:
        print("without --devices routing-devices.svg stays as it is")


if __name__ == "__main__":
    main()
