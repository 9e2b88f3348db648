#!/usr/bin/env python3
"""Goal: the Kubernetes manifests are what Kubernetes takes, fit together, and fit the program: names, ports, selectors,
volumes, secrets, probes, times.
Method: Kubernetes' own schemas (npm), and mistakes put in on purpose, which they have to find; the references by hand; the
ConfigMap's files are read by the program, and front and workers really run on them, on loopback, and are probed."""
import copy
import http.client
import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))
from cluster_rig import MODEL, Front, Worker, complete, harness, make_certs  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
MANIFESTS = harness.SOURCE / "deploy/kubernetes"

try:
    import yaml
except ImportError:
    yaml = None


def documents():
    if yaml is None:
        print("skipped: python3-yaml is not installed")
        raise unittest.SkipTest("no python3-yaml")
    return [(path.name, document) for path in sorted(MANIFESTS.glob("*.yaml"))
            for document in yaml.safe_load_all(path.read_text())]


def seconds(duration):
    return int(re.fullmatch(r"(\d+)s", duration).group(1))


class Schema(unittest.TestCase):
    def check(self, items):
        if shutil.which("node") is None or not (HERE / "node_modules/kubernetes-models").is_dir():
            print("skipped: tests/deploy has no Kubernetes schemas here (npm ci --prefix tests/deploy)")
            raise unittest.SkipTest("no Kubernetes schemas")
        return subprocess.run(["node", HERE / "check_manifests.mjs"], input=json.dumps(items), capture_output=True, text=True,
                              check=False, timeout=300)

    def test_schemas(self):
        good = [{"file": name, "document": document} for name, document in documents()]
        done = self.check(good)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(f"{len(good)} documents, 0 mistakes", done.stdout)
        self.find_mistakes(next(item for item in good if item["document"]["kind"] == "StatefulSet"))

    def find_mistakes(self, item):
        def container(document):
            return document["spec"]["template"]["spec"]["containers"][0]

        broken = ((lambda d: container(d).update(livenesProbe={}), "'\"livenesProbe\"' does not exist"),
                  (lambda d: d["spec"].update(replicas="3"), "replicas must be integer"),
                  (lambda d: d["spec"].pop("selector"), "required property selector"),
                  (lambda d: container(d)["resources"]["limits"].update(memory="16Gig"), "memory must"),
                  (lambda d: d.update(apiVersion="apps/v7"), "apps/v7 is not known"))
        items = []
        for breaking, _ in broken:
            document = copy.deepcopy(item["document"])
            breaking(document)
            items.append({"file": f"broken-{len(items)}", "document": document})
        done = self.check(items)
        self.assertEqual(done.returncode, 1, done.stdout)
        for i, (_, why) in enumerate(broken):
            said = [line for line in done.stdout.split("\n") if line.startswith(f"broken-{i}:") and why in line]
            self.assertTrue(said, f"{why} is not in {done.stdout}")


class References(unittest.TestCase):
    def setUp(self):
        self.by_name = {(d["kind"], d["metadata"]["name"]): d for _, d in documents()}
        self.config = self.by_name["ConfigMap", "evenkeel"]["data"]
        self.front = self.by_name["Deployment", "evenkeel-front"]
        self.workers = self.by_name["StatefulSet", "evenkeel-worker"]
        self.front_config = yaml.safe_load(self.config["front.yaml"])
        self.worker_config = yaml.safe_load(self.config["worker.yaml"])

    @staticmethod
    def pod(workload):
        return workload["spec"]["template"]["spec"]

    def test_selectors(self):
        for workload in (self.front, self.workers):
            labels = workload["spec"]["template"]["metadata"]["labels"]
            self.assertEqual(workload["spec"]["selector"]["matchLabels"], labels)
            for terms in self.pod(workload)["affinity"]["podAntiAffinity"].values():
                for term in terms:
                    self.assertEqual(term.get("podAffinityTerm", term)["labelSelector"]["matchLabels"], labels)
        front, worker = (w["spec"]["template"]["metadata"]["labels"] for w in (self.front, self.workers))
        self.assertNotEqual(front, worker)
        self.assertEqual(self.by_name["Service", "evenkeel"]["spec"]["selector"], front)
        self.assertEqual(self.by_name["Service", "evenkeel-workers"]["spec"]["selector"], worker)
        self.assertEqual(self.by_name["PodDisruptionBudget", "evenkeel-worker"]["spec"]["selector"]["matchLabels"], worker)
        policy = self.by_name["NetworkPolicy", "evenkeel-worker"]["spec"]
        self.assertEqual(policy["podSelector"]["matchLabels"], worker)
        self.assertEqual(policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"], front)

    def test_ports(self):
        def ports(workload):
            return {p["name"]: p["containerPort"] for p in self.pod(workload)["containers"][0]["ports"]}

        def port_of(address):
            return int(address.rsplit(":", 1)[1])

        gateway, worker = self.front_config["gateway"], self.worker_config["worker"]
        self.assertEqual(ports(self.front), {"api": port_of(gateway["listen"]), "health": port_of(gateway["health_listen"])})
        self.assertEqual(ports(self.workers), {"fronts": port_of(worker["listen"]), "health": port_of(worker["health"])})
        for workload in (self.front, self.workers):
            annotations = workload["spec"]["template"]["metadata"]["annotations"]
            self.assertEqual(int(annotations["prometheus.io/port"]), ports(workload)["health"])
        self.assertEqual(self.by_name["Service", "evenkeel"]["spec"]["ports"][0]["targetPort"], "api")
        self.assertEqual(self.by_name["Service", "evenkeel-workers"]["spec"]["ports"][0]["targetPort"], "fronts")
        for rule in self.by_name["NetworkPolicy", "evenkeel-worker"]["spec"]["ingress"]:
            self.assertIn(rule["ports"][0]["port"], ports(self.workers))
        n = self.workers["spec"]["replicas"]
        service = self.by_name["Service", self.workers["spec"]["serviceName"]]
        self.assertEqual(service["spec"]["clusterIP"], "None")
        self.assertEqual(self.front_config["cluster"]["workers"],
                         [f"evenkeel-worker-{i}.evenkeel-workers:{ports(self.workers)['fronts']}" for i in range(n)])
        env = {e["name"]: e.get("value") for e in self.pod(self.workers)["containers"][0]["env"]}
        self.assertEqual(env["EVENKEEL_WORKER_DEVICE"], f"$(POD_INDEX)/{n}")

    def test_volumes_and_secrets(self):
        page = (harness.SOURCE / "docs/OPERATING.md").read_text()
        for workload, paths in ((self.front, [self.front_config["cluster"]["certs"], self.front_config["model"]["path"],
                                              self.front_config["gateway"]["admin_key_file"]]),
                                (self.workers, [self.worker_config["worker"]["certs"], self.worker_config["model"]["path"],
                                                self.worker_config["worker"]["placement"]])):
            pod = self.pod(workload)
            mounts = {m["name"]: m["mountPath"] for m in pod["containers"][0]["volumeMounts"]}
            self.assertEqual(set(mounts), {volume["name"] for volume in pod["volumes"]})
            for path in [*paths, pod["containers"][0]["args"][2]]:
                self.assertTrue(any(path == m or path.startswith(m + "/") for m in mounts.values()), path)
            self.assertIn(pathlib.PurePath(pod["containers"][0]["args"][2]).name, self.config)
            for volume in pod["volumes"]:
                if "secret" in volume:  # made by hand, by a command of the page
                    self.assertIn(f"secret generic {volume['secret']['secretName']} ", page)
                elif "configMap" in volume:
                    self.assertIn(("ConfigMap", volume["configMap"]["name"]), self.by_name)
                else:
                    self.assertIn(("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]), self.by_name)

    def test_times(self):
        gateway, worker = self.front_config["gateway"], self.worker_config["worker"]
        self.assertGreater(self.pod(self.front)["terminationGracePeriodSeconds"],
                           seconds(gateway["drain_settle"]) + seconds(gateway["drain_timeout"]) + 5)
        self.assertGreater(self.pod(self.workers)["terminationGracePeriodSeconds"], seconds(worker["drain_timeout"]) + 5)
        probe = self.pod(self.front)["containers"][0]["readinessProbe"]  # traffic ends before the listener does
        self.assertLess(probe["periodSeconds"] * probe["failureThreshold"], seconds(gateway["drain_settle"]))

    def test_image_is_the_containers(self):
        container = (harness.SOURCE / "deploy/container/Containerfile").read_text()
        user = int(re.search(r"^USER (\d+):", container, re.MULTILINE).group(1))
        for workload in (self.front, self.workers):
            pod = self.pod(workload)
            self.assertIn(f"-t {pod['containers'][0]['image']} ", container)
            self.assertEqual(pod["securityContext"]["runAsUser"], user)
            self.assertTrue(pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"])

    def test_it_runs(self):
        """The ConfigMap's files, as they are but for addresses and paths of this machine."""
        with harness.folder() as tmp:
            certs = make_certs(tmp / "certs", "worker")
            for name in ("front.yaml", "worker.yaml"):
                (tmp / name).write_text(self.config[name])
                done = harness.run("check", tmp / name)
                self.assertEqual(done.returncode, 0, done.stderr)
            (tmp / "placement.csv").write_text(self.config["placement.csv"])
            n = self.workers["spec"]["replicas"]
            workers = []
            for i in range(n):
                worker = Worker(certs / "worker", "--config", tmp / "worker.yaml", "--health", "127.0.0.1:0", "--placement",
                                tmp / "placement.csv", "--device", f"{i}/{n}", model=MODEL)
                self.addCleanup(lambda worker=worker: worker.__exit__(None, None, None))
                workers.append(worker)
            (tmp / "admin.key").write_text("0123456789abcdef\n")
            with Front(certs / "front", workers, "--config", tmp / "front.yaml", "--health-listen", "127.0.0.1:0", "--set",
                       f"gateway.admin_key_file={tmp}/admin.key") as front:
                health = re.search(r'health_addr="(\S+)"', front.log_text()) or re.search(r"health=(\S+)", front.log_text())
                self.probe(self.front, health.group(1))
                for worker in workers:
                    self.probe(self.workers, re.search(r"health_listening addr=(\S+)", worker.log_text()).group(1))
                workers[0].kill()  # the placement stands that
                self.assertEqual(complete(front, "Once", 8)[0], 200)

    def probe(self, workload, address):
        host, port = address.rsplit(":", 1)
        container = self.pod(workload)["containers"][0]
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            connection = http.client.HTTPConnection(host, int(port), timeout=harness.PATIENCE_S)
            connection.request("GET", container[kind]["httpGet"]["path"])
            self.assertEqual(connection.getresponse().status, 200, kind)
            connection.close()
            self.assertEqual(container[kind]["httpGet"]["port"], "health")


if __name__ == "__main__":
    harness.main()
