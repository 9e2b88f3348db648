#!/usr/bin/env python3
"""Goal: `evenkeel fetch` brings exactly what is wanted, checked, from disk, HTTP and S3, goes on where it was killed,
and ends in one clear error for everything that servers and disks do to it, keeping what had come.
Method: real nginx and s3rver, servers of this test's own for faults, a small disk of its own (tmpfs), kill -9."""
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import store_rig
from store_rig import MODEL, S3, Faulty, Nginx, fetch, harness, is_right, make_manifest, shards

QUICK = ["--retries", "1", "--stall", "1"]


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.all = pathlib.Path(tempfile.mkdtemp(prefix="evenkeel-store-"))
        cls.manifest = cls.all / "m.json"
        cls.said = make_manifest(cls.manifest)
        cls.whole = MODEL.read_bytes()

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.all, ignore_errors=True)

    def setUp(self):
        self.tmp = pathlib.Path(tempfile.mkdtemp(dir=self.all))
        self.out = self.tmp / "out"
        self.file = self.out / MODEL.name

    def fine(self, *arguments, **fields):
        """The JSON of a fetch that has to succeed."""
        done = fetch(*arguments, "--manifest", self.manifest, "--out", self.out, "--json", **fields)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def fails(self, code, arguments, *parts, **fields):
        """Its one line on standard error."""
        done = fetch(*arguments, "--manifest", self.manifest, "--out", self.out, **fields)
        self.assertEqual(done.returncode, code, done.stderr or done.stdout)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr)
        self.assertFalse(self.file.exists(), "what is not complete must not have the model's name")
        return done.stderr

    def kept(self, line):
        """How many shards an error says are there; each of them has to be right."""
        match = re.search(r"; (\d+) of \d+ shards are there and stay: the same command goes on from them$", line.strip())
        self.assertTrue(match, line)
        n = int(match.group(1))
        if n:
            state = json.loads((self.out / f"{MODEL.name}.fetch.json").read_text())
            data = (self.out / f"{MODEL.name}.part").read_bytes()
            self.assertEqual(len(data), len(self.whole))
            listed = [shard for _, shard in shards(self.said)]
            claimed = [i for first, last in state["complete"] for i in range(first, last + 1)]
            self.assertEqual(len(claimed), n)
            for i in claimed:
                self.assertTrue(is_right(data, listed[i]), listed[i])
        return n

    def check_whole(self):
        self.assertEqual(self.file.read_bytes(), self.whole)
        self.assertEqual(sorted(p.name for p in self.out.iterdir()),
                         [MODEL.name, f"{MODEL.name}.fetch.json", f"{MODEL.name}.manifest.json"])


class Places(Case):
    def test_directory(self):
        facts = self.fine(MODEL.parent)
        self.check_whole()
        self.assertEqual(facts["bytes_fetched"], len(self.whole))
        self.assertEqual(facts["sources"][0]["bytes"], len(self.whole))
        self.assertGreater(facts["load_seconds"], 0)
        again = self.fine(MODEL)
        self.assertEqual((again["bytes_fetched"], again["bytes_kept"]), (0, len(self.whole)))

    def test_nginx(self):
        with Nginx(MODEL.parent) as nginx:
            self.fine(nginx.url)
            self.assertEqual(set(nginx.codes()), {"200"}, "a small file as a whole is one request without a range")
        self.check_whole()

    def test_experts_by_ranges(self):
        with Nginx(MODEL.parent) as nginx:
            facts = self.fine(nginx.url + "/", "--experts", "1-2:3,7-9")
            self.assertEqual(set(nginx.codes()), {"206"})
        data = self.file.read_bytes()
        self.assertEqual(len(data), len(self.whole))
        n = n_bytes = 0
        for _, shard in shards(self.said):
            wanted = shard["part"] == "head" or shard.get("layer") in (1, 2) and shard["expert"] in (3, 7, 8, 9)
            here = data[shard["offset"]:shard["offset"] + shard["bytes"]]
            self.assertEqual(is_right(data, shard), wanted, shard)
            if wanted:
                n += 1
                n_bytes += shard["bytes"]
            else:
                self.assertEqual(here.count(0), len(here), "a hole")
        self.assertEqual((facts["shards_wanted"], facts["bytes_fetched"]), (n, n_bytes))
        self.assertLess(self.file.stat().st_blocks * 512, len(self.whole) // 2)

    def test_more_experts_later(self):
        with Nginx(MODEL.parent) as nginx:
            first = self.fine(nginx.url, "--experts", "*:0-3")
            inode = self.file.stat().st_ino
            second = self.fine(nginx.url, "--experts", "*:2-5")
            head = shards(self.said)[0][1]["bytes"]
            self.assertEqual(second["bytes_kept"], head + (first["bytes_fetched"] - head) // 2)
            third = self.fine(nginx.url, "--dense")
            self.assertGreater(third["bytes_fetched"], 557056)
            last = self.fine(nginx.url, "--all")
            self.assertEqual(last["bytes_wanted"], len(self.whole))
        self.assertEqual(self.file.stat().st_ino, inode, "a worker that maps the file keeps the one it has")
        self.check_whole()

    def test_manifest_by_url(self):
        with Nginx(self.all) as nginx:
            done = fetch(MODEL.parent, "--manifest", f"{nginx.url}/m.json", "--out", self.out, "--sha256",
                         self.said["body_sha256"])
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual((self.out / f"{MODEL.name}.manifest.json").read_bytes(), self.manifest.read_bytes())
            done = fetch(MODEL.parent, "--manifest", f"{nginx.url}/m.json", "--out", self.out, "--sha256", "0" * 64)
            self.assertEqual(done.returncode, 65)
            self.assertIn("is another manifest", done.stderr)
            done = fetch(MODEL.parent, "--manifest", f"{nginx.url}/absent.json", "--out", self.out)
            self.assertEqual(done.returncode, 66)
            self.assertIn("HTTP 404", done.stderr)

    def test_whole_files_only(self):
        with Nginx(MODEL.parent, ranges=False) as nginx:
            facts = self.fine(nginx.url, "--experts", "*:5")
            self.assertEqual(set(nginx.codes()), {"200"})
        self.assertLess(facts["bytes_fetched"], len(self.whole) // 4)
        self.assertEqual(facts["retries"], 0)
        for _, shard in shards(self.said):
            if shard.get("expert") == 5:
                self.assertTrue(is_right(self.file.read_bytes(), shard))


class Https(Case):
    def test_https(self):
        done = harness.run("cluster", "init", "--out", self.tmp / "certs", "--front", "f", "--worker", "w=127.0.0.1")
        self.assertEqual(done.returncode, 0, done.stderr)
        ours = {"SSL_CERT_FILE": str(self.tmp / "certs/ca.pem")}
        with Nginx(MODEL.parent, certs=self.tmp / "certs/w") as nginx:
            self.fails(66, [nginx.url], "its certificate is not accepted; SSL_CERT_FILE names")
            self.fails(66, [nginx.url], "its certificate is not accepted", env={"SSL_CERT_FILE": "/no/such/file"})
            self.fine(nginx.url, "--experts", "*:1", env=ours)


class Buckets(Case):
    def test_s3(self):
        with S3(self.tmp) as s3:
            facts = self.fine("s3://weights/models/v1/", "--experts", "0:0-7", env=s3.environment)
            self.assertGreater(facts["bytes_fetched"], 100000)
            self.fine("s3://weights/models/v1", env=s3.environment)
            self.check_whole()

    def test_key_with_odd_characters(self):
        with S3(self.tmp, key="a b+c=(d)/evenkeel-demo.gguf") as s3:
            self.fine("s3://weights/a b+c=(d)", env=s3.environment)
            self.check_whole()

    def test_refusals(self):
        with S3(self.tmp) as s3:
            env = {**s3.environment, "AWS_ACCESS_KEY_ID": "stranger"}
            self.fails(66, ["s3://weights/models/v1", *QUICK], "HTTP 403", "gives no access", env=env)
            self.fails(66, ["s3://weights/elsewhere", *QUICK], "HTTP 404", env=s3.environment)


class Signature(Case):
    """AWS Signature Version 4, computed a second time by this test, since s3rver only looks at the key's name."""

    def test_signed_request(self):
        seen = []

        def fault(handler, *_):
            seen.append((handler.path, dict(handler.headers.items())))
            return False
        env = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "s/e+cret", "AWS_SESSION_TOKEN": "tok/en==",
               "AWS_REGION": "eu-central-1"}
        with Faulty(fault) as server:
            self.fine("s3://bucket/some dir", "--experts", "0:1", env={**env, "AWS_ENDPOINT_URL": server.url})
        self.assertGreater(len(seen), 1)
        for path, headers in seen:
            headers = {key.lower(): value for key, value in headers.items()}
            self.assertEqual(path, "/bucket/some%20dir/evenkeel-demo.gguf")
            self.assertEqual(headers["x-amz-security-token"], "tok/en==")
            match = re.match(r"AWS4-HMAC-SHA256 Credential=AKID/(\d{8})/eu-central-1/s3/aws4_request, "
                             r"SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})$", headers["authorization"])
            self.assertTrue(match, headers["authorization"])
            day, names, signature = match.groups()
            self.assertIn("host", names.split(";"))
            self.assertIn("x-amz-security-token", names.split(";"))
            signed = {name: headers[name] for name in names.split(";")}
            self.assertEqual(signature, store_rig.sign("GET", path, signed, "s/e+cret", "eu-central-1"))
            self.assertEqual(day, headers["x-amz-date"][:8])


class Faults(Case):
    def test_absent_and_forbidden(self):
        with Nginx(self.tmp) as nginx:
            self.fails(66, [nginx.url], f"{nginx.url}/{MODEL.name}: HTTP 404: no such file there", "0 of 444 shards")
        with Faulty(lambda handler, *_: handler.code(403) or True) as server:
            self.fails(66, [server.url], "HTTP 403: the server gives no access")
            self.assertLessEqual(server.n, 8, "it is not asked again")

    def test_next_source_takes_over(self):
        with Nginx(self.tmp) as empty, Nginx(MODEL.parent) as full:
            facts = self.fine(self.tmp / "nothing", empty.url, full.url)
        self.check_whole()
        self.assertIn("no such file", facts["sources"][0]["trouble"])
        self.assertIn("HTTP 404", facts["sources"][1]["trouble"])
        self.assertEqual(facts["sources"][2], {"source": full.url, "bytes": len(self.whole), "trouble": ""})

    def test_nobody_listens(self):
        port = harness.free_port()
        self.fails(69, [f"http://127.0.0.1:{port}", *QUICK], "Couldn't connect")

    def test_wrong_bytes(self):
        expert = next(s for _, s in shards(self.said) if s.get("expert") == 4 and s["layer"] == 2)

        def fault(handler, data, first, last, n):
            spoilt = bytearray(data)
            spoilt[expert["offset"] + 9] ^= 1
            handler.answer(bytes(spoilt), first, last, handler.headers.get("Range"))
            return True
        with Faulty(fault) as server:
            line = self.fails(65, [server.url, "--experts", "2:3-5", *QUICK], f"{expert['tensor']}, expert 4",
                              f"expected SHA-256 {expert['sha256']}, found ", server.url)
            n = self.kept(line)
            self.assertGreater(n, 0)
            facts = self.fine(server.url, MODEL.parent, "--experts", "2:3-5")
            self.assertIn("expert 4", facts["sources"][0]["trouble"])
            self.assertEqual(facts["shards_kept"], n)
            self.assertGreater(facts["sources"][1]["bytes"], 0)

    def test_cut_short(self):
        cut = []

        def fault(handler, data, first, last, n):
            if n > 2 or last == first:
                return False
            cut.append(n)
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            handler.send_header("Content-Length", str(last - first + 1))
            handler.end_headers()
            handler.wfile.write(data[first:first + (last - first) // 2])
            handler.wfile.flush()
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
            return True
        with Faulty(fault) as server:
            facts = self.fine(server.url, "--experts", "*:0-7")
            self.assertEqual(facts["retries"], len(cut))
            self.assertGreater(len(cut), 0)

    def test_always_cut_short(self):
        def fault(handler, data, first, last, n):
            handler.send_response(206)
            handler.send_header("Content-Length", str(last - first + 1))
            handler.end_headers()
            handler.wfile.write(data[first:last])
            handler.close_connection = True
            return True
        with Faulty(fault) as server:
            line = self.fails(69, [server.url, "--experts", "*:0-7", *QUICK], server.url)
            self.assertGreater(self.kept(line), 0)

    def test_short_file(self):
        short = self.tmp / MODEL.name
        short.write_bytes(self.whole[:-4096])
        self.fails(65, [self.tmp], f"has {len(self.whole) - 4096} bytes, not {len(self.whole)}")
        with Nginx(self.tmp) as nginx:
            line = self.fails(65, [nginx.url, *QUICK], "ends too early")
            self.assertGreater(self.kept(line), 400)

    def test_busy_server(self):
        with Faulty(lambda handler, data, first, last, n: n <= 3 and (handler.code(503) or True)) as server:
            facts = self.fine(server.url, "--experts", "*:0", "--parallel", "1")
            self.assertEqual(facts["retries"], 3)
        with Faulty(lambda handler, *_: handler.code(500) or True) as server:
            self.out = self.tmp / "other"
            self.file = self.out / MODEL.name
            self.fails(69, [server.url, "--experts", "*:0", *QUICK], "HTTP 500")

    def test_redirects(self):
        with Nginx(MODEL.parent) as nginx:
            def once(handler, *_):
                handler.code(302, Location=nginx.url + handler.path)
                return True
            with Faulty(once) as server:
                self.fine(server.url, "--experts", "0:0")
        self.out = self.tmp / "loop"
        self.file = self.out / MODEL.name

        def loop(handler, *_):
            handler.code(302, Location=handler.path)
            return True
        with Faulty(loop) as server:
            self.fails(69, [server.url], "redirects more than 5 times")

    def test_stalled_server(self):
        ended = threading.Event()

        def fault(handler, data, first, last, n):
            handler.send_response(206)
            handler.send_header("Content-Length", str(last - first + 1))
            handler.end_headers()
            handler.wfile.write(data[first:last])
            handler.wfile.flush()
            ended.wait(60)
            handler.close_connection = True
            return True
        with Faulty(fault) as server:
            start = time.monotonic()
            line = self.fails(69, [server.url, "--experts", "1:1-4", "--retries", "0", "--stall", "1"],
                              "less than 1 KiB/s, for 1 s")
            ended.set()
            self.assertLess(time.monotonic() - start, 50)
            self.kept(line)

    def test_something_in_the_way(self):
        self.out.mkdir()
        self.file.write_bytes(b"x" * 100)
        done = fetch(MODEL.parent, "--manifest", self.manifest, "--out", self.out)
        self.assertEqual((done.returncode, self.file.read_bytes()), (65, b"x" * 100))
        self.assertIn(f"is another file: 100 bytes, not {len(self.whole)}; move it away", done.stderr)
        other = bytearray(self.whole)
        other[-1] ^= 1
        self.file.write_bytes(other)
        done = fetch(MODEL.parent, "--manifest", self.manifest, "--out", self.out)
        self.assertEqual((done.returncode, self.file.read_bytes()), (65, other))
        self.assertIn("is another model", done.stderr)
        self.file.write_bytes(self.whole)  # a copy that was there before is as good as fetched
        self.assertEqual(self.fine("/nowhere")["bytes_kept"], len(self.whole))

    def test_command_line(self):
        for arguments, part in (([], "a SOURCE, --manifest and --out are needed"),
                                (["ftp://x"], "is no place that weights come from"),
                                ([MODEL.parent, "--experts", "9:1"], "the model has no such layer"),
                                ([MODEL.parent, "--all", "--dense"], "--all is everything")):
            with self.subTest(part):
                self.fails(2, arguments, part)


class Disk(Case):
    def small(self, size):
        """A disk of its own."""
        disk = harness.small_disk(self, self.tmp / "disk", size)
        self.out = disk / "out"
        self.file = self.out / MODEL.name
        return disk

    def test_too_small(self):
        self.small("2m")
        self.fails(74, [MODEL.parent], "the disk has room for", "make room, or want fewer experts")
        self.fine(MODEL.parent, "--experts", "*:0-3")

    def test_fills_up(self):
        disk = self.small("20m")

        def fault(handler, data, first, last, n):
            if n == 3:
                (disk / "filler").write_bytes(bytes((os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize) & ~4095))
            return False
        with Faulty(fault) as server:
            self.fails(74, [server.url, "--experts", "*:0-30", "--parallel", "1"], "No space left on device",
                       " shards are there and stay")
            (disk / "filler").unlink()
            facts = self.fine(server.url, "--experts", "*:0-30")
            self.assertGreater(facts["shards_kept"], 0)


    def test_directory_that_cannot_be(self):
        blocker = self.tmp / "file"
        blocker.write_text("")
        for out in (blocker, blocker / "below", self.tmp / "no" / "parent"):
            self.out = out
            self.file = self.tmp / "never"
            self.fails(74, [MODEL.parent], str(out))


class Resume(Case):
    def test_kill_and_go_on(self):
        gate = threading.Event()

        def fault(handler, data, first, last, n):
            if n > 4:
                gate.wait(harness.PATIENCE_S)
            return False
        with Faulty(fault) as server:
            arguments = ["fetch", server.url, "--experts", "*:0,2,4,6,8,10,12,14,16", "--manifest", self.manifest, "--out",
                         self.out]
            process = subprocess.Popen([str(harness.PROGRAM), *map(str, arguments)], env=harness.environment(),
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            state = self.out / f"{MODEL.name}.fetch.json"
            harness.wait_until(state.exists, "the ledger")
            process.send_signal(signal.SIGKILL)
            process.wait()
            self.assertFalse(self.file.exists())
            # What the ledger claims is not believed: one of its shards is damaged meanwhile.
            listed = [shard for _, shard in shards(self.said)]
            damaged = listed[json.loads(state.read_text())["complete"][-1][0]]
            with (self.out / f"{MODEL.name}.part").open("r+b") as part:
                part.seek(damaged["offset"])
                part.write(b"\xa5" * 8)
            gate.set()
            facts = self.fine(server.url, "--experts", "*:0,2,4,6,8,10,12,14,16")
            self.assertGreater(facts["shards_kept"], 5)
            self.assertEqual(facts["shards_damaged"], 1)
            self.assertEqual(facts["shards_kept"] + facts["shards_fetched"], facts["shards_wanted"])
        for _, shard in shards(self.said):
            if shard.get("expert", 1) in (0, 2, 4, 6, 8, 10, 12, 14, 16):
                self.assertTrue(is_right(self.file.read_bytes(), shard), shard)

    def test_interrupt(self):
        gate = threading.Event()
        with Faulty(lambda handler, data, first, last, n: n > 2 and gate.wait(60) and False) as server:
            process = subprocess.Popen([str(harness.PROGRAM), "fetch", server.url, "--experts", "*:0,2,4", "--manifest",
                                        str(self.manifest), "--out", str(self.out)], env=harness.environment(),
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            harness.wait_until(lambda: server.n > 2, "requests")
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=harness.PATIENCE_S)[1].decode()
            gate.set()
        self.assertEqual(process.returncode, 130, said)
        self.assertIn("interrupted; ", said)
        self.kept(said)

    def test_damaged_ledger(self):
        self.fine(MODEL.parent, "--experts", "*:0-3")
        state = self.out / f"{MODEL.name}.fetch.json"
        state.write_text("{")
        facts = self.fine(MODEL.parent, "--experts", "*:0-3")
        self.assertEqual(facts["bytes_fetched"], 0, "the weights themselves say that they are right")

    def test_bar_on_a_terminal_only(self):
        ours, theirs = pty.openpty()
        with Faulty(lambda handler, data, first, last, n: store_rig.pause(0.3)) as server:
            process = subprocess.Popen([str(harness.PROGRAM), "fetch", server.url, "--experts", "*:0,2", "--manifest",
                                        str(self.manifest), "--out", str(self.out), "--parallel", "1"],
                                       env=harness.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=theirs)
            os.close(theirs)
            shown = harness.read_terminal(ours)
            self.assertEqual(process.wait(harness.PATIENCE_S), 0)
        self.assertRegex(shown.decode(), r"\[#*\.*\] fetched [\d.]+ [KM]?B of [\d.]+ [KM]B, [\d.]+ [KM]?B/s")


if __name__ == "__main__":
    harness.main()
