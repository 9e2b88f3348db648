#!/usr/bin/env python3
"""Goal: a worker that is asked to says over HTTP whether it lives, whether it is ready, and what it has done; what it counts
is what its front counts.
Method: real workers and fronts on loopback; a manifest that does not come holds a start up, pacing makes a dispatch that
does not end."""
import http.client
import json
import pathlib
import re
import socket
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))
from cluster_rig import MODEL, PROMPTS, Front, Worker, complete, harness, make_certs, metric  # noqa: E402
from harness import wait_until  # noqa: E402


def health_address(worker):
    return wait_until(lambda: re.search(r"event=health_listening addr=(\S+)", worker.log_text()), "its address").group(1)


def get(address, path, method="GET"):
    """(status, headers, text)."""
    host, port = address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=harness.PATIENCE_S)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()
    finally:
        connection.close()


def series(address, name):
    """labels -> value of a metric."""
    text = get(address, "/metrics")[2]
    return {labels: float(value) for labels, value in
            re.findall(rf"^evenkeel_worker_{name}(?:{{([^}}]*)}})? (\S+)$", text, re.MULTILINE)}


class Health(unittest.TestCase):
    def setUp(self):
        folder = harness.folder()
        self.tmp = folder.__enter__()
        self.addCleanup(folder.__exit__, None, None, None)
        self.certs = make_certs(self.tmp / "certs", "w0")

    def worker(self, *arguments, **fields):
        worker = Worker(self.certs / "w0", "--health", "127.0.0.1:0", *arguments, **fields)
        self.addCleanup(lambda: worker.__exit__(None, None, None))
        return worker, health_address(worker)

    def test_off_unless_asked_for(self):
        with Worker(self.certs / "w0") as worker:
            wait_until(lambda: "health=none" in worker.log_text(), "its log line")
            self.assertNotIn("health_listening", worker.log_text())

    def test_says_what_it_is_at(self):
        worker, address = self.worker("--experts", "*:0-19")
        for path in ("/health", "/livez", "/health/live", "/liveness", "/ready", "/readyz", "/health/ready", "/readiness"):
            status, headers, text = get(address, path)
            self.assertEqual((status, text), (200, '{"status":"ok"}'), path)
            self.assertEqual(headers["Content-Type"], "application/json")
        self.assertEqual(json.loads(get(address, "/version")[2])["name"], "evenkeel")
        self.assertEqual(harness.run("status", "--url", f"http://{address}").stdout, f"http://{address}: ok\n")
        self.assertEqual(get(address, "/v1/models")[0], 404)
        status, headers, text = get(address, "/ready", "POST")
        self.assertEqual((status, headers["Allow"]), (405, "GET, HEAD"))
        self.assertEqual(json.loads(text)["error"]["code"], "method_not_allowed")
        self.assertEqual(get(address, "/health", "HEAD")[::2], (200, ""))
        self.assertEqual(worker.end(), 0)

    def test_metrics_are_those_of_the_page(self):
        _, address = self.worker("--experts", "*:0-19")
        _, headers, text = get(address, "/metrics")
        self.assertEqual(headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
        exported = harness.exported_metrics(text)
        documented = harness.documented_metrics()
        own = {name for name in documented if name.startswith("evenkeel_worker_")}
        others = {name for name in documented if name.startswith("evenkeel_http_") or name == "evenkeel_build_info"}
        others -= {"evenkeel_http_generations_open", "evenkeel_http_cancelled_total", "evenkeel_http_stream_stalls_total"}
        self.assertEqual(exported, {name: documented[name] for name in own | others})
        self.assertEqual(series(address, "ready"), {"": 1})
        self.assertEqual(series(address, "experts"), {"": 80})
        self.assertGreater(series(address, "weight_bytes")[""], 1e6)
        self.assertGreater(series(address, "load_seconds")[""], 0)
        end_s = series(address, "certificate_not_after_timestamp_seconds")[""]
        self.assertAlmostEqual((end_s - time.time()) / 86400, 397, delta=1)

    def test_counts_what_its_front_counts(self):
        worker, address = self.worker()
        with Front(self.certs / "front", [worker]) as front:
            self.assertEqual(series(address, "fronts"), {"": 1})
            status, _ = complete(front, PROMPTS[0], 24)
            self.assertEqual(status, 200)
            seen = json.loads(front.request("GET", "/v1/cluster")[2])["workers"][0]
            self.assertEqual(series(address, "layers_total")[""], seen["dispatches"])
            self.assertEqual(series(address, "rows_total")[""], metric(front, "evenkeel_layer_expert_tokens_total"))
            self.assertGreater(series(address, "busy_seconds_total")[""], 0)
            self.assertEqual(series(address, "queue_dispatches"), {"": 0})
            end_s = metric(front, "evenkeel_cluster_certificate_not_after_timestamp_seconds")
            self.assertAlmostEqual((end_s - time.time()) / 86400, 397, delta=1)
        wait_until(lambda: series(address, "fronts") == {"": 0}, "the front's leaving")
        self.assertEqual(series(address, "fronts_joined_total"), {"": 1})

    def test_counts_who_is_turned_away(self):
        worker, address = self.worker()
        host, port = worker.address.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            wait_until(lambda: series(address, "connections_refused_total")['reason="stranger"'] == 1, "a stranger")
        front = Front(self.certs / "front", [worker], "--set", "cluster.join_timeout=2s", "--set", "engine.running_max=250",
                      "--set", "engine.prefill_chunk_tokens=8192", wait_ready=False)
        self.assertEqual(front.wait(), 69)
        refused = series(address, "connections_refused_total")
        self.assertGreater(refused['reason="refused"'], 0)
        self.assertEqual(refused['reason="full"'], 0)

    def test_alive_and_not_ready_while_it_loads(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
            manifest = f"http://127.0.0.1:{silent.getsockname()[1]}/m.json"
            worker, address = self.worker("--manifest", manifest, wait_ready=False)
            connection, _ = silent.accept()
            self.assertEqual(get(address, "/health")[0], 200)
            status, headers, text = get(address, "/ready")
            self.assertEqual((status, text, headers["Retry-After"]), (503, '{"status":"loading"}', "5"))
            self.assertEqual(series(address, "ready"), {"": 0})
            self.assertEqual(series(address, "experts"), {"": 0})
            connection.close()
        worker.kill()

    def test_alive_and_not_ready_while_it_drains(self):
        worker, address = self.worker()
        with Front(self.certs / "front", [worker]) as front:
            stop = threading.Event()

            def ask():
                while not stop.is_set():
                    complete(front, PROMPTS[0], 8)

            thread = threading.Thread(target=ask)
            thread.start()
            try:
                wait_until(lambda: series(address, "layers_total")[""] > 0, "work")
                worker.send_signal(15)
                wait_until(lambda: get(address, "/ready")[2] == '{"status":"draining"}', "its draining")
                self.assertEqual(get(address, "/ready")[0], 503)
                self.assertEqual(get(address, "/health")[0], 200)
                self.assertEqual(series(address, "ready"), {"": 0})
            finally:
                stop.set()
                thread.join()

    def test_unhealthy_while_a_dispatch_does_not_end(self):
        worker, address = self.worker("--set", "worker.pace_latency=3s", "--set", "engine.step_watchdog=200ms")
        with Front(self.certs / "front", [worker], "--set", "cluster.layer_timeout=1m") as front:
            self.assertEqual(get(address, "/health")[0], 200)
            thread = threading.Thread(target=complete, args=(front, "x", 1))
            thread.start()
            wait_until(lambda: get(address, "/health")[::2] == (503, '{"status":"unhealthy"}'), "its being noticed")
            self.assertEqual(get(address, "/ready")[0], 503)
            thread.join()
            self.assertEqual(get(address, "/health")[0], 200)

    def test_addresses_that_cannot_be_had(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            done = harness.run("worker", "--model", MODEL, "--certs", self.certs / "w0", "--listen", "127.0.0.1:0",
                               "--health", address)
            self.assertEqual(done.returncode, 69)
            self.assertIn(f"cannot listen on {address}: the address is in use; choose another with --listen or --health",
                          done.stderr)
        done = harness.run("worker", "--model", MODEL, "--certs", self.certs / "w0", "--health", "nowhere")
        self.assertEqual(done.returncode, 78)
        self.assertIn('"nowhere" is not an address to listen on', done.stderr)


if __name__ == "__main__":
    harness.main()
