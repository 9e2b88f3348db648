#!/usr/bin/env python3
"""Make a tiny, deterministic mixture-of-experts model as a GGUF file, for tests.

    make_tiny_model.py --arch qwen2moe --type q4_k -o tiny.gguf

The weights are random (each tensor has its own stream, seeded by --seed and the tensor's name), the
vocabulary is synthetic: the text is nonsense, but every key, tensor, shape and block layout is what a
real file of that architecture has. --micro makes the smallest file that still loads, as a seed for
fuzzing; --shards N splits the model into N files. Needs Python 3 with numpy.

Layouts follow docs/formats/gguf.md.
"""

import argparse
import dataclasses
import os
import struct
import sys
import zlib

import numpy as np

ALIGNMENT = 32


# The file --------------------------------------------------------------------------------------


class Kind:
    """Value kinds of the metadata section."""

    U16, U32, I32, F32, BOOL, STRING, ARRAY = 2, 4, 5, 6, 7, 8, 9
    PACK = {U16: "<H", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}


def encode_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def encode_value(kind, value):
    return encode_string(value) if kind == Kind.STRING else struct.pack(Kind.PACK[kind], value)


def encode_array(kind, values):
    return struct.pack("<IQ", kind, len(values)) + b"".join(encode_value(kind, v) for v in values)


@dataclasses.dataclass
class Tensor:
    name: str
    shape: tuple  # fastest dimension first, as the file has it
    type: "TensorType"
    data: bytes


def padded(data):
    return data + bytes(-len(data) % ALIGNMENT)


class Metadata:
    """Keys in the order in which they were added."""

    def __init__(self):
        self.items = []

    def add(self, key, kind, value):
        self.items.append((key, kind, encode_value(kind, value)))

    def add_array(self, key, kind, values):
        self.items.append((key, Kind.ARRAY, encode_array(kind, values)))

    def encode(self):
        return b"".join(encode_string(k) + struct.pack("<I", kind) + v for k, kind, v in self.items)


def encode_file(metadata, tensors):
    directory, data = b"", b""
    for tensor in tensors:
        directory += encode_string(tensor.name) + struct.pack("<I", len(tensor.shape))
        directory += struct.pack("<%dQ" % len(tensor.shape), *tensor.shape)
        directory += struct.pack("<IQ", tensor.type.number, len(data))
        data += padded(tensor.data)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata.items))
    return padded(header + metadata.encode() + directory) + data


# Element types ---------------------------------------------------------------------------------


def encode_f32(w):
    return w.astype("<f4").tobytes()


def encode_f16(w):
    return w.astype("<f2").tobytes()


def encode_bf16(w):
    bits = w.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()


def divisor(scale):
    """A scale to divide by: blocks of zeros have scale 0 and quants 0."""
    return np.where(scale == 0, 1, scale)


def encode_q8_0(w):
    w = w.reshape(-1, 32)
    scale = np.abs(w).max(axis=1, keepdims=True) / 127
    out = np.empty(len(w), np.dtype([("d", "<f2"), ("qs", "i1", 32)]))
    assert out.itemsize == 34
    out["d"] = scale[:, 0]
    out["qs"] = np.rint(w / divisor(scale))
    return out.tobytes()


def encode_q4_0(w):
    w = w.reshape(-1, 32)
    extreme = np.take_along_axis(w, np.abs(w).argmax(axis=1)[:, None], axis=1)
    scale = extreme / -8  # so that the extreme itself is exactly -8
    q = np.clip(np.rint(w / divisor(scale)) + 8, 0, 15).astype(np.uint8)
    out = np.empty(len(w), np.dtype([("d", "<f2"), ("qs", "u1", 16)]))
    assert out.itemsize == 18
    out["d"] = scale[:, 0]
    out["qs"] = q[:, :16] | q[:, 16:] << 4
    return out.tobytes()


def pack_six_bits(scales, mins):
    """8 scales and 8 minima of 6 bits in 12 bytes."""
    out = np.zeros((len(scales), 12), np.uint8)
    out[:, 0:4] = scales[:, :4] | scales[:, 4:] >> 4 << 6
    out[:, 4:8] = mins[:, :4] | mins[:, 4:] >> 4 << 6
    out[:, 8:12] = (scales[:, 4:] & 15) | (mins[:, 4:] & 15) << 4
    return out


def affine_quants(w, levels):
    """Sub-blocks of 32 as d * scale * q - dmin * min, q in 0..levels, for Q4_K and Q5_K."""
    w = w.reshape(-1, 8, 32)
    low = -np.minimum(w.min(axis=2), 0)
    step = (w.max(axis=2) + low) / levels
    d = (step.max(axis=1, keepdims=True) / 63).astype("<f2")
    dmin = (low.max(axis=1, keepdims=True) / 63).astype("<f2")
    scales = np.clip(np.rint(step / divisor(d.astype("<f4"))), 0, 63).astype(np.uint8)
    mins = np.clip(np.rint(low / divisor(dmin.astype("<f4"))), 0, 63).astype(np.uint8)
    step, low = d.astype("<f4") * scales, dmin.astype("<f4") * mins
    q = np.rint((w + low[:, :, None]) / divisor(step)[:, :, None])
    return d[:, 0], dmin[:, 0], pack_six_bits(scales, mins), np.clip(q, 0, levels).astype(np.uint8)


def pack_nibbles(q):
    """Sub-blocks 2i and 2i + 1 share 32 bytes: low and high nibbles."""
    low = q & 15
    return (low[:, 0::2] | low[:, 1::2] << 4).reshape(len(q), 128)


def encode_q4_k(w):
    d, dmin, scales, q = affine_quants(w, 15)
    out = np.empty(
        len(q), np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])
    )
    assert out.itemsize == 144
    out["d"], out["dmin"], out["scales"], out["qs"] = d, dmin, scales, pack_nibbles(q)
    return out.tobytes()


def encode_q5_k(w):
    d, dmin, scales, q = affine_quants(w, 31)
    fields = [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)]
    out = np.empty(len(q), np.dtype(fields))
    assert out.itemsize == 176
    out["d"], out["dmin"], out["scales"], out["qs"] = d, dmin, scales, pack_nibbles(q)
    out["qh"] = np.packbits(q >> 4, axis=1, bitorder="little")[:, 0]  # bit j: sub-block j
    return out.tobytes()


def encode_q6_k(w):
    w = w.reshape(-1, 16, 16)
    step = np.abs(w).max(axis=2) / 31
    d = (step.max(axis=1, keepdims=True) / 127).astype("<f2")
    scales = np.clip(np.rint(step / divisor(d.astype("<f4"))), 0, 127).astype(np.int8)
    step = d.astype("<f4") * scales
    q = np.rint(w / divisor(step)[:, :, None])
    q = (np.clip(q, -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)  # halves of four rows
    out = np.empty(
        len(q), np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])
    )
    assert out.itemsize == 210
    low, high = q & 15, q >> 4
    out["ql"] = (low[:, :, 0:2] | low[:, :, 2:4] << 4).reshape(-1, 128)
    out["qh"] = (high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6).reshape(
        -1, 64
    )
    out["scales"], out["d"] = scales, d[:, 0]
    return out.tobytes()


@dataclasses.dataclass(frozen=True)
class TensorType:
    number: int
    file_type: int  # general.file_type of a file that is mostly of this type
    block: int  # elements; a row is a multiple of it
    encode: object


TYPES = {
    "f32": TensorType(0, 0, 1, encode_f32),
    "f16": TensorType(1, 1, 1, encode_f16),
    "bf16": TensorType(30, 32, 1, encode_bf16),
    "q8_0": TensorType(8, 7, 32, encode_q8_0),
    "q4_0": TensorType(2, 2, 32, encode_q4_0),
    "q4_k": TensorType(12, 14, 256, encode_q4_k),
    "q5_k": TensorType(13, 16, 256, encode_q5_k),
    "q6_k": TensorType(14, 18, 256, encode_q6_k),
}


# Vocabularies ----------------------------------------------------------------------------------

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6

WORDS = (
    " the and you are that order where your parcel refund hello world thanks please when ship "
    "delivery return price 你好 快递 退货 谢谢"
).split()

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TULU = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ '<|system|>\\n' + message['content'] + '\\n' }}{% elif message['role'] == 'user' %}"
    "{{ '<|user|>\\n' + message['content'] + '\\n' }}{% else %}"
    "{{ '<|assistant|>\\n' + message['content'] + eos_token + '\\n' }}{% endif %}"
    "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}"
)
MIXTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}"
    "{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
)


def byte_symbols():
    """The printable character that stands for each byte in byte-level BPE vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def merges_of(word, have):
    """What joins a word's symbols from left to right: (left, right) pairs that are new in `have`."""
    for end in range(1, len(word)):
        left, right = word[:end], word[end]
        if left + right not in have:
            have.add(left + right)
            yield left, right


def add_bpe(metadata, micro, pre, template, eos, size=0):
    """A small vocabulary, filled up to `size` tokens with words that no text is cut into."""
    symbols = byte_symbols()
    tokens = symbols[:8] if micro else symbols
    have, merges = set(tokens), []
    for word in [] if micro else [w for word in WORDS for w in (word, " " + word)]:
        for left, right in merges_of("".join(symbols[b] for b in word.encode()), have):
            merges.append(left + " " + right)
            tokens = tokens + [left + right]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    space = symbols[ord(" ")]
    tokens = tokens + [f"{space}w{i}" for i in range(len(tokens), size - len(special))]
    types = [NORMAL] * len(tokens) + [CONTROL] * len(special)
    tokens = tokens + special
    metadata.add("tokenizer.ggml.model", Kind.STRING, "gpt2")
    metadata.add("tokenizer.ggml.pre", Kind.STRING, pre)
    metadata.add_array("tokenizer.ggml.tokens", Kind.STRING, tokens)
    metadata.add_array("tokenizer.ggml.token_type", Kind.I32, types)
    metadata.add_array("tokenizer.ggml.merges", Kind.STRING, merges)
    metadata.add("tokenizer.ggml.bos_token_id", Kind.U32, tokens.index("<|endoftext|>"))
    metadata.add("tokenizer.ggml.eos_token_id", Kind.U32, tokens.index(eos))
    metadata.add("tokenizer.ggml.padding_token_id", Kind.U32, tokens.index("<|endoftext|>"))
    metadata.add("tokenizer.ggml.add_bos_token", Kind.BOOL, False)
    metadata.add("tokenizer.chat_template", Kind.STRING, template)
    return len(tokens)


def add_spm(metadata, micro, template):
    bytes_ = ["<0x%02X>" % b for b in range(4 if micro else 256)]
    tokens = ["<unk>", "<s>", "</s>"] + bytes_
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * len(bytes_)
    pieces = []
    for word in [] if micro else WORDS:
        pieces += [left + right for left, right in merges_of("\u2581" + word, set(pieces))]
    # A longer piece is worth more than its parts only if it scores higher: the order is the rank.
    letters = sorted({c for piece in pieces for c in piece})
    normal = pieces + letters
    scores = [0.0] * len(tokens) + [-float(rank) for rank in range(len(normal))]
    metadata.add("tokenizer.ggml.model", Kind.STRING, "llama")
    metadata.add_array("tokenizer.ggml.tokens", Kind.STRING, tokens + normal)
    metadata.add_array("tokenizer.ggml.scores", Kind.F32, scores)
    metadata.add_array("tokenizer.ggml.token_type", Kind.I32, types + [NORMAL] * len(normal))
    metadata.add("tokenizer.ggml.bos_token_id", Kind.U32, 1)
    metadata.add("tokenizer.ggml.eos_token_id", Kind.U32, 2)
    metadata.add("tokenizer.ggml.unknown_token_id", Kind.U32, 0)
    metadata.add("tokenizer.ggml.add_bos_token", Kind.BOOL, True)
    metadata.add("tokenizer.ggml.add_eos_token", Kind.BOOL, False)
    metadata.add("tokenizer.chat_template", Kind.STRING, template)
    return len(tokens + normal)


# Models ----------------------------------------------------------------------------------------


@dataclasses.dataclass
class Shape:
    """All widths differ, so that a mixed-up pair of dimensions cannot go unseen."""

    layers: int = 2
    d: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 24
    experts: int = 8
    top_k: int = 2
    ff: int = 32
    shared_ff: int = 160
    context: int = 512


@dataclasses.dataclass
class Arch:
    """What sets an architecture apart; the flags name keys and tensors that it has."""

    vocabulary: object
    eps: float = 1e-6
    rope_base: float = 1e6
    qkv_bias: bool = False
    qk_norm: str = ""  # "head" or "full"
    shared: bool = False
    expert_ff_key: str = "expert_feed_forward_length"


ARCHS = {
    "qwen2moe": Arch(lambda m, micro: add_bpe(m, micro, "qwen2", CHATML, "<|im_end|>"),
                     qkv_bias=True, shared=True),
    "qwen3moe": Arch(lambda m, micro: add_bpe(m, micro, "qwen2", CHATML, "<|im_end|>"),
                     qk_norm="head"),
    "olmoe": Arch(lambda m, micro: add_bpe(m, micro, "olmo", TULU, "<|endoftext|>"),
                  eps=1e-5, rope_base=1e4, qk_norm="full", expert_ff_key="feed_forward_length"),
    "llama": Arch(lambda m, micro: add_spm(m, micro, MIXTRAL), eps=1e-5,
                  expert_ff_key="feed_forward_length"),
}


def shape_for(tensor_type, micro):
    if micro:
        return Shape(layers=1, d=32, heads=2, kv_heads=1, head_dim=16, experts=2, top_k=1, ff=32,
                     shared_ff=32)
    if tensor_type.block == 256:  # every row of a matrix has to be a multiple of the block
        return Shape(layers=1, d=256, kv_heads=1, head_dim=64, experts=4, ff=256, shared_ff=512)
    return Shape()


def build_metadata(name, arch, shape, tensor_type, micro):
    metadata = Metadata()

    def add(key, kind, value):
        metadata.add(name + "." + key, kind, value)

    metadata.add("general.architecture", Kind.STRING, name)
    metadata.add("general.name", Kind.STRING, "tiny-" + name)
    metadata.add("general.file_type", Kind.U32, tensor_type.file_type)
    metadata.add("general.quantization_version", Kind.U32, 2)
    add("block_count", Kind.U32, shape.layers)
    add("context_length", Kind.U32, shape.context)
    add("embedding_length", Kind.U32, shape.d)
    add("attention.head_count", Kind.U32, shape.heads)
    add("attention.head_count_kv", Kind.U32, shape.kv_heads)
    add("attention.key_length", Kind.U32, shape.head_dim)
    add("attention.value_length", Kind.U32, shape.head_dim)
    add("attention.layer_norm_rms_epsilon", Kind.F32, arch.eps)
    add("rope.dimension_count", Kind.U32, shape.head_dim)
    add("rope.freq_base", Kind.F32, arch.rope_base)
    add("expert_count", Kind.U32, shape.experts)
    add("expert_used_count", Kind.U32, shape.top_k)
    add(arch.expert_ff_key, Kind.U32, shape.ff)
    if arch.shared:
        add("expert_shared_feed_forward_length", Kind.U32, shape.shared_ff)
    n_vocab = arch.vocabulary(metadata, micro)
    return metadata, n_vocab


class Weights:
    """Random tensors; a tensor's values depend on nothing but the seed, its name and its shape."""

    def __init__(self, seed, tensor_type):
        self.seed, self.type, self.tensors = seed, tensor_type, []

    def draw(self, name, shape):
        rng = np.random.Generator(np.random.PCG64([self.seed, zlib.crc32(name.encode())]))
        return rng.standard_normal(int(np.prod(shape)), dtype=np.float32)

    def vector(self, name, n, mean, std):
        values = mean + np.float32(std) * self.draw(name, (n,))
        self.tensors.append(Tensor(name, (n,), TYPES["f32"], encode_f32(values)))

    def matrix(self, name, shape, gain=1.0, tensor_type=None):
        """Scaled so that inputs of unit variance give outputs of variance gain^2."""
        tensor_type = tensor_type or self.type
        values = self.draw(name, shape) * np.float32(gain / np.sqrt(shape[0]))
        self.tensors.append(Tensor(name, shape, tensor_type, tensor_type.encode(values)))


def add_attention(weights, prefix, arch, s):
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    weights.vector(prefix + "attn_norm.weight", s.d, 1, 0.1)
    for part, rows in (("q", q), ("k", kv), ("v", kv)):
        weights.matrix(prefix + f"attn_{part}.weight", (s.d, rows))
        if arch.qkv_bias:
            weights.vector(prefix + f"attn_{part}.bias", rows, 0, 0.1)
    if arch.qk_norm:
        full = arch.qk_norm == "full"
        weights.vector(prefix + "attn_q_norm.weight", q if full else s.head_dim, 1, 0.1)
        weights.vector(prefix + "attn_k_norm.weight", kv if full else s.head_dim, 1, 0.1)
    weights.matrix(prefix + "attn_output.weight", (q, s.d), 0.5)


def add_experts(weights, prefix, arch, s):
    weights.vector(prefix + "ffn_norm.weight", s.d, 1, 0.1)
    weights.matrix(prefix + "ffn_gate_inp.weight", (s.d, s.experts), 2.0, TYPES["f32"])
    weights.matrix(prefix + "ffn_gate_exps.weight", (s.d, s.ff, s.experts))
    weights.matrix(prefix + "ffn_up_exps.weight", (s.d, s.ff, s.experts))
    weights.matrix(prefix + "ffn_down_exps.weight", (s.ff, s.d, s.experts))
    if arch.shared:
        weights.vector(prefix + "ffn_gate_inp_shexp.weight", s.d, 0, 2 / np.sqrt(s.d))
        weights.matrix(prefix + "ffn_gate_shexp.weight", (s.d, s.shared_ff))
        weights.matrix(prefix + "ffn_up_shexp.weight", (s.d, s.shared_ff))
        weights.matrix(prefix + "ffn_down_shexp.weight", (s.shared_ff, s.d))


def add_model(weights, arch, shape, n_vocab):
    # Embeddings of unit variance: what a token is outweighs what the random layers add to it.
    weights.matrix("token_embd.weight", (shape.d, n_vocab), np.sqrt(shape.d))
    for layer in range(shape.layers):
        prefix = f"blk.{layer}."
        add_attention(weights, prefix, arch, shape)
        add_experts(weights, prefix, arch, shape)
    weights.vector("output_norm.weight", shape.d, 1, 0.1)
    weights.matrix("output.weight", (shape.d, n_vocab), 2.0)


def write(path, data):
    temporary = path + ".part"
    with open(temporary, "wb") as file:
        file.write(data)
    os.replace(temporary, path)


def write_shards(path, n_shards, metadata, tensors):
    """The first shard has all metadata; tensors are dealt out in runs."""
    base, extension = os.path.splitext(path)
    for i in range(n_shards):
        part = Metadata()
        part.items = list(metadata.items) if i == 0 else []
        part.add("split.no", Kind.U16, i)
        part.add("split.count", Kind.U16, n_shards)
        part.add("split.tensors.count", Kind.I32, len(tensors))
        run = tensors[len(tensors) * i // n_shards : len(tensors) * (i + 1) // n_shards]
        write(f"{base}-{i + 1:05}-of-{n_shards:05}{extension}", encode_file(part, run))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--arch", required=True, choices=ARCHS)
    parser.add_argument("--type", required=True, choices=TYPES, help="of every matrix but the gate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--micro", action="store_true", help="the smallest file that loads")
    parser.add_argument("--shards", type=int, default=1, help="split into N files named after -o")
    parser.add_argument("-o", dest="output", required=True, metavar="FILE")
    args = parser.parse_args()

    arch, tensor_type = ARCHS[args.arch], TYPES[args.type]
    shape = shape_for(tensor_type, args.micro)
    metadata, n_vocab = build_metadata(args.arch, arch, shape, tensor_type, args.micro)
    weights = Weights(args.seed, tensor_type)
    add_model(weights, arch, shape, n_vocab)
    tensors = weights.tensors
    if args.shards == 1:
        write(args.output, encode_file(metadata, tensors))
    elif 1 < args.shards <= len(tensors):
        write_shards(args.output, args.shards, metadata, tensors)
    else:
        sys.exit(f"--shards: must be within 1..{len(tensors)}")


if __name__ == "__main__":
    main()
