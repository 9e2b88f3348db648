#!/usr/bin/env python3
"""Goal: a worker whose disk is full goes on serving, and its log is whole lines again once there is room.
Method: log and standard output on a small disk of the test's own (tmpfs) that fills up while answers are compared.
(What a full disk does to `evenkeel fetch` is in tests/store.)"""
import os
import pathlib
import re
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))
from cluster_rig import MODEL, PROMPTS, Front, Worker, alone, complete, harness, make_certs, states, texts  # noqa: E402
from harness import wait_until  # noqa: E402


class FullDisk(unittest.TestCase):
    def fill(self, disk):
        """All pages; what is left of the one that the log is in goes line by line."""
        with open(disk / "filler", "ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def test_worker_goes_on(self):
        tmp = self.enterContext(harness.folder())
        disk = harness.small_disk(self, tmp / "disk", "64k")
        expected = alone()
        certs = make_certs(tmp / "certs", "w0", "w1")
        log = disk / "w1.log"
        a = self.enterContext(Worker(certs / "w0", "--experts", "*:0-15"))
        b = self.enterContext(Worker(certs / "w1", "--experts", "*:16-31", "--set", f"log.path={log}"))

        wait_until(lambda: log.stat().st_size > 0, "its first line, and with it a page of the disk")
        self.fill(disk)
        for _ in range(40):
            before = log.stat().st_size
            with socket.create_connection(b.address.rsplit(":", 1)) as stranger:
                stranger.sendall(b"x")  # is logged
            wait_until(lambda: log.stat().st_size > before, "a line")
            if log.stat().st_size % 4096 == 0:
                break
        self.assertEqual(log.stat().st_size % 4096, 0, "the disk was not filled")
        with Front(certs / "front", [a, b]) as front:  # what the worker logs of it is lost
            self.assertEqual(complete(front, PROMPTS[0])[1], expected[0])
        with Front(certs / "front", [a, b]) as front:
            self.assertEqual(texts(front), expected)
            self.assertEqual(states(front), ["serving", "serving"])
            size = log.stat().st_size
            (disk / "filler").unlink()
        wait_until(lambda: log.stat().st_size > size, "lines once there is room")
        self.assertEqual(b.end(), 0)
        lines = log.read_text().splitlines()
        torn = [line for line in lines if not re.match(r"\d{4}-\S+Z level=\w+ room=\w+ event=\w+", line)]
        self.assertLessEqual(len(torn), 1, torn)  # the one that the disk ended in
        self.assertEqual([line for line in lines if line.count(" level=") > 1], [], "two lines in one")
        self.assertTrue([line for line in lines if re.search(r" lost=[1-9]\d*$", line)], lines[-5:])

    def test_output_to_a_full_device(self):
        if not os.path.exists("/dev/full"):
            print("skipped: /dev/full is absent")
            self.skipTest("/dev/full is absent")
        tmp = self.enterContext(harness.folder())
        expected = alone()
        certs = make_certs(tmp / "certs", "w0")
        listen = f"127.0.0.1:{harness.free_port()}"
        with open("/dev/full", "w") as full:
            process = subprocess.Popen([str(harness.PROGRAM), "worker", "--model", str(MODEL), "--listen",
                                        listen, "--certs", str(certs / "w0"), "--threads", "1"],
                                       stdin=subprocess.DEVNULL, stdout=full, stderr=full, env=harness.environment())
        try:
            with Front(certs / "front", [listen]) as front:
                self.assertEqual(texts(front), expected)
        finally:
            process.terminate()
            self.assertEqual(process.wait(harness.PATIENCE_S), 74)  # its first line was lost, and that is said


if __name__ == "__main__":
    harness.main()
