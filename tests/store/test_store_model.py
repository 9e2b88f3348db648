#!/usr/bin/env python3
"""Goal: `evenkeel manifest` says what is in a model's files, finds any byte that differs, and a worker checks its
experts by it and serves from a file that has no others.
Method: hashes, offsets and tokenizer computed again from the bytes by this test; a real front and real workers over
files with holes; weights and manifests that do not belong together."""
import hashlib
import json
import pathlib
import shutil
import struct
import sys
import tempfile
import unittest

import store_rig
from store_rig import MODEL, fetch, harness, is_right, make_manifest, shards

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))
import cluster_rig  # noqa: E402


def tokenizer_hash(data):
    """SHA-256 of the entries of all keys that begin with `tokenizer.`, read from GGUF by this test."""
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    at = 24
    digest = hashlib.sha256()

    def string(at):
        n = struct.unpack_from("<Q", data, at)[0]
        return data[at + 8:at + 8 + n], at + 8 + n
    for _ in range(struct.unpack_from("<Q", data, 16)[0]):
        beg = at
        name, at = string(at)
        kind = struct.unpack_from("<I", data, at)[0]
        at += 4
        n = 1
        if kind == 9:
            kind, n = struct.unpack_from("<IQ", data, at)
            at += 12
        if kind == 8:
            for _ in range(n):
                at = string(at)[1]
        else:
            at += n * sizes[kind]
        if name.startswith(b"tokenizer."):
            digest.update(data[beg:at])
    return digest.hexdigest()


class Case(unittest.TestCase):
    def setUp(self):
        self.tmp = pathlib.Path(tempfile.mkdtemp(prefix="evenkeel-manifest-"))
        self.addCleanup(shutil.rmtree, self.tmp, ignore_errors=True)
        self.manifest = self.tmp / "m.json"

    def verify(self, model, *arguments):
        return harness.run("manifest", "--model", model, "--verify", self.manifest, *arguments)


class Manifest(Case):
    def check_of(self, model):
        said = make_manifest(self.manifest, model)
        data = pathlib.Path(model).read_bytes()
        body = said["body"]
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        self.assertEqual(hashlib.sha256(canonical).hexdigest(), said["body_sha256"])
        self.assertEqual(body["tokenizer_sha256"], tokenizer_hash(data))
        end = 0
        experts = set()
        for name, shard in shards(said):
            self.assertEqual(name, pathlib.Path(model).name)
            self.assertTrue(is_right(data, shard), shard)
            self.assertEqual(data[end:shard["offset"]].count(0), shard["offset"] - end, "what no shard has is zeros")
            end = shard["offset"] + shard["bytes"]
            if shard["part"] == "expert":
                experts.add((shard["layer"], shard["expert"], shard["tensor"]))
        self.assertEqual(end, len(data))
        self.assertEqual(len(experts), body["layers"] * body["experts"] * 3)
        self.assertEqual(self.verify(model).returncode, 0)
        return said

    def test_bundled_model(self):
        self.check_of(MODEL)

    def test_other_models(self):
        for name in ("qwen2moe-f32", "olmoe-q8_0", "llama-f32"):
            path = harness.tiny(name)
            if path.exists():
                with self.subTest(name):
                    self.check_of(path)

    def test_same_bytes_same_manifest(self):
        make_manifest(self.manifest)
        one = harness.run("manifest", "--model", MODEL, "--threads", "1").stdout
        self.assertEqual(one, self.manifest.read_text())

    def test_every_kind_of_damage_is_named(self):
        said = make_manifest(self.manifest)
        copy = self.tmp / "copy.gguf"
        seen = set()
        for _, shard in shards(said):
            if shard["part"] in seen:
                continue
            seen.add(shard["part"])
            data = bytearray(MODEL.read_bytes())
            data[shard["offset"] + shard["bytes"] - 1] ^= 0x80
            copy.write_bytes(data)
            done = self.verify(copy)
            self.assertEqual(done.returncode, 65)
            found = hashlib.sha256(data[shard["offset"]:shard["offset"] + shard["bytes"]]).hexdigest()
            what = {"head": "head (", "dense": f"{shard.get('tensor')} (", "expert":
                    f"{shard.get('tensor')}, expert {shard.get('expert')} ("}[shard["part"]]
            self.assertEqual(done.stderr, f"evenkeel: {copy}: {what}evenkeel-demo.gguf, {shard['bytes']} bytes at "
                             f"{shard['offset']}): expected SHA-256 {shard['sha256']}, found {found}\n")
        self.assertEqual(seen, {"head", "dense", "expert"})

    def test_mistakes(self):
        make_manifest(self.manifest)
        short = self.tmp / "short.gguf"
        short.write_bytes(MODEL.read_bytes()[:-1])
        size = MODEL.stat().st_size
        for arguments, code, part in (
                (["--model", short, "--verify", self.manifest], 65, f"has {size - 1} bytes, not the manifest's {size}"),
                (["--model", "/no/such", "--verify", self.manifest], 66, "/no/such"),
                (["--model", MODEL, "--verify", MODEL], 65, "is no manifest"),
                (["--model", self.manifest], 65, "not a GGUF file"),
                (["--model", MODEL, "--out", "/no/such/folder/m"], 66, "/no/such/folder"),
                (["--model", MODEL, "--experts", "0:0"], 2, "go with --verify"),
                ([], 2, "--model is needed")):
            with self.subTest(part):
                done = harness.run("manifest", *arguments)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(part, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1)
        text = self.manifest.read_text()
        self.manifest.write_text(text.replace('"experts": 32', '"experts": 33'))
        self.assertIn("was changed: its body's SHA-256 should be", self.verify(MODEL).stderr)

    def test_split_model(self):
        """Two files, the second one's experts alone."""
        whole = MODEL.read_bytes()
        first, second = self.tmp / "x-00001-of-00002.gguf", self.tmp / "x-00002-of-00002.gguf"
        split(whole, first, second)
        said = make_manifest(self.manifest, first)
        self.assertEqual([file["name"] for file in said["body"]["files"]], [first.name, second.name])
        whole_said = json.loads(harness.run("manifest", "--model", MODEL).stdout)
        self.assertEqual(said["body"]["tokenizer_sha256"], tokenizer_hash(first.read_bytes()))
        tensors = {(s.get("tensor"), s.get("expert")): s["sha256"] for _, s in shards(whole_said) if "tensor" in s}
        self.assertEqual({(s["tensor"], s.get("expert")): s["sha256"] for _, s in shards(said) if "tensor" in s}, tensors)
        self.assertEqual(self.verify(first).returncode, 0)
        done = fetch(self.tmp, "--manifest", self.manifest, "--out", self.tmp / "out", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        for path in (first, second):
            self.assertEqual((self.tmp / "out" / path.name).read_bytes(), path.read_bytes())
        data = bytearray(second.read_bytes())
        data[-1] ^= 1
        second.write_bytes(data)
        self.assertIn(second.name, self.verify(first).stderr)


def split(whole, first, second):
    """A model as two files: all keys and the first half of the tensors, the other half."""
    n_tensors, n_keys = struct.unpack_from("<QQ", whole, 8)
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    at = 24

    def string(at):
        n = struct.unpack_from("<Q", whole, at)[0]
        return whole[at + 8:at + 8 + n], at + 8 + n
    for _ in range(n_keys):
        _, at = string(at)
        kind = struct.unpack_from("<I", whole, at)[0]
        at += 4
        n = 1
        if kind == 9:
            kind, n = struct.unpack_from("<IQ", whole, at)
            at += 12
        for _ in range(n if kind == 8 else 0):
            at = string(at)[1]
        at += 0 if kind == 8 else n * sizes[kind]
    keys = whole[24:at]
    tensors = []
    for _ in range(n_tensors):
        name, at = string(at)
        n_dims = struct.unpack_from("<I", whole, at)[0]
        shape = whole[at:at + 4 + 8 * n_dims + 4]
        at += len(shape)
        tensors.append((name, shape, struct.unpack_from("<Q", whole, at)[0]))
        at += 8
    data = (at + 31) // 32 * 32
    tensors.sort(key=lambda t: t[2])
    ends = [t[2] for t in tensors[1:]] + [len(whole) - data]
    pieces = [(name, shape, whole[data + beg:data + end]) for (name, shape, beg), end in zip(tensors, ends)]

    def key(name, kind, form, value):
        return struct.pack("<Q", len(name)) + name + struct.pack("<I" + form, kind, value)
    half = len(pieces) // 2
    for no, (path, own_keys, own) in enumerate(((first, keys, pieces[:half]), (second, b"", pieces[half:]))):
        extra = key(b"split.no", 2, "H", no) + key(b"split.count", 2, "H", 2) + key(
            b"split.tensors.count", 5, "i", len(pieces))
        head = b"GGUF" + struct.pack("<IQQ", 3, len(own), (n_keys if no == 0 else 0) + 3) + own_keys + extra
        body = b""
        for name, shape, piece in own:
            head += struct.pack("<Q", len(name)) + name + shape + struct.pack("<Q", len(body))
            body += piece + bytes(-len(piece) % 32)
        path.write_bytes(head + bytes(-len(head) % 32) + body)


class Workers(Case):
    def test_experts_from_files_with_holes(self):
        make_manifest(self.manifest)
        parts = {"w0": "*:0-19", "w1": "*:12-31"}
        certs = cluster_rig.make_certs(self.tmp / "certs", *parts)
        for name, experts in parts.items():
            done = fetch(MODEL.parent, "--manifest", self.manifest, "--out", self.tmp / name, "--experts", experts)
            self.assertEqual(done.returncode, 0, done.stderr)

        def worker(name, *more):
            model = self.tmp / name / MODEL.name
            return cluster_rig.Worker(certs / name, "--experts", parts[name], "--manifest", f"{model}.manifest.json", *more,
                                      model=model)
        with worker("w0") as w0, worker("w1") as w1:
            self.assertIn("event=experts_checked", w0.log_text())
            with cluster_rig.Front(certs / "front", [w0, w1]) as front:
                texts = cluster_rig.texts(front, tokens=24)
        with harness.Server("--threads", "1", model=MODEL) as server:
            self.assertEqual(cluster_rig.texts(server, tokens=24), texts)

    def test_wrong_experts_are_refused(self):
        make_manifest(self.manifest)
        certs = cluster_rig.make_certs(self.tmp / "certs", "w0")
        fetch(MODEL.parent, "--manifest", self.manifest, "--out", self.tmp / "w0", "--experts", "*:0-19")
        model = self.tmp / "w0" / MODEL.name

        def refused(*arguments):
            done = harness.run("worker", "--listen", "127.0.0.1:0", "--certs", certs / "w0", "--threads", "1", *arguments)
            self.assertEqual(done.returncode, 65, done.stderr)
            return done.stderr
        said = refused("--model", model, "--manifest", self.manifest, "--experts", "*:19-20")
        self.assertIn(", expert 20 (", said)
        self.assertIn("expected SHA-256", said)
        other = self.tmp / "other.json"
        make_manifest(other, store_rig.harness.TINY)
        self.assertIn("is of another model", refused("--model", model, "--manifest", other, "--experts", "*:0"))


if __name__ == "__main__":
    harness.main()
