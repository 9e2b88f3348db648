#!/usr/bin/env python3
"""Goal: workers may be killed, stopped, drained and started again while answers run. With replicas no request fails, no
token is wrong and nothing stands still for long; without, requests fail or degrade as configured, and all is well again
when the worker is back.
Method: real processes on loopback, real signals; every answer is compared with that of a single process."""
import json
import re
import signal
import time
import unittest

from cluster_rig import (LONG, PROMPTS, SLACK, Front, Stream, Traffic, Worker, complete, harness, make_certs, metric,
                         states, texts)
from harness import run, wait_until


QUESTIONS = ["Where is my parcel?", "How much is the smart watch?", "What is Bluetooth?", "发票怎么开", "有什么优惠？"]


class Failures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with harness.Server("--threads", "1", model=harness.SOURCE / "models/evenkeel-demo.gguf") as server:
            cls.expected = texts(server)
            cls.long_text = complete(server, PROMPTS[0], LONG)[1]

    def rig(self, *sets):
        """Certificates and workers with these experts, all ended with the test."""
        folder = harness.folder()
        tmp = folder.__enter__()
        self.addCleanup(folder.__exit__, None, None, None)
        certs = make_certs(tmp / "certs", *[f"w{i}" for i in range(len(sets))])
        workers = [self.keep(Worker(certs / f"w{i}", "--experts", which)) for i, which in enumerate(sets)]
        return certs, workers

    def keep(self, worker):
        self.addCleanup(lambda: worker.__exit__(None, None, None))
        return worker

    def test_killed_with_a_replica(self):
        certs, (a, b) = self.rig("all", "all")
        with Front(certs / "front", [a, b]) as front, Traffic(front, self.expected) as traffic:
            traffic.wait_for(5)
            stream = Stream(front)
            wait_until(lambda: stream.n_events > 20, "a stream that runs")
            b.send_signal(signal.SIGKILL)
            self.assertEqual(stream.join(), self.long_text)
            self.assertLess(stream.pause, 1.0 * SLACK)
            traffic.wait_for(10)
            wait_until(lambda: states(front) == ["serving", "absent"], "its absence")
            back = self.keep(b.again())
            wait_until(lambda: states(front) == ["serving", "serving"], "its return")
            dispatches = json.loads(front.request("GET", "/v1/cluster")[2])["workers"][1]["dispatches"]
            traffic.wait_for(10)
            after = json.loads(front.request("GET", "/v1/cluster")[2])["workers"][1]
            self.assertGreater(after["dispatches"], dispatches)  # it works again
            self.assertEqual(after["joined"], 2)
            self.assertEqual(traffic.wrong, [])
            self.assertEqual(metric(front, "evenkeel_cluster_degraded_rows_total"), 0)
            self.assertEqual(metric(front, "evenkeel_cluster_worker_losses_total"), 1)
            self.assertEqual(back.end(), 0)

    def test_stopped_with_a_replica(self):
        certs, (a, b) = self.rig("all", "all")
        with Front(certs / "front", [a, b], "--set", "cluster.hedge_after=200ms", "--set", "cluster.hung_after=1s") as front, \
                Traffic(front, self.expected) as traffic:
            traffic.wait_for(5)
            stream = Stream(front)
            wait_until(lambda: stream.n_events > 20, "a stream that runs")
            stopped = time.monotonic()
            b.send_signal(signal.SIGSTOP)
            wait_until(lambda: states(front)[1] == "absent", "its being noticed")
            self.assertLess(time.monotonic() - stopped, 1.5 * SLACK)
            self.assertEqual(stream.join(), self.long_text)
            self.assertLess(stream.pause, 1.0 * SLACK)
            traffic.wait_for(10)
            b.send_signal(signal.SIGCONT)
            wait_until(lambda: states(front) == ["serving", "serving"], "its return")
            traffic.wait_for(20)
            self.assertEqual(traffic.wrong, [])
            self.assertGreater(metric(front, "evenkeel_cluster_redone_rows_total"), 0)
            self.assertIn("no heartbeat", front.log_text())

    def test_stopped_for_a_moment(self):
        # Shorter than what is called hanging: rows are done by the other, and the late answer is thrown away.
        certs, (a, b) = self.rig("all", "all")
        with Front(certs / "front", [a, b], "--set", "cluster.hedge_after=100ms") as front, \
                Traffic(front, self.expected) as traffic:
            traffic.wait_for(5)
            for _ in range(3):
                b.send_signal(signal.SIGSTOP)
                time.sleep(0.5)
                b.send_signal(signal.SIGCONT)
                traffic.wait_for(5)
            wait_until(lambda: metric(front, "evenkeel_cluster_stale_answers_total") > 0, "a stale answer")
            self.assertEqual(traffic.wrong, [])
            self.assertEqual(states(front), ["serving", "serving"])

    def test_loads_that_are_not_known(self):
        # Half a second without a report: routing must not go by what was last heard.
        certs, (a, b) = self.rig("all", "all")
        with Front(certs / "front", [a, b], "--set", "cluster.hedge_after=100ms", "--set", "routing.policy=discount",
                   "--set", "routing.discount_load=1") as front:
            with Traffic(front, self.expected) as traffic:
                traffic.wait_for(5)
                missed = metric(front, "evenkeel_load_samples_missed_total")
                wait_until(lambda: metric(front, "evenkeel_load_samples_total") > 0, "samples")
                b.send_signal(signal.SIGSTOP)
                time.sleep(0.9)
                b.send_signal(signal.SIGCONT)
                wait_until(lambda: metric(front, "evenkeel_load_samples_missed_total") > missed, "samples missed")
                traffic.wait_for(5)

    def test_slow_start(self):
        certs, (a, b) = self.rig("all", "all")
        with Front(certs / "front", [a, b], "--set", "cluster.slow_start=1h") as front, \
                Traffic(front, self.expected) as traffic:
            def rows():
                devices = json.loads(front.request("GET", "/v1/experts?window=all")[2])["devices"]
                return [sum(layer[d] for layer in devices["tokens"]) for d in range(2)]
            traffic.wait_for(20)
            first = rows()
            self.assertGreater(first[1], 0.3 * first[0])
            b.send_signal(signal.SIGKILL)
            wait_until(lambda: states(front)[1] == "absent", "its absence")
            self.keep(b.again())
            wait_until(lambda: states(front) == ["serving", "serving"], "its return")
            before = rows()
            traffic.wait_for(40)
            new = [now - then for now, then in zip(rows(), before)]
            self.assertGreater(new[1], 0)
            self.assertLess(new[1], 0.3 * new[0], new)
            self.assertEqual(traffic.wrong, [])

    def sure_traffic(self, front):
        """Questions that the model was made for, and no more of its answers than it is sure of."""
        prompts = [f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in QUESTIONS]
        expected = [complete(front, prompt, 10)[1] for prompt in prompts]
        self.assertEqual(len(set(expected)), len(QUESTIONS))
        return Traffic(front, expected, 6, prompts, 10)

    def test_killed_with_sums(self):
        # What a dead worker was to sum is summed once, by others. Sums are rounded by who makes them, so that the answers
        # to one prompt may differ (all of them, once such a beginning is in the prefix cache), though hardly those that the
        # model is sure of; a sum that is there twice, or is not, spoils every answer that was under way.
        certs, (a, b) = self.rig("all", "all")
        with Front(certs / "front", [a, b], "--set", "cluster.combine=summed", "--set",
                   "cluster.slow_start=0s") as front, self.sure_traffic(front) as traffic:
            for _ in range(4):
                traffic.wait_for(5)
                b.send_signal(signal.SIGKILL)
                traffic.wait_for(5)
                b = self.keep(b.again())
                wait_until(lambda: states(front) == ["serving", "serving"], "its return")
            self.assertGreater(metric(front, "evenkeel_cluster_redone_rows_total"), 0)
            self.assertLessEqual(len({prompt for prompt, _, _ in traffic.wrong}), 1, traffic.wrong)

    def overlapping(self, *sets):
        """Workers that a layer waits 10 ms for, so that nearly always both halves of a step are under way."""
        folder = harness.folder()
        tmp = folder.__enter__()
        self.addCleanup(folder.__exit__, None, None, None)
        certs = make_certs(tmp / "certs", *[f"w{i}" for i in range(len(sets))])
        return certs, [self.keep(Worker(certs / f"w{i}", "--experts", which, "--set", "worker.pace_latency=10ms"))
                       for i, which in enumerate(sets)]

    def test_killed_while_both_halves_are_under_way(self):
        certs, (a, b) = self.overlapping("all", "all")
        with Front(certs / "front", [a, b], "--set", "cluster.microbatches=2") as front, \
                Traffic(front, self.expected) as traffic:
            traffic.wait_for(3)
            b.send_signal(signal.SIGKILL)
            traffic.wait_for(6)
            self.assertEqual(traffic.wrong, [])
            self.assertGreater(metric(front, "evenkeel_cluster_overlapped_layers_total"), 100)
            self.assertGreater(metric(front, "evenkeel_cluster_redone_rows_total"), 0)
            self.assertEqual(metric(front, "evenkeel_cluster_failed_layers_total"), 0)

    def test_stopped_while_both_halves_are_under_way(self):
        # Two answers are owed then, and both are thrown away before it gets anything again.
        certs, (a, b) = self.overlapping("all", "all")
        with Front(certs / "front", [a, b], "--set", "cluster.microbatches=2", "--set",
                   "cluster.hedge_after=200ms") as front, Traffic(front, self.expected) as traffic:
            traffic.wait_for(3)
            b.send_signal(signal.SIGSTOP)
            wait_until(lambda: metric(front, "evenkeel_cluster_late_answers_total") > 0, "its being late")
            traffic.wait_for(3)
            b.send_signal(signal.SIGCONT)
            wait_until(lambda: metric(front, "evenkeel_cluster_stale_answers_total") > 0, "a stale answer")
            wait_until(lambda: states(front) == ["serving", "serving"], "its having caught up")
            traffic.wait_for(3)
            self.assertEqual(traffic.wrong, [])

    def test_a_half_fails_while_the_other_is_under_way(self):
        certs, (a, b) = self.overlapping("*:0-15", "*:16-31")
        with Front(certs / "front", [a, b], "--set", "cluster.microbatches=2", "--set", "cluster.loss_wait=0s") as front:
            with Traffic(front, self.expected) as traffic:
                traffic.wait_for(3)
                b.send_signal(signal.SIGKILL)
                wait_until(lambda: traffic.wrong, "a failure")
            self.assertEqual({status for _, status, _ in traffic.wrong}, {503}, traffic.wrong)
            self.keep(b.again())
            wait_until(lambda: states(front) == ["serving", "serving"], "its return")
            self.assertEqual(texts(front), self.expected)

    def test_restarted_without_a_replica(self):
        # Everything waits for its return, and nothing fails.
        certs, (a, b) = self.rig("*:0-15", "*:16-31")
        with Front(certs / "front", [a, b], "--set", "cluster.loss_wait=60s") as front, \
                Traffic(front, self.expected) as traffic:
            traffic.wait_for(5)
            stream = Stream(front)
            wait_until(lambda: stream.n_events > 20, "a stream that runs")
            b.send_signal(signal.SIGKILL)
            b.process.wait()
            self.keep(b.again())
            self.assertEqual(stream.join(), self.long_text)
            traffic.wait_for(5)
            self.assertEqual(traffic.wrong, [])
            self.assertEqual(metric(front, "evenkeel_cluster_failed_layers_total"), 0)

    def test_killed_without_a_replica_fails(self):
        certs, (a, b) = self.rig("*:0-15", "*:16-31")
        with Front(certs / "front", [a, b]) as front:
            self.assertEqual(texts(front), self.expected)
            b.send_signal(signal.SIGKILL)
            wait_until(lambda: states(front)[1] == "absent", "its absence")
            status, error = complete(front, PROMPTS[0])
            self.assertEqual((status, error["code"]), (503, "no_available_backend"))
            self.keep(b.again())
            wait_until(lambda: states(front) == ["serving", "serving"], "its return")
            self.assertEqual(texts(front), self.expected)
            self.assertGreater(metric(front, "evenkeel_cluster_failed_layers_total"), 0)

    def test_killed_without_a_replica_degrades(self):
        certs, (a, b) = self.rig("*:0-15", "*:16-31")
        with Front(certs / "front", [a, b], "--set", "cluster.on_loss=degrade") as front:
            self.assertEqual(texts(front), self.expected)
            b.send_signal(signal.SIGKILL)
            wait_until(lambda: states(front)[1] == "absent", "its absence")
            for prompt in PROMPTS:
                status, text = complete(front, prompt + " and")
                self.assertEqual(status, 200, text)
                status, text = complete(front, prompt)
                self.assertEqual(status, 200, text)
            self.assertGreater(metric(front, "evenkeel_cluster_degraded_rows_total"), 0)
            body = {"prompt": PROMPTS[0], "max_tokens": 8, "temperature": 0}
            answer = json.loads(front.request("POST", "/v1/completions", body)[2])
            self.assertEqual(answer["choices"][0]["x_moe"], {"degraded": True})
            chunks = front.request("POST", "/v1/completions", {**body, "stream": True})[2].decode()
            self.assertIn('"finish_reason":"length","x_moe":{"degraded":true}', chunks)
            self.keep(b.again())
            wait_until(lambda: states(front) == ["serving", "serving"], "its return")
            degraded = metric(front, "evenkeel_cluster_degraded_rows_total")
            # What was computed without an expert is not in the prefix cache.
            self.assertEqual(texts(front), self.expected)
            self.assertEqual(metric(front, "evenkeel_cluster_degraded_rows_total"), degraded)
            self.assertNotIn(b"x_moe", front.request("POST", "/v1/completions", body)[2])

    def test_half_of_the_experts_have_a_replica(self):
        certs, (a, b, c) = self.rig("*:0-15", "*:16-31", "*:8-23")
        with Front(certs / "front", [a, b, c]) as front, Traffic(front, self.expected) as traffic:
            traffic.wait_for(5)
            c.send_signal(signal.SIGKILL)
            traffic.wait_for(10)
            self.assertEqual(traffic.wrong, [])

    def test_worker_ends_when_asked_and_nobody_notices(self):
        certs, (a, b) = self.rig("all", "all")
        with Front(certs / "front", [a, b]) as front, Traffic(front, self.expected) as traffic:
            traffic.wait_for(5)
            self.assertEqual(b.end(), 0)
            traffic.wait_for(10)
            self.assertEqual(traffic.wrong, [])
            self.assertEqual(metric(front, "evenkeel_cluster_redone_rows_total"), 0)
            self.assertIn("it said good-bye", front.log_text())

    def test_drain_and_resume(self):
        certs, (a, b) = self.rig("all", "all")
        with Front(certs / "front", [a, b]) as front, Traffic(front, self.expected) as traffic:
            traffic.wait_for(5)
            done = run("cluster", "drain", b.address, "--url", front.url)
            self.assertEqual((done.returncode, done.stdout), (0, f"{b.address}: drained\n"), done.stderr)
            traffic.wait_for(3)
            before = json.loads(front.request("GET", "/v1/cluster")[2])["workers"][1]
            traffic.wait_for(10)
            after = json.loads(front.request("GET", "/v1/cluster")[2])["workers"][1]
            self.assertEqual(before["dispatches"], after["dispatches"])
            self.assertEqual(after["state"], "draining")
            done = run("cluster", "status", "--url", front.url)
            self.assertRegex(done.stdout, rf"{re.escape(b.address)}\s+draining")
            done = run("cluster", "resume", b.address, "--url", front.url)
            self.assertEqual(done.returncode, 0, done.stderr)
            traffic.wait_for(10)
            self.assertGreater(json.loads(front.request("GET", "/v1/cluster")[2])["workers"][1]["dispatches"],
                               after["dispatches"])
            self.assertEqual(traffic.wrong, [])
            done = run("cluster", "drain", "127.0.0.1:1", "--url", front.url)
            self.assertEqual(done.returncode, 1)
            self.assertIn("no worker is called 127.0.0.1:1", done.stderr)

    def test_a_single_process_has_no_workers(self):
        with harness.Server() as server:
            self.assertEqual(server.request("GET", "/v1/cluster")[0], 404)
            done = run("cluster", "status", "--url", server.url)
            self.assertEqual(done.returncode, 1)
            self.assertIn("cluster.workers", done.stderr)

    def test_front_ends_while_it_waits(self):
        certs, _ = self.rig()
        front = Front(certs / "front", ["127.0.0.1:9"], wait_ready=False)
        wait_until(lambda: "not_joined" in front.log_text(), "a first attempt")
        front.send_signal(signal.SIGTERM)
        self.assertEqual(front.wait(), 143)

    def test_front_gives_up(self):
        certs, (a,) = self.rig("*:0-30")
        for workers, why in (([a], "no worker has expert 31 of layer 0; give it to one"),
                             ([a, "127.0.0.1:9"], "127.0.0.1:9 is absent: cannot connect to 127.0.0.1:9")):
            front = Front(certs / "front", workers, "--set", "cluster.join_timeout=1s", wait_ready=False)
            self.assertEqual(front.wait(), 69)
            self.assertIn(why, front.log_text())


if __name__ == "__main__":
    harness.main()
