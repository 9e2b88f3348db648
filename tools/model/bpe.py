#!/usr/bin/env python3
"""Byte-level BPE as GGUF has it: tokenizer.ggml.model gpt2, tokenizer.ggml.pre qwen2.

    tools/model/bpe.py --tokens 4096 -o tokenizer.json FILE[:WEIGHT[:MEGABYTES]]...
    tools/model/bpe.py --show tokenizer.json TEXT

A token is at most 12 bytes long, four Chinese characters, or 16 if it is ASCII: without a limit
whole sentences of the templates become tokens. Counting, and therefore the result, does not depend
on anything but the texts. Files have NUL between documents, or end in .jsonl and hold dialogues.
"""

import argparse
import collections
import functools
import heapq
import json
import os
import pathlib
import re
import sys
import unicodedata

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BYTES_MAX = 12
ASCII_MAX = 16


# Words -------------------------------------------------------------------------------------------


def character_class(major):
    r"""What \p{L} or \p{N} is in the pattern, as ranges for the standard library's re."""
    ranges, start = [], None
    for point in range(sys.maxunicode + 2):
        inside = point <= sys.maxunicode and unicodedata.category(chr(point))[0] == major
        if inside and start is None:
            start = point
        elif not inside and start is not None:
            ranges.append(f"\\U{start:08x}-\\U{point - 1:08x}")
            start = None
    return "".join(ranges)


@functools.lru_cache(maxsize=1)
def word_pattern():
    letter, number = character_class("L"), character_class("N")
    return re.compile(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
        rf"|[^\r\n{letter}{number}]?[{letter}]+|[{number}]"
        rf"| ?[^\s{letter}{number}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def words(text):
    """Pieces of the text within which bytes are merged."""
    return word_pattern().findall(text)


def byte_symbols():
    """The visible character that stands for each byte in a GGUF file's list of tokens."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = {byte: chr(byte) for byte in visible}
    hidden = [byte for byte in range(256) if byte not in symbols]
    symbols.update({byte: chr(256 + rank) for rank, byte in enumerate(hidden)})
    return symbols


def merged(word, pair, new):
    out, i = [], 0
    while i < len(word):
        if i + 1 < len(word) and (word[i], word[i + 1]) == pair:
            out.append(new)
            i += 2
        else:
            out.append(word[i])
            i += 1
    return out


# Training ----------------------------------------------------------------------------------------


class Trainer:
    """Merges the most frequent pair again and again; of equals, the pair of lower ids."""

    def __init__(self, counts):
        """`counts`: how often each word occurs, as it is weighted."""
        self.words = [list(word.encode()) for word in counts]
        self.counts = list(counts.values())
        self.tokens = [bytes([byte]) for byte in range(256)]
        self.pairs, self.where = collections.Counter(), collections.defaultdict(set)
        for index, word in enumerate(self.words):
            for pair in zip(word, word[1:]):
                self.pairs[pair] += self.counts[index]
                self.where[pair].add(index)
        self.heap = [(-count, pair) for pair, count in self.pairs.items()]
        heapq.heapify(self.heap)

    def best(self):
        """The most frequent pair that may become a token; entries of the heap may be stale."""
        while self.heap:
            count, pair = heapq.heappop(self.heap)
            if self.pairs.get(pair, 0) == -count and count < 0:
                token = self.tokens[pair[0]] + self.tokens[pair[1]]
                if len(token) <= (ASCII_MAX if token.isascii() else BYTES_MAX):
                    return pair
        return None

    def merge(self, pair):
        new = len(self.tokens)
        self.tokens.append(self.tokens[pair[0]] + self.tokens[pair[1]])
        changed = collections.Counter()
        for index in sorted(self.where.pop(pair)):
            word, count = self.words[index], self.counts[index]
            out = merged(word, pair, new)
            if len(out) == len(word):
                continue
            for old in zip(word, word[1:]):
                changed[old] -= count
            for fresh in zip(out, out[1:]):
                changed[fresh] += count
                self.where[fresh].add(index)
            self.words[index] = out
        for other, change in changed.items():
            if change:
                self.pairs[other] += change
                if self.pairs[other] > 0:
                    heapq.heappush(self.heap, (-self.pairs[other], other))
        self.pairs.pop(pair, None)

    def run(self, merge_count):
        merges = []
        while len(merges) < merge_count:
            pair = self.best()
            if pair is None:
                raise ValueError(f"the text gives {len(merges)} merges of {merge_count}")
            self.merge(pair)
            merges.append(pair)
        return merges


def train(texts, token_count):
    """The merges of a vocabulary of `token_count`, from (text, weight) pairs."""
    counts = collections.Counter()
    for text, weight in texts:
        for word in words(text):
            counts[word] += weight
    counts = {word: counts[word] for word in sorted(counts) if len(word.encode()) > 1}
    return Trainer(counts).run(token_count - 256 - len(SPECIAL))


# Use ---------------------------------------------------------------------------------------------


class Tokenizer:
    """Text to ids and back. Ids: 256 bytes, the merges in their order, the special tokens."""

    def __init__(self, merges):
        self.merges = [tuple(pair) for pair in merges]
        self.rank = {pair: rank for rank, pair in enumerate(self.merges)}
        self.tokens = [bytes([byte]) for byte in range(256)]
        for left, right in self.merges:
            self.tokens.append(self.tokens[left] + self.tokens[right])
        self.special = {text: len(self.tokens) + i for i, text in enumerate(SPECIAL)}
        self.end, self.start, self.stop = self.special.values()
        self.cache = {}

    def __len__(self):
        return len(self.tokens) + len(SPECIAL)

    @classmethod
    def load(cls, path):
        return cls(json.loads(pathlib.Path(path).read_text())["merges"])

    def save(self, path):
        temporary = pathlib.Path(f"{path}.part")
        temporary.write_text(json.dumps({"merges": self.merges}))
        os.replace(temporary, path)

    def word(self, text):
        ids = self.cache.get(text)
        if ids is None:
            ids = list(text.encode())
            while len(ids) > 1:
                pair = min(zip(ids, ids[1:]), key=lambda p: self.rank.get(p, len(self.rank)))
                if pair not in self.rank:
                    break
                ids = merged(ids, pair, 256 + self.rank[pair])
            self.cache[text] = ids
        return ids

    def encode(self, text):
        """Ids of a text in which nothing is special."""
        return [i for word in words(text) for i in self.word(word)]

    def message(self, role, content):
        """Ids of one message in ChatML."""
        return [self.start, *self.encode(f"{role}\n{content}"), self.stop, *self.encode("\n")]

    def prompt(self, messages):
        """Ids of a conversation up to where the assistant speaks."""
        ids = [i for m in messages for i in self.message(m["role"], m["content"])]
        return ids + [self.start, *self.encode("assistant\n")]

    def decode(self, ids):
        names = list(SPECIAL)
        parts = [self.tokens[i] if i < len(self.tokens) else names[i - len(self.tokens)].encode()
                 for i in ids]
        return b"".join(parts).decode("utf-8", "replace")

    def symbols(self):
        """Every token as a GGUF file spells it."""
        symbol = byte_symbols()
        return ["".join(symbol[byte] for byte in token) for token in self.tokens] + list(SPECIAL)


def read(argument):
    """(text, weight) of FILE[:WEIGHT[:MEGABYTES]]."""
    path, weight, megabytes = (argument.split(":") + ["1", "1000"])[:3] if ":" in argument else (
        argument, "1", "1000")
    data = pathlib.Path(path).read_bytes()[:int(float(megabytes) * 1e6)]
    text = data.decode("utf-8", "ignore")
    if path.endswith(".jsonl"):
        lines = [line for line in text.split("\n") if line.endswith("}")]
        text = "\n".join(m["content"] for line in lines for m in json.loads(line)["messages"])
    return text.replace("\0", "\n"), int(weight)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--show", metavar="TOKENIZER", help="say how a text is cut")
    parser.add_argument("-o", dest="output", metavar="FILE")
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    if args.show:
        tokenizer = Tokenizer.load(args.show)
        print([tokenizer.decode([i]) for i in tokenizer.encode(args.files[0])])
        return
    Tokenizer(train([read(argument) for argument in args.files], args.tokens)).save(args.output)


if __name__ == "__main__":
    main()
