#!/usr/bin/env python3
"""Turn texts into the rows of tokens that train.py reads.

    tools/model/pack.py DIR       short.npz, long.npz, valid.npz from what build.py collects in DIR

A row holds whole documents, one after another, each with a number, so that attention can be kept
within documents; it is one token longer than what the network sees, because each token is asked for
its successor. Arrays per domain: DOMAIN.ids (rows, width + 1) u16; DOMAIN.docs, the same shape, u8;
DOMAIN.weights, the same shape, u8, what the loss of predicting this token counts, in tenths.
"""

import argparse
import json
import os
import pathlib

import numpy as np

import bpe

WIDTHS = {"short": 256, "long": 512}
PROSE = ("zh", "en", "c", "py")
ANSWER, QUESTION, TEXT = 10, 1, 2  # weights in tenths; a system prompt is not asked for
OPEN_ROWS = 64  # rows that a document is tried in before a new one is begun


# Documents: (ids, weights) ------------------------------------------------------------------------


def dialogue_document(tokenizer, messages):
    weight = {"system": 0, "user": QUESTION, "assistant": ANSWER}
    ids, weights = [], []
    for message in messages:
        part = tokenizer.message(message["role"], message["content"])
        head = 1 + len(tokenizer.encode(message["role"] + "\n"))
        tail = len(tokenizer.encode("\n"))
        ids += part
        weights += [0] * head + [weight[message["role"]]] * (len(part) - head - tail) + [0] * tail
    return ids, weights


def dialogues(tokenizer, path):
    with open(path) as file:
        for line in file:
            yield dialogue_document(tokenizer, json.loads(line)["messages"])


def texts(tokenizer, path):
    for text in pathlib.Path(path).read_text().split("\0"):
        ids = tokenizer.encode(text) + [tokenizer.end]
        yield ids, [TEXT] * len(ids)


# Rows --------------------------------------------------------------------------------------------


class Rows:
    """Rows of one width; whole documents go where they leave the least room."""

    def __init__(self, width, padding):
        self.width, self.padding = width + 1, padding
        self.rows, self.open = [], []

    def add(self, document):
        """Whether the document was short enough to be added."""
        size = len(document[0])
        if size > self.width:
            return False
        fitting = [row for row in self.open if row["left"] >= size]
        if fitting:
            row = min(fitting, key=lambda row: row["left"])
        else:
            row = {"left": self.width, "documents": []}
            self.rows.append(row)
            self.open = self.open[-OPEN_ROWS + 1:] + [row]
        row["documents"].append(document)
        row["left"] -= size
        if row["left"] < 8:
            self.open.remove(row)
        return True

    def arrays(self):
        shape = len(self.rows), self.width
        ids = np.full(shape, self.padding, np.uint16)
        docs = np.full(shape, 255, np.uint8)
        weights = np.zeros(shape, np.uint8)
        for i, row in enumerate(self.rows):
            at = 0
            for number, (tokens, weight) in enumerate(row["documents"]):
                end = at + len(tokens)
                ids[i, at:end], weights[i, at:end], docs[i, at:end] = tokens, weight, number
                weights[i, at] = 0  # what begins a document does not follow from the one before
                at = end
        return {"ids": ids, "docs": docs, "weights": weights}


def stream(documents, width):
    """Rows cut from one long stream; a document may begin in one row and end in another."""
    ids, docs, weights = [], [], []
    for number, (tokens, weight) in enumerate(documents):
        ids += tokens
        docs += [number % 256] * len(tokens)
        weights += weight
    count = (len(ids) - 1) // width
    at = np.arange(count)[:, None] * width + np.arange(width + 1)
    return {"ids": np.array(ids, np.uint16)[at], "docs": np.array(docs, np.uint8)[at],
            "weights": np.array(weights, np.uint8)[at]}


def pack_dialogues(documents, width, tokenizer, shortest=0):
    rows = Rows(width, tokenizer.end)
    for document in documents:
        if len(document[0]) >= shortest:
            rows.add(document)
    return rows.arrays()


def save(path, domains):
    temporary = path.with_suffix(".part.npz")
    np.savez(temporary, **{f"{name}.{key}": array for name, arrays in domains.items()
                           for key, array in arrays.items()})
    os.replace(temporary, path)
    for name, arrays in domains.items():
        asked = int((arrays["weights"] > 0).sum())
        print(f"{path.name}: {name}: {len(arrays['ids'])} rows, {arrays['ids'].size} tokens, "
              f"{asked} asked for", flush=True)


def pack(folder):
    tokenizer = bpe.Tokenizer.load(folder / "tokenizer.json")
    prose = {name: list(texts(tokenizer, folder / f"{name}.train.txt")) for name in PROSE}
    chat = {name: list(dialogues(tokenizer, folder / f"{name}.jsonl"))
            for name in ("dialogue", "dialogue_long", "drill")}
    short, long = WIDTHS["short"], WIDTHS["long"]
    save(folder / "short.npz", {
        "dialogue": pack_dialogues(chat["dialogue"], short, tokenizer),
        "drill": pack_dialogues(chat["drill"], short, tokenizer),
        **{name: stream(prose[name], short) for name in PROSE}})
    save(folder / "long.npz", {
        "dialogue": pack_dialogues(chat["dialogue_long"] + chat["drill"][:len(chat["drill"]) // 5],
                                   long, tokenizer),
        **{name: stream(prose[name], long) for name in PROSE}})
    save(folder / "valid.npz", {
        "dialogue": pack_dialogues(dialogues(tokenizer, folder / "dialogue.valid.jsonl"), short,
                                   tokenizer),
        "drill": pack_dialogues(dialogues(tokenizer, folder / "drill.valid.jsonl"), short,
                                tokenizer),
        **{name: stream(texts(tokenizer, folder / f"{name}.valid.txt"), short)
           for name in PROSE}})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=pathlib.Path)
    pack(parser.parse_args().folder)


if __name__ == "__main__":
    main()
