"""A line between two network namespaces (tun_line.c), for tests of networks that are slow, lossy or cut.

The test itself runs in the near one: `in_own_network()` starts it again in a namespace of its own, so that whatever it
starts is in there, too. Processes on the far side are started with `Line.far` before their command. Nothing outlives
the test's processes.
"""
import os
import shutil
import subprocess
import sys
import unittest

from cluster_rig import FABRIC, harness

NEAR, FAR = "10.99.0.1", "10.99.0.2"  # in namespaces that nothing else is in
os.environ["UCX_NET_DEVICES"] = "line"
INSIDE = "EK_TEST_IN_OWN_NETWORK"
EXIT_SKIP = 77
# UCX looks for devices in /sys, which shows those of the namespace that it was mounted in.
OWN_SYS = ["unshare", "--mount", "sh", "-c", 'mount -t sysfs none /sys && exec "$@"', "sh"] if FABRIC == "ucx" else []


def in_own_network():
    """Start this test again in a network namespace, as root of one of users where it is not root already."""
    if os.environ.get(INSIDE):
        return
    enter = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    may = shutil.which("unshare") and shutil.which("nsenter")
    done = subprocess.run([*enter, "true"], capture_output=True, check=False) if may else None
    if done and done.returncode == 0:
        os.execvpe(enter[0], [*enter, *OWN_SYS, sys.executable, *sys.argv], {**os.environ, INSIDE: "1"})
    os.environ[INSIDE] = "no: " + (done.stderr.decode().strip() if done else "unshare and nsenter are not here")


class Line:
    """A running line. Leaving it ends it, and with it the far side's network."""

    def __init__(self):
        why_not = os.environ.get(INSIDE, "no: not asked for")
        if why_not != "1":
            self.skip(why_not.removeprefix("no: "))
        self.process = subprocess.Popen([str(harness.BUILD / "tests/cluster/tun_line"), NEAR, FAR], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if self.process.stdout.readline() != "ready\n":
            _, why = self.process.communicate()
            if self.process.returncode == EXIT_SKIP:
                self.skip(why.strip())
            raise AssertionError(f"tun_line ended with {self.process.returncode}: {why}")
        self.far = ["nsenter", f"--net=/proc/{self.process.pid}/ns/net", *OWN_SYS]

    @staticmethod
    def skip(why):
        print(f"skipped: {why}")
        raise unittest.SkipTest(f"no network namespaces here: {why}")

    def ask(self, command):
        """What the line answers to a command."""
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def set(self, *commands):
        for command in commands:
            answer = self.ask(command)
            assert answer == "ok", answer

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            print(f"line: {self.ask('count')}")
        self.process.communicate()
        return False
