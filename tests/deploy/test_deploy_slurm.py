#!/usr/bin/env python3
"""Goal: the Slurm script makes certificates, starts a worker on each node and the front on the first, starts again what ends,
and drains when the job is told to end.
Method: shellcheck; then the script itself, with stand-ins for `srun` and `scontrol` whose nodes are addresses of this machine
and which start the real processes."""
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402
from harness import wait_until  # noqa: E402

SCRIPT = harness.SOURCE / "deploy/slurm/evenkeel.sbatch"
NODES = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
MODEL = harness.SOURCE / "models/evenkeel-demo.gguf"

SCONTROL = """#!/bin/bash
[ "$*" = "show hostnames $SLURM_JOB_NODELIST" ] || { echo "scontrol: $*" >&2; exit 1; }
printf '%s\\n' 127.0.0.1 127.0.0.2 127.0.0.3
"""

# Takes the options that the script uses and no others, writes down who runs where, and becomes the task.
SRUN = """#!/bin/bash
node=
while [ $# -gt 0 ]; do
    case $1 in
    --nodes=1 | --ntasks=1 | --overlap | --kill-on-bad-exit=0) ;;
    --nodelist=*) node=${1#--nodelist=} ;;
    -*) echo "srun: $1 is not known here" >&2; exit 1 ;;
    *) break ;;
    esac
    shift
done
echo "$$ $node $2" >>"$STEPS"
exec "$@"
"""


def free_ports():
    """A port that all nodes have free, and one for the API."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as one:
            port = one.getsockname()[1]
        try:
            for host, number in [*((node, port) for node in NODES), ("127.0.0.1", port + 1)]:
                socket.create_server((host, number)).close()
        except OSError:
            continue
        with socket.create_server(("127.0.0.1", 0)) as api:
            if api.getsockname()[1] not in (port, port + 1):
                return port, api.getsockname()[1]


class Slurm(unittest.TestCase):
    def test_shellcheck(self):
        if shutil.which("shellcheck") is None:
            print("skipped: shellcheck is not installed")
            self.skipTest("no shellcheck")
        done = subprocess.run(["shellcheck", SCRIPT], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_options(self):
        options = re.findall(r"^#SBATCH (--[a-z-]+)", SCRIPT.read_text(), re.MULTILINE)
        self.assertEqual(options, ["--job-name", "--nodes", "--ntasks-per-node", "--time", "--signal"])

    def start(self, tmp, **extra):
        (tmp / "bin").mkdir()
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            (tmp / "bin" / name).write_text(text)
            (tmp / "bin" / name).chmod(0o755)
        self.port, self.api = free_ports()
        self.steps = tmp / "steps"
        self.steps.touch()
        env = harness.environment({
            "PATH": f"{tmp}/bin:{os.environ['PATH']}", "STEPS": str(self.steps), "SLURM_JOB_ID": "42",
            "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_SUBMIT_DIR": str(tmp), "EVENKEEL_MODEL": str(MODEL),
            "EVENKEEL_PROGRAM": str(harness.PROGRAM), "EVENKEEL_PORT": str(self.port), "EVENKEEL_API": f"127.0.0.1:{self.api}", **extra})
        with open(tmp / "out", "w", encoding="utf-8") as out:
            return subprocess.Popen(["bash", SCRIPT], env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                    start_new_session=True)

    def running(self):
        """(node, command) -> pid of the step that runs there."""
        found = {}
        for line in self.steps.read_text().split("\n"):
            if line:
                pid, node, command = line.split()
                if pathlib.Path(f"/proc/{pid}").exists():
                    found[node, command] = int(pid)
        return found

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.api, timeout=harness.PATIENCE_S)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        except OSError:
            return {}
        finally:
            connection.close()

    def states(self):
        return [worker["state"] for worker in self.get("/v1/cluster").get("workers", [])]

    def test_dry_run(self):
        with harness.folder() as tmp:
            # Here all nodes are one machine, where only one worker could have the address for health.
            job = self.start(tmp, EVENKEEL_HEALTH="")
            try:
                self.walk(tmp, job)
            finally:
                if job.poll() is None:
                    os.killpg(job.pid, signal.SIGKILL)
                    job.wait()

    def walk(self, tmp, job):
        wait_until(lambda: self.get("/readyz").get("status") == "ok", "the front")
        wait_until(lambda: self.states() == ["serving"] * 3, "the workers")
        steps = self.running()
        self.assertEqual(set(steps), {("127.0.0.1", "serve"), *((node, "worker") for node in NODES)})
        work = tmp / "evenkeel-42"
        self.assertEqual((work / "certs").stat().st_mode & 0o77, 0)
        # A worker and the front that end are started again.
        for step in (("127.0.0.2", "worker"), ("127.0.0.1", "serve")):
            os.kill(steps[step], signal.SIGKILL)
            wait_until(lambda: self.running().get(step, steps[step]) != steps[step], f"another {step}")
        wait_until(lambda: self.get("/readyz").get("status") == "ok" and self.states() == ["serving"] * 3, "all of it")
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(harness.PATIENCE_S), 0, (tmp / "out").read_text())
        self.assertEqual(self.running(), {})
        self.assertIn("event=drained complete=true", (work / "front.log").read_text())
        for node in NODES:
            self.assertIn("event=drained complete=true", (work / f"worker-{node}.log").read_text())
        self.assertFalse((work / "certs/ca.key").exists())


if __name__ == "__main__":
    harness.main()
