#!/usr/bin/env python3
"""Make a model file of a real model's shape with random weights, to measure speed with.

    make_bench_model.py olmoe --quant q4_k_m -o olmoe-q4_k_m.gguf

Shapes: olmoe (OLMoE-1B-7B), olmoe-as-qwen3moe (the same for engines that do not know olmoe), qwen3moe
(Qwen3-30B-A3B; --layers 8 makes it fit small machines). Blocks are drawn directly, random codes with
scales that give the wanted variance, so that the speed of the disk is the limit. Embeddings outweigh
what layers add to them: tokens stay different, and routing near uniform. The speed and the mechanics
of routing are real, the text is not. The same file from the same arguments.

Needs Python 3 with numpy. Layouts follow docs/formats/gguf.md; what makes q4_k_m of a type and a
layer is in quant_of.
"""

import argparse
import dataclasses
import os
import struct
import sys
import zlib

import numpy as np

import make_tiny_model as tiny
from make_tiny_model import ALIGNMENT, TYPES, Kind

BLOCKS_AT_ONCE = 1 << 16


@dataclasses.dataclass
class BenchShape:
    arch: str
    shape: tiny.Shape
    n_vocab: int
    dense_ff: int = 0  # feed_forward_length where experts have a key of their own; 0: none


SHAPES = {
    "olmoe": BenchShape(
        "olmoe",
        tiny.Shape(layers=16, d=2048, heads=16, kv_heads=16, head_dim=128, experts=64, top_k=8,
                   ff=1024, context=4096),
        50304,
    ),
    "olmoe-as-qwen3moe": BenchShape(
        "qwen3moe",
        tiny.Shape(layers=16, d=2048, heads=16, kv_heads=16, head_dim=128, experts=64, top_k=8,
                   ff=1024, context=4096),
        50304,
        dense_ff=1024,
    ),
    "qwen3moe": BenchShape(
        "qwen3moe",
        tiny.Shape(layers=48, d=2048, heads=32, kv_heads=4, head_dim=128, experts=128, top_k=8,
                   ff=768, context=40960),
        151936,
        dense_ff=6144,
    ),
}

FILE_TYPE = {"q8_0": 7, "q4_k_m": 15}


def gets_more_bits(layer, n_layers):
    """The layers in which q4_k_m spends Q6_K: the first and last eighth, and every third between."""
    first = n_layers // 8
    return layer < first or layer >= 7 * n_layers // 8 or (layer - first) % 3 == 2


def quant_of(name, n_layers, quant):
    """The type of a matrix, as llama.cpp's recipes have it."""
    if quant == "q8_0":
        return TYPES["q8_0"]
    if name == "output.weight":
        return TYPES["q6_k"]
    if "attn_v." in name or "ffn_down" in name:
        if gets_more_bits(int(name.split(".")[1]), n_layers):
            return TYPES["q6_k"]
    return TYPES["q4_k"]


# Blocks ----------------------------------------------------------------------------------------
# Each function gives n blocks whose weights have about the standard deviation `std`.


def raw_bytes(rng, shape):
    n = int(np.prod(shape))
    words = rng.bit_generator.random_raw((n + 7) // 8)
    return words.view(np.uint8)[:n].reshape(shape)


def draw_q8_0(rng, n, std):
    out = np.empty(n, np.dtype([("d", "<f2"), ("qs", "i1", 32)]))
    out["qs"] = raw_bytes(rng, (n, 32)).view(np.int8) >> 1  # -64..63
    out["d"] = std / 36.95 * (0.75 + 0.5 * rng.random(n))
    return out


def draw_q4_k(rng, n, std):
    fields = [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)]
    out = np.empty(n, np.dtype(fields))
    scales = 32 + (raw_bytes(rng, (n, 8)) & 31)
    out["d"] = std / (4.61 * 48.4)  # of the nibbles, and the root mean square of the scales
    out["dmin"] = 7.5 * out["d"].astype("<f4")  # the middle of the nibbles becomes zero
    out["scales"] = tiny.pack_six_bits(scales, scales)
    out["qs"] = raw_bytes(rng, (n, 128))
    return out


def draw_q6_k(rng, n, std):
    fields = [("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")]
    out = np.empty(n, np.dtype(fields))
    out["ql"], out["qh"] = raw_bytes(rng, (n, 128)), raw_bytes(rng, (n, 64))
    out["scales"] = 40 + (raw_bytes(rng, (n, 16)) & 31)
    out["d"] = std / (18.47 * 56.3)
    return out


DRAW = {8: draw_q8_0, 12: draw_q4_k, 14: draw_q6_k}  # by number of the type


# The file --------------------------------------------------------------------------------------


@dataclasses.dataclass
class Planned:
    name: str
    shape: tuple
    type: tiny.TensorType
    mean: float
    std: float

    @property
    def n_elements(self):
        return int(np.prod(self.shape))

    @property
    def n_bytes(self):
        return self.n_elements // self.type.block * block_bytes(self.type)


def block_bytes(tensor_type):
    return len(tensor_type.encode(np.zeros(tensor_type.block, np.float32)))


class Plan(tiny.Weights):
    """Takes down what tensors there are; their contents are drawn while they are written."""

    def __init__(self, seed, n_layers, quant):
        super().__init__(seed, None)
        self.n_layers, self.quant = n_layers, quant

    def vector(self, name, n, mean, std):
        self.tensors.append(Planned(name, (n,), TYPES["f32"], mean, std))

    def matrix(self, name, shape, gain=1.0, tensor_type=None):
        tensor_type = tensor_type or quant_of(name, self.n_layers, self.quant)
        self.tensors.append(Planned(name, shape, tensor_type, 0, gain / np.sqrt(shape[0])))


def write_tensor(file, tensor, seed):
    rng = np.random.Generator(np.random.PCG64([seed, zlib.crc32(tensor.name.encode())]))
    if tensor.type is TYPES["f32"]:
        values = rng.standard_normal(tensor.n_elements, dtype=np.float32)
        file.write(tiny.encode_f32(tensor.mean + np.float32(tensor.std) * values))
    else:
        n_blocks = tensor.n_elements // tensor.type.block
        for beg in range(0, n_blocks, BLOCKS_AT_ONCE):
            n = min(BLOCKS_AT_ONCE, n_blocks - beg)
            file.write(DRAW[tensor.type.number](rng, n, tensor.std).tobytes())
    file.write(bytes(-file.tell() % ALIGNMENT))


def write_file(path, metadata, plan):
    directory, offset = b"", 0
    for tensor in plan.tensors:
        directory += tiny.encode_string(tensor.name) + struct.pack("<I", len(tensor.shape))
        directory += struct.pack("<%dQ" % len(tensor.shape), *tensor.shape)
        directory += struct.pack("<IQ", tensor.type.number, offset)
        offset += (tensor.n_bytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    header = b"GGUF" + struct.pack("<IQQ", 3, len(plan.tensors), len(metadata.items))
    temporary = path + ".part"
    with open(temporary, "wb") as file:
        file.write(tiny.padded(header + metadata.encode() + directory))
        for i, tensor in enumerate(plan.tensors):
            write_tensor(file, tensor, plan.seed)
            if sys.stderr.isatty():
                print(f"\r{i + 1}/{len(plan.tensors)} tensors", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    os.replace(temporary, path)


def build(name, quant, layers, seed):
    bench = SHAPES[name]
    shape = dataclasses.replace(bench.shape, layers=layers or bench.shape.layers)
    arch = tiny.ARCHS[bench.arch]
    pre, eos = ("olmo", "<|endoftext|>") if bench.arch == "olmoe" else ("qwen2", "<|im_end|>")
    arch = dataclasses.replace(arch, vocabulary=lambda metadata, micro: tiny.add_bpe(
        metadata, micro, pre, tiny.CHATML, eos, bench.n_vocab))
    file_type = dataclasses.replace(TYPES["q4_k"], file_type=FILE_TYPE[quant])
    metadata, n_vocab = tiny.build_metadata(bench.arch, arch, shape, file_type, False)
    if bench.dense_ff:
        metadata.add(bench.arch + ".feed_forward_length", Kind.U32, bench.dense_ff)
    plan = Plan(seed, shape.layers, quant)
    tiny.add_model(plan, arch, shape, n_vocab)
    return metadata, plan


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--quant", default="q4_k_m", choices=FILE_TYPE)
    parser.add_argument("--layers", type=int, default=0, help="fewer than the model has")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", dest="output", required=True, metavar="FILE")
    args = parser.parse_args()
    if args.layers < 0:
        sys.exit("--layers: must be positive")
    metadata, plan = build(args.shape, args.quant, args.layers, args.seed)
    write_file(args.output, metadata, plan)


if __name__ == "__main__":
    main()
