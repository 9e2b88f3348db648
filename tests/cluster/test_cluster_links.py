#!/usr/bin/env python3
"""Goal: the network between front and worker may be cut, slow or lossy. Where experts have a replica on the near side no
request fails, no token is wrong, and nothing stands still for more than a second; without one, requests fail or degrade
as configured; and all is well again, by itself, when the network is.
Method: real processes in two network namespaces with a line between them that the test spoils; every answer is compared
with that of a single process."""
import json
import time
import unittest

from cluster_rig import (FABRIC, LONG, PROMPTS, SLACK, Front, Stream, Traffic, Worker, complete, harness, make_certs,
                         metric, states, texts)
from harness import wait_until
from line_rig import FAR, NEAR, Line, in_own_network

QUICK = ("--set", "cluster.hedge_after=200ms", "--set", "cluster.hung_after=1s")


def worker_report(front, i):
    return json.loads(front.request("GET", "/v1/cluster")[2])["workers"][i]


class Links(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        Line().__exit__(None, None, None)  # or skip it all
        with harness.Server("--threads", "1", model=harness.SOURCE / "models/evenkeel-demo.gguf") as server:
            cls.expected = texts(server)
            cls.long_text = complete(server, PROMPTS[0], LONG)[1]

    def rig(self, near="all", far="all"):
        """A line, certificates, and a worker at each end with these experts."""
        tmp = self.enterContext(harness.folder())
        line = self.enterContext(Line())
        certs = make_certs(tmp / "certs", f"near={NEAR}", f"far={FAR}")
        a = self.enterContext(Worker(certs / "near", "--experts", near, listen=f"{NEAR}:0"))
        b = self.enterContext(Worker(certs / "far", "--experts", far, listen=f"{FAR}:0", prefix=line.far))
        return line, certs / "front", [a, b]

    def await_stream(self, front):
        stream = Stream(front)
        wait_until(lambda: stream.n_events > 20, "a stream that runs")
        return stream

    def assert_right(self, traffic, stream):
        self.assertEqual(stream.join(), self.long_text)
        print(f"longest pause between two tokens: {stream.pause:.3f} s")
        self.assertLess(stream.pause, 1.0 * SLACK)
        self.assertEqual(traffic.wrong, [])

    def test_cut_with_a_replica(self):
        line, certs, workers = self.rig()
        with Front(certs, workers, *QUICK) as front, Traffic(front, self.expected) as traffic:
            traffic.wait_for(5)
            stream = self.await_stream(front)
            cut = time.monotonic()
            line.set("cut")
            wait_until(lambda: states(front)[1] == "absent", "its being noticed")
            noticed = time.monotonic() - cut
            print(f"noticed after {noticed:.3f} s")
            self.assertLess(noticed, 1.5 * SLACK)
            traffic.wait_for(10)
            self.assert_right(traffic, stream)
            line.set("restore")
            restored = time.monotonic()
            wait_until(lambda: states(front) == ["serving", "serving"], "its return")
            print(f"back {time.monotonic() - restored:.3f} s after the line")
            dispatches = worker_report(front, 1)["dispatches"]
            traffic.wait_for(20)
            self.assertGreater(worker_report(front, 1)["dispatches"], dispatches)  # it works again
            self.assertEqual(traffic.wrong, [])
            self.assertEqual(metric(front, "evenkeel_cluster_degraded_rows_total"), 0)
            self.assertEqual(metric(front, "evenkeel_cluster_failed_layers_total"), 0)

    def test_cut_for_a_moment(self):
        # Shorter than what is called hanging: the worker stays a member, its late answers are thrown away.
        line, certs, workers = self.rig()
        with Front(certs, workers, "--set", "cluster.hedge_after=100ms", "--set", "cluster.hung_after=5s") as front, \
                Traffic(front, self.expected) as traffic:
            traffic.wait_for(5)
            stream = self.await_stream(front)
            for _ in range(2):
                line.set("cut")
                time.sleep(0.4)
                line.set("restore")
                traffic.wait_for(10)
            self.assert_right(traffic, stream)
            self.assertEqual(worker_report(front, 1)["joined"], 1)

    def slow(self, *commands):
        line, certs, workers = self.rig()
        with Front(certs, workers, *QUICK) as front, Traffic(front, self.expected) as traffic:
            traffic.wait_for(5)
            line.set(*commands)
            stream = self.await_stream(front)
            traffic.wait_for(10)
            self.assert_right(traffic, stream)
            late = metric(front, "evenkeel_cluster_late_answers_total")
            passed_by = metric(front, "evenkeel_cluster_passed_by_total")
            print(f"answers late {late:.0f}, worker passed by {passed_by:.0f} times")
            self.assertGreater(passed_by, 0)
            line.set("delay 0", "rate 0")
            before = worker_report(front, 1)["dispatches"]
            wait_until(lambda: worker_report(front, 1)["dispatches"] > before + 100, "its work when the line is good")
            self.assertEqual(traffic.wrong, [])

    def test_long_delay(self):
        self.slow("delay 150")

    def test_low_rate(self):
        self.slow("rate 200000")

    def test_lossy(self):
        line, certs, workers = self.rig()
        with Front(certs, workers, *QUICK) as front, Traffic(front, self.expected) as traffic:
            traffic.wait_for(5)
            line.set("loss 2", "delay 1")
            stream = self.await_stream(front)
            traffic.wait_for(20)
            self.assert_right(traffic, stream)
            self.assertGreater(int(line.ask("count").split()[3]), 0)

    def test_cut_without_a_replica_fails(self):
        line, certs, workers = self.rig("*:0-15", "*:16-31")
        with Front(certs, workers, *QUICK) as front:
            self.assertEqual(texts(front), self.expected)
            line.set("cut")
            asked = time.monotonic()
            status, error = complete(front, PROMPTS[0])
            self.assertEqual((status, error["code"]), (503, "no_available_backend"))
            # hung_after, then loss_wait
            self.assertLess(time.monotonic() - asked, 5 * SLACK)
            line.set("restore")
            wait_until(lambda: states(front) == ["serving", "serving"], "its return")
            self.assertEqual(texts(front), self.expected)
            self.assertGreater(metric(front, "evenkeel_cluster_failed_layers_total"), 0)

    def test_cut_without_a_replica_degrades(self):
        line, certs, workers = self.rig("*:0-15", "*:16-31")
        with Front(certs, workers, *QUICK, "--set", "cluster.on_loss=degrade", "--set",
                   "cluster.loss_wait=0s") as front:
            self.assertEqual(texts(front), self.expected)
            line.set("cut")
            body = {"prompt": PROMPTS[0], "max_tokens": 8, "temperature": 0}
            answer = json.loads(front.request("POST", "/v1/completions", body)[2])
            self.assertEqual(answer["choices"][0]["x_moe"], {"degraded": True})
            self.assertGreater(metric(front, "evenkeel_cluster_degraded_rows_total"), 0)
            line.set("restore")
            wait_until(lambda: states(front) == ["serving", "serving"], "its return")
            self.assertEqual(texts(front), self.expected)
            self.assertNotIn(b"x_moe", front.request("POST", "/v1/completions", body)[2])

    def test_links_are_measured(self):
        line, certs, workers = self.rig()
        line.set("delay 20", "rate 4000000")
        with Front(certs, workers, "--set", "cluster.link_latency_max=10ms") as front:
            near, far = worker_report(front, 0), worker_report(front, 1)
            print({key: (near[key], far[key]) for key in ("link_latency_ms", "link_bytes_per_s")})
            self.assertGreater(near["link_latency_ms"], 0)
            self.assertGreater(far["link_latency_ms"], 40)
            self.assertGreater(near["link_bytes_per_s"], far["link_bytes_per_s"])
            self.assertGreater(far["link_bytes_per_s"], 100e3)
            self.assertLess(far["link_bytes_per_s"], 4e6)
            text = front.request("GET", "/metrics")[2].decode()
            self.assertIn(f'link_latency_seconds{{worker="{workers[1].address}"}} {far["link_latency_ms"] / 1000:g}', text)
            self.assertRegex(front.log_text(), rf"event=joined worker={workers[1].address} .* latency_us=\d+ "
                                               r"bandwidth_mb_s=\d+\.\d")
            self.assertRegex(front.log_text(), rf'event=link_bad worker={workers[1].address} why="its data link takes '
                                               r'\S+ ms there and back; cluster.link_latency_max is 10.000 ms"')
            self.assertEqual(states(front), ["serving", "serving"])
            shown = harness.run("cluster", "status", "--url", front.url)
            self.assertRegex(shown.stdout, rf"{workers[1].address} +serving .* {far['link_latency_ms']:.3f} +"
                                           rf"{far['link_bytes_per_s'] / 1e6:.1f} ")

    def test_bad_links_are_refused(self):
        line, certs, workers = self.rig()
        for spoil, mend, setting, why in (
                ("delay 150", "delay 0", "link_latency_max=200ms", "there and back; cluster.link_latency_max is 200"),
                ("rate 100000", "rate 0", "link_bandwidth_min=1MiB", "MB/s; cluster.link_bandwidth_min is 1.049 MB/s")):
            line.set(spoil)
            with Front(certs, workers, "--set", f"cluster.{setting}", "--set", "cluster.link_check=refuse", "--set",
                       "cluster.join_timeout=10s") as front:
                self.assertEqual(states(front), ["serving", "absent"])
                self.assertIn(why, worker_report(front, 1)["why"])
                self.assertEqual(texts(front), self.expected)
                line.set(mend)
                wait_until(lambda: states(front) == ["serving", "serving"], "its being let in")

    def test_a_link_that_is_none(self):
        # So slow that the test does not end in time: the worker stays away, and says why.
        line, certs, workers = self.rig()
        line.set("rate 3000")
        with Front(certs, workers, "--set", "cluster.join_timeout=20s") as front:
            self.assertEqual(states(front), ["serving", "absent"])
            self.assertIn(workers[1].address, front.log_text())
            line.set("rate 0")
            wait_until(lambda: states(front) == ["serving", "serving"], "its being let in")


if __name__ == "__main__":
    in_own_network()
    harness.main()
