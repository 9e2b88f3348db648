#!/usr/bin/env python3
"""Goal: where experts are computed changes nothing about an answer.
Method: greedy answers of one process against those of a front with two and four workers, with and without replicas,
encrypted and bare; numbers as bf16 against themselves with another number of workers."""
import concurrent.futures
import json
import time
import unittest

from cluster_rig import FABRIC, MODEL, PROMPTS, Front, Worker, alone, complete, harness, make_certs, metric, texts
from harness import wait_until

QUARTERS = ["*:0-7", "*:8-15", "*:16-23", "*:24-31"]


class Answers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.expected = alone()

    def check(self, sets, *arguments, expected=None, worker_arguments=()):
        with harness.folder() as tmp:
            names = [f"w{i}" for i in range(len(sets))]
            certs = make_certs(tmp / "certs", *names)
            workers = [Worker(certs / name, "--experts", which, *worker_arguments)
                       for name, which in zip(names, sets)]
            try:
                with Front(certs / "front", workers, *arguments) as front:
                    answers = texts(front)
                    self.assertEqual(metric(front, "evenkeel_cluster_worker_up"), len(sets))
                    self.assertEqual(metric(front, "evenkeel_cluster_redone_rows_total"), 0)
            finally:
                for worker in workers:
                    worker.kill()
                    worker.log.close()
        if expected is not None:
            self.assertEqual(answers, expected)
        return answers

    def test_two_workers_share_the_experts(self):
        self.check(["*:0-15", "*:16-31"], expected=self.expected)

    def test_four_workers(self):
        self.check(QUARTERS, expected=self.expected)

    def test_micro_batches(self):
        # One answer alone has one row a step after its prompt; several at once are cut in every step.
        with harness.folder() as tmp:
            certs = make_certs(tmp / "certs", "w0", "w1")
            with Worker(certs / "w0", "--experts", "*:0-20") as a, Worker(certs / "w1", "--experts", "*:12-31") as b:
                for count in ("1", "2"):
                    with Front(certs / "front", [a, b], "--set", f"cluster.microbatches={count}") as front:
                        with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
                            answers = list(pool.map(lambda prompt: complete(front, prompt)[1], PROMPTS))
                        self.assertEqual(answers, self.expected)
                        overlapped = metric(front, "evenkeel_cluster_overlapped_layers_total")
                        hidden = metric(front, "evenkeel_cluster_hidden_seconds_sum")
                        self.assertEqual(overlapped > 100, count == "2", overlapped)
                        cluster = json.loads(front.request("GET", "/v1/cluster")[2])
                        self.assertEqual(cluster["overlap"]["layers"], overlapped)
                        if count == "2":
                            self.assertGreater(hidden, 0)
                            self.assertGreater(cluster["overlap"]["efficiency"], 0)
                            self.assertLess(cluster["overlap"]["efficiency"], 1)
                        for worker in cluster["workers"]:
                            self.assertGreater(worker["buffer_used_bytes"], 10000)
                            self.assertGreater(worker["buffer_reserved_bytes"], worker["buffer_used_bytes"])
                            unused = 1 - worker["buffer_used_bytes"] / worker["buffer_reserved_bytes"]
                            self.assertAlmostEqual(worker["buffer_fragmentation"], unused, 3)
                        done = harness.run("cluster", "status", "--url", front.url)
                        self.assertRegex(done.stdout, rf"layers overlapped {overlapped:.0f}\n$")

    def test_layers_on_different_workers(self):
        self.check(["0-1:*", "2-3:*"], expected=self.expected)

    def test_replicas(self):
        self.check(["all", "all"], expected=self.expected)

    def test_overlapping_sets(self):
        self.check(["*:0-20", "*:12-31"], expected=self.expected)

    def test_the_fabric_is_the_one_asked_for(self):
        with harness.folder() as tmp:
            certs = make_certs(tmp / "certs", "w0")
            with Worker(certs / "w0") as worker, Front(certs / "front", [worker]) as front:
                fabric = json.loads(front.request("GET", "/v1/cluster")[2])["workers"][0]["fabric"]
                self.assertEqual(fabric, "tcp" if FABRIC == "auto" else FABRIC)
                round_trip = lambda: json.loads(front.request("GET", "/v1/cluster")[2])["workers"][0]["round_trip_ms"]
                wait_until(lambda: round_trip() > 0, "a heartbeat's round trip")
                self.assertLess(round_trip(), 90)  # not the time until the next report

    def test_weights_as_they_lie_in_the_file(self):
        self.check(["*:0-15", "*:16-31"], worker_arguments=("--set", "engine.pack_weights=false"),
                   expected=self.expected)

    def test_bf16_does_not_depend_on_the_workers(self):
        two = self.check(["*:0-15", "*:16-31"], "--set", "cluster.wire=bf16")
        four = self.check(QUARTERS, "--set", "cluster.wire=bf16")
        self.assertEqual(two, four)

    def test_sums_are_close(self):
        # Sums are rounded in another order, so texts may part somewhere; they begin alike.
        for wire in ("f32", "bf16"):
            answers = self.check(["*:0-15", "*:16-31"], "--set", "cluster.combine=summed", "--set",
                                 f"cluster.wire={wire}")
            alike = sum(a[:8] == b[:8] for a, b in zip(answers, self.expected))
            self.assertGreaterEqual(alike, len(answers) - 1, (wire, answers, self.expected))

    def test_two_fronts_share_workers(self):
        with harness.folder() as tmp:
            certs = make_certs(tmp / "certs", "w0", "w1")
            with Worker(certs / "w0", "--experts", "*:0-15") as a, Worker(certs / "w1", "--experts", "*:16-31") as b:
                with Front(certs / "front", [a, b]) as one, Front(certs / "front", [b, a]) as two:
                    self.assertEqual(texts(one), self.expected)
                    self.assertEqual(texts(two), self.expected)

    def test_every_metric_is_in_the_docs(self):
        with harness.folder() as tmp:
            certs = make_certs(tmp / "certs", "w0")
            with Worker(certs / "w0") as worker, Front(certs / "front", [worker]) as front:
                complete(front, "Once", 2)
                exported = harness.exported_metrics(front.request("GET", "/metrics")[2].decode())
                documented = {name: rest for name, rest in harness.documented_metrics().items()
                              if not name.startswith("evenkeel_worker_")}  # test_cluster_health.py
                self.assertEqual(documented, exported)

    def test_a_configuration_file(self):
        with harness.folder() as tmp:
            certs = make_certs(tmp / "certs", "w0", "w1")
            (tmp / "worker.yaml").write_text(f"""version: 1
worker:
  experts: "*:16-31"
  listen: 127.0.0.1:0
  certs: {certs}/w1
""")
            with Worker(certs / "w0", "--experts", "*:0-15") as a, \
                    Worker(certs / "w1", "--config", tmp / "worker.yaml") as b:
                (tmp / "front.yaml").write_text(f"""version: 1
cluster:
  workers: [{a.address}, {b.address}]
  certs: {certs}/front
""")
                with harness.Server("--threads", "1", "--config", tmp / "front.yaml", model=MODEL) as front:
                    self.assertEqual(texts(front), self.expected)

    def test_paced_workers(self):
        # 20 ms for each dispatch: 4 layers and 8 tokens to generate are at least 0.6 s, and nothing else changes.
        with harness.folder() as tmp:
            certs = make_certs(tmp / "certs", "w0", "w1")
            pace = ("--set", "worker.pace_latency=20ms")
            with Worker(certs / "w0", "--experts", "*:0-15", *pace) as a, \
                    Worker(certs / "w1", "--experts", "*:16-31", *pace) as b:
                with Front(certs / "front", [a, b]) as front:
                    begin = time.monotonic()
                    status, text = complete(front, PROMPTS[0], 8)
                    took = time.monotonic() - begin
                    self.assertEqual(status, 200, text)
                    self.assertTrue(self.expected[0].startswith(text), text)
                    self.assertGreater(took, 0.6)
                    workers = json.loads(front.request("GET", "/v1/cluster")[2])["workers"]
                    self.assertGreater(sum(worker["busy_s"] for worker in workers), 0.6)

    def test_a_worker_says_what_it_loaded(self):
        with harness.folder() as tmp:
            certs = make_certs(tmp / "certs", "w0")
            with Worker(certs / "w0", "--experts", "0:0-3 2:*") as worker:
                self.assertRegex(worker.ready_line, r"^evenkeel \S+ worker on 127\.0\.0\.1:\d+: 36 of 128 experts, "
                                                    r"2\.7 MiB in [\d.]+ s, \w+ kernels, 1 threads\n$")
                self.assertEqual(worker.end(), 0)


if __name__ == "__main__":
    harness.main()
