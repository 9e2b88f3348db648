#!/usr/bin/env python3
"""Give a checkpoint's second layer two heads that look for the token they stand on.

    tools/model/match.py DIR/run/checkpoint.pt DIR

To copy a number one has to find where its last character stood before and say what followed. That
takes two layers: heads of the first note at every token what came before it (network.look_back),
heads of the second look for where the noted token is their own. A small network finds the second
half very late, so it is given a beginning: least squares over some rows of DIR give the queries that
tell a character, the keys that tell the character before, and an output that raises the logit of
what stands there. At first an eighth of these heads' attention lies where it should; training does
the rest.

Only pairs of dimensions that hardly turn with the distance take part; what else a query has is
damped.
"""

import argparse
import pathlib

import torch

import bpe
import checkpoint
import network
import train

HEADS = (0, 1)  # of the second layer; they share their keys and values
SPEED_MAX = 0.006  # radians per position
SHARPNESS = 4.0  # of queries and of keys: matching scores are about its square times the dimensions
LOUDNESS = 24.0  # of the output, in units of the residual stream's root mean square
DAMPING = 0.1
ROWS = {"drill": 12, "dialogue": 20}
FIRST_ROW = 0
OTHERS = 0.1  # the weight of tokens that are no characters of codes
RIDGE = 1e-2
CLIP = 3.0  # of whitened targets: rare tokens lie far out


def least_squares(x, y, weights):
    """(matrix, bias) with y about x @ matrix.t() + bias."""
    x, y, weights = x.flatten(0, -2), y.flatten(0, -2), weights.flatten()[:, None]
    x = torch.cat([x, torch.ones(len(x), 1)], 1)
    square = (x * weights).t() @ x / weights.sum()
    square += RIDGE * square.diag().mean() * torch.eye(len(square))
    solved = torch.linalg.solve(square, (x * weights).t() @ y / weights.sum())
    return solved[:-1].t(), solved[-1]


class Whitening:
    """Linear features in which the code characters' vectors are as different as can be."""

    def __init__(self, vectors, count):
        self.mean = vectors.mean(0)
        _, spread, directions = torch.linalg.svd(vectors - self.mean, full_matrices=False)
        count = min(count, len(vectors) - 1)
        self.matrix = directions[:count] / (spread[:count, None] / len(vectors) ** 0.5)

    def __call__(self, x):
        return ((x - self.mean) @ self.matrix.t()).clamp(-CLIP, CLIP)


def code_characters(tokenizer):
    """Digits and single capital letters."""
    return [i for i, token in enumerate(tokenizer.tokens)
            if len(token) == 1 and (token.isdigit() or token.isupper())]


def residual_after_first_layer(net, ids, docs):
    mask, w = network.causal_mask(docs), net.weights
    x = torch.nn.functional.embedding(ids, w["token_embd.weight"])
    x = x + net.attention(0, network.norm(x, w["blk.0.attn_norm.weight"]), mask)
    h = network.norm(x, w["blk.0.ffn_norm.weight"])
    y, _, _ = net.feed_forward(0, h.view(-1, net.config.d))
    return x + y.view(x.shape)


def build(config, state, rows, tokenizer):
    """Change state["weights"] in place, and forget the momentum of what changed."""
    net, w = network.Network(config, state["weights"]), network.views(config, state["weights"])
    batch = rows.tensors([(domain, FIRST_ROW + i) for domain, count in ROWS.items()
                          for i in range(count)])
    ids, docs = batch["ids"][:, :-1], batch["docs"][:, :-1]
    codes, size = code_characters(tokenizer), config.head_dim
    is_code = torch.zeros(config.vocabulary)
    is_code[codes] = 1
    real = (docs != 255).float()
    own = real * (OTHERS + is_code[ids])
    follows = torch.zeros_like(real)
    follows[:, 1:] = (docs[:, 1:] == docs[:, :-1]) * real[:, 1:]
    before = torch.zeros_like(real)
    before[:, 1:] = follows[:, 1:] * (OTHERS + is_code[ids[:, :-1]])

    slow = [i for i, speed in enumerate(network.rotary_speeds(config)) if speed < SPEED_MAX]
    dims = slow + [i + size // 2 for i in slow]
    rest = [i for i in range(size) if i not in dims]

    # What the first layer's looking heads note of a token is what their values make of it.
    def noted(x):
        p = "blk.0.attn_"
        h = network.norm(x, w[p + "norm.weight"])
        return h @ w[p + "v.weight"][:size].t() + w[p + "v.bias"][:size]

    embedding = w["token_embd.weight"]
    feature = Whitening(noted(embedding[codes]), len(dims))
    this = feature(noted(embedding[ids]))
    last = torch.zeros_like(this)
    last[:, 1:] = this[:, :-1]
    x = residual_after_first_layer(net, ids, docs)
    h = network.norm(x, w["blk.1.attn_norm.weight"])
    p = "blk.1.attn_"
    key, key_bias = least_squares(h, last, before)
    query, query_bias = least_squares(h, this, own)
    identity = Whitening(embedding[codes], size)
    targets = torch.zeros(*ids.shape, size)
    targets[..., :len(identity.matrix)] = identity(embedding[ids]) * is_code[ids][..., None]
    value, value_bias = least_squares(h, targets, own)
    output = w["output.weight"] - w["output.weight"][codes].mean(0)
    output = output / output[codes].norm(dim=1).mean()
    push, _ = least_squares(h @ value.t() + value_bias, output[ids] * is_code[ids][..., None],
                            own * is_code[ids] + 0.02 * real)

    w[p + "k.weight"][:size][dims] = SHARPNESS * key
    w[p + "k.bias"][:size][dims] = SHARPNESS * key_bias
    w[p + "v.weight"][:size], w[p + "v.bias"][:size] = value, value_bias
    changed = [(p + "k.weight", slice(0, size)), (p + "k.bias", slice(0, size)),
               (p + "v.weight", slice(0, size)), (p + "v.bias", slice(0, size))]
    for head in HEADS:
        mine = slice(head * size, (head + 1) * size)
        for name, new in ((p + "q.weight", query), (p + "q.bias", query_bias)):
            w[name][mine][dims] = SHARPNESS * new
            w[name][mine][rest] *= DAMPING
            changed.append((name, mine))
        scale = LOUDNESS * x.pow(2).mean().sqrt() / len(HEADS)
        w[p + "output.weight"][:, mine] = scale * push
        changed.append((p + "output.weight", (slice(None), mine)))
    momentum = network.views(config, state["first"])
    for name, where in changed:
        momentum[name][where] = 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("checkpoint")
    parser.add_argument("folder", type=pathlib.Path)
    args = parser.parse_args()
    config, step, state = checkpoint.load(args.checkpoint)
    with torch.no_grad():
        build(config, state, train.Rows(args.folder / "short.npz", 0),
              bpe.Tokenizer.load(args.folder / "tokenizer.json"))
    checkpoint.save(args.checkpoint, config, step, state)


if __name__ == "__main__":
    train.environment()
    main()
