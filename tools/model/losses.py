#!/usr/bin/env python3
"""Print the validation loss of each domain, of a GGUF file or a checkpoint.

    tools/model/losses.py models/evenkeel-demo.gguf training

Nats per token over all of valid.npz: of dialogues and drills only what is asked for counts, an
answer ten times as much as a question.
"""

import argparse
import pathlib

import torch

import checkpoint
import gguf
import network
import train

ROWS = 16  # at once


def load(path):
    if path.endswith(".gguf"):
        config, weights, _ = gguf.read(path)
        return network.Network(config, torch.from_numpy(weights))
    config, _, state = checkpoint.load(path)
    return network.Network(config, state["weights"])


def loss(net, rows, domain):
    total = weight = 0.0
    count = len(rows.arrays[domain + ".ids"])
    with torch.no_grad():
        for at in range(0, count, ROWS):
            chosen = [(domain, row) for row in range(at, min(at + ROWS, count))]
            part, _, weights, *_ = net.loss(rows.tensors(chosen))
            total, weight = total + float(part), weight + float(weights.sum())
    return total / weight


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("model")
    parser.add_argument("work", type=pathlib.Path)
    args = parser.parse_args()
    net, rows = load(args.model), train.Rows(args.work / "valid.npz", 0)
    print("| domain | loss |\n|---|---|")
    for domain in train.DOMAINS:
        print(f"| {domain} | {loss(net, rows, domain):.3f} |")


if __name__ == "__main__":
    train.environment()
    main()
