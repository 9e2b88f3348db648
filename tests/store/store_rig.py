"""What the store's tests share: nginx, an S3 server, and servers that fail in one way each, all on free ports of
loopback; and the program's two commands."""
import contextlib
import datetime
import hashlib
import hmac
import http.server
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402

MODEL = harness.SOURCE / "models/evenkeel-demo.gguf"
NGINX = shutil.which("nginx") or ("/usr/sbin/nginx" if pathlib.Path("/usr/sbin/nginx").exists() else None)
S3RVER = pathlib.Path(__file__).resolve().parent / "node_modules/s3rver"
AWS = {"AWS_ACCESS_KEY_ID": "S3RVER", "AWS_SECRET_ACCESS_KEY": "S3RVER", "AWS_REGION": "us-east-1"}


def make_manifest(out, model=MODEL):
    done = harness.run("manifest", "--model", model, "--out", out)
    assert done.returncode == 0, done.stderr
    return json.loads(pathlib.Path(out).read_text())


def fetch(*arguments, env=None, timeout=harness.PATIENCE_S):
    return harness.run("fetch", *arguments, env=env, timeout=timeout)


def shards(manifest):
    """(file name, shard) of all."""
    return [(file["name"], shard) for file in manifest["body"]["files"] for shard in file["shards"]]


def is_right(data, shard):
    part = data[shard["offset"]:shard["offset"] + shard["bytes"]]
    return hashlib.sha256(part).hexdigest() == shard["sha256"]


def sign(method, path, headers, secret, region):
    """AWS Signature Version 4 of a request for S3 with these (lower-case) headers, all signed."""
    names = ";".join(sorted(headers))
    listed = "".join(f"{name}:{headers[name].strip()}\n" for name in sorted(headers))
    canonical = f"{method}\n{path}\n\n{listed}\n{names}\n{headers['x-amz-content-sha256']}"
    day = headers["x-amz-date"][:8]
    text = "\n".join(("AWS4-HMAC-SHA256", headers["x-amz-date"], f"{day}/{region}/s3/aws4_request",
                      hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


class Nginx:
    """nginx over a directory; without ranges if asked, with TLS where a directory of `cluster init` is given."""

    def __init__(self, root, ranges=True, certs=None):
        if not NGINX:
            print("skipped: nginx is not installed (tools/setup.sh test)")
            raise unittest.SkipTest("nginx is not installed")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="evenkeel-nginx-"))
        os.chmod(self.folder, 0o755)
        self.port = harness.free_port()
        self.log = self.folder / "access.log"
        conf = self.folder / "nginx.conf"
        temp = "".join(f"{name}_temp_path {self.folder}/{name};" for name in
                       ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        user = "user root;" if os.getuid() == 0 else ""  # so that it may read what the test made
        tls = f"ssl_certificate {certs}/node.pem; ssl_certificate_key {certs}/node.key;" if certs else ""
        conf.write_text(f"""{user} daemon off; pid {self.folder}/pid; error_log {self.folder}/error.log;
worker_processes 1; events {{ worker_connections 256; }}
http {{ access_log {self.log}; {temp}
  server {{ listen 127.0.0.1:{self.port}{" ssl" if certs else ""}; {tls} root {root}; {"" if ranges else "max_ranges 0;"} }} }}
""")
        self.process = subprocess.Popen([NGINX, "-p", str(self.folder), "-c", str(conf)], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.url = f"http{'s' if certs else ''}://127.0.0.1:{self.port}"
        try:
            harness.wait_until(lambda: self.process.poll() is not None or (self.folder / "pid").exists() and can_connect(
                self.port), "nginx")
            assert self.process.poll() is None, (self.folder / "error.log").read_text()
        except BaseException:
            self.__exit__()
            raise

    def codes(self):
        """HTTP codes that it answered with, and how often."""
        found = {}
        for code in re.findall(r'" (\d{3}) ', self.log.read_text()):
            found[code] = found.get(code, 0) + 1
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(harness.PATIENCE_S)
        shutil.rmtree(self.folder, ignore_errors=True)
        return False


def can_connect(port):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


class S3:
    """s3rver (npm) with one bucket, `weights`. Of a signature it checks the form and whose key it is, not the hash."""

    SCRIPT = """
const S3rver = require(process.argv[1]);
new S3rver({address: '127.0.0.1', port: 0, silent: true, directory: process.argv[2],
            configureBuckets: [{name: 'weights'}]}).run().then(a => console.log('port ' + a.port));
"""

    def __init__(self, folder, model=MODEL, key="models/v1/evenkeel-demo.gguf"):
        if not shutil.which("node") or not S3RVER.exists():
            print("skipped: s3rver is not installed (tools/setup.sh test, which needs npm)")
            raise unittest.SkipTest("s3rver is not installed")
        self.process = subprocess.Popen(["node", "-e", self.SCRIPT, str(S3RVER), str(folder)],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        line = self.process.stdout.readline().decode()
        match = re.match(r"port (\d+)", line)
        if not match:
            self.end()
            raise AssertionError(f"s3rver said {line!r}")
        self.endpoint = f"http://127.0.0.1:{match.group(1)}"
        self.environment = {**AWS, "AWS_ENDPOINT_URL": self.endpoint}
        try:
            self.put(key, pathlib.Path(model))
        except BaseException:
            self.end()
            raise

    def put(self, key, path):
        """Upload, signed."""
        body = path.read_bytes()
        quoted = "/weights/" + urllib.parse.quote(key, safe="/-._~")
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        headers = {"host": self.endpoint[len("http://"):], "x-amz-content-sha256": hashlib.sha256(body).hexdigest(),
                   "x-amz-date": now}
        signature = sign("PUT", quoted, headers, "S3RVER", "us-east-1")
        scope = f"{now[:8]}/us-east-1/s3/aws4_request"
        headers["Authorization"] = (f"AWS4-HMAC-SHA256 Credential=S3RVER/{scope}, SignedHeaders={';'.join(sorted(headers))}, "
                                    f"Signature={signature}")
        request = urllib.request.Request(self.endpoint + quoted, data=body, headers=headers, method="PUT")
        with urllib.request.urlopen(request, timeout=harness.PATIENCE_S) as response:
            assert response.status == 200

    def end(self):
        self.process.terminate()
        self.process.wait(harness.PATIENCE_S)
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
        return False


class Faulty:
    """A server of this test's own over one file. `fault(handler, data, first, last, n)` may answer request number n in
    its stead and says whether it did."""

    def __init__(self, fault, model=MODEL):
        data = pathlib.Path(model).read_bytes()
        outer = self
        self.n = 0
        self.ranges = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                match = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                first, last = (int(match.group(1)), int(match.group(2))) if match else (0, len(data) - 1)
                with outer.lock:
                    outer.n += 1
                    n = outer.n
                    outer.ranges.append((first, last))
                try:
                    if not fault(self, data, first, last, n):
                        self.answer(data, first, last, match)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def answer(self, whole, first, last, ranged=True):
                self.send_response(206 if ranged else 200)
                if ranged:
                    self.send_header("Content-Range", f"bytes {first}-{last}/{len(whole)}")
                self.send_header("Content-Length", str(last - first + 1))
                self.end_headers()
                self.wfile.write(whole[first:last + 1])

            def code(self, number, **headers):
                self.send_response(number)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", "4")
                self.end_headers()
                self.wfile.write(b"gone")

        self.lock = threading.Lock()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # clients hang up; that is what some of this is about
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
        return False


def pause(seconds):
    time.sleep(seconds)
