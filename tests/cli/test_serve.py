#!/usr/bin/env python3
"""Goal: the process behaves as operators expect: it says when it is ready, drains on a signal without breaking a
stream, obeys a second signal at once, reads its configuration again, and documents what it exports.
Method: the real process with real signals and sockets; nothing inside is looked at."""
import json
import os
import re
import signal
import socket
import threading
import time
import unittest

import harness
from harness import SOURCE, Server, events, folder, run, text_of, wait_until


class Ready(unittest.TestCase):
    def test_one_line(self):
        with Server() as server:
            self.assertRegex(
                server.ready_line,
                r"^evenkeel \d+\.\d+\.\d+ on http://127\.0\.0\.1:\d+: tiny-qwen2moe-f32 \(qwen2moe, [\d.]+ M parameters, "
                r"[\d.]+ M active, \d+ experts top-\d+\), \w+ kernels, \d+ threads, [\d.]+ MiB weights, "
                r"[\d.]+ MiB KV cache\n$")
            models = json.loads(server.request("GET", "/v1/models")[2])
            self.assertEqual([model["id"] for model in models["data"]], ["tiny-qwen2moe-f32"])

    def test_alias_and_shards_name_the_model(self):
        with Server("--alias", "shop/assistant:v1") as server:
            self.assertIn("shop/assistant:v1", server.request("GET", "/v1/models")[2].decode())
        with Server(model=harness.tiny("split-00001-of-00003")) as server:
            self.assertIn('"tiny-split"', server.request("GET", "/v1/models")[2].decode())

    def test_notify_socket(self):
        with folder() as tmp, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(str(tmp / "notify"))
            notify.settimeout(harness.PATIENCE_S)
            with Server(env={"NOTIFY_SOCKET": str(tmp / "notify")}) as server:
                seen = notify.recv(4096).decode()
                while "READY=1" not in seen:
                    seen += "\n" + notify.recv(4096).decode()
                self.assertIn("STATUS=loading the model", seen.split("READY=1")[0])
                server.send_signal(signal.SIGHUP)
                while "RELOADING=1\nMONOTONIC_USEC=" not in seen or not seen.rstrip().endswith("READY=1"):
                    seen += "\n" + notify.recv(4096).decode()
                server.send_signal(signal.SIGTERM)
                while "STOPPING=1" not in seen:
                    seen += "\n" + notify.recv(4096).decode()

    def test_health_has_its_own_door(self):
        with Server("--health-listen", "127.0.0.1:0") as server:
            address = wait_until(lambda: re.search(r'health_addr="?([\d.]+:\d+)', server.log_text()), "its address")[1]
            self.assertNotEqual(address, server.address)
            done = run("status", "--url", f"http://{address}")
            self.assertEqual(done.returncode, 0, done.stderr)


class Draining(unittest.TestCase):
    def long_streams(self, server, n_streams, **fields):
        """Streams that have begun to speak and will go on for a while."""
        fields = {"max_tokens": 200, "temperature": 1, "ignore_eos": True, **fields}
        opened = []
        for i in range(n_streams):
            connection, response = server.stream(f"story {i}", seed=i, **fields)
            self.assertEqual(response.status, 200)
            source = events(response)
            opened.append((connection, response, source, [next(source), next(source)]))
        return opened

    def test_streams_finish(self):
        """SIGTERM with 5 streams: all of them end with [DONE], and the process with 0."""
        server = Server()
        streams = self.long_streams(server, 5)
        server.send_signal(signal.SIGTERM)
        for connection, _, source, chunks in streams:
            chunks += source
            self.assertEqual(chunks[-1], "[DONE]")
            finish = [choice.get("finish_reason") for chunk in chunks[:-1] for choice in json.loads(chunk)["choices"]]
            self.assertIn(finish[-1], ("stop", "length"))
            connection.close()
        self.assertEqual(server.wait(), 0, server.log_text())

    def test_requests_are_taken_while_settling(self):
        """Balancers lag: readiness says no at once, new requests still get 200, and later the door is shut."""
        server = Server(settle="2s")
        server.send_signal(signal.SIGTERM)
        wait_until(lambda: server.request("GET", "/readyz")[0] == 503, "readiness to turn")
        self.assertEqual(json.loads(server.request("GET", "/readyz")[2])["status"], "draining")
        self.assertEqual(server.request("GET", "/livez")[0], 200)
        self.assertEqual(server.chat("hello", max_tokens=2)[0], 200)
        self.assertEqual(run("status", "--url", server.url).returncode, 1)
        self.assertEqual(server.wait(), 0)
        with self.assertRaises(OSError):
            server.connect(timeout=5).connect()

    def test_new_work_is_refused_after_settling(self):
        server = Server()
        (connection, _, source, chunks), = self.long_streams(server, 1)
        kept = server.connect()  # a kept connection from before
        kept.request("GET", "/livez")
        kept.getresponse().read()
        server.send_signal(signal.SIGTERM)

        def refused():
            try:
                body = json.dumps({"messages": [{"role": "user", "content": "late"}], "max_tokens": 1})
                kept.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
                response = kept.getresponse()
                answer = json.loads(response.read())
                return response.status == 503 and answer["error"]["code"] == "draining"
            except OSError:
                return True  # the listener and idle connections are closed already
        wait_until(refused, "new work to be refused")
        chunks += source
        self.assertEqual(chunks[-1], "[DONE]")
        connection.close()
        kept.close()
        self.assertEqual(server.wait(), 0)

    # Slow and long enough that a signal finds it in the middle of its answers: some 7,000 tokens by scalar code.
    LONG = {"max_tokens": 450, "n": 4}
    SLOW = ("--kernels", "reference", "--threads", "1")
    DEMO = SOURCE / "models/evenkeel-demo.gguf"

    def cut_off(self, chunks):
        """True when the answer ended with an error frame and [DONE], as a cut one has to."""
        if "error" not in json.loads(chunks[-2]):
            return False
        self.assertEqual(chunks[-1], "[DONE]")
        return True

    def test_second_signal_ends_at_once(self):
        for second, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(second):
                server = Server("--set", "gateway.drain_timeout=10m", *self.SLOW, settle="10m", model=self.DEMO)
                streams = self.long_streams(server, 4, **self.LONG)
                server.send_signal(signal.SIGTERM)
                wait_until(lambda: server.request("GET", "/readyz")[0] == 503, "the drain to begin")
                server.send_signal(second)
                cut = [self.cut_off(chunks + list(source)) for _, _, source, chunks in streams]
                self.assertTrue(all(cut), cut)
                self.assertEqual(server.wait(), code)
                for connection, *_ in streams:
                    connection.close()

    def test_second_signal_ends_an_idle_server_too(self):
        server = Server(settle="10m")
        server.send_signal(signal.SIGTERM)
        wait_until(lambda: server.request("GET", "/readyz")[0] == 503, "the drain to begin")
        server.send_signal(signal.SIGINT)
        self.assertEqual(server.wait(), 130)

    def test_time_runs_out(self):
        """Whoever still runs when the drain's time is up gets an error frame, and the exit code says so."""
        server = Server("--set", "gateway.drain_timeout=0s", *self.SLOW, model=self.DEMO)
        streams = self.long_streams(server, 4, **self.LONG)
        server.send_signal(signal.SIGTERM)
        cut = [self.cut_off(chunks + list(source)) for _, _, source, chunks in streams]
        self.assertTrue(all(cut), cut)
        self.assertEqual(server.wait(), 143)
        for connection, *_ in streams:
            connection.close()

    def test_quit_and_interrupt_drain_too(self):
        for number in (signal.SIGINT, signal.SIGQUIT):
            server = Server()
            server.send_signal(number)
            self.assertEqual(server.wait(), 0)


class Reloading(unittest.TestCase):
    def test_reload(self):
        with folder() as tmp:
            path = tmp / "evenkeel.yaml"
            path.write_text("log:\n  level: info\n")
            with Server("--config", path) as server:
                path.write_text("log:\n  level: debug\nengine:\n  running_max: 3\n")
                server.send_signal(signal.SIGHUP)
                wait_until(lambda: 'needs_restart="engine.running_max"' in server.log_text(), "the reload")
                path.write_text("log:\n  level: info\nengine:\n  runing_max: 3\n")
                server.send_signal(signal.SIGHUP)
                wait_until(lambda: "event=reload_failed" in server.log_text(), "the refusal")
                self.assertIn("evenkeel.yaml:4", server.log_text())
                self.assertIn("running_max", server.log_text().split("reload_failed")[1])
                wait_until(lambda: b"evenkeel_config_reload_success 0\n" in server.request("GET", "/metrics")[2],
                           "the metric to say so")
                self.assertEqual(server.chat("still here", max_tokens=1)[0], 200)

    def test_routing_is_switched_while_serving(self):
        """A reload brings another policy without a dropped token; one that makes no sense changes nothing."""
        with folder() as tmp:
            path = tmp / "evenkeel.yaml"
            path.write_text("experts:\n  devices: 2\n")
            with Server("--config", path) as server:
                def routing():
                    return json.loads(server.request("GET", "/v1/experts")[2])["routing"]
                connection, response = server.stream("a story", max_tokens=100, temperature=1, seed=1)
                source = events(response)
                chunks = [next(source)]
                path.write_text("experts:\n  devices: 2\nrouting:\n  policy: breaker\n")
                server.send_signal(signal.SIGHUP)
                wait_until(lambda: routing()["policy"] == "breaker", "the other policy")
                self.assertEqual(routing()["version"], 2)
                chunks += source
                self.assertEqual(chunks[-1], "[DONE]")
                connection.close()
                path.write_text("experts:\n  devices: 2\nrouting:\n  policy: breaker\n  breaker_trip: 0.4\n")
                server.send_signal(signal.SIGHUP)
                wait_until(lambda: "event=reload_failed" in server.log_text(), "the refusal")
                self.assertIn("breaker_trip (0.4)", server.log_text())
                self.assertEqual(routing()["version"], 2)
                self.assertNotIn("idle_policy", server.log_text())

    def test_a_policy_without_anything_to_do_is_told(self):
        with Server("--set", "routing.policy=breaker") as server:
            wait_until(lambda: "event=idle_policy policy=breaker devices=1" in server.log_text(), "the warning")

    def test_streams_survive_reloads(self):
        with Server() as server:
            connection, response = server.stream("a story", max_tokens=100, temperature=1, seed=1)
            source = events(response)
            chunks = [next(source)]
            for _ in range(3):
                server.send_signal(signal.SIGHUP)
                chunks.append(next(source))
            chunks += source
            self.assertEqual(chunks[-1], "[DONE]")
            connection.close()

    def test_log_rotation(self):
        with folder() as tmp:
            log = tmp / "evenkeel.log"
            with Server("--set", f"log.path={log}") as server:
                wait_until(lambda: "event=ready" in log.read_text(), "the first lines")
                os.rename(log, tmp / "old")
                server.send_signal(signal.SIGUSR1)
                wait_until(log.exists, "the new file")
            self.assertIn("event=drained", log.read_text())
            self.assertNotIn("event=drained", (tmp / "old").read_text())


class Nodes(unittest.TestCase):
    """Where pinned threads lie: on this machine, and on one that is only described (and computes all the same)."""

    def numa_nodes(self, *settings, env=None):
        with Server("--set", "experts.devices=2", "--threads", 2, *settings, env=env) as server:
            answer = server.chat("what do you have in stock?", max_tokens=10, temperature=0)
            self.assertEqual(answer[0], 200)
            nodes = json.loads(server.request("GET", "/v1/experts")[2])["devices"]["numa_nodes"]
            return nodes, re.search(r"numa_nodes=(\d+)", server.log_text()).group(1), json.loads(answer[2])["choices"]

    def test_devices_are_on_nodes(self):
        pin = ["--set", "engine.pin_threads=true"]
        nodes, told, answer = self.numa_nodes(env={"HWLOC_SYNTHETIC": "node:2 core:2 pu:1"})
        self.assertEqual((nodes, told), (None, "0"))  # not pinned
        nodes, told, again = self.numa_nodes(*pin, env={"HWLOC_SYNTHETIC": "node:2 core:2 pu:1"})
        self.assertEqual((nodes, told), ([0, 1], "2"))
        self.assertEqual(again, answer)
        self.assertEqual(self.numa_nodes(*pin, env={"HWLOC_SYNTHETIC": "node:1 core:4 pu:1"})[:2], ([0, 0], "1"))
        nodes, told, again = self.numa_nodes(*pin)  # whatever this machine is
        self.assertEqual(max(nodes) + 1, int(told))
        self.assertEqual(again, answer)


class Placement(unittest.TestCase):
    """From the loads of a server to the placement of the next one, as docs/ROUTING.md says it."""

    def test_loads_become_a_placement_that_is_served(self):
        with folder() as tmp:
            with Server() as server:
                server.chat("what do you have in stock?", max_tokens=30)
                seen = json.loads(server.request("GET", "/v1/experts?window=all")[2])
            loads = tmp / "loads.csv"
            loads.write_text("".join(",".join(map(str, layer)) + "\n" for layer in seen["tokens"]))
            placement = tmp / "placement.csv"
            done = run("place", "--loads", loads, "--slots", 10, "--devices", 2, "--nodes", 1, "--out", placement)
            self.assertEqual(done.returncode, 0, done.stderr)
            with Server("--set", "experts.devices=2", "--set", f"experts.placement={placement}") as server:
                answer = server.chat("what do you have in stock?", max_tokens=30)
                self.assertEqual(answer[0], 200)
                devices = json.loads(server.request("GET", "/v1/experts")[2])["devices"]
                self.assertEqual(devices["queue_rows"], [0, 0])  # nobody asks for anything
            self.assertEqual(devices["slots"], 10)
            lines = [list(map(int, line.split(","))) for line in placement.read_text().split()]
            self.assertEqual(devices["placement"], [[line[:5], line[5:]] for line in lines])

    def test_what_cannot_be_is_refused(self):
        def refused(text, code, *settings):
            (tmp / "placement.csv").write_text(content)
            done = run("serve", "--model", harness.TINY, "--listen", "127.0.0.1:0", "--set", "experts.devices=2",
                       "--set", f"experts.placement={tmp / 'placement.csv'}", *settings)
            self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
            self.assertIn(text, done.stderr)
        good = "0,1,2,3,4,5,6,7,0,1\n"
        with folder() as tmp:
            content = good + good.replace("7", "seven")
            refused("placement.csv:2:15: a number is expected here", 65)
            content = good
            refused("the placement has 1 layers, but the model has 2", 78)
            content = good + good.replace("7", "8")
            refused("placement: layer 1, slot 7: expert 8 of 8", 78)
            content = good + good.replace("7", "-1")
            refused("placement: layer 1 has no expert 7", 78)
            content = good + good
            refused("experts.slots is 12", 78, "--set", "experts.slots=12")


class Documented(unittest.TestCase):
    def test_every_metric_is_in_the_docs(self):
        """/metrics and docs/METRICS.md have the same families, with the same types and meanings."""
        with Server() as server:
            server.chat("hello", max_tokens=2)
            status, headers, body = server.request("GET", "/metrics")
            self.assertEqual(status, 200)
            self.assertEqual(headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
        documented = {name: rest for name, rest in harness.documented_metrics().items()
                      if not name.startswith(("evenkeel_cluster_", "evenkeel_worker_"))}  # tests/cluster
        self.assertEqual(documented, harness.exported_metrics(body.decode()))


class OpenAiClient(unittest.TestCase):
    """The wire behaviour of the official Python client: its headers, its stream reader, its error rules."""

    HEADERS = {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": "OpenAI/Python 1.99.0",
               "Authorization": "Bearer none", "X-Stainless-Lang": "python", "X-Stainless-Package-Version": "1.99.0",
               "X-Stainless-Retry-Count": "0", "X-Stainless-Read-Timeout": "600", "Connection": "keep-alive"}

    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__(None, None, None)

    def create(self, **body):
        body = {"model": "tiny-qwen2moe-f32", **body}
        return self.server.request("POST", "/v1/chat/completions", json.dumps(body), self.HEADERS)

    def test_create(self):
        status, headers, body = self.create(messages=[{"role": "user", "content": "hi"}], max_tokens=5)
        self.assertEqual(status, 200)
        self.assertTrue(headers["x-request-id"])
        answer = json.loads(body)
        self.assertEqual(answer["object"], "chat.completion")
        self.assertEqual(answer["model"], "tiny-qwen2moe-f32")
        choice, = answer["choices"]
        self.assertEqual((choice["index"], choice["message"]["role"]), (0, "assistant"))
        usage = answer["usage"]
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
        self.assertLessEqual(usage["completion_tokens"], 5)

    def test_stream_as_the_client_reads_it(self):
        """The client joins data lines per event, stops at [DONE], raises on an `error`, and indexes choices[0]."""
        body = {"model": "tiny-qwen2moe-f32", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8,
                "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        connection = self.server.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), self.HEADERS)
        response = connection.getresponse()
        self.assertEqual(response.headers["Content-Type"], "text/event-stream; charset=utf-8")
        chunks = []
        for data in events(response):
            if data.startswith("[DONE]"):
                break
            chunk = json.loads(data)
            self.assertFalse(chunk.get("error"))
            chunks.append(chunk)
        connection.close()
        self.assertEqual(len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}), 1)
        self.assertEqual(chunks[0]["choices"][0]["delta"]["role"], "assistant")
        self.assertEqual(chunks[-1]["choices"], [])
        self.assertEqual(chunks[-1]["usage"]["total_tokens"],
                         chunks[-1]["usage"]["prompt_tokens"] + chunks[-1]["usage"]["completion_tokens"])
        self.assertIn(chunks[-2]["choices"][0]["finish_reason"], ("stop", "length"))
        whole = json.loads(self.create(messages=body["messages"], max_tokens=8, temperature=0)[2])
        self.assertEqual(text_of(json.dumps(chunk) for chunk in chunks), whole["choices"][0]["message"]["content"])

    def test_status_errors_have_the_shape_that_the_client_reads(self):
        for fields, status in (({"messages": "hi"}, 400), ({"messages": [], "temperature": "hot"}, 400),
                               ({"model": "gpt-none", "messages": [{"role": "user", "content": "hi"}]}, 404)):
            with self.subTest(fields):
                found, headers, body = self.create(**fields)
                self.assertEqual(found, status)
                self.assertEqual(headers["Content-Type"].split(";")[0], "application/json")
                error = json.loads(body)["error"]
                self.assertEqual(set(error), {"message", "type", "param", "code"})
                self.assertIsInstance(error["message"], str)

    def test_models_list_and_retrieve(self):
        status, _, body = self.server.request("GET", "/v1/models", headers=self.HEADERS)
        self.assertEqual(status, 200)
        model, = json.loads(body)["data"]
        self.assertEqual(model["object"], "model")
        status, _, body = self.server.request("GET", "/v1/models/" + model["id"], headers=self.HEADERS)
        self.assertEqual((status, json.loads(body)["id"]), (200, model["id"]))

    def test_many_threads(self):
        """16 clients at once get what one alone gets: greedy answers do not depend on company."""
        prompts = [f"question number {i}" for i in range(16)]
        ask = lambda prompt: json.loads(self.create(messages=[{"role": "user", "content": prompt}], max_tokens=12,
                                                    temperature=0)[2])["choices"][0]["message"]["content"]
        alone = [ask(prompt) for prompt in prompts]
        together = [None] * len(prompts)

        def one(i):
            together[i] = ask(prompts[i])
        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(together, alone)


if __name__ == "__main__":
    harness.main()
