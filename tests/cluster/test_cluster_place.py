#!/usr/bin/env python3
"""Goal: a front with workers takes a new placement while it serves: each worker comes to have what its device of the file
has, replicas first and what is too much after them, and nothing of it can be seen in an answer; a file that does not fit
is refused with one reason, and a placement that cannot be brought about ends and says why.
Method: real workers and fronts, greedy answers against those of one process all along, the command and the call behind
it, a worker that is stopped in the middle."""
import json
import re
import time
import unittest

import test_cluster_moves as moves
from cluster_rig import MODEL, harness, metric, texts
from harness import run, wait_until
from test_cluster_moves import EXPERT_BYTES, Traffic, cluster, n_acquired, order, worker_of

LAYERS = 4  # of the bundled model, with 32 experts each


def room(n):
    return "--set", f"worker.experts_bytes_max={n * EXPERT_BYTES}B"


def layer(*devices, each=20):
    """One line of a placement: each device's experts, and empty slots up to so many."""
    return [expert for device in devices for expert in [*device, *[-1] * (each - len(device))]]


LOW, HIGH = list(range(16)), list(range(16, 32))


def placement_of(front):
    return cluster(front)["placement"]


def give(front, table, **fields):
    status, _, body = front.request("POST", "/v1/cluster/place", {"placement": table, **fields})
    return status, json.loads(body)


class Case(moves.Case):
    def write(self, table, name="p.csv"):
        path = self.tmp / name
        path.write_text("".join(",".join(map(str, line)) + "\n" for line in table))
        return path

    def halves(self, *arguments, room_a=room(64), room_b=room(64), **fields):
        a = self.worker("w0", "*:0-15", *room_a, *arguments)
        b = self.worker("w1", "*:16-31", *room_b, *arguments)
        return a, b, self.front([a, b], "--set", "cluster.slow_start=200ms", **fields)


class Place(Case):
    def test_there_and_back(self):
        a, b, front = self.halves()
        self.assertIsNone(placement_of(front))
        first = [layer(LOW + [16, 17], HIGH + [0]), layer(LOW, HIGH + [1, 2]), layer(LOW, HIGH),
                 layer(LOW + [31], HIGH)]
        second = [layer(LOW + [17, 18], HIGH), layer(LOW, HIGH + [2]), layer(LOW + [20], HIGH), layer(LOW, HIGH)]
        with Traffic(front, self.expected):
            done = run("cluster", "place", self.write(first), "--url", front.url)
            self.assertEqual(done.returncode, 0, done.stderr)
            lines = done.stdout.splitlines()
            self.assertEqual(lines[0], f"{self.tmp}/p.csv: 6 replicas to acquire, 0 to release")
            self.assertRegex(lines[-1], r"^placed: 6 acquired, 0 released in \d+\.\d s$")
            self.assertEqual((n_acquired(front, a), n_acquired(front, b)), (3, 3))
            done = run("cluster", "place", self.write(second), "--url", front.url)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.splitlines()[0], f"{self.tmp}/p.csv: 2 replicas to acquire, 4 to release")
            self.assertEqual((n_acquired(front, a), n_acquired(front, b)), (3, 1))
            self.assertEqual(texts(front), self.expected)
        state = placement_of(front)
        self.assertEqual({key: state[key] for key in ("number", "state", "layers", "acquire", "acquired", "release", "released", "why")},
                         {"number": 2, "state": "done", "layers": 4, "acquire": 2, "acquired": 2, "release": 4, "released": 4,
                          "why": ""})
        self.assertEqual(metric(front, "evenkeel_cluster_failed_layers_total"), 0)
        self.assertEqual(metric(front, "evenkeel_cluster_moves_failed_total"), 0)
        self.assertIn("placement 2: done, 2 of 2 acquired, 4 of 4 released\n",
                      run("cluster", "status", "--url", front.url).stdout)
        for event in ("placement", "placed"):
            self.assertEqual(len(re.findall(rf"event={event} ", front.log_text())), 2)
        # The workers really have it: w1's first replicas are computed by w0 alone now.
        self.assertEqual(front.request("POST", "/v1/cluster/drain", {"worker": b.address})[0], 200)
        self.assertEqual(texts(front), self.expected)

    def test_acquired_before_released_layer_by_layer(self):
        a, b, front = self.halves()
        one = [layer(LOW + [16], HIGH)] * LAYERS
        two = [layer(LOW + [17], HIGH)] * LAYERS
        for table in (one, two):
            done = run("cluster", "place", self.write(table), "--url", front.url)
            self.assertEqual(done.returncode, 0, done.stderr)
        steps = [(verb, int(number)) for verb, number in re.findall(r"event=move .*?verb=(\w+) layer=(\d)", front.log_text())]
        self.assertEqual(steps[LAYERS:], [(verb, at) for at in range(LAYERS) for verb in ("acquire", "release")])

    def test_a_full_worker_releases_first(self):
        # Its room is as large as the placement; four in the last layer make way for four in the first one.
        a, b, front = self.halves(room_a=room(4))
        one = [layer(LOW, HIGH)] * 3 + [layer(LOW + [16, 17, 18, 19], HIGH)]
        two = [layer(LOW + [16, 17, 18, 19], HIGH)] + [layer(LOW, HIGH)] * 3
        with Traffic(front, self.expected):
            for table in (one, two):
                done = run("cluster", "place", self.write(table), "--url", front.url)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(n_acquired(front, a), 4)
        self.assertEqual(metric(front, "evenkeel_cluster_moves_failed_total"), 0)

    def test_devices_by_name(self):
        a, b, front = self.halves()
        table = [layer(HIGH + [3], LOW + [30])] * LAYERS  # of the other one first
        done = run("cluster", "place", self.write(table), "--url", front.url, "--device-of", f"{a.address}=1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((n_acquired(front, a), n_acquired(front, b)), (LAYERS, LAYERS))
        self.assertEqual(give(front, table, devices={b.address: 0})[0], 200)
        wait_until(lambda: placement_of(front)["state"] == "done", "nothing to do")
        for devices, code, why in (({"x:1": 0}, 404, "no worker is called x:1"),
                                   ({a.address: 2}, 400, "2 workers have the devices 0 to 1"),
                                   ({a.address: 0, b.address: 0}, 400, "two workers"),
                                   ({a.address: "0"}, 400, "whole number"), ([0, 1], 400, "devices")):
            status, body = give(front, table, devices=devices)
            self.assertEqual(status, code, devices)
            self.assertIn(why, body["error"]["message"])
        done = run("cluster", "place", self.write(table), "--url", front.url, "--device-of", a.address)
        self.assertEqual(done.returncode, 2)

    def test_files_that_do_not_fit(self):
        a, b, front = self.halves(room_a=room(5), room_b=())
        fits = layer(LOW, HIGH)
        cases = [
            ([fits] * 3, "the placement has 3 layers, but the model has 4"),
            ([fits] * 3 + [layer(LOW, HIGH[:-1] + [32])], "layer 3 has expert 32, but the model has 32"),
            ([fits] * 3 + [layer(LOW, HIGH[:-1] + [-1])], "expert 31 of layer 3 is in no slot"),
            ([fits + [-1]] * 4, "41 slots for each layer do not divide evenly over 2 workers"),
            ([layer(LOW + [16, 17], HIGH)] * 4, f"{a.address} has room for 5 experts beyond those that it was started with, "
                                                "not for 8 (worker.experts_bytes_max)"),
            ([layer(LOW, HIGH + [0])] + [fits] * 3, f"{b.address} has room for 0 experts"),
        ]
        for table, why in cases:
            status, body = give(front, table)
            self.assertEqual(status, 400, why)
            self.assertIn(why, body["error"]["message"])
            done = run("cluster", "place", self.write(table), "--url", front.url)
            self.assertEqual(done.returncode, 1)
            self.assertIn(why, done.stderr)
        for table, why in (("1,2", "placement"), ([], "placement"), ([[1, 2], [3]], "as many slots"), ([[1, "x"]], "whole number"),
                           ([[1, -2]], "whole number"), ([[1, 2 ** 40]], "whole number"), ([[]], "slot")):
            status, body = give(front, table)
            self.assertEqual(status, 400, table)
            self.assertIn(why, body["error"]["message"])
        (self.tmp / "p.csv").write_text("0,1\n2,x\n")
        done = run("cluster", "place", self.tmp / "p.csv", "--url", front.url)
        self.assertEqual(done.returncode, 65)
        self.assertIn("p.csv:2:3: ", done.stderr)
        self.assertEqual(run("cluster", "place", self.tmp / "none.csv", "--url", front.url).returncode, 66)
        self.assertEqual(run("cluster", "place", "--url", front.url).returncode, 2)
        b.kill()
        wait_until(lambda: worker_of(front, b)["state"] == "absent", "its end")
        status, body = give(front, [fits] * 4)
        self.assertEqual(status, 400)
        self.assertIn(f"{b.address} is absent", body["error"]["message"])
        self.assertIsNone(placement_of(front))
        self.assertEqual(metric(front, "evenkeel_cluster_moves_started_total"), 0)

    def test_without_waiting_and_another_one_meanwhile(self):
        # 30 KB/s: an expert in some three seconds.
        a, b, front = self.halves("--set", "worker.acquire_rate=30000B")
        many = [layer(LOW + HIGH, HIGH, each=32)] * LAYERS
        few = [layer(LOW + [16], HIGH)] + [layer(LOW, HIGH)] * 3
        with Traffic(front, self.expected):
            done = run("cluster", "place", self.write(many), "--url", front.url, "--no-wait")
            self.assertEqual((done.returncode, done.stdout), (0, f"{self.tmp}/p.csv: 64 replicas to acquire, 0 to release\n"), done.stderr)
            wait_until(lambda: placement_of(front)["acquired"] > 0, "the first one")
            self.assertEqual({key: placement_of(front)[key] for key in ("state", "layer")}, {"state": "moving", "layer": 0})
            # Orders by hand would be in its way.
            status, body = order(front, "acquire", a, "3:20")
            self.assertEqual(status, 400)
            self.assertIn("a placement is being brought about", body["error"]["message"])
            self.assertIn("placement 1: moving, layer 0 of 4, ", run("cluster", "status", "--url", front.url).stdout)
            self.assertEqual(give(front, few)[0], 200)
            wait_until(lambda: placement_of(front)["state"] == "done", "the other one", 120)
        self.assertEqual(placement_of(front)["number"], 2)
        self.assertEqual((n_acquired(front, a), n_acquired(front, b)), (1, 0))
        self.assertEqual(order(front, "release", a, "0:16")[0], 200)
        wait_until(lambda: n_acquired(front, a) == 0, "by hand again")

    def test_a_worker_that_is_killed_meanwhile_and_comes_back(self):
        a = self.worker("w0", "*:0-15", *room(64), "--set", "worker.acquire_rate=100000B")
        b = self.worker("w1", "all")
        front = self.front([a, b], "--set", "cluster.slow_start=200ms")
        table = [layer(LOW + [16, 17], LOW + HIGH, each=32)] * LAYERS
        with Traffic(front, self.expected):
            self.assertEqual(give(front, table)[0], 200)
            wait_until(lambda: placement_of(front)["layer"] == 1, "the second layer")
            a.kill()
            wait_until(lambda: worker_of(front, a)["state"] == "absent", "its end")
            self.assertEqual(placement_of(front)["state"], "moving")
            again = a.again()
            self.addCleanup(again.__exit__, None, None, None)
            wait_until(lambda: placement_of(front)["state"] == "done", "its end", 120)
            self.assertEqual(n_acquired(front, again), 2 * LAYERS)
        self.assertEqual(metric(front, "evenkeel_cluster_failed_layers_total"), 0)

    def test_another_front_decides(self):
        a, b, one = self.halves()
        two = self.front([a, b])
        self.assertEqual(order(one, "acquire", a, "0:16")[0], 200)
        wait_until(lambda: n_acquired(one, a) == 1, "the expert")
        done = run("cluster", "place", self.write([layer(LOW + [17], HIGH)] * LAYERS), "--url", two.url)
        self.assertEqual(done.returncode, 1)
        self.assertIn("another front decides already", done.stderr)
        self.assertEqual(placement_of(two)["state"], "failed")
        self.assertIn("event=placement_failed", two.log_text())
        self.assertEqual(texts(two), self.expected)

    def test_bytes_that_nobody_has(self):
        manifest = self.tmp / "m.json"
        self.assertEqual(run("manifest", "--model", MODEL, "--out", manifest).returncode, 0)
        self.assertEqual(run("fetch", MODEL.parent, "--manifest", manifest, "--out", self.tmp / "part", "--experts",
                             "*:0-15").returncode, 0)
        a = self.worker("w0", "*:0-15", "--manifest", manifest, *room(64), model=self.tmp / "part" / MODEL.name)
        damaged = self.tmp / "other" / MODEL.name
        damaged.parent.mkdir()
        data = bytearray(MODEL.read_bytes())
        for shard in json.loads(manifest.read_text())["body"]["files"][0]["shards"]:
            if shard.get("layer") == 0 and shard.get("expert") == 20:
                data[shard["offset"] + 40] ^= 0x41
        damaged.write_bytes(data)
        b = self.worker("w1", "*:16-31", model=damaged)
        front = self.front([a, b])
        done = run("cluster", "place", self.write([layer(LOW + [20], HIGH)] * LAYERS), "--url", front.url)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"{b.address} has other bytes: SHA-256 ", done.stderr)
        self.assertEqual((placement_of(front)["state"], n_acquired(front, a)), ("failed", 0))
        started = metric(front, "evenkeel_cluster_moves_started_total")
        time.sleep(5)  # longer than until the next try would have been
        self.assertEqual(metric(front, "evenkeel_cluster_moves_started_total"), started)

    def test_takes_an_admin_key(self):
        keys = self.tmp / "keys"
        keys.write_text("0123456789abcdef-A\n")
        a = self.worker("w0", "all")
        front = self.front([a], "--set", f"gateway.admin_key_file={keys}")
        table = [layer(LOW + HIGH, each=32)] * LAYERS
        self.assertEqual(give(front, table)[0], 401)
        done = run("cluster", "place", self.write(table), "--url", front.url, "--admin-key-file", keys)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.splitlines()[0], f"{self.tmp}/p.csv: 0 replicas to acquire, 0 to release")


class WithRebalance(Case):
    def test_it_stands_still_meanwhile(self):
        # 100 KB/s: a placement takes ten seconds, in which there are ten windows.
        a = self.worker("w0", "*:0-3", *room(64), "--set", "worker.acquire_rate=100000B")
        b = self.worker("w1", "*:4-31")
        front = self.front([a, b], *moves.Rebalance.QUICK)
        table = [layer(list(range(8)), list(range(4, 32)), each=32)] * LAYERS
        with Traffic(front, self.expected):
            wait_until(lambda: n_acquired(front, a) > 0, "a replica")
            self.assertEqual(give(front, table)[0], 200)
            wait_until(lambda: placement_of(front)["state"] == "done", "the placement", 120)
            at = front.log_text().index("event=placement ")
            until = front.log_text().index("event=placed ")
            self.assertNotIn("event=rebalance_step", front.log_text()[at:until])
            self.assertEqual(texts(front), self.expected)
        self.assertEqual(cluster(front)["rows"]["failed_layers"], 0)


if __name__ == "__main__":
    harness.main()
