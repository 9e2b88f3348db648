#!/usr/bin/env python3
"""Goal: experts move between workers while they serve, and nothing of it can be seen in an answer: what a worker is told
to acquire it has, checked, within its memory and its rate; what it releases somebody else has; whatever is killed in the
middle, nothing is lost.
Method: real workers and fronts; greedy answers against those of one process all along; files with holes, sources that
have other bytes, workers that are killed while they acquire."""
import json
import re
import shutil
import struct
import threading
import time
import unittest

import test_cluster_strangers as strangers
from cluster_rig import MODEL, PROMPTS, Front, Worker, alone, complete, harness, make_certs, metric, texts
from harness import run, wait_until

EXPERT_BYTES = 78336  # of the bundled model, the three matrices of one expert of one layer
READ = 24
ROOM = ("--set", f"worker.experts_bytes_max={64 * EXPERT_BYTES}B")


def cluster(front):
    return json.loads(front.request("GET", "/v1/cluster")[2])


def worker_of(front, worker):
    return next(w for w in cluster(front)["workers"] if w["address"] == worker.address)


def order(front, verb, worker, experts):
    status, _, body = front.request("POST", f"/v1/cluster/{verb}", {"worker": worker.address, "experts": experts})
    return status, json.loads(body)


def n_acquired(front, worker):
    return worker_of(front, worker)["acquired"]["experts"]


class Traffic:
    """Greedy answers, one after the other, until it ends; each has to be the right one."""

    def __init__(self, front, expected, prompts=PROMPTS, tokens=48):
        self.front, self.expected, self.prompts, self.tokens = front, expected, prompts, tokens
        self.over, self.wrong, self.n = threading.Event(), [], 0
        self.thread = threading.Thread(target=self.main)

    def main(self):
        while not self.over.is_set():
            for prompt, text in zip(self.prompts, self.expected):
                answer = complete(self.front, prompt, self.tokens)
                if answer != (200, text):
                    self.wrong.append((prompt, answer))
                self.n += 1

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, value, trace):
        self.over.set()
        self.thread.join()
        if kind is None:
            assert not self.wrong, self.wrong[:2]
            assert self.n > 0
        return False


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.expected = alone()

    def setUp(self):
        folder = harness.folder()
        self.tmp = folder.__enter__()
        self.addCleanup(folder.__exit__, None, None, None)
        self.certs = make_certs(self.tmp / "certs", "w0", "w1", "w2")

    def worker(self, name, experts, *arguments, **fields):
        worker = Worker(self.certs / name, "--experts", experts, *arguments, **fields)
        self.addCleanup(worker.__exit__, None, None, None)
        return worker

    def front(self, workers, *arguments):
        front = Front(self.certs / "front", workers, *arguments)
        front.__enter__()
        self.addCleanup(front.__exit__, None, None, None)
        return front


class ByCommand(Case):
    def check_there_and_back(self, *arguments):
        a = self.worker("w0", "*:0-15", *ROOM, *arguments)
        b = self.worker("w1", "*:16-31", *arguments)
        front = self.front([a, b], "--set", "cluster.slow_start=200ms")
        self.assertEqual(worker_of(front, a)["experts"], 64)
        with Traffic(front, self.expected):
            self.assertEqual(order(front, "acquire", a, "0-1:16-23 3:31")[0], 200)
            wait_until(lambda: n_acquired(front, a) == 17, "the experts")
            self.assertEqual(worker_of(front, a)["experts"], 81)
            self.assertEqual(worker_of(front, a)["acquired"]["bytes"], 17 * EXPERT_BYTES)
            before = metric(front, "evenkeel_cluster_redone_rows_total")
            # It computes with them: whatever else there is goes with its first owner.
            self.assertEqual(front.request("POST", "/v1/cluster/drain", {"worker": b.address})[0], 200)
            wait_until(lambda: worker_of(front, b)["state"] == "draining", "the drain")
            self.assertEqual(texts(front), self.expected)
            self.assertEqual(metric(front, "evenkeel_cluster_redone_rows_total"), before)
            # Nobody else serves what it acquired, so it is not given up, whatever is asked for.
            self.assertEqual(order(front, "release", a, "0:16-23")[0], 200)
            self.assertEqual(texts(front), self.expected)
            self.assertEqual(n_acquired(front, a), 17)
            self.assertEqual(front.request("POST", "/v1/cluster/resume", {"worker": b.address})[0], 200)
            wait_until(lambda: n_acquired(front, a) == 9, "the release")
            self.assertEqual(order(front, "release", a, "all")[0], 400)  # with what it was started with
            self.assertEqual(order(front, "release", a, "*:16-31")[0], 200)
            wait_until(lambda: n_acquired(front, a) == 0, "the release")
            self.assertEqual(worker_of(front, a)["acquired"]["bytes"], 0)
            self.assertEqual(texts(front), self.expected)
        self.assertEqual(metric(front, "evenkeel_cluster_moves_failed_total"), 0)
        self.assertGreaterEqual(metric(front, "evenkeel_cluster_moves_done_total"), 5)
        self.assertEqual(metric(front, "evenkeel_cluster_moved_bytes_total"), 17 * EXPERT_BYTES)

    def test_there_and_back(self):
        self.check_there_and_back()

    def test_weights_as_they_lie_in_the_file(self):
        self.check_there_and_back("--set", "engine.pack_weights=false")

    def test_what_it_acquired_is_computed_there(self):
        # The only other one that had them is killed.
        a = self.worker("w0", "*:0-15", *ROOM)
        b = self.worker("w1", "*:16-31")
        front = self.front([a, b], "--set", "cluster.slow_start=200ms", "--set", "cluster.loss_wait=0s")
        self.assertEqual(order(front, "acquire", a, "*:16-31")[0], 200)
        wait_until(lambda: n_acquired(front, a) == 64, "the experts")
        self.assertEqual(texts(front), self.expected)
        b.kill()
        self.assertEqual(texts(front), self.expected)

    def test_memory_is_kept_to(self):
        a = self.worker("w0", "*:0-15", "--set", f"worker.experts_bytes_max={5 * EXPERT_BYTES + 100}B")
        b = self.worker("w1", "all")
        front = self.front([a, b])
        status, body = order(front, "acquire", a, "0:16-21")
        self.assertEqual(status, 400)
        self.assertIn("has room for 5 experts, not for 6", body["error"]["message"])
        self.assertEqual(order(front, "acquire", a, "0:16-20")[0], 200)
        wait_until(lambda: n_acquired(front, a) == 5, "the experts")
        self.assertEqual(order(front, "acquire", a, "1:16")[0], 400)
        # One goes, and then there is room for another one.
        self.assertEqual(order(front, "release", a, "0:18")[0], 200)
        self.assertEqual(order(front, "acquire", a, "1:16")[0], 200)
        wait_until(lambda: "layer=1 experts=1 first=16" in a.log_text() and n_acquired(front, a) == 5, "the exchange")
        self.assertEqual(worker_of(front, a)["acquired"]["room_bytes"], 5 * EXPERT_BYTES + 100)
        self.assertEqual(texts(front), self.expected)

    def test_mistakes(self):
        a, b = self.worker("w0", "*:0-15", *ROOM), self.worker("w1", "*:16-31")
        front = self.front([a, b])
        self.assertEqual(order(front, "acquire", b, "0:1")[0], 400)  # it has no room at all
        self.assertEqual(order(front, "acquire", a, "0:99")[0], 400)
        self.assertEqual(front.request("POST", "/v1/cluster/acquire", {"worker": a.address})[0], 400)
        self.assertEqual(front.request("POST", "/v1/cluster/acquire", {"worker": "x:1", "experts": "0:1"})[0], 404)
        done = run("cluster", "acquire", b.address, "0:1", "--url", front.url)
        self.assertEqual(done.returncode, 1)
        self.assertIn("worker.experts_bytes_max", done.stderr)

    def test_by_the_command_line(self):
        a, b = self.worker("w0", "*:0-15", *ROOM), self.worker("w1", "*:16-31")
        front = self.front([a, b])
        done = run("cluster", "acquire", a.address, "2:20-22", "--url", front.url)
        self.assertEqual((done.returncode, done.stdout), (0, f"{a.address}: acquires 2:20-22\n"), done.stderr)
        wait_until(lambda: n_acquired(front, a) == 3, "the experts")
        done = run("cluster", "status", "--url", front.url)
        self.assertIn(f"{a.address}: 3 experts acquired, 0.2 of 4.8 MiB", done.stdout)
        done = run("cluster", "release", a.address, "2:20-22", "--url", front.url)
        self.assertEqual((done.returncode, done.stdout), (0, f"{a.address}: releases 2:20-22\n"), done.stderr)
        wait_until(lambda: n_acquired(front, a) == 0, "the release")

    def test_killed_while_it_acquires(self):
        # 30 KB/s: an expert in some three seconds. What is wanted is wanted still when the worker is back.
        a = self.worker("w0", "*:0-15", *ROOM, "--set", "worker.acquire_rate=30000B")
        b = self.worker("w1", "*:0-31")
        front = self.front([a, b])
        with Traffic(front, self.expected):
            self.assertEqual(order(front, "acquire", a, "0:16-18")[0], 200)
            wait_until(lambda: (worker_of(front, a)["acquired"]["move"] or {}).get("bytes", 0) > 0, "the first bytes")
            a.kill()
            wait_until(lambda: worker_of(front, a)["state"] == "absent", "its end")
            self.assertEqual(metric(front, "evenkeel_cluster_moves_failed_total"), 1)
            again = a.again()
            self.addCleanup(again.__exit__, None, None, None)
            wait_until(lambda: n_acquired(front, again) >= 1, "what it was to acquire")
        self.assertEqual(metric(front, "evenkeel_cluster_failed_layers_total"), 0)

    def test_two_fronts(self):
        a, b = self.worker("w0", "*:0-15", *ROOM), self.worker("w1", "*:16-31")
        one, two = self.front([a, b], "--set", "cluster.slow_start=0s"), self.front([b, a])
        with Traffic(one, self.expected), Traffic(two, self.expected):
            self.assertEqual(order(one, "acquire", a, "0:16-20")[0], 200)
            wait_until(lambda: n_acquired(one, a) == 5 and n_acquired(two, a) == 5, "both know of it")
            # Who decided first decides.
            self.assertEqual(order(two, "acquire", a, "1:16")[0], 200)
            wait_until(lambda: "another front decides" in worker_of(two, a)["acquired"]["why"], "the refusal")
            self.assertEqual(order(one, "release", a, "0:16-18")[0], 200)
            wait_until(lambda: n_acquired(one, a) == 2 and n_acquired(two, a) == 2, "both know of it")
        one.process.terminate()
        one.wait()
        # The other one may now, and finds what there is.
        self.assertEqual(n_acquired(two, a), 2)
        wait_until(lambda: "event=front_left" in a.log_text(), "the first one's end")
        self.assertEqual(order(two, "acquire", a, "1:16")[0], 200)
        wait_until(lambda: n_acquired(two, a) == 3, "the other front's turn")


class Rebalance(Case):
    """The front decides by itself. Which experts are hot is made sure of by the sets: worker w1 has three quarters."""

    QUICK = ("--set", "cluster.rebalance=auto", "--set", "cluster.rebalance_interval=1s", "--set",
             "cluster.slow_start=500ms")

    def test_a_hot_worker_is_relieved(self):
        a = self.worker("w0", "*:0-3", *ROOM)
        b = self.worker("w1", "*:4-31")
        front = self.front([a, b], *self.QUICK)
        with Traffic(front, self.expected):
            wait_until(lambda: n_acquired(front, a) > 0, "a replica")
            rows = lambda: {w["address"]: w["dispatches"] for w in cluster(front)["workers"]}
            wait_until(lambda: (cluster(front)["rebalance"] or {}).get("finished", 0) > 0, "the rebalance's end")
        state = cluster(front)
        self.assertGreaterEqual(state["rebalance"]["replicas"], 1)
        self.assertEqual(state["rows"]["failed_layers"], 0)
        self.assertEqual(metric(front, "evenkeel_cluster_moves_failed_total"), 0)
        self.assertGreater(rows()[a.address], 0)
        log = front.log_text()
        self.assertIn("event=rebalance layer=", log)
        self.assertIn("why=pays", log)
        self.assertLessEqual(worker_of(front, a)["acquired"]["bytes"], 64 * EXPERT_BYTES)
        # Where the worker that had them all goes, what was acquired goes on: layers that are complete by now do.
        self.assertEqual(texts(front), self.expected)

    def test_memory_is_kept_to(self):
        a = self.worker("w0", "*:0-3", "--set", f"worker.experts_bytes_max={3 * EXPERT_BYTES}B")
        b = self.worker("w1", "*:4-31")
        front = self.front([a, b], *self.QUICK)
        with Traffic(front, self.expected):
            wait_until(lambda: n_acquired(front, a) == 3, "as many replicas as there is room for")
            time.sleep(4)  # four more windows, in which it may look again
        self.assertEqual(n_acquired(front, a), 3)
        self.assertEqual(metric(front, "evenkeel_cluster_moves_failed_total"), 0)

    def test_what_a_killed_worker_had_is_acquired_elsewhere(self):
        # Nobody else has what w1 had; its model file has it all the same. Until it is there requests fail.
        a = self.worker("w0", "*:0-15", *ROOM)
        b = self.worker("w1", "*:16-31")
        front = self.front([a, b], *self.QUICK, "--set", "cluster.loss_wait=0s", "--set", "cluster.rebalance_moves=64")
        self.assertEqual(texts(front), self.expected)
        wait_until(lambda: cluster(front)["rebalance"] is not None or complete(front, PROMPTS[0], 8) is None,
                   "counts to go by")
        b.kill()
        wait_until(lambda: n_acquired(front, a) == 64, "all that was lost")
        wait_until(lambda: complete(front, PROMPTS[0], 4)[0] == 200, "service")
        self.assertEqual(texts(front), self.expected)


class Bytes(Case):
    """Worker w0 has a file with holes: experts 0-15 of each layer, fetched by a manifest."""

    def setUp(self):
        super().setUp()
        self.manifest = self.tmp / "m.json"
        done = run("manifest", "--model", MODEL, "--out", self.manifest)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = run("fetch", MODEL.parent, "--manifest", self.manifest, "--out", self.tmp / "part", "--experts", "*:0-15")
        self.assertEqual(done.returncode, 0, done.stderr)

    def sparse(self, *arguments):
        return self.worker("w0", "*:0-15", "--manifest", self.manifest, *ROOM, *arguments,
                           model=self.tmp / "part" / MODEL.name)

    def damaged(self, *experts, layers=(0,)):
        """A copy of the model in which experts of these layers are not what they were, where no sample looks."""
        other = self.tmp / "other"
        other.mkdir()
        shutil.copy(MODEL, other)
        with open(other / MODEL.name, "r+b") as file:
            for shard in json.loads(self.manifest.read_text())["body"]["files"][0]["shards"]:
                if shard.get("layer") in layers and shard.get("expert") in experts:
                    file.seek(shard["offset"] + 40)
                    byte = file.read(1)
                    file.seek(shard["offset"] + 40)
                    file.write(bytes([byte[0] ^ 0x41]))
        return other / MODEL.name

    def moved(self, worker, verb="acquire"):
        """What the worker's log says of the last move: (bytes, from the store, from peers)."""
        line = [line for line in worker.log_text().splitlines() if "event=moved" in line and f"verb={verb}" in line][-1]
        field = lambda name: int(re.search(rf" {name}=(\d+)", line).group(1))
        return field("bytes"), field("store"), field("peers")

    def test_from_another_worker(self):
        a = self.sparse()
        b = self.worker("w1", "*:16-31")
        front = self.front([a, b], "--set", "cluster.slow_start=0s", "--set", "cluster.loss_wait=0s")
        blocks = (self.tmp / "part" / MODEL.name).stat().st_blocks
        with Traffic(front, self.expected):
            self.assertEqual(order(front, "acquire", a, "*:16-31")[0], 200)
            wait_until(lambda: n_acquired(front, a) == 64, "the experts")
        self.assertEqual(self.moved(a)[1:], (0, 16 * EXPERT_BYTES))  # of the last layer
        self.assertGreater((self.tmp / "part" / MODEL.name).stat().st_blocks, blocks)
        b.kill()
        self.assertEqual(texts(front), self.expected)
        # What the file has now is there at the next start.
        again = run("fetch", MODEL.parent, "--manifest", self.manifest, "--out", self.tmp / "part", "--experts", "all")
        self.assertEqual(again.returncode, 0, again.stderr)

    def test_from_a_source(self):
        a = self.sparse("--set", f"worker.sources={self.tmp}/nothing,{MODEL.parent}")
        b = self.worker("w1", "*:16-31")
        front = self.front([a, b], "--set", "cluster.slow_start=0s", "--set", "cluster.loss_wait=0s")
        self.assertEqual(order(front, "acquire", a, "0:16-19")[0], 200)
        wait_until(lambda: n_acquired(front, a) == 4, "the experts")
        self.assertEqual(self.moved(a)[1:], (4 * EXPERT_BYTES, 0))
        self.assertIn(f'event=source_failed from="{self.tmp}/nothing"', a.log_text())
        self.assertEqual(texts(front), self.expected)
        # Released and acquired again it comes from the file, which has it now.
        self.assertEqual(order(front, "release", a, "0:16-19")[0], 200)
        wait_until(lambda: n_acquired(front, a) == 0, "the release")
        self.assertEqual(order(front, "acquire", a, "0:16-19")[0], 200)
        wait_until(lambda: n_acquired(front, a) == 4, "the experts")
        self.assertEqual(self.moved(a), (4 * EXPERT_BYTES, 0, 0))
        self.assertEqual(texts(front), self.expected)

    def test_a_worker_with_other_bytes(self):
        a = self.sparse()
        b = self.worker("w1", "*:16-31", model=self.damaged(16, 17))
        c = self.worker("w2", "*:16-31")
        front = self.front([a, b, c], "--set", "cluster.slow_start=0s")
        # Nobody noticed, since b has no manifest; let nothing be computed by it.
        self.assertEqual(front.request("POST", "/v1/cluster/drain", {"worker": b.address})[0], 200)
        wait_until(lambda: worker_of(front, b)["state"] == "draining", "the drain")
        self.assertEqual(order(front, "acquire", a, "0:16-18")[0], 200)
        wait_until(lambda: n_acquired(front, a) == 3, "the experts")
        log = a.log_text()
        self.assertIn(f'event=wrong_bytes from="{b.address}" layer=0 expert=16', log)
        self.assertIn(f'event=source_failed from="{b.address}" layer=0 expert=17', log)
        c.kill()
        # Of the three, what is computed now is computed by a: b is drained.
        self.assertEqual(self.moved(a)[1], 0)
        b.kill()
        status, error = complete(front, PROMPTS[0], 8)
        self.assertEqual(status, 503)  # others of layer 0 are nobody's now

    def test_nobody_has_the_right_bytes(self):
        empty = self.tmp / "later"
        empty.mkdir()
        a = self.sparse("--set", f"worker.sources={empty}")
        b = self.worker("w1", "*:16-31", model=self.damaged(20))
        front = self.front([a, b])
        self.assertEqual(order(front, "acquire", a, "0:20")[0], 200)
        wait_until(lambda: metric(front, "evenkeel_cluster_moves_failed_total") > 0, "the failure")
        self.assertIn(f"{b.address} has other bytes: SHA-256 ", worker_of(front, a)["acquired"]["why"])
        self.assertEqual(n_acquired(front, a), 0)
        # It is tried again by itself, and then somebody has them.
        shutil.copy(MODEL, empty)
        wait_until(lambda: n_acquired(front, a) == 1, "the next try")
        wait_until(lambda: worker_of(front, a)["acquired"]["why"] == "", "what came of it")

    def test_rebalancing_gives_up_what_nobody_has(self):
        few = self.tmp / "few"
        done = run("fetch", MODEL.parent, "--manifest", self.manifest, "--out", few, "--experts", "*:0-3")
        self.assertEqual(done.returncode, 0, done.stderr)
        a = self.worker("w0", "*:0-3", "--manifest", self.manifest, *ROOM, model=few / MODEL.name)
        b = self.worker("w1", "*:4-31", model=self.damaged(*range(4, 32), layers=range(4)))
        front = self.front([a, b], *Rebalance.QUICK)
        until = time.monotonic() + harness.PATIENCE_S
        # Nothing of what is relieved can be had, so the rebalance ends; it is not waited for until it is late.
        while (cluster(front)["rebalance"] or {}).get("failed", 0) == 0:
            self.assertLess(time.monotonic(), until, a.log_text())
            complete(front, PROMPTS[0], 48)
        self.assertEqual(n_acquired(front, a), 0)
        self.assertIn("has other bytes", worker_of(front, a)["acquired"]["why"])

    def test_strangers_get_no_bytes(self):
        a = self.worker("w0", "*:0-15")
        request = bytes(32) + struct.pack("<iiIIQ", 0, 0, 0, 16, 0)
        for node, why in (("front", "a connection begins with HELLO or ATTACH"), ("w1", "another model")):
            peer = strangers.Peer(self.certs / node, a.address)
            peer.send(strangers.header(READ, request))
            self.assertIn(why, strangers.refusal(peer))
            peer.close()


if __name__ == "__main__":
    harness.main()
