#!/usr/bin/env python3
"""Train the default model on two processes, from nothing, from its checkpoint, or from a GGUF file.

    tools/model/train.py DIR --out RUN --steps 4000           goes on where RUN/checkpoint.pt is
    tools/model/train.py DIR --out RUN --steps 8000 --from models/evenkeel-demo.gguf

DIR holds what pack.py wrote. RUN gets checkpoint.pt (every five minutes, at the end, and on SIGTERM
or SIGINT) and log.txt. Step n depends on n, the seed and the number of processes alone, never on
the clock: a training that was stopped and resumed gives the same weights as one that was not, and
SIGSTOP and SIGCONT only cost time. Ends with 75 when a signal stopped it. --steps may be changed
between runs; it moves the end of the schedule. A GGUF file brings weights but no optimiser state:
the schedule begins with its warm-up.
"""

import argparse
import dataclasses
import os
import pathlib
import signal
import sys
import time

# Memory stays with the process and lies in huge pages: a step's tensors are the same sizes each time,
# and fetching them from the system anew takes a third of a step.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
             "MALLOC_TOP_PAD_": str(1 << 26), "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def environment():
    """Start again with one BLAS thread per process, an allocator that gives nothing back, and the
    kernels of this processor: OpenBLAS takes processors that are newer than itself for old ones."""
    if os.environ.get("EK_TRAIN_ENVIRONMENT"):
        return
    wanted = {"EK_TRAIN_ENVIRONMENT": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    flags = pathlib.Path("/proc/cpuinfo").read_text()
    if " avx512bw " in flags and "OPENBLAS_CORETYPE" not in os.environ:
        wanted["OPENBLAS_CORETYPE"] = "SkylakeX"
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR, **wanted})


if __name__ == "__main__":
    environment()

import numpy as np  # noqa: E402  (after the environment is right)
import torch  # noqa: E402
import torch.multiprocessing as multiprocessing  # noqa: E402

import checkpoint  # noqa: E402
import gguf  # noqa: E402
import network  # noqa: E402

# Rows per step: every domain is in each batch. All kinds are 4,096 tokens. More drills come first,
# until copying is learned; each LONG_EVERY-th step is of long rows, which teach positions up to the
# context's end (drills lie among its dialogues).
DRILLING = {"dialogue": 8, "drill": 3, "zh": 2, "en": 1, "c": 1, "py": 1}
SHORT = {"dialogue": 9, "drill": 2, "zh": 2, "en": 1, "c": 1, "py": 1}
LONG = {"dialogue": 4, "zh": 1, "en": 1, "c": 1, "py": 1}
DRILLING_STEPS = 1000
LONG_EVERY = 6
STEP_TOKENS = 4096
DOMAINS = tuple(SHORT)
LOG_EVERY, VALID_EVERY = 25, 250
VALID_ROWS = 16
CHECKPOINT_SECONDS = 300
EXIT_STOPPED = 75


@dataclasses.dataclass
class Options:
    steps: int
    until: int = 0  # stop after so many of them; 0 for all
    processes: int = 2
    seed: int = 1
    rate: float = 2e-3
    warm_up: int = 200
    hold: float = 0.3  # share of the steps after which the rate begins to fall
    floor: float = 0.05  # of the rate, at the end
    clip: float = 1.0
    decay: float = 0.1
    beta_1: float = 0.9
    beta_2: float = 0.95
    z_loss: float = 1e-3
    balance: float = 0.05  # at first
    balance_end: float = 0.012
    balance_steps: int = 1200  # until then it falls linearly


def rate_at(options, step):
    """By step: linear warm-up, flat, linear to the floor."""
    warm = min(1.0, (step + 1) / options.warm_up)
    done = (step + 1) / options.steps
    falling = max(0.0, done - options.hold) / (1 - options.hold)
    return options.rate * warm * (1 - (1 - options.floor) * min(1.0, falling))


def balance_at(options, step):
    share = min(1.0, step / options.balance_steps)
    return options.balance + (options.balance_end - options.balance) * share


# Data --------------------------------------------------------------------------------------------


class Rows:
    """The packed rows of one width. Which ones a step gets follows from its number and the seed."""

    def __init__(self, path, seed):
        with np.load(path) as arrays:
            self.arrays = {name: arrays[name] for name in arrays.files}
        self.seed, self.orders = seed, {}

    def order(self, domain, epoch):
        if self.orders.get(domain, (None,))[0] != epoch:
            key = [self.seed, epoch, sum(domain.encode())]
            count = len(self.arrays[domain + ".ids"])
            self.orders[domain] = epoch, np.random.default_rng(key).permutation(count)
        return self.orders[domain][1]

    def step(self, step, composition):
        """The step's rows, (domain, row) each, so ordered that each process gets of all domains."""
        chosen = []
        for domain, count in composition.items():
            rows = len(self.arrays[domain + ".ids"])
            for place in range(step * count, (step + 1) * count):
                chosen.append((domain, self.order(domain, place // rows)[place % rows]))
        return chosen

    def tensors(self, chosen):
        def gather(part, dtype):
            rows = np.stack([self.arrays[f"{domain}.{part}"][row] for domain, row in chosen])
            return torch.from_numpy(rows.astype(dtype))

        return {"ids": gather("ids", np.int64), "docs": gather("docs", np.int64),
                "weights": gather("weights", np.float32) / 10}

    def weight(self, chosen):
        """What the losses of these rows are divided by."""
        total = sum(int(self.arrays[domain + ".weights"][row, 1:].sum()) for domain, row in chosen)
        return max(total / 10, 1e-6)


# Shared state ------------------------------------------------------------------------------------


class Shared:
    """What all processes see; the worker's barriers say who may read and write what when."""

    def __init__(self, config, options, state):
        count, n = network.parameter_count(config), options.processes

        def zeros(*shape):
            return torch.zeros(*shape).share_memory_()

        self.weights, self.first, self.second = zeros(count), zeros(count), zeros(count)
        self.gradients = zeros(n, count)
        self.norms = zeros(n)
        self.counts = zeros(n, config.layers, config.experts)  # of each process's last step
        self.hits = zeros(n, config.layers, config.experts)  # since the last line of the log
        self.losses = zeros(n, 2, len(DOMAINS), 2)  # training and validation: sum and weight
        self.flags = torch.zeros(2, dtype=torch.int64).share_memory_()  # save, stop
        for name, vector in state.items():
            getattr(self, name).copy_(vector)

    def state(self):
        return {name: getattr(self, name).clone()
                for name in ("weights", "first", "second", "counts")}


SAVE, STOP = 0, 1
TRAIN, VALID = 0, 1


class Worker:
    """One process: its part of each batch, then its part of the weights."""

    def __init__(self, rank, shared, barrier, config, options, folder):
        torch.set_num_threads(1)
        self.rank, self.shared, self.barrier, self.options = rank, shared, barrier, options
        self.net = network.Network(config, shared.weights)
        self.names = list(self.net.weights)
        self.short = Rows(folder / "short.npz", options.seed)
        self.long = Rows(folder / "long.npz", options.seed)
        self.valid = Rows(folder / "valid.npz", options.seed)
        count, n = network.parameter_count(config), options.processes
        self.part = slice(rank * count // n, (rank + 1) * count // n)
        decayed = torch.cat([torch.full((w.numel(),), float(w.dim() > 1))
                             for w in self.net.weights.values()])
        self.decayed = decayed[self.part].clone()

    def mine(self, chosen):
        return chosen[self.rank::self.options.processes]

    def note(self, kind, chosen, losses, weights, rows):
        table = self.shared.losses[self.rank, kind]
        for domain in set(name for name, _ in chosen):
            of_domain = torch.tensor([name == domain for name, _ in chosen])[rows]
            index = DOMAINS.index(domain)
            table[index, 0] += float((losses * weights)[of_domain].sum())
            table[index, 1] += float(weights[of_domain].sum())

    def gradient(self, step):
        """This process's share of the batch's gradient, into the shared vector."""
        options, shared = self.options, self.shared
        if step % LONG_EVERY == LONG_EVERY - 1:
            data, composition = self.long, LONG
        else:
            data, composition = self.short, DRILLING if step < DRILLING_STEPS else SHORT
        batch = data.step(step, composition)
        chosen = self.mine(batch)
        others = [r for r in range(options.processes) if r != self.rank]
        # Balance is wanted over the whole batch; what the others count now is not known yet, so
        # their last step stands for it.
        self.net.elsewhere = shared.counts[others].sum(0)
        total, losses, weights, rows, balance, z = self.net.loss(data.tensors(chosen))
        gates = balance_at(options, step) * balance + options.z_loss * z
        (total / data.weight(batch) + gates / options.processes).backward()
        at, mine = 0, shared.gradients[self.rank]
        for name in self.names:
            weight = self.net.weights[name]
            mine[at:at + weight.numel()].copy_(weight.grad.view(-1))
            at += weight.numel()
            weight.grad = None
        self.note(TRAIN, chosen, losses, weights, rows)
        shared.hits[self.rank] += self.net.counts

    def update(self, step):
        """Adam on this process's part of the weights, once all gradients are there."""
        o, shared, part = self.options, self.shared, self.part
        g = shared.gradients[0, part].clone()
        for other in range(1, o.processes):
            g += shared.gradients[other, part]
        shared.norms[self.rank] = float(g.double().pow(2).sum())
        shared.counts[self.rank] = self.net.counts
        self.barrier.wait()  # every process has read the gradients and written its norm
        norm = float(shared.norms.double().sum().sqrt())
        if not norm < 1e6:
            raise FloatingPointError(f"step {step}: the gradient's norm is {norm}")
        g *= min(1.0, o.clip / (norm + 1e-6))
        first, second, weights = shared.first[part], shared.second[part], shared.weights[part]
        first.mul_(o.beta_1).add_(g, alpha=1 - o.beta_1)
        second.mul_(o.beta_2).addcmul_(g, g, value=1 - o.beta_2)
        rate = rate_at(o, step)
        weights.addcmul_(weights, self.decayed, value=-rate * o.decay)
        scale = (second / (1 - o.beta_2 ** (step + 1))).sqrt_().add_(1e-8)
        weights.addcdiv_(first, scale, value=-rate / (1 - o.beta_1 ** (step + 1)))
        self.barrier.wait()  # all weights are new
        return norm, rate

    def validate(self):
        with torch.no_grad():
            for domain in DOMAINS:
                count = len(self.valid.arrays[domain + ".ids"])
                chosen = self.mine([(domain, row) for row in range(min(VALID_ROWS, count))])
                _, losses, weights, rows, _, _ = self.net.loss(self.valid.tensors(chosen))
                self.note(VALID, chosen, losses, weights, rows)
        self.barrier.wait()  # the figures are complete


class Log:
    """Lines to the terminal and to RUN/log.txt; kept by the first process."""

    def __init__(self, path, shared, tokens):
        self.file, self.shared = open(path, "a"), shared
        self.tokens, self.since = tokens, time.monotonic()

    def say(self, text):
        print(text, flush=True)
        print(text, file=self.file, flush=True)

    def losses(self, kind):
        table = self.shared.losses[:, kind].sum(0)
        self.shared.losses[:, kind] = 0
        return " ".join(f"{name} {table[i, 0] / max(float(table[i, 1]), 1e-9):.3f}"
                        for i, name in enumerate(DOMAINS))

    def step(self, step, total, tokens, norm, rate):
        hits = self.shared.hits.sum(0)
        self.shared.hits.zero_()
        skew = " ".join(f"{float(layer.max() / layer.mean()):.2f}" for layer in hits)
        now = time.monotonic()
        speed = (tokens - self.tokens) / (now - self.since)
        self.tokens, self.since = tokens, now
        self.say(f"step {step + 1}/{total} tokens {tokens} ({speed:.0f}/s) {self.losses(TRAIN)} "
                 f"| norm {norm:.2f} rate {rate:.5f} max/mean {skew} zero {int((hits == 0).sum())}")


def work(rank, shared, barrier, config, options, folder, out, begin):
    """The loop of one process; whether it came to its end."""
    worker = Worker(rank, shared, barrier, config, options, folder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if rank == 0:
        log = Log(out / "log.txt", shared, begin * STEP_TOKENS)
        log.say(f"# {config} {options} parameters {network.parameter_count(config)} "
                f"active {network.active_count(config)} from step {begin}")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: shared.flags.__setitem__(STOP, 1))
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    saved = time.monotonic()
    until = options.until or options.steps
    for step in range(begin, until):
        worker.gradient(step)
        if rank == 0 and (shared.flags[STOP] or time.monotonic() - saved > CHECKPOINT_SECONDS
                          or step + 1 == until):
            shared.flags[SAVE] = 1
            shared.flags[STOP] *= 2  # this step is the last one
        barrier.wait()  # every gradient and flag is there
        norm, rate = worker.update(step)
        save, stop = int(shared.flags[SAVE]), int(shared.flags[STOP]) == 2
        last = stop or step + 1 == until
        if (step + 1) % VALID_EVERY == 0 or last:
            worker.validate()
        else:
            barrier.wait()  # every process has read the flags
        if rank == 0:
            shared.flags[SAVE] = 0
            tokens = (step + 1) * STEP_TOKENS
            if step == begin or (step + 1) % LOG_EVERY == 0 or last:
                log.step(step, options.steps, tokens, norm, rate)
            if (step + 1) % VALID_EVERY == 0 or last:
                log.say(f"valid {step + 1}: {log.losses(VALID)}")
            if save:
                saved = time.monotonic()
                checkpoint.save(out / "checkpoint.pt", config, step + 1, shared.state())
        barrier.wait()  # the log has been read, the checkpoint written
        if last:
            return step + 1 == until


# The beginning -----------------------------------------------------------------------------------


def beginning(out, source, config, seed):
    """(config, first step, state): of the run's checkpoint, else of a file, else of nothing."""
    if (out / "checkpoint.pt").exists():
        return checkpoint.load(out / "checkpoint.pt")
    if source:
        config, weights, _ = gguf.read(source)
    else:
        weights = torch.zeros(network.parameter_count(config))
        network.initialise(config, weights, seed)
    return config, 0, {"weights": torch.as_tensor(weights)}


def train(folder, out, options, config=network.Config(), source=None):
    """Whether all steps were done."""
    out.mkdir(parents=True, exist_ok=True)
    config, begin, state = beginning(out, source, config, options.seed)
    if begin >= (options.until or options.steps):
        print(f"{out} has {begin} steps already")
        return True
    shared = Shared(config, options, state)
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(options.processes)
    arguments = (shared, barrier, config, options, folder, out, begin)
    others = [context.Process(target=work, args=(rank, *arguments), daemon=True)
              for rank in range(1, options.processes)]
    for process in others:
        process.start()
    (out / "pids").write_text(" ".join(str(p) for p in [os.getpid(), *(p.pid for p in others)]))
    try:
        done = work(0, *arguments)
    except BaseException:
        barrier.abort()
        raise
    for process in others:
        process.join()
    return done


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, required=True, help="4,096 tokens each")
    parser.add_argument("--until", type=int, default=0, help="stop after so many of the steps")
    parser.add_argument("--hold", type=float, default=Options.hold)
    parser.add_argument("--rate", type=float, default=Options.rate)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", dest="source", metavar="GGUF", help="begin with these weights")
    for field in dataclasses.fields(network.Config):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=field.default)
    args = parser.parse_args()
    config = network.Config(**{f.name: getattr(args, f.name)
                               for f in dataclasses.fields(network.Config)})
    options = Options(args.steps, args.until, hold=args.hold, rate=args.rate, seed=args.seed)
    if not train(args.folder, args.out, options, config, args.source):
        sys.exit(EXIT_STOPPED)


if __name__ == "__main__":
    main()
