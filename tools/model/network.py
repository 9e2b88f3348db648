"""The network of architecture qwen2moe in PyTorch: weights as GGUF names them, forward, losses.

All weights are views of one flat vector, in the order of shapes(), so that processes can share them
and an optimiser need not know of tensors. The arithmetic is that of evenkeel and llama.cpp: softmax
over all experts, the top-k weights taken as they are, the shared expert through a sigmoid of its
own, rotary positions in halves, biases for queries, keys and values.
"""

import dataclasses
import math

import torch
import torch.nn.functional as F

ROPE_BASE = 10000.0
EPSILON = 1e-6

# Of look_back(): distances, how much of what a token is still counts, and the biases of those pairs
# of dimensions that turn fast enough to tell neighbours apart.
LOOK_BACK = (1, 1, 2, 3)
LOOK_BACK_CONTENT, LOOK_BACK_BIAS, LOOK_BACK_SPEED_MIN = 0.1, 5.7, 0.05


@dataclasses.dataclass(frozen=True)
class Config:
    layers: int = 4
    d: int = 256
    heads: int = 8
    kv_heads: int = 2
    experts: int = 32
    top_k: int = 4
    ff: int = 96
    shared_ff: int = 192
    vocabulary: int = 4096
    context: int = 512

    @property
    def head_dim(self):
        return self.d // self.heads


def shapes(config):
    """Name to shape, (outputs, inputs) as PyTorch has it; GGUF counts dimensions the other way."""
    c, kv = config, config.kv_heads * config.head_dim
    found = {"token_embd.weight": (c.vocabulary, c.d)}
    for layer in range(c.layers):
        p = f"blk.{layer}."
        found.update({
            p + "attn_norm.weight": (c.d,),
            p + "attn_q.weight": (c.d, c.d),
            p + "attn_q.bias": (c.d,),
            p + "attn_k.weight": (kv, c.d),
            p + "attn_k.bias": (kv,),
            p + "attn_v.weight": (kv, c.d),
            p + "attn_v.bias": (kv,),
            p + "attn_output.weight": (c.d, c.d),
            p + "ffn_norm.weight": (c.d,),
            p + "ffn_gate_inp.weight": (c.experts, c.d),
            p + "ffn_gate_exps.weight": (c.experts, c.ff, c.d),
            p + "ffn_up_exps.weight": (c.experts, c.ff, c.d),
            p + "ffn_down_exps.weight": (c.experts, c.d, c.ff),
            p + "ffn_gate_inp_shexp.weight": (c.d,),
            p + "ffn_gate_shexp.weight": (c.shared_ff, c.d),
            p + "ffn_up_shexp.weight": (c.shared_ff, c.d),
            p + "ffn_down_shexp.weight": (c.d, c.shared_ff),
        })
    found.update({"output_norm.weight": (c.d,), "output.weight": (c.vocabulary, c.d)})
    return found


def parameter_count(config):
    return sum(math.prod(shape) for shape in shapes(config).values())


def active_count(config):
    """Parameters read for one token, as docs/GLOSSARY.md counts them."""
    idle = config.layers * (config.experts - config.top_k) * 3 * config.d * config.ff
    return parameter_count(config) - idle - config.vocabulary * config.d + config.d


def views(config, flat):
    """Name to a view of `flat`, which has parameter_count() elements."""
    found, at = {}, 0
    for name, shape in shapes(config).items():
        size = math.prod(shape)
        found[name] = flat[at:at + size].view(shape)
        at += size
    return found


def spread(config, name):
    """The standard deviation with which a tensor begins; norms begin as ones."""
    residual = 1 / math.sqrt(2 * config.layers)
    part = name.split(".")[-2]
    if part in ("token_embd", "output", "ffn_gate_inp", "ffn_gate_inp_shexp"):
        return 0.02  # not zero: of a shared gate of zeros other programs make NaN
    if part == "ffn_down_exps":
        # The top-k weights are not renormalised and add up to about top_k / experts at first, which
        # would leave the experts out of the residual stream and of the gradient.
        return residual / math.sqrt(config.ff) * min(4, config.experts / config.top_k / 2)
    if part == "ffn_down_shexp":
        return residual / math.sqrt(config.shared_ff)
    return (residual if part == "attn_output" else 1) / math.sqrt(config.d)


def rotary_speeds(config):
    """By how much each pair of a head's dimensions turns from one position to the next."""
    half = config.head_dim // 2
    return ROPE_BASE ** (-torch.arange(half).float() / half)


def look_back(config, weights):
    """Make the first layer's first group of heads look at the token before, two and three before.

    Copying a number needs a head that knows what came before each token, and that is what a small
    network finds last. A key's bias points in one direction, a query's in the same one turned back
    by so many positions: their product is largest at that distance, whatever the tokens are.
    """
    size, group, half = config.head_dim, config.heads // config.kv_heads, config.head_dim // 2
    speeds = rotary_speeds(config)
    strong = (speeds > LOOK_BACK_SPEED_MIN).float() * LOOK_BACK_BIAS
    p = "blk.0.attn_"
    weights[p + "k.weight"][:size] *= LOOK_BACK_CONTENT
    weights[p + "q.weight"][:size * group] *= LOOK_BACK_CONTENT
    weights[p + "k.bias"][:half] = strong
    for head in range(group):
        turn = speeds * LOOK_BACK[head % len(LOOK_BACK)]
        bias = weights[p + "q.bias"][head * size:(head + 1) * size]
        bias[:half], bias[half:] = strong * turn.cos(), -strong * turn.sin()


def initialise(config, flat, seed):
    generator = torch.Generator().manual_seed(seed)
    weights = views(config, flat)
    for name, weight in weights.items():
        if name.endswith(".bias"):
            weight.zero_()
        elif "norm" in name:
            weight.fill_(1)
        else:
            weight.normal_(0, spread(config, name), generator=generator)
    look_back(config, weights)


# Pieces with a backward pass of their own ---------------------------------------------------------


class Experts(torch.autograd.Function):
    """Feed-forward networks on rows sorted by expert: expert e has rows ends[e - 1] to ends[e]."""

    @staticmethod
    def forward(ctx, x, ends, gate, up, down):
        rows = [slice(a, b) for a, b in zip([0] + ends, ends)]
        g, u, y = x.new_empty(len(x), gate.shape[1]), x.new_empty(len(x), gate.shape[1]), (
            torch.empty_like(x))
        for e, r in enumerate(rows):
            torch.mm(x[r], gate[e].t(), out=g[r])
            torch.mm(x[r], up[e].t(), out=u[r])
        h = F.silu(g) * u
        for e, r in enumerate(rows):
            torch.mm(h[r], down[e].t(), out=y[r])
        ctx.save_for_backward(x, g, u, h, gate, up, down)
        ctx.rows = rows
        return y

    @staticmethod
    def backward(ctx, dy):
        x, g, u, h, gate, up, down = ctx.saved_tensors
        dy = dy.contiguous()
        dh, dx = torch.empty_like(h), torch.empty_like(x)
        d_gate, d_up, d_down = (torch.empty_like(w) for w in (gate, up, down))
        for e, r in enumerate(ctx.rows):
            torch.mm(dy[r], down[e], out=dh[r])
            torch.mm(dy[r].t(), h[r], out=d_down[e])  # zero rows give zeros
        s = torch.sigmoid(g)
        silu = g * s
        du, dg = dh * silu, dh * u * (s + silu * (1 - s))
        for e, r in enumerate(ctx.rows):
            torch.mm(dg[r].t(), x[r], out=d_gate[e])
            torch.mm(du[r].t(), x[r], out=d_up[e])
            torch.mm(dg[r], gate[e], out=dx[r])
            dx[r].addmm_(du[r], up[e])
        return dx, None, d_gate, d_up, d_down


class Loss(torch.autograd.Function):
    """Cross entropy of each row, and the weighted sum; logits are kept once."""

    @staticmethod
    def forward(ctx, x, output, targets, weights):
        p = F.softmax(x @ output.t(), -1)
        losses = -torch.log(p.gather(1, targets[:, None])[:, 0] + 1e-20)
        ctx.save_for_backward(x, output, p, targets, weights)
        ctx.mark_non_differentiable(losses)
        return (losses * weights).sum(), losses

    @staticmethod
    def backward(ctx, grad, _):
        x, output, p, targets, weights = ctx.saved_tensors
        d = p.clone()
        d.scatter_add_(1, targets[:, None], -torch.ones_like(targets[:, None], dtype=p.dtype))
        d.mul_((weights * grad)[:, None])
        return d @ output, d.t() @ x, None, None


# The network -------------------------------------------------------------------------------------


def norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * weight


def causal_mask(docs):
    """(rows, 1, 1, tokens, tokens): 0 where a token may look, -inf where not."""
    tokens = docs.shape[1]
    seen = (docs[:, :, None] == docs[:, None, :]) & torch.ones(tokens, tokens).tril().bool()
    mask = torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))
    return mask[:, None, None]


class Network:
    """Weights over a flat vector; after a forward pass `counts` has the token-slots per expert."""

    def __init__(self, config, flat):
        self.config = config
        self.weights = {name: view.detach().requires_grad_()
                        for name, view in views(config, flat).items()}
        angle = torch.outer(torch.arange(config.context).float(), rotary_speeds(config))
        self.cos, self.sin = angle.cos(), angle.sin()
        self.elsewhere = None  # (layers, experts): token-slots to count beside those of the batch
        self.counts = torch.zeros(config.layers, config.experts)

    def rotate(self, x):
        tokens = x.shape[-2]
        a, b = x.chunk(2, -1)
        cos, sin = self.cos[:tokens], self.sin[:tokens]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def attention(self, layer, x, mask):
        c, w = self.config, self.weights
        rows, tokens, _ = x.shape
        p, group = f"blk.{layer}.attn_", c.heads // c.kv_heads

        def heads(part, count):
            y = x @ w[p + part + ".weight"].t() + w[p + part + ".bias"]
            return y.view(rows, tokens, count, c.head_dim).transpose(1, 2)

        q = self.rotate(heads("q", c.heads) * c.head_dim ** -0.5)
        k, v = self.rotate(heads("k", c.kv_heads)), heads("v", c.kv_heads)
        q = q.reshape(rows, c.kv_heads, group * tokens, c.head_dim)
        scores = (q @ k.transpose(-1, -2)).view(rows, c.kv_heads, group, tokens, tokens) + mask
        scores = F.softmax(scores, -1).view(rows, c.kv_heads, group * tokens, tokens)
        out = (scores @ v).view(rows, c.heads, tokens, c.head_dim).transpose(1, 2)
        return out.reshape(rows, tokens, c.d) @ w[p + "output.weight"].t()

    def feed_forward(self, layer, x):
        """What experts and shared expert add, and the two losses of the gate."""
        c, w = self.config, self.weights
        p = f"blk.{layer}.ffn_"
        logits = x @ w[p + "gate_inp.weight"].t()
        scores = F.softmax(logits, -1)
        weights, chosen = scores.topk(c.top_k, -1)
        flat = chosen.reshape(-1)
        order = torch.argsort(flat, stable=True)
        token = torch.div(order, c.top_k, rounding_mode="floor")
        counts = torch.bincount(flat, minlength=c.experts)
        y = Experts.apply(x[token], counts.cumsum(0).tolist(), w[p + "gate_exps.weight"],
                          w[p + "up_exps.weight"], w[p + "down_exps.weight"])
        out = torch.zeros_like(x).index_add(0, token, y * weights.reshape(-1)[order][:, None])
        shared = F.silu(x @ w[p + "gate_shexp.weight"].t()) * (x @ w[p + "up_shexp.weight"].t())
        gate = torch.sigmoid(x @ w[p + "gate_inp_shexp.weight"])[:, None]
        out = out + gate * (shared @ w[p + "down_shexp.weight"].t())
        self.counts[layer] = counts
        slots = counts if self.elsewhere is None else counts + self.elsewhere[layer]
        balance = c.experts * (slots / slots.sum() * scores.mean(0)).sum()
        return out, balance, torch.logsumexp(logits, -1).pow(2).mean()

    def hidden(self, ids, docs):
        """(rows, tokens, d) before the output matrix, and the gates' losses summed over layers."""
        mask = causal_mask(docs)
        x = F.embedding(ids, self.weights["token_embd.weight"])
        balance = z = 0
        for layer in range(self.config.layers):
            x = x + self.attention(
                layer, norm(x, self.weights[f"blk.{layer}.attn_norm.weight"]), mask)
            h = norm(x, self.weights[f"blk.{layer}.ffn_norm.weight"])
            y, layer_balance, layer_z = self.feed_forward(layer, h.view(-1, self.config.d))
            x = x + y.view(x.shape)
            balance, z = balance + layer_balance, z + layer_z
        return norm(x, self.weights["output_norm.weight"]), balance, z

    def logits(self, ids):
        """(tokens, vocabulary) of one document."""
        ids = torch.as_tensor(ids)[None]
        hidden, _, _ = self.hidden(ids, torch.zeros_like(ids))
        return hidden[0] @ self.weights["output.weight"].t()

    def loss(self, rows):
        """Of packed rows: the weighted sum of losses; losses, weights and rows' numbers of the
        tokens that are asked for; and the gates' two losses."""
        hidden, balance, z = self.hidden(rows["ids"][:, :-1], rows["docs"][:, :-1])
        weights = rows["weights"][:, 1:]
        asked = weights > 0
        total, losses = Loss.apply(hidden[asked], self.weights["output.weight"],
                                   rows["ids"][:, 1:][asked], weights[asked])
        return total, losses, weights[asked], asked.nonzero()[:, 0], balance, z

    def greedy(self, ids, stop, count_max):
        """The most likely continuation, token by token, up to `stop`."""
        ids, out = list(ids), []
        with torch.no_grad():
            while len(out) < count_max and len(ids) < self.config.context:
                token = int(self.logits(ids)[-1].argmax())
                if token in stop:
                    break
                ids.append(token)
                out.append(token)
        return out
