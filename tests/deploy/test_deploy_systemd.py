#!/usr/bin/env python3
"""Goal: the systemd units are what systemd takes, their sandbox is tight, and what they start starts, says so, feeds the
watchdog and ends well on SIGTERM.
Method: `systemd-analyze verify` and `security`; then each ExecStartPre and ExecStart as the unit has it, with paths of this
machine, and a socket in the place of the service manager's."""
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))
from cluster_rig import MODEL, Worker, harness, make_certs  # noqa: E402

UNITS = harness.SOURCE / "deploy/systemd"
INSTALLED = "/usr/local/bin/evenkeel"


def unit(name):
    """directive -> values."""
    found = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", (UNITS / name).read_text(), re.MULTILINE):
        found.setdefault(key, []).append(value)
    return found


def seconds(text):
    return int(re.fullmatch(r"(\d+)(?:s)?", text).group(1))


class Units(unittest.TestCase):
    def analyze(self, verb, *arguments, mistake=("\0", "")):
        if shutil.which("systemd-analyze") is None:
            print("skipped: systemd-analyze is not installed")
            raise unittest.SkipTest("no systemd-analyze")
        with harness.folder() as tmp:
            paths = []
            for name, instance in (("evenkeel-front.service", "evenkeel-front.service"),
                                   ("evenkeel-worker@.service", "evenkeel-worker@0.service")):
                (tmp / name).write_text((UNITS / name).read_text().replace(INSTALLED, str(harness.PROGRAM)).replace(*mistake))
                if instance != name:
                    (tmp / instance).symlink_to(name)
                paths.append(tmp / instance)
            done = subprocess.run(["systemd-analyze", verb, *arguments, *paths], capture_output=True, text=True, check=False,
                                  env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp}:", "PAGER": "cat"})
            return done.returncode, "\n".join(line for line in (done.stdout + done.stderr).split("\n") if "evenkeel" in line)

    def test_verify(self):
        code, said = self.analyze("verify", "--man=no")
        self.assertEqual((code, said), (0, ""))
        for mistake, why in ((("RestartSec", "RestrtSec"), "RestrtSec"), (("WatchdogSec=", "WatchdogSec=never"), "Failed to parse sec value"),
                             ((str(harness.PROGRAM), "/no/such/program"), "/no/such/program")):
            self.assertIn(why, self.analyze("verify", "--man=no", mistake=mistake)[1])

    def test_sandbox(self):
        code, said = self.analyze("security", "--offline=yes", "--threshold=25", "--no-pager")
        self.assertEqual(code, 0, said)

    def test_times(self):
        for name, drain_s in (("evenkeel-front.service", 5 + 30), ("evenkeel-worker@.service", 10)):
            has = unit(name)
            self.assertGreater(seconds(has["TimeoutStopSec"][0]), drain_s + 5)
            self.assertGreater(seconds(has["WatchdogSec"][0]), drain_s + 5)
            self.assertEqual(has["Type"], ["notify"])


class Commands(unittest.TestCase):
    def setUp(self):
        folder = harness.folder()
        self.tmp = folder.__enter__()
        self.addCleanup(folder.__exit__, None, None, None)
        self.certs = make_certs(self.tmp / "certs", "worker-0")

    def fill(self, command, config, credentials):
        """A unit's command with this machine's paths."""
        words = shlex.split(command.replace("%i", "0").replace("%d", str(credentials)))
        self.assertEqual(words[0], INSTALLED)
        return [str(harness.PROGRAM), *[str(config) if word == f"/etc/evenkeel/{config.name}" else word for word in words[1:]]]

    def credentials(self, name, sources):
        """A folder as LoadCredential makes it."""
        folder = self.tmp / f"credentials-{name}"
        folder.mkdir()
        for value in unit(name)["LoadCredential"]:
            credential, source = value.replace("%i", "0").split(":")
            found = [ours / source[len(theirs):].lstrip("/") for theirs, ours in sources if source.startswith(theirs)]
            shutil.copy(found[0], folder / credential)
        return folder

    def start(self, name, config, credentials, env=None):
        has = unit(name)
        check = self.fill(has["ExecStartPre"][0], config, credentials)
        done = subprocess.run(check, capture_output=True, text=True, env=harness.environment(), check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = self.tmp / f"notify-{name}"
        manager.bind(str(path))
        manager.settimeout(harness.PATIENCE_S)
        self.addCleanup(manager.close)
        log = open(self.tmp / f"log-{name}", "w+b")
        self.addCleanup(log.close)
        process = subprocess.Popen(self.fill(has["ExecStart"][0], config, credentials), stdout=subprocess.PIPE, stderr=log,
                                   env=harness.environment({**(env or {}), "NOTIFY_SOCKET": str(path)}))
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stdout.close()))
        said = []
        while not any("READY=1" in text for text in said):
            said.append(manager.recv(4096).decode())
        while "WATCHDOG=1" not in said:
            said.append(manager.recv(4096).decode())
        return process, manager

    def end(self, process, manager):
        process.send_signal(signal.SIGTERM)
        while "STOPPING=1" not in manager.recv(4096).decode():
            pass
        self.assertEqual(process.wait(harness.PATIENCE_S), 0)

    def config(self, name, target, *replacements):
        text = (UNITS / name).read_text()
        for old, new in (("/srv/models/model.gguf", str(MODEL)), *replacements):
            self.assertIn(old, text)
            text = text.replace(old, new)
        path = self.tmp / target
        path.write_text(text)
        return path

    def test_the_worker_starts_and_ends(self):
        config = self.config("worker.yaml", "worker-0.yaml", ("w0.lan:7070", "127.0.0.1:0"), ("127.0.0.1:7079", "127.0.0.1:0"))
        credentials = self.credentials("evenkeel-worker@.service", [("/etc/evenkeel/certs", self.certs)])
        self.end(*self.start("evenkeel-worker@.service", config, credentials))

    def test_the_front_starts_reloads_and_ends(self):
        with Worker(self.certs / "worker-0") as worker:
            config = self.config("front.yaml", "front.yaml", ("127.0.0.1:8080", "127.0.0.1:0"), ("127.0.0.1:8081", "127.0.0.1:0"),
                                 ("[w0.lan:7070, w1.lan:7070, w2.lan:7070]", f"[{worker.address}]"))
            (self.tmp / "admin.key").write_text("0123456789abcdef\n")
            credentials = self.credentials("evenkeel-front.service", [("/etc/evenkeel/certs", self.certs), ("/etc/evenkeel", self.tmp)])
            process, manager = self.start("evenkeel-front.service", config, credentials)
            self.assertEqual(unit("evenkeel-front.service")["ExecReload"], ["/bin/kill -HUP $MAINPID"])
            process.send_signal(signal.SIGHUP)
            while "RELOADING=1" not in manager.recv(4096).decode():
                pass
            while "READY=1" not in manager.recv(4096).decode():
                pass
            beg = time.monotonic()
            self.end(process, manager)
            self.assertGreater(time.monotonic() - beg, 4.5)  # gateway.drain_settle of the file


if __name__ == "__main__":
    harness.main()
