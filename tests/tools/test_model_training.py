#!/usr/bin/env python3
"""Goal: packing, training, export and evaluation of tools/model do what they say. Method: a network of a few thousand
weights is trained for a few steps on rows packed from a few hundred documents; the real trainer is stopped by a signal
and resumed; the real program computes with what was exported. What needs PyTorch is skipped, saying so, without it."""
import importlib.util
import json
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402  (needs the path above)
from harness import SOURCE  # noqa: E402

MODEL = SOURCE / "tools/model"
sys.path.insert(0, str(MODEL))
import bpe  # noqa: E402
import dialogues  # noqa: E402
import drills  # noqa: E402
import numpy as np  # noqa: E402
import pack  # noqa: E402
import slots  # noqa: E402
import tables  # noqa: E402

TORCH = importlib.util.find_spec("torch") is not None
needs_torch = unittest.skipUnless(TORCH, "python3-torch is not installed, which only training needs")

EXIT_STOPPED = 75  # train.py's; the module itself needs PyTorch
TOKENS = 512
SHAPE = {"layers": 2, "d": 64, "heads": 4, "kv-heads": 2, "experts": 8, "top-k": 2, "ff": 32, "shared-ff": 64,
         "vocabulary": TOKENS, "context": 512}
# Of two tokens whose logits are closer than this either may win: keys are cached with half the digits.
CLOSE_RACE = 0.01


def write_data(folder):
    """Everything that pack.py wants, small: prose is this repository's own."""
    for name, count, rounds, seed in (("dialogue", 300, None, 1), ("dialogue_long", 40, dialogues.ROUNDS_LONG, 2),
                                      ("dialogue.valid", 20, None, 3)):
        lines = [json.dumps(d) for d in dialogues.write(count, seed, rounds)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    for name, count, seed in (("drill", 100, 4), ("drill.valid", 20, 5)):
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps(d) for d in drills.write(count, seed)) + "\n")
    texts = {"zh": MODEL / "prose/zh.txt", "en": SOURCE / "docs/ROUTING.md", "c": SOURCE / "src/route/route.c",
             "py": MODEL / "bpe.py"}
    for name, path in texts.items():
        text = path.read_text()
        (folder / f"{name}.train.txt").write_text("\0".join(text[i:i + 2000] for i in range(0, len(text), 2000)))
        (folder / f"{name}.valid.txt").write_text(text[:4000])
    sample = bpe.read(f"{folder / 'dialogue.jsonl'}:1:1")
    bpe.Tokenizer(bpe.train([sample], TOKENS)).save(folder / "tokenizer.json")
    pack.pack(folder)


def train(folder, out, steps, *arguments, stop_after=None):
    """Run the real trainer; with `stop_after`, end it by SIGTERM when a line of that kind was printed."""
    shape = [word for key, value in SHAPE.items() for word in (f"--{key}", str(value))]
    process = subprocess.Popen([sys.executable, MODEL / "train.py", folder, "--out", out, "--steps", str(steps),
                                *shape, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines, wanted = [], EXIT_STOPPED if stop_after else 0
    for line in process.stdout:
        lines.append(line)
        if stop_after and line.startswith(stop_after):
            process.send_signal(signal.SIGTERM)
            stop_after = None
    process.stdout.close()
    if process.wait() != wanted:
        raise AssertionError("".join(lines))
    return lines


class Packing(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name)
        write_data(cls.path)
        cls.tokenizer = bpe.Tokenizer.load(cls.path / "tokenizer.json")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def rows(self, name, domain):
        with np.load(self.path / f"{name}.npz") as found:
            return {part: found[f"{domain}.{part}"].astype(int) for part in ("ids", "docs", "weights")}

    def test_rows_hold_whole_dialogues(self):
        rows = self.rows("short", "dialogue")
        self.assertEqual(rows["ids"].shape[1], 257)
        wanted = {self.tokenizer.decode(ids) for ids, _ in pack.dialogues(self.tokenizer, self.path / "dialogue.jsonl")
                  if len(ids) <= 257}
        found = set()
        for ids, docs in zip(rows["ids"], rows["docs"]):
            for number in set(docs) - {255}:
                found.add(self.tokenizer.decode(ids[docs == number]))
        self.assertEqual(found, wanted)
        self.assertGreater((rows["docs"] != 255).mean(), 0.7, "little padding")

    def test_answers_are_asked_for_and_cards_are_not(self):
        messages = [{"role": "system", "content": "Order: 7B2K9"}, {"role": "user", "content": "Hi"},
                    {"role": "assistant", "content": "Hello!"}]
        ids, weights = pack.dialogue_document(self.tokenizer, messages)
        marked = {weight: self.tokenizer.decode([i for i, w in zip(ids, weights) if w == weight])
                  for weight in set(weights)}
        self.assertEqual(marked[pack.ANSWER], "Hello!<|im_end|>")
        self.assertEqual(marked[pack.QUESTION], "Hi<|im_end|>")
        self.assertIn("7B2K9", marked[0])

    def test_no_document_is_asked_for_its_first_token(self):
        rows = self.rows("short", "drill")
        first = np.diff(rows["docs"], axis=1) != 0
        self.assertEqual(rows["weights"][:, 1:][first].sum(), 0)

    def test_prose_is_cut_without_a_gap(self):
        for name in pack.PROSE:
            rows = self.rows("short", name)
            self.assertTrue((rows["ids"][1:, 0] == rows["ids"][:-1, -1]).all())


@needs_torch
class Training(unittest.TestCase):
    STEPS = 30

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name)
        write_data(cls.path)
        cls.lines = train(cls.path, cls.path / "straight", cls.STEPS)
        cls.model = cls.path / "model.gguf"
        subprocess.run([sys.executable, MODEL / "export.py", cls.path / "straight/checkpoint.pt",
                        cls.path / "tokenizer.json", "-o", cls.model], check=True, stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_losses_fall_and_are_logged_per_domain(self):
        steps = [line for line in self.lines if line.startswith("step")]
        self.assertTrue(steps[0].startswith(f"step 1/{self.STEPS} tokens 4096 "), steps[0])
        for name in ("dialogue", "drill", "zh", "en", "c", "py"):
            first, last = (float(re.search(rf" {name} ([\d.]+)", line).group(1)) for line in (steps[0], steps[-1]))
            self.assertLess(last, first, name)
        self.assertRegex(steps[-1], r"\| norm [\d.]+ rate [\d.]+ max/mean( [\d.]+){2} zero \d+")
        self.assertTrue(any(line.startswith(f"valid {self.STEPS}: dialogue ") for line in self.lines))

    def test_mean_with_the_file_that_it_began_with(self):
        import checkpoint
        import gguf
        config, step, state = checkpoint.load(self.path / "straight/checkpoint.pt")
        weights = state["weights"].numpy()
        other, mean = self.path / "other.pt", self.path / "mean.gguf"
        checkpoint.save(other, config, step, {**state, "weights": -state["weights"]})
        subprocess.run([sys.executable, MODEL / "export.py", other, self.path / "tokenizer.json", "--mean-with", self.model,
                        "-o", mean], check=True, stdout=subprocess.DEVNULL)
        self.assertLess(np.abs(gguf.read(mean)[1] - (0.3 - 0.7) * weights).max(), 0.01 * np.abs(weights).max())

    def test_resumed_is_as_never_stopped(self):
        import torch
        out = self.path / "resumed"
        stopped = train(self.path, out, self.STEPS, stop_after="step 1/")
        self.assertFalse(any(line.startswith(f"step {self.STEPS}/") for line in stopped), "it was stopped")
        resumed = train(self.path, out, self.STEPS)
        self.assertNotIn("from step 0", resumed[0])
        straight, again = (torch.load(folder / "checkpoint.pt") for folder in (self.path / "straight", out))
        self.assertEqual((straight["step"], again["step"]), (self.STEPS, self.STEPS))
        for name in ("weights", "first", "second", "counts"):
            self.assertTrue(torch.equal(straight[name], again[name]), name)

    def test_a_file_is_a_beginning(self):
        lines = train(self.path, self.path / "from-file", 2, "--from", self.model)
        begin, end = (float(re.search(r" dialogue ([\d.]+)", line).group(1))
                      for line in ([l for l in lines if l.startswith("step")][0],
                                   [l for l in self.lines if l.startswith("step")][-1]))
        self.assertLess(begin, end + 0.5, "goes on about where the file was")

    def test_the_program_computes_what_the_network_does(self):
        """Export, load, greedy tokens: the file's weights in PyTorch against evenkeel's reference kernels."""
        import gguf
        import network
        import torch
        config, weights, merges = gguf.read(self.model)
        tokenizer = bpe.Tokenizer.load(self.path / "tokenizer.json")
        self.assertEqual(merges, tokenizer.merges)
        net = network.Network(config, torch.from_numpy(weights))
        compared = 0
        texts = [line for path in (MODEL / "prose/zh.txt", SOURCE / "src/route/route.c", SOURCE / "docs/ROUTING.md")
                 for line in path.read_text().split("\n") if len(line) > 20][::25]
        for text in texts:
            ids = tokenizer.encode(text)
            prompt = self.path / "prompt.txt"
            prompt.write_text(tokenizer.decode(ids))
            done = harness.run("logits", "--model", self.model, "--prompt-file", prompt, "--greedy", 6, "--kernels",
                               "reference", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            found = json.loads(done.stdout)
            self.assertEqual(found["tokens"], ids)
            with torch.no_grad():
                wanted = net.logits(ids)[-1]
                np.testing.assert_allclose(found["logits"], wanted.numpy(), atol=1e-2)
                for token in found["greedy"]:
                    top = net.logits(ids)[-1].topk(2)
                    if top.values[0] - top.values[1] < CLOSE_RACE:
                        break
                    self.assertEqual(token, int(top.indices[0]))
                    ids.append(token)
                    compared += 1
        self.assertGreater(compared, 15)

    def test_rounding_to_eight_bits_is_all_that_is_lost(self):
        import checkpoint
        import gguf
        import network
        import torch
        config, _, state = checkpoint.load(self.path / "straight/checkpoint.pt")
        again, weights, _ = gguf.read(self.model)
        self.assertEqual(again, config)
        pairs = zip(network.views(config, state["weights"]).items(),
                    network.views(config, torch.from_numpy(weights)).values())
        for (name, exact), rounded in pairs:
            step = exact.abs().max() / 127
            self.assertLessEqual(float((exact - rounded).abs().max()), float(step) * 0.54 + 1e-6, name)

    def test_matching_heads_look_for_their_own_token(self):
        """match.py: of the second layer's attention, more lies on what followed the same token before."""
        import checkpoint
        import match
        import network
        import torch
        import train as trainer
        config, _, state = checkpoint.load(self.path / "straight/checkpoint.pt")
        tokenizer = bpe.Tokenizer.load(self.path / "tokenizer.json")
        rng = random.Random(1)
        texts = []
        for _ in range(30):
            two = " ".join(slots.code(rng, "order", False, tables.ORDER_LETTERS, rng.sample(slots.CODE_DIGITS, 3))
                           for _ in range(2))
            texts.append(torch.tensor([tokenizer.encode(f"单号：{two} {two}")]))

        def found_in(net, ids):
            """The attention of the matching heads from the repetition to what followed at first."""
            half = (ids.shape[1] - 3) // 2
            with torch.no_grad():
                x = match.residual_after_first_layer(net, ids, torch.zeros_like(ids))
                h = network.norm(x, net.weights["blk.1.attn_norm.weight"])
                size = config.head_dim

                def heads(part, count):
                    y = h @ net.weights[f"blk.1.attn_{part}.weight"].t() + net.weights[f"blk.1.attn_{part}.bias"]
                    return net.rotate(y.view(-1, count, size).transpose(0, 1))

                q, k = heads("q", config.heads), heads("k", config.kv_heads)
                scores = q[0] @ k[0].t() / size ** 0.5
                share = scores.masked_fill(~torch.ones_like(scores).tril().bool(), float("-inf")).softmax(-1)
            repeated = [i for i in range(half, ids.shape[1] - 1) if int(ids[0, i]) in list(ids[0, :i - 1])]
            first = [list(ids[0]).index(int(ids[0, i])) + 1 for i in repeated]
            return float(share[repeated, first].mean())

        def found():
            net = network.Network(config, state["weights"])
            return sum(found_in(net, ids) for ids in texts) / len(texts)

        before = found()
        with torch.no_grad():
            match.build(config, state, trainer.Rows(self.path / "short.npz", 0), tokenizer)
        after = found()
        self.assertGreater(after, 1.3 * before)
        self.assertTrue(all(torch.isfinite(vector).all() for vector in state.values()))


@needs_torch
class Building(unittest.TestCase):
    """build.py from an empty folder, with small numbers and without the network."""
    SIZES = {"DIALOGUES": 300, "LONG_DIALOGUES": 40, "DRILLS": 100, "VALID": 20, "PROSE_MEGABYTES": 0.05,
             "TOKENS": 768, "MATCH_STEP": 2}

    def extract(self, work):
        """Stands in for the packages: text of this repository."""
        texts = {"en": "docs/ROUTING.md", "c": "src/route/route.c", "py": "tools/model/bpe.py", "zh": "models/README.md"}
        for name, path in texts.items():
            text = (SOURCE / path).read_text()
            for part in ("train", "valid"):
                (work / f"{name}.{part}.txt").write_text(text)

    def test_everything_from_an_empty_folder_and_nothing_twice(self):
        import build
        import checkpoint
        import gguf
        before = {name: getattr(build, name) for name in self.SIZES}
        extract = build.packages.extract
        try:
            for name, value in self.SIZES.items():
                setattr(build, name, value)
            build.packages.extract = self.extract
            with tempfile.TemporaryDirectory() as name:
                work = pathlib.Path(name) / "training"
                build.main(["--work", str(work), "--steps", "3", "--again-steps", "2"])
                config, weights, _ = gguf.read(work / "evenkeel-demo.gguf")
                self.assertEqual(config.vocabulary, self.SIZES["TOKENS"])
                self.assertTrue(np.isfinite(weights).all())
                self.assertEqual(checkpoint.load(work / "again/checkpoint.pt")[1], 2)
                self.assertTrue((work / "run/matched").exists())
                times = {path: path.stat().st_mtime_ns for path in work.iterdir() if path.suffix in (".jsonl", ".npz")}
                state = checkpoint.load(work / "run/checkpoint.pt")
                build.main(["--work", str(work), "--steps", "3", "--again-steps", "2"])
                self.assertEqual({path: path.stat().st_mtime_ns for path in times}, times)
                again = checkpoint.load(work / "run/checkpoint.pt")
                self.assertEqual((again[0], again[1]), (state[0], 3))
                self.assertTrue((again[2]["weights"] == state[2]["weights"]).all())
        finally:
            build.packages.extract = extract
            for name, value in before.items():
                setattr(build, name, value)


@needs_torch
class Gradients(unittest.TestCase):
    def test_hand_written_backward_passes(self):
        """Against finite differences, in double."""
        import network
        import torch
        torch.manual_seed(3)

        def make(*shape):
            return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

        ends = [3, 3, 7]  # the second expert has no row
        self.assertTrue(torch.autograd.gradcheck(
            lambda x, a, b, c: network.Experts.apply(x, ends, a, b, c), (make(7, 4), make(3, 5, 4), make(3, 5, 4),
                                                                         make(3, 4, 5))))
        targets = torch.tensor([0, 2, 1])
        weights = torch.tensor([1.0, 0.5, 0.1], dtype=torch.float64)
        self.assertTrue(torch.autograd.gradcheck(
            lambda x, w: network.Loss.apply(x, w, targets, weights)[0], (make(3, 4), make(3, 4))))

    def test_documents_do_not_see_each_other(self):
        import network
        import torch
        config = network.Config(layers=2, d=64, heads=4, kv_heads=2, experts=4, top_k=2, ff=32, shared_ff=64,
                                vocabulary=99, context=64)
        flat = torch.zeros(network.parameter_count(config))
        network.initialise(config, flat, 5)
        net = network.Network(config, flat)
        ids = torch.randint(0, 99, (1, 20))
        docs = torch.tensor([[0] * 8 + [1] * 12])
        with torch.no_grad():
            together, _, _ = net.hidden(ids, docs)
            ids[0, :8] = torch.randint(0, 99, (8,))
            changed, _, _ = net.hidden(ids, docs)
        self.assertTrue(torch.allclose(together[0, 8:], changed[0, 8:], atol=1e-6))
        self.assertFalse(torch.allclose(together[0, :8], changed[0, :8], atol=1e-3))

    def test_the_first_heads_look_back(self):
        """At first, half of the first layer's heads look at fixed distances, whatever the tokens are."""
        import network
        import torch
        config = network.Config(vocabulary=99)
        flat = torch.zeros(network.parameter_count(config))
        network.initialise(config, flat, 6)
        net, p = network.Network(config, flat), "blk.0.attn_"
        tokens, size = 60, config.head_dim
        x = torch.randn(tokens, config.d)

        def heads(part):
            y = x @ net.weights[p + part + ".weight"].t() + net.weights[p + part + ".bias"]
            return net.rotate(y.view(tokens, -1, size).transpose(0, 1))

        q, k = heads("q"), heads("k")
        with torch.no_grad():
            for head, distance in enumerate(network.LOOK_BACK):
                scores = (q[head] @ k[0].t() / size ** 0.5).masked_fill(
                    ~torch.ones(tokens, tokens).tril().bool(), float("-inf"))
                for position in range(5, tokens):
                    self.assertEqual(int(scores[position].argmax()), position - distance)


if __name__ == "__main__":
    harness.main()
