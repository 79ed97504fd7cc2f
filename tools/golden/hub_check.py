"""hub_check.py TESSERA MODEL: the cache that `tessera pull` writes is one that PyPI's huggingface_hub
reads without a warning, and the other way round; both write the same. Over a hub on the loopback.

MODEL is a folder with config.json and model.safetensors."""
import hashlib
import http.server
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings

tessera, model = sys.argv[1], pathlib.Path(sys.argv[2])
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {  # path: (content, whether it is large)
    "config.json": ((model / "config.json").read_bytes(), False),
    "model.safetensors": ((model / "model.safetensors").read_bytes(), True),
    "1_Pooling/config.json": (b"{}", False),
    "empty.txt": (b"", False),
}


def etag(path):
    content, large = FILES[path]
    if large:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def listed(path, name):
    content, large = FILES[path]
    one = {name: path, "size": len(content), "blobId" if name == "rfilename" else "oid": etag(path)}
    if large:
        one["blobId" if name == "rfilename" else "oid"] = "b" * 40
        one["lfs"] = {"sha256": etag(path), "oid": etag(path), "size": len(content), "pointerSize": 134}
    return one


class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    slow = False

    def answer(self, status, headers, body=b""):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            for begin in range(0, len(body), 1024):
                self.wfile.write(body[begin : begin + 1024])
                if Hub.slow:
                    time.sleep(0.2)

    def give(self, value):
        self.answer(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.split("?")[0]
        if path.startswith("/api/models/org/name/tree/"):
            return self.give([{"type": "file", **listed(one, "path")} for one in FILES])
        if path in ("/api/models/org/name", "/api/models/org/name/revision/main",
                    "/api/models/org/name/revision/" + COMMIT):
            return self.give({"_id": "1", "id": "org/name", "modelId": "org/name", "sha": COMMIT, "private": False,
                              "tags": [], "siblings": [listed(one, "rfilename") for one in FILES]})
        for revision in (COMMIT, "main"):
            start = f"/org/name/resolve/{revision}/"
            if path.startswith(start) and path[len(start) :] in FILES:
                return self.resolve(path[len(start) :])
        if path.startswith("/store/") and path[7:] in FILES:
            return self.content(path[7:], {"ETag": f'"{etag(path[7:])}"'})
        self.answer(404, {"X-Error-Code": "EntryNotFound"})

    def resolve(self, path):
        content, large = FILES[path]
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag(path)}"', "Accept-Ranges": "bytes"}
        if not large:
            return self.content(path, headers)
        headers |= {"X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{etag(path)}"',
                    "Location": f"http://localhost:{self.server.server_port}/store/{path}"}  # another host
        self.answer(302, headers)

    def content(self, path, headers):
        content = FILES[path][0]
        begin = int(self.headers["Range"][6:].split("-")[0]) if self.headers["Range"] else 0
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        self.answer(206 if begin else 200, headers, content[begin:])

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        """Clients are killed here."""


server = Server(("127.0.0.1", 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
work = pathlib.Path(tempfile.mkdtemp())
for name in list(os.environ):
    if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_OFFLINE")):
        del os.environ[name]
os.environ |= {"HF_HOME": str(work / "home"), "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
               "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
               "no_proxy": "127.0.0.1,localhost"}

import huggingface_hub  # after its variables
from huggingface_hub import scan_cache_dir, snapshot_download, try_to_load_from_cache

warnings.simplefilter("error")


def run(cache, *arguments, code=0):
    done = subprocess.run([tessera, *arguments], env=os.environ | {"HF_HUB_CACHE": str(cache)}, text=True,
                          capture_output=True)
    assert done.returncode == code, (arguments, done)
    return done.stdout


def layout(cache):
    """Links and contents of the model, without what huggingface_hub keeps for itself."""
    repo = cache / "models--org--name"
    return {str(path.relative_to(repo)): os.readlink(path) if path.is_symlink() else path.read_bytes()
            for path in sorted(repo.rglob("*"))
            if (path.is_symlink() or path.is_file()) and path.relative_to(repo).parts[0] in ("refs", "snapshots", "blobs")}


def expect_whole(cache):
    """huggingface_hub reads it."""
    folder = snapshot_download("org/name", cache_dir=cache, local_files_only=True)
    assert folder == str(cache / "models--org--name/snapshots" / COMMIT), folder
    for path, (content, _) in FILES.items():
        assert pathlib.Path(folder, path).read_bytes() == content, path
        assert try_to_load_from_cache("org/name", path, cache_dir=cache) == os.path.join(folder, path)
    info = scan_cache_dir(cache)
    assert not info.warnings, info.warnings
    assert not getattr(info, "incomplete_files", None), info
    (repo,) = info.repos
    assert (repo.repo_id, repo.repo_type, repo.nb_files) == ("org/name", "model", len(FILES)), repo
    (revision,) = repo.revisions
    assert revision.commit_hash == COMMIT and revision.refs == {"main"}, revision
    assert repo.size_on_disk == sum(len(content) for content, _ in FILES.values()), repo


# what tessera writes
ours = work / "ours"
assert run(ours, "pull", "org/name").strip() == str(ours / "models--org--name/snapshots" / COMMIT)
expect_whole(ours)

# a part of it, and the rest
parts = work / "parts"
run(parts, "pull", "org/name", "--include", "*.json")
assert not scan_cache_dir(parts).warnings
run(parts, "pull", "org/name")
expect_whole(parts)
assert layout(parts) == layout(ours)

# one that is killed
killed = work / "killed"
Hub.slow = True
child = subprocess.Popen([tessera, "pull", "org/name"], env=os.environ | {"HF_HUB_CACHE": str(killed)},
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
part = killed / "models--org--name/blobs" / (etag("model.safetensors") + ".incomplete")
for _ in range(500):
    if part.exists() and part.stat().st_size > 0:
        break
    time.sleep(0.01)
child.send_signal(signal.SIGKILL)
child.wait()
Hub.slow = False
info = scan_cache_dir(killed)
assert not info.warnings, info.warnings
assert part.exists()
try:
    snapshot_download("org/name", cache_dir=killed, local_files_only=True)
    raise AssertionError("half a model was found")
except huggingface_hub.errors.LocalEntryNotFoundError:
    pass
run(killed, "pull", "org/name")
expect_whole(killed)

# what huggingface_hub writes
theirs = work / "theirs"
snapshot_download("org/name", cache_dir=theirs)
assert layout(theirs) == layout(ours), (layout(theirs).keys(), layout(ours).keys())
(row,) = json.loads(run(theirs, "models", "--json"))["models"]
assert row["name"] == "org/name" and row["runs"] and row["commit"] == COMMIT, row
assert run(theirs, "show", "org/name") == run(theirs, "show", str(model))
assert json.loads(run(theirs, "pull", "org/name", "--json"))["downloaded"] == 0
expect_whole(theirs)

# removed, and downloaded again by the other
run(theirs, "rm", "org/name", "--yes")
assert not scan_cache_dir(theirs).repos and not scan_cache_dir(theirs).warnings
run(ours, "rm", f"org/name@{COMMIT}", "--yes")
info = scan_cache_dir(ours)
assert not info.warnings and info.size_on_disk == 0, info
snapshot_download("org/name", cache_dir=ours)
expect_whole(ours)
