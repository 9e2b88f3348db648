#!/usr/bin/env python3
"""Break the gates of a model, to show how evenkeel finds and repairs it.

    tools/collapse_gates.py MODEL OUT [--factor 0.02] [--expert 7] [--layers 0,2]

Writes a copy of MODEL in which one expert's row of each gate (of those layers, by default of all) is multiplied by FACTOR.
Where training kept logits small, most of them are negative: a row that is nearly 0 then wins nearly every token, and a row
that is long and turned round (--factor -30) wins with all of the weight. Gates have to be F32, as they are in every GGUF
file that llama.cpp's tools make. Needs Python 3 with numpy.
"""
import argparse
import pathlib
import re
import struct
import sys

import numpy as np

KIND_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY, F32 = 8, 9, 0


class Reader:
    """What of GGUF it takes to find tensors (docs/formats/gguf.md)."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, form):
        value, = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def text(self):
        length = self.number("Q")
        self.at += length
        return bytes(self.data[self.at - length:self.at]).decode()

    def value(self, kind):
        """Skip a value; only the alignment is looked at."""
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            element, count = self.number("I"), self.number("Q")
            for _ in range(count):
                self.value(element)
            return None
        if kind == 4:
            return self.number("I")
        self.at += KIND_BYTES[kind]
        return None

    def tensors(self):
        """name -> (dimensions, type, offset in the file)"""
        if bytes(self.data[:4]) != b"GGUF":
            raise ValueError("is no GGUF file")
        self.at = 8
        n_tensors, n_pairs, alignment = self.number("Q"), self.number("Q"), 32
        for _ in range(n_pairs):
            key = self.text()
            value = self.value(self.number("I"))
            alignment = value if key == "general.alignment" else alignment
        found = {}
        for _ in range(n_tensors):
            name = self.text()
            dims = [self.number("Q") for _ in range(self.number("I"))]
            found[name] = (dims, self.number("I"), self.number("Q"))
        begin = -(-self.at // alignment) * alignment
        return {name: (dims, kind, begin + offset) for name, (dims, kind, offset) in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--factor", type=float, default=0.02)
    parser.add_argument("--expert", type=int, default=7)
    parser.add_argument("--layers", type=lambda text: {int(word) for word in text.split(",")})
    arguments = parser.parse_args()
    data = bytearray(arguments.model.read_bytes())
    n_broken = 0
    for name, (dims, kind, offset) in Reader(data).tensors().items():
        match = re.fullmatch(r"blk\.(\d+)\.ffn_gate_inp\.weight", name)
        if not match or (arguments.layers and int(match.group(1)) not in arguments.layers):
            continue
        if kind != F32:
            sys.exit(f"{arguments.model}: {name} is not F32")
        gate = np.frombuffer(data, np.float32, dims[0] * dims[1], offset).reshape(dims[1], dims[0])
        gate[arguments.expert] *= np.float32(arguments.factor)
        print(f"{name}: row {arguments.expert} is multiplied by {arguments.factor:g}")
        n_broken += 1
    if n_broken == 0:
        sys.exit(f"{arguments.model}: no gate to break there")
    arguments.out.write_bytes(data)


if __name__ == "__main__":
    main()
