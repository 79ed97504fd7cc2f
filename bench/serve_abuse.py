"""Clients that `tessera serve` must survive: many, slow, broken, gone. Each test says what must hold and what was found.

    python bench/serve_abuse.py build/release/bin/tessera MODEL.gguf [--only A1,A5] [--seconds 60] [--clients 64] [--threads 2]

Exit status 1 where one does not hold. Python's own library alone. With stories260K the protocol is tried, with a larger model the load. Of
serving's list A10 and A11 (files and allocations that fail) are tests of the layers below, and A15 is `make sanitize`.

A1  streams for --seconds, of which a fifth leaves half way: texts are those of the same seed alone, times to the first token apart by a
    factor of 4 at most where all have come at once, none is lost
A2  slow heads and bodies: cut after their time, others are served
A3  readers of a byte a second: others are served, and the server's memory stays
A4  connections that say nothing: gone after their time
A5  clients that leave at every moment of a request: nothing runs and nothing is held afterwards
A6  broken HTTP and JSON, every parameter with values of all kinds: an error of 4xx or an answer, no 5xx, never silence
A7  limits, and one more: the exact status
A8  many requests: memory, files and threads stay
A9  few file descriptors: others than the last ones are served, and all are when there are some again
A12 SIGTERM among streams: each ends whole or with an error, the status is 143
A13 keys: without one only /health and the page
A14 salts: what others asked is not found in the cache
"""
import argparse
import concurrent.futures
import http.client
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from serve import free_port

FAILED = []


def check(test, holds, what):
    print(f"{test:4} {'ok  ' if holds else 'FAIL'} {what}", flush=True)
    if not holds:
        FAILED.append(test)


class Tessera:
    def __init__(self, given, *options, key=None, files=None):
        self.port = free_port()
        environment = dict(os.environ, OMP_WAIT_POLICY="passive")
        if key:
            environment["TESSERA_API_KEY"] = key
        limit = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))) if files else None
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen([given.tessera, "serve", given.model, "--alias", "m", "--port", str(self.port), "--log", "none",
                                         "--threads", str(given.threads), *options], stdout=subprocess.DEVNULL, stderr=self.errors,
                                        env=environment, preexec_fn=limit)
        for _ in range(1200):
            if self.process.poll() is not None:
                sys.exit(f"the server ended with {self.process.returncode}: {self.said()}")
            try:
                if self.ask("GET", "/health")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        sys.exit("the server does not answer")

    def said(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")[-2000:]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def ask(self, method, path, body=None, headers=None, timeout=120):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            sent = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            connection.request(method, path, sent, {"Content-Type": "application/json", **(headers or {})})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def post(self, path, body, **more):
        status, text = self.ask("POST", path, body, **more)
        return status, json.loads(text) if text else {}

    def connect(self, timeout=60):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        return s

    def raw(self, request, timeout=20):
        """The status of bytes as they are; 0 where the connection ends without an answer, -1 for silence."""
        with self.connect(timeout) as s:
            try:
                s.sendall(request)  # who ends their side is taken for gone
            except OSError:
                pass
            try:
                text = s.recv(4096)
            except socket.timeout:
                return -1
            except OSError:
                return 0
        return int(text.split()[1]) if text.startswith(b"HTTP/1.1 ") else 0

    def metric(self, name):
        for line in self.ask("GET", "/metrics")[1].decode().splitlines():
            if line.startswith(f"tessera_{name} ") or line.startswith(f"{name} "):
                return float(line.split()[-1])
        return 0.0

    def comes_to_rest(self, seconds=20):
        end = time.time() + seconds
        while time.time() < end:
            if self.metric("requests_running") == 0 and self.metric("requests_waiting") == 0 and \
                    self.metric("state_reserved_bytes") == 0:
                return True
            time.sleep(0.1)
        return False

    def resident(self):
        with open(f"/proc/{self.process.pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def tasks(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def processor_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def head(path, length, method="POST"):
    return (f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n").encode()


def prompt_of(i):
    return "Once upon a time there was a " + ["cat", "dog", "tree", "river", "king", "girl", "boy", "bird"][i % 8] + " who " + "saw it " * (i % 5)


def body_of(i, tokens=40):
    return {"prompt": prompt_of(i), "max_tokens": tokens, "seed": i, "temperature": 0.8, "ignore_eos": True}


def stream(server, body, leave_after=None):
    """The text, seconds to the first piece of it, and how it ended: done, left, error or lost."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    begin, first, text, pieces = time.perf_counter(), None, "", 0
    try:
        connection.request("POST", "/v1/completions", json.dumps(dict(body, stream=True)), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            return "", None, f"status {reply.status}"
        for line in reply:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                return text, first, "done"
            event = json.loads(line[6:])
            if "error" in event:
                return text, first, "error"
            for choice in event["choices"]:
                if choice["text"]:
                    first = first or time.perf_counter() - begin
                    text += choice["text"]
            pieces += 1
            if leave_after and pieces >= leave_after:
                return text, first, "left"
        return text, first, "lost"
    except (OSError, http.client.HTTPException) as error:
        return text, first, f"lost ({error})"
    finally:
        connection.close()


def a1(given):
    kinds = 16
    with Tessera(given, "--parallel", "32", "--queue", "1024") as server:
        alone = [server.post("/v1/completions", body_of(i))[1]["choices"][0]["text"] for i in range(kinds)]
        # all at once: nobody waits much longer than another of as long a prompt
        with concurrent.futures.ThreadPoolExecutor(given.clients) as pool:
            firsts = [first for _, first, end in pool.map(lambda _: stream(server, body_of(0, 60)), range(min(32, given.clients))) if end == "done"]
        spread = max(firsts) / min(firsts)
        end, ends, wrong = time.time() + given.seconds, {}, []

        def client(number):
            draw = random.Random(number)
            while time.time() < end:
                i = draw.randrange(kinds)
                leave = draw.randrange(1, 20) if draw.random() < 0.2 else None
                text, _, how = stream(server, body_of(i), leave)
                ends[how] = ends.get(how, 0) + 1
                if not (alone[i].startswith(text) if how == "left" else text == alone[i]):
                    wrong.append(i)

        threads = [threading.Thread(target=client, args=(n,)) for n in range(given.clients)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        check("A1", set(ends) <= {"done", "left"} and not wrong, f"{given.clients} streams for {given.seconds:.0f} s: {ends}, {len(wrong)} texts unlike those alone")
        check("A1", spread <= 4, f"32 that come at once: times to the first token apart by a factor of {spread:.2f}")
        check("A1", server.comes_to_rest(), "nothing runs, waits or is reserved afterwards")


def times_of(server, n, tokens=8):
    times = []
    for i in range(n):
        begin = time.perf_counter()
        status, _ = server.post("/v1/completions", body_of(i, tokens))
        if status != 200:
            return [float("inf")]
        times.append(time.perf_counter() - begin)
    return sorted(times)


def a2(given):
    with Tessera(given) as server:
        before = times_of(server, 60)
        begin = time.time()
        heads = [server.connect() for _ in range(100)]
        bodies = [server.connect() for _ in range(100)]
        for s in heads:
            s.sendall(b"GET /health HTTP/1.1\r\nHo")
        for s in bodies:
            s.sendall(head("/tokenize", 100) + b'{"con')
        among = times_of(server, 60)
        # drops that keep a connection busy do not keep it open
        cut = {"head": [], "body": []}

        def drip(kind, sockets):
            for s in sockets:
                s.settimeout(0.01)
            left = set(sockets)
            while left and time.time() < begin + 45:
                for s in list(left):
                    try:
                        s.sendall(b"x")
                        if s.recv(4096) == b"" or True:
                            cut[kind].append(time.time() - begin)
                            left.discard(s)
                    except socket.timeout:
                        pass
                    except OSError:
                        cut[kind].append(time.time() - begin)
                        left.discard(s)
                time.sleep(1)

        threads = [threading.Thread(target=drip, args=("head", heads)), threading.Thread(target=drip, args=("body", bodies[:10]))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for s in heads + bodies:
            s.close()
        check("A2", len(cut["head"]) == 100 and max(cut["head"]) < 16, f"{len(cut['head'])} of 100 slow heads cut after {max(cut['head'] or [0]):.0f} s at most")
        check("A2", len(cut["body"]) == 10 and max(cut["body"]) < 36, f"{len(cut['body'])} of 10 slow bodies cut after {max(cut['body'] or [0]):.0f} s at most")
        check("A2", among[-2] <= max(2 * before[-2], before[-2] + 0.05), f"others: p97 {1000 * before[-2]:.0f} ms before, {1000 * among[-2]:.0f} ms among 200 of them")


def a3(given):
    with Tessera(given, "--parallel", "48") as server:
        before, memory = times_of(server, 60), server.resident()
        slow = []
        text = json.dumps({"prompt": "a", "max_tokens": 200, "ignore_eos": True, "stream": True, "logprobs": 5}).encode()
        for _ in range(32):
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            s.connect(("127.0.0.1", server.port))
            s.sendall(head("/v1/completions", len(text)) + text)
            slow.append(s)
        stop = threading.Event()

        def drip():
            while not stop.wait(1):
                for s in slow:
                    s.settimeout(0.01)
                    try:
                        s.recv(1)
                    except OSError:
                        pass

        thread = threading.Thread(target=drip)
        thread.start()
        time.sleep(3)  # their texts are made by now, unless the model is slow
        among, more = times_of(server, 60), server.resident() - memory
        stop.set()
        thread.join()
        for s in slow:
            s.close()
        check("A3", more < 32 << 20, f"32 readers of a byte a second: {more / 2**20:.1f} MiB more")
        check("A3", among[-2] <= max(2 * before[-2], before[-2] + 0.05) or server.metric("requests_running") > 8,
              f"others: p97 {1000 * before[-2]:.0f} ms before, {1000 * among[-2]:.0f} ms among them")
        check("A3", server.comes_to_rest(40), "nothing runs, waits or is reserved afterwards")


def a4(given):
    with Tessera(given) as server:
        silent = [server.connect() for _ in range(200)]
        begin = time.time()
        while server.metric("connections") > 2 and time.time() < begin + 60:
            time.sleep(0.5)
        check("A4", server.metric("connections") <= 2, f"200 silent connections gone after {time.time() - begin:.0f} s")
        for s in silent:
            s.close()


def a5(given):
    with Tessera(given) as server:
        server.post("/v1/completions", body_of(0))
        server.comes_to_rest()
        files = server.files()
        text = json.dumps(dict(body_of(1, 5000), stream=True)).encode()
        request = head("/v1/completions", len(text)) + text
        draw = random.Random(3)

        def leave(i):
            try:
                with server.connect() as s:
                    s.sendall(request[:draw.randrange(1, len(request))] if i % 3 == 0 else request)
                    if i % 3 == 2:
                        s.recv(draw.randrange(1, 2000))
                    if i % 2:  # with a reset in place of an end
                        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            except OSError:
                pass

        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            list(pool.map(leave, range(1000)))
        rest = server.comes_to_rest(30)
        deadline = time.time() + 15
        while server.files() > files + 2 and time.time() < deadline:
            time.sleep(0.2)
        check("A5", rest and server.files() <= files + 2, f"1,000 that left: at rest {rest}, {server.files()} files after {files}")
        check("A5", server.post("/v1/completions", body_of(0))[0] == 200, "the next request is fine")


def a6(given):
    with Tessera(given) as server:
        good = json.dumps({"prompt": "a", "max_tokens": 1, "stop": ["x"], "logit_bias": {"3": 1}}).encode()
        bodies = [good[:i] for i in range(len(good))] + [b"[" * 100_000, b'{"a":' * 100_000, b'{"prompt":"a","prompt":"b"}', b'{"prompt":"\\ud800"}',
                  b'{"prompt":"\xc0\xaf"}', b'{"prompt":"\xff"}', b"\0", b"nul", b'{"prompt":"a","max_tokens":1e999}', b'{"prompt":"a"}x']
        found, slowest = {}, 0.0

        def tried(name, status, seconds):
            nonlocal slowest
            slowest = max(slowest, seconds)
            found.setdefault(status, []).append(name)

        for body in bodies:
            begin = time.perf_counter()
            status, _ = server.ask("POST", "/v1/completions", body)
            tried(body[:40], status, time.perf_counter() - begin)
        check("A6", set(found) == {400}, f"{len(bodies)} broken bodies: {({k: len(v) for k, v in found.items()})}, {1000 * slowest:.0f} ms at most")
        start = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
        broken = {
            "two lengths": start + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
            "length and chunks": start + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "gzip": start + b"Transfer-Encoding: gzip\r\n\r\n{}",
            "gzip, chunked": start + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "folded": start + b"X-A: b\r\n c\r\nContent-Length: 2\r\n\r\n{}",
            "length -1": start + b"Content-Length: -1\r\n\r\n",
            "length 2^64": start + b"Content-Length: 18446744073709551617\r\n\r\n",
            "chunk of 2^64": start + b"Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n",
            "chunk of none": start + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            "no version": b"GET /health\r\n\r\n",
            "version 9": b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
            "control": b"GET /he\1lth HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "two hosts": b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
            "space before colon": b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
            "noise": bytes(random.Random(1).randrange(256) for _ in range(3000)) + b"\r\n\r\n",
            "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500,
        }
        answers = {name: server.raw(request) for name, request in broken.items()}
        check("A6", all(400 <= s < 500 or s in (0, 501, 505) for s in answers.values()), f"broken requests: {answers}")
        api = json.loads(server.ask("GET", "/openapi.json")[1])
        values = [-1, 0, 2**31, 2**63, 2**64, 1e308, -1e308, 0.5, None, "", "a" * 100_000, [], [[]], {}, True, {"a": 1}, ["a"], [1]]
        counts, bad = {}, []
        for path, methods in api["paths"].items():
            if "requestBody" not in methods.get("post", {}) or path in ("/models/unload", "/models/load"):
                continue
            schema = methods["post"]["requestBody"]["content"]["application/json"]["schema"]
            base = {k: v for k, v in {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "input": "a", "content": "a", "query": "a",
                                      "documents": ["a"], "tokens": [1], "input_prefix": "a", "max_tokens": 1}.items() if k in schema["properties"]}
            if path == "/tokenize":
                base = {"content": "a"}
            for field in schema["properties"]:
                for value in values:
                    body = dict(base)
                    body[field] = value
                    if field not in ("max_tokens", "n_predict", "max_completion_tokens") or not value:
                        body.setdefault("timeout_ms", 2000) if "timeout_ms" in schema["properties"] else None
                    status, text = server.ask("POST", path, json.dumps(body).encode())
                    counts[status] = counts.get(status, 0) + 1
                    if status >= 500 and status not in (501, 504):
                        bad.append((path, field, str(value)[:20], status, text[:200]))
        check("A6", not bad, f"every parameter with {len(values)} values: {counts} {bad[:5]}")
        check("A6", server.comes_to_rest(30), "nothing runs, waits or is reserved afterwards")


def a7(given):
    with Tessera(given, "--queue", "4", "--parallel", "1", "--max-body", "1", "--connections", "80") as server:
        get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
        fits = lambda n: get + b"X-A: " + b"a" * (n - len(get) - 9) + b"\r\n\r\n"
        found = {
            "head of 16 KiB": server.raw(fits(16 << 10)), "and its end": server.raw(fits((16 << 10) + 5)),
            "100 fields": server.raw(get + b"X-A: a\r\n" * 99 + b"\r\n"), "101": server.raw(get + b"X-A: a\r\n" * 100 + b"\r\n"),
            "path of 2 KiB": server.raw(b"GET /" + b"a" * 2047 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            "path and more": server.raw(b"GET /" + b"a" * 2080 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            "64 levels": server.ask("POST", "/tokenize", b'{"content":' + b"[" * 63 + b"]" * 63 + b"}")[0],
            "1 MiB": server.ask("POST", "/detokenize", b'{"tokens":[' + b"1" + b",1" * ((1 << 19) - 16) + b"]" + b" " * 4 + b"}")[0],
            "1 MiB and more": server.ask("POST", "/detokenize", b" " * ((1 << 20) + 1))[0],
        }
        want = {"head of 16 KiB": 200, "and its end": 431, "100 fields": 200, "101": 431, "path of 2 KiB": 404, "path and more": 414,
                "64 levels": 400, "1 MiB": 200, "1 MiB and more": 413}
        check("A7", found == want, f"limits: {found if found != want else 'as they are'}")
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            codes = [s for s, _ in pool.map(lambda i: server.post("/v1/completions", body_of(i, 200)), range(24))]
        check("A7", set(codes) == {200, 429}, f"24 at once with a queue of 4: {codes.count(200)} answered, {codes.count(429)} turned away")
        many = []
        for _ in range(120):
            try:
                many.append(server.connect())
            except OSError:
                pass
        time.sleep(0.5)
        for s in many:
            s.close()
        time.sleep(1)
        check("A7", server.ask("GET", "/health")[0] == 200, "after 120 connections where 80 may be: served")


def a8(given):
    with Tessera(given) as server:
        def some(n):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            for i in range(n):
                text = json.dumps({"content": prompt_of(i)} if i % 10 else body_of(i, 2)).encode()
                connection.request("POST", "/tokenize" if i % 10 else "/v1/completions", text, {"Content-Type": "application/json"})
                connection.getresponse().read()
            connection.close()

        some(5000)
        memory, files, tasks = server.resident(), server.files(), server.tasks()
        end, n = time.time() + given.seconds, 0
        while time.time() < end and n < 100_000:
            some(1000)
            n += 1000
        check("A8", server.resident() <= 1.05 * memory + (4 << 20), f"{n} requests more: {memory / 2**20:.0f} MiB, then {server.resident() / 2**20:.0f}")
        check("A8", server.files() <= files + 1 and server.tasks() <= tasks, f"files {files}, then {server.files()}; threads {tasks}, then {server.tasks()}")


def a9(given):
    # more connections than descriptors, whatever the server believes it may open
    with Tessera(given, files=80) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (server.files() + 6, 80))
        many = [server.connect() for _ in range(40)]
        before, begin = server.processor_seconds(), time.time()
        time.sleep(3)
        use = (server.processor_seconds() - before) / (time.time() - begin)
        for s in many:
            s.close()
        time.sleep(1)
        try:
            status = server.ask("GET", "/health")[0]
        except OSError as error:
            status = str(error)
        check("A9", status == 200, f"40 connections where 6 files are left, then closed: {status}")
        check("A9", use < 0.05, f"meanwhile {100 * use:.1f} % of a processor")


def a12(given):
    for turn, grace in enumerate(("30", "0", "1")):
        with Tessera(given, "--grace", grace, "--parallel", "64") as server:
            with concurrent.futures.ThreadPoolExecutor(64) as pool:
                streams = [pool.submit(stream, server, body_of(i, 400)) for i in range(64)]
                end = time.time() + 20
                while server.metric("requests_running") < 1 and time.time() < end:
                    time.sleep(0.02)
                time.sleep(0.2 * turn)
                server.process.send_signal(signal.SIGTERM)
                ends = {}
                for one in streams:
                    how = one.result()[2]
                    how = "turned away" if how.startswith("status 503") or "refused" in how or "reset" in how else how
                    ends[how] = ends.get(how, 0) + 1
            status = server.process.wait(timeout=60)
        check("A12", status == 143 and set(ends) <= {"done", "error", "turned away"}, f"SIGTERM with a grace of {grace} s: {ends}, status {status}")


def a13(given):
    with Tessera(given, key="secret") as server:
        api = json.loads(server.ask("GET", "/openapi.json", headers={"Authorization": "Bearer secret"})[1])
        open_paths, wrong = [], []
        for path, methods in api["paths"].items():
            for method in methods:
                for headers in ({}, {"Authorization": "Bearer secre"}, {"X-Api-Key": "secret1"}, {"Authorization": "Basic secret"}):
                    status, _ = server.ask(method.upper(), path.replace("{id}", "m"), b"{}" if method == "post" else None, headers)
                    if status != 401:
                        open_paths.append(path)
                status, _ = server.ask(method.upper(), path.replace("{id}", "m"), b"{}" if method == "post" else None, {"X-Api-Key": "secret"})
                if status in (401, 403):
                    wrong.append(path)
        page = {"/health", "/", "/page.js", "/page.css", "/favicon.svg", "/favicon.ico"}
        check("A13", set(open_paths) <= page and not wrong, f"open without a key: {sorted(set(open_paths))}")


def a14(given):
    with Tessera(given) as server:
        def cached(**more):
            reply = server.post("/v1/completions", dict(body_of(4, 1), prompt=prompt_of(4) * 8, **more))[1]
            return reply["usage"]["prompt_tokens_details"]["cached_tokens"]

        found = [cached(cache_salt="a"), cached(cache_salt="a"), cached(cache_salt="b"), cached(), cached(cache_prompt=False)]
        check("A14", found[1] > 0 and found[0] == found[2] == found[3] == found[4] == 0, f"cached tokens of salt a, a, b, none, and no cache: {found}")


TESTS = {"A1": a1, "A2": a2, "A3": a3, "A4": a4, "A5": a5, "A6": a6, "A7": a7, "A8": a8, "A9": a9, "A12": a12, "A13": a13, "A14": a14}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("tessera")
    arguments.add_argument("model")
    arguments.add_argument("--only", type=lambda text: text.upper().split(","), default=list(TESTS))
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--clients", type=int, default=64)
    arguments.add_argument("--threads", type=int, default=2)
    given = arguments.parse_args()
    for name in given.only:
        if name not in TESTS:
            sys.exit(f"there is no test {name}; expected some of {', '.join(TESTS)}")
        begin = time.time()
        TESTS[name](given)
        print(f"{name:4} took {time.time() - begin:.0f} s", flush=True)
    sys.exit(1 if FAILED else 0)


if __name__ == "__main__":
    main()
