"""The model as a GGUF file of architecture qwen2moe, and back.

Matrices are Q8_0, vectors and gates F32. The layout is written with the encoders of
tools/make_tiny_model.py; docs/formats/gguf.md describes it.
"""

import math
import pathlib
import struct
import sys

import numpy as np

import bpe
import network

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

from make_tiny_model import (  # noqa: E402  (found beside this folder)
    ALIGNMENT, TYPES, Kind, Metadata, Tensor, encode_file, write as write_bytes)

ARCHITECTURE = "qwen2moe"
NAME = "evenkeel-demo"
TEMPLATE = ("{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + "
            "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
            "{{ '<|im_start|>assistant\\n' }}{% endif %}")
NORMAL, CONTROL = 1, 3

# Key below the architecture's name and the field of network.Config that it holds.
NUMBERS = {
    "block_count": "layers", "context_length": "context", "embedding_length": "d",
    "attention.head_count": "heads", "attention.head_count_kv": "kv_heads",
    "expert_count": "experts", "expert_used_count": "top_k",
    "expert_feed_forward_length": "ff", "expert_shared_feed_forward_length": "shared_ff",
    "vocab_size": "vocabulary",
}


class FileError(Exception):
    """A file that is no GGUF file of this architecture."""


# Writing -----------------------------------------------------------------------------------------


def metadata(config, tokenizer):
    meta = Metadata()
    meta.add("general.architecture", Kind.STRING, ARCHITECTURE)
    meta.add("general.name", Kind.STRING, NAME)
    meta.add("general.license", Kind.STRING, "apache-2.0")
    meta.add("general.file_type", Kind.U32, TYPES["q8_0"].file_type)
    meta.add("general.quantization_version", Kind.U32, 2)
    for key, field in NUMBERS.items():
        meta.add(f"{ARCHITECTURE}.{key}", Kind.U32, getattr(config, field))
    meta.add(f"{ARCHITECTURE}.feed_forward_length", Kind.U32, config.shared_ff)
    meta.add(f"{ARCHITECTURE}.rope.freq_base", Kind.F32, network.ROPE_BASE)
    meta.add(f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon", Kind.F32, network.EPSILON)
    symbols = tokenizer.symbols()
    plain = len(symbols) - len(bpe.SPECIAL)
    meta.add("tokenizer.ggml.model", Kind.STRING, "gpt2")
    meta.add("tokenizer.ggml.pre", Kind.STRING, "qwen2")
    meta.add_array("tokenizer.ggml.tokens", Kind.STRING, symbols)
    meta.add_array("tokenizer.ggml.token_type", Kind.I32,
                   [NORMAL] * plain + [CONTROL] * len(bpe.SPECIAL))
    meta.add_array("tokenizer.ggml.merges", Kind.STRING,
                   [f"{symbols[a]} {symbols[b]}" for a, b in tokenizer.merges])
    meta.add("tokenizer.ggml.bos_token_id", Kind.U32, tokenizer.end)
    meta.add("tokenizer.ggml.eos_token_id", Kind.U32, tokenizer.stop)
    meta.add("tokenizer.ggml.padding_token_id", Kind.U32, tokenizer.end)
    meta.add("tokenizer.ggml.add_bos_token", Kind.BOOL, False)
    meta.add("tokenizer.chat_template", Kind.STRING, TEMPLATE)
    return meta


def write(path, config, weights, tokenizer):
    """`weights`: the flat vector of network.shapes(), as float32."""
    if len(tokenizer) != config.vocabulary:
        raise FileError(f"the tokenizer has {len(tokenizer)} tokens, not {config.vocabulary}")
    tensors, at = [], 0
    for name, shape in network.shapes(config).items():
        size = math.prod(shape)
        kind = TYPES["f32" if len(shape) == 1 or "ffn_gate_inp" in name else "q8_0"]
        values = np.ascontiguousarray(weights[at:at + size], np.float32)
        tensors.append(Tensor(name, tuple(reversed(shape)), kind, kind.encode(values)))
        at += size
    write_bytes(str(path), encode_file(metadata(config, tokenizer), tensors))


# Reading -----------------------------------------------------------------------------------------


class Cursor:
    """Takes values off the front of a file's bytes."""

    FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?",
               10: "<Q", 11: "<q", 12: "<d"}

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return values[0]

    def string(self):
        size = self.take("<Q")
        self.at += size
        return bytes(self.data[self.at - size:self.at]).decode("utf-8")

    def value(self, kind):
        if kind == Kind.STRING:
            return self.string()
        if kind == Kind.ARRAY:
            kind, count = self.take("<I"), self.take("<Q")
            return [self.value(kind) for _ in range(count)]
        return self.take(self.FORMATS[kind])


def decode(kind, data, count):
    """Elements of a tensor as float32."""
    if kind == TYPES["f32"].number:
        return np.frombuffer(data, "<f4", count)
    if kind == TYPES["q8_0"].number:
        blocks = np.frombuffer(data, [("d", "<f2"), ("qs", "i1", 32)], count // 32)
        return (blocks["qs"] * blocks["d"].astype(np.float32)[:, None]).ravel()
    raise FileError(f"tensors of type {kind} are not read here, only F32 and Q8_0")


def read(path):
    """(config, flat weights as float32, merges) of a file that write() made."""
    data = memoryview(pathlib.Path(path).read_bytes())
    cursor = Cursor(data)
    if cursor.take("<I") != int.from_bytes(b"GGUF", "little") or cursor.take("<I") != 3:
        raise FileError(f"{path} is no GGUF file of version 3")
    tensor_count, key_count = cursor.take("<Q"), cursor.take("<Q")
    keys = {}
    for _ in range(key_count):
        name = cursor.string()
        keys[name] = cursor.value(cursor.take("<I"))
    if keys["general.architecture"] != ARCHITECTURE:
        raise FileError(f"{path} is a {keys['general.architecture']}, not a {ARCHITECTURE}")
    directory = {}
    for _ in range(tensor_count):
        name = cursor.string()
        shape = [cursor.take("<Q") for _ in range(cursor.take("<I"))]
        directory[name] = math.prod(shape), cursor.take("<I"), cursor.take("<Q")
    begin = -(-cursor.at // ALIGNMENT) * ALIGNMENT
    config = network.Config(**{field: keys[f"{ARCHITECTURE}.{key}"]
                               for key, field in NUMBERS.items()})
    parts = []
    for name, shape in network.shapes(config).items():
        count, kind, offset = directory[name]
        if count != math.prod(shape):
            raise FileError(f"{path}: {name} has {count} elements, not {math.prod(shape)}")
        parts.append(decode(kind, data[begin + offset:], count))
    ids = {symbol: i for i, symbol in enumerate(keys["tokenizer.ggml.tokens"])}
    merges = [tuple(ids[part] for part in merge.split(" "))
              for merge in keys["tokenizer.ggml.merges"]]
    return config, np.concatenate(parts), merges
