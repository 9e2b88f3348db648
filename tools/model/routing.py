#!/usr/bin/env python3
"""Measure how evenly a model uses its experts, domain by domain, through the real server.

    tools/model/routing.py models/evenkeel-demo.gguf training [--program build/evenkeel]

The second argument is the folder of build.py, for its validation texts. The server reads some
thousands of tokens of each domain, and what /v1/experts has counted meanwhile is printed as tables
for models/ROUTING.md: max/mean and zero-hit experts per layer (docs/GLOSSARY.md says what these
are), and how much the domains differ in which experts they use.
"""

import argparse
import json
import pathlib
import random

import bpe
import dialogues
import gguf
import grammar
import serving

TOKENS = 6144  # per domain
PIECE = 256
PROSE = {"zh": "Chinese prose", "en": "English prose", "c": "C", "py": "Python"}
TOPICS = ("logistics", "orders", "products", "knowledge", "talk")
DRIFT_BETWEEN = ("logistics zh", "orders zh", "logistics en", "Chinese prose", "English prose", "C",
                 "Python")


def dialogue_tokens(tokenizer, language, topic, seed):
    """Conversations of one language whose intents are all of one topic."""
    writer = dialogues.Writer([i for i in grammar.load() if i.topic == topic], random.Random(seed))
    ids = []
    while len(ids) < TOKENS:
        dialogue = writer.dialogue()
        if dialogue["language"] == language:
            ids += [i for m in dialogue["messages"] for i in tokenizer.message(*m.values())]
    return ids


def prose_tokens(tokenizer, path):
    ids = []
    for text in path.read_text().split("\0"):
        ids += tokenizer.encode(text) + [tokenizer.end]
        if len(ids) >= TOKENS:
            break
    return ids


def domains(tokenizer, work):
    found = {f"{topic} {language}": dialogue_tokens(tokenizer, language, topic, seed)
             for seed, topic in enumerate(TOPICS) for language in grammar.LANGUAGES}
    for name, title in PROSE.items():
        found[title] = prose_tokens(tokenizer, work / f"{name}.valid.txt")
    return {name: ids[:TOKENS] for name, ids in found.items()}


def minus(after, before):
    return [[a - b for a, b in zip(x, y)] for x, y in zip(after, before)]


def count(server, ids):
    """Token-slots per layer and expert for these tokens."""
    before = server.expert_tokens()
    for at in range(0, len(ids), PIECE):
        server.read(ids[at:at + PIECE])
    return minus(server.expert_tokens(), before)


def mixed(tables):
    """All domains with the same weight, though some had fewer tokens."""
    def shares(table):
        return [[100000 * n / sum(layer) for n in layer] for layer in table]

    scaled = [shares(table) for table in tables]
    return [[sum(table[layer][e] for table in scaled) for e in range(len(scaled[0][0]))]
            for layer in range(len(scaled[0]))]


def max_over_mean(layer):
    return max(layer) * len(layer) / sum(layer)


def drift(a, b):
    """The mean over layers of the distance between two distributions of token-slots."""
    def of_layer(x, y):
        return sum(abs(p / sum(x) - q / sum(y)) for p, q in zip(x, y)) / 2

    return sum(of_layer(x, y) for x, y in zip(a, b)) / len(a)


def show(tables):
    layers = range(len(next(iter(tables.values()))))
    print("| domain | " + " | ".join(f"layer {i}" for i in layers) + " | zero-hit |")
    print("|---|" + "---|" * (len(layers) + 1))
    for name, table in tables.items():
        zero = sum(n == 0 for layer in table for n in layer)
        cells = " | ".join(f"{max_over_mean(layer):.2f}" for layer in table)
        print(f"| {name} | {cells} | {zero} |")
    print("\n| drift | " + " | ".join(DRIFT_BETWEEN) + " |")
    print("|---|" + "---|" * len(DRIFT_BETWEEN))
    for a in DRIFT_BETWEEN:
        cells = " | ".join(f"{drift(tables[a], tables[b]):.2f}" for b in DRIFT_BETWEEN)
        print(f"| {a} | {cells} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("model")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--program", type=pathlib.Path, default=serving.default_program())
    parser.add_argument("--json", metavar="FILE", help="write the counts")
    args = parser.parse_args()
    tokenizer = bpe.Tokenizer(gguf.read(args.model)[2])
    with serving.Server(args.program, args.model) as server:
        tables = {name: count(server, ids)
                  for name, ids in domains(tokenizer, args.work).items()}
    tables["**all, equally**"] = mixed(list(tables.values()))
    show(tables)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(tables) + "\n")


if __name__ == "__main__":
    main()
