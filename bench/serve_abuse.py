"""Clients and faults that `tessera serve` must survive: many, slow, broken, gone; files and memory that lack. Each line says what
must hold and what was found.

    python bench/serve_abuse.py build/release/bin/tessera MODEL [--only A1,A5] [--seconds 60] [--clients 64] [--requests 20000]
        [--kills 100] [--threads 2] [--table]

Exit status 1 where one does not hold. Python's own library alone. With stories260K the protocol is tried, with a larger
model the load. --table prints what was found as rows of a table.

A1  streams for --seconds, of which a fifth leaves half way: texts are those of the same seed alone, none is lost. Of prompts that come
    at once the first tokens come one after the other, as they are read: the last within twice the median and a little. A short
    prompt does not wait until a long one is read
A2  slow heads and bodies: cut after their time, others are served
A3  readers of a byte a second: to others they are what readers are, until so much is unsent that their texts rest, and nobody
    afterwards; memory is bounded
A4  connections that say nothing: gone after their time
A5  clients that leave at every moment of a request: nothing runs and nothing is held afterwards
A6  broken HTTP and JSON, every parameter with values of all kinds: an answer, or an error of 4xx in 100 ms; no 5xx, never silence
A7  limits, and one more: the exact status
A8  --requests requests: memory, files and threads are those after a quarter of them
A9  few file descriptors: others than the last ones are served, and all are when there are some again
A10 kill -9 at every change to a file while a session is saved, --kills times: the old file or the new one, whole (by the library
    tessera_kill_at of the build folder; indexes are killed in cli_test)
A11 what is logged cannot be written: nobody notices. Allocations that fail are serve_faults_test's
A12 SIGTERM among streams: each ends whole or with an error, the status is 143
A13 keys: without one only /health, by both its names, and the page
A14 salts: what others asked is not found in the cache
A17 rounds of bad clients (malformed requests, 128 streams abandoned, 16 never read), without and with a prefix cache of 256 MiB: idle
    afterwards, the anonymous memory without the prefix cache is what it was after the first round, and /metrics accounts for the resident memory within 10 %
A15 is `make sanitize`, A16 tools/golden/openai_check.py and serve_clients_check.py
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

FAILED, ROWS = [], []


def check(test, holds, what):
    print(f"{test:4} {'ok  ' if holds else 'FAIL'} {what}", flush=True)
    ROWS.append((test, holds, what))
    if not holds:
        FAILED.append(test)


def rank(times, share):
    """By nearest rank."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * share // 100) - 1))]


class Tessera:
    def __init__(self, given, *options, key=None, files=None, log="none", errors=None):
        self.port = free_port()
        environment = dict(os.environ, OMP_WAIT_POLICY="passive")
        if key:
            environment["TESSERA_API_KEY"] = key
        limit = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))) if files else None
        self.errors = errors or tempfile.TemporaryFile()
        self.process = subprocess.Popen([given.tessera, "serve", given.model, "--alias", "m", "--port", str(self.port), "--log", log,
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
        if not self.errors.readable():
            return ""
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

    @staticmethod
    def comes_to(condition, seconds):
        end = time.time() + seconds
        while time.time() < end:
            if condition():
                return True
            time.sleep(0.1)
        return False

    def comes_to_rest(self, seconds=20):
        return self.comes_to(lambda: not any(self.metric(m) for m in ("requests_running", "requests_waiting", "state_reserved_bytes")),
                             seconds)

    def resident(self):
        with open(f"/proc/{self.process.pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def anonymous(self):
        with open(f"/proc/{self.process.pid}/smaps_rollup") as f:
            return 1024 * int(next(line for line in f if line.startswith("Anonymous:")).split()[1])

    def accounted(self):
        """The sum of tessera_memory_bytes over its kinds."""
        return sum(float(line.split()[-1]) for line in self.ask("GET", "/metrics")[1].decode().splitlines()
                   if line.startswith("tessera_memory_bytes{"))

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


def at_once(server, bodies):
    """Times to the first text of requests that are sent within milliseconds, in the order of their lengths as given."""
    meet = threading.Barrier(len(bodies))

    def one(body):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
        connection.connect()
        meet.wait()
        begin = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(dict(body, stream=True)), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        first = None
        for line in reply:
            if first is None and line.startswith(b"data: {"):
                first = time.perf_counter() - begin
        connection.close()
        return first or float("inf")

    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(one, bodies))


def ids_of(seed, n):
    draw = random.Random(seed)
    return [draw.randrange(3, 400) for _ in range(n)]


def a1(given):
    kinds = 16
    with Tessera(given, "--parallel", "32", "--queue", "1024") as server:
        alone = [server.post("/v1/completions", body_of(i))[1]["choices"][0]["text"] for i in range(kinds)]
        # all at once, none like another: they are read one after the other, and nobody waits for more than all of that
        one = {"max_tokens": 60, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        at_once(server, [dict(one, prompt=ids_of(i, 40)) for i in range(32)])
        firsts = sorted(at_once(server, [dict(one, prompt=ids_of(100 + i, 40)) for i in range(32)]))
        middle, last = rank(firsts, 50), firsts[-1]
        check("A1", last <= 2.5 * middle + 0.05,
              f"32 prompts of 40 tokens at once: first text of the first after {1000 * firsts[0]:.0f} ms, of half after "
              f"{1000 * middle:.0f}, of all after {1000 * last:.0f}")
        # short ones behind a long one
        context = server.post("/tokenize", {"content": "a"})[1].get("max_model_len") or 2048
        length = min(2000, context - 64)
        by_itself = at_once(server, [dict(one, prompt=ids_of(7, length), max_tokens=2)])[0]
        threading.Thread(target=at_once, args=(server, [dict(one, prompt=ids_of(8, length), max_tokens=2)])).start()
        time.sleep(0.1 * by_itself)
        short = at_once(server, [dict(one, prompt=ids_of(200 + i, 16), max_tokens=2) for i in range(4)])
        check("A1", max(short) <= 0.6 * by_itself + 0.05,
              f"4 prompts of 16 tokens behind one of {length}: first text after {1000 * max(short):.0f} ms at most; the long one takes "
              f"{1000 * by_itself:.0f} by itself")
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
        check("A1", set(ends) <= {"done", "left"} and not wrong,
              f"{given.clients} streams for {given.seconds:.0f} s: {ends}, {len(wrong)} texts unlike those alone")
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


class Readers:
    """Clients that ask for the same and read it at a pace: bytes a second each, None for all there is."""

    def __init__(self, server, n, body, pace):
        self.sockets, self.pace, self.stopped = [], pace, threading.Event()
        text = json.dumps(dict(body, stream=True)).encode()
        for _ in range(n):
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            s.connect(("127.0.0.1", server.port))
            s.sendall(head("/v1/completions", len(text)) + text)
            s.setblocking(False)
            self.sockets.append(s)
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        while not self.stopped.wait(1 if self.pace else 0.005):
            for s in self.sockets:
                try:
                    while s.recv(self.pace or 1 << 16) and not self.pace:
                        pass
                except OSError:
                    pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()
        for s in self.sockets:
            s.close()


def a3(given):
    # what answers hold on their way is told apart from the states of texts, and from what is kept of these
    with Tessera(given, "--parallel", "48", "--prefix-cache", "0") as server:
        context = server.post("/tokenize", {"content": "a"})[1].get("max_model_len") or 2048
        body = {"prompt": "a", "max_tokens": min(1000, context - 60), "ignore_eos": True, "temperature": 0, "logprobs": 20}
        before = times_of(server, 30)
        with Readers(server, 32, body, None):
            server.comes_to(lambda: server.metric("requests_running") >= 32, 5)
            usual = times_of(server, 30)
        server.comes_to_rest(60)
        memory = server.resident()
        with Readers(server, 32, body, 1):
            server.comes_to(lambda: server.metric("requests_running") >= 32, 5)
            among = times_of(server, 30)
            # their texts are made as those of others, until they are complete or too much of them is not read
            all_rest = server.comes_to(lambda: server.metric("requests_running") == server.metric("requests_resting"), 60)
            resting, more = server.metric("requests_resting"), server.resident() - memory - server.metric("state_bytes")
            behind = times_of(server, 30)
        check("A3", rank(among, 97) <= 1.5 * rank(usual, 97) + 0.02,
              f"others' p97: {1000 * rank(before, 97):.0f} ms by themselves, {1000 * rank(usual, 97):.0f} beside 32 that read, "
              f"{1000 * rank(among, 97):.0f} beside 32 of a byte a second")
        check("A3", all_rest and resting > 0 and rank(behind, 97) <= 1.5 * rank(before, 97) + 0.02,
              f"{resting:.0f} of the 32 rest; others' p97 is then {1000 * rank(behind, 97):.0f} ms")
        check("A3", more <= 32 << 20, f"{more / 2**20:.1f} MiB more than before, but for states")
        check("A3", server.comes_to_rest(60), "nothing runs, waits or is reserved afterwards")


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
        values = [-1, 0, 2**31, 2**63, 2**64, 1e308, -1e308, 0.5, None, "", "a" * (1 << 20), [], [[]], {}, True, {"a": 1}, ["a"], [1]]
        counts, bad, slowest, connection = {}, [], (0.0,), http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        for path, methods in api["paths"].items():
            if "requestBody" not in methods.get("post", {}) or path in ("/models/unload", "/models/load"):
                continue
            properties = methods["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
            base = {k: v for k, v in {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "input": "a", "content": "a", "query": "a",
                                      "documents": ["a"], "tokens": [1], "input_prefix": "a", "max_tokens": 1}.items() if k in properties}
            if path == "/tokenize":
                base = {"content": "a"}
            for field in properties:
                for value in values:
                    body = dict(base)
                    body[field] = value
                    # what would be a long text, and right
                    if field in ("max_tokens", "n_predict", "max_completion_tokens") and "timeout_ms" in properties:
                        body["timeout_ms"] = 100
                    sent = json.dumps(body).encode()
                    begin = time.perf_counter()
                    connection.request("POST", path, sent, {"Content-Type": "application/json"})
                    reply = connection.getresponse()
                    text, status = reply.read(), reply.status
                    took = time.perf_counter() - begin
                    counts[status] = counts.get(status, 0) + 1
                    if status >= 500 and status != 504:
                        bad.append((path, field, str(value)[:20], status, text[:200]))
                    if 400 <= status < 500:  # a text of 1 MiB is read before it is found too long
                        slowest = max(slowest, (took - 0.1 * (len(sent) >> 20), path, field, str(value)[:20]))
        check("A6", not bad, f"every parameter with {len(values)} values: {counts} {bad[:5]}")
        check("A6", slowest[0] <= 0.1, f"an error of 4xx takes {1000 * slowest[0]:.0f} ms at most, but for 100 a MiB: {slowest[1:]}")
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

        first = given.requests // 4
        for n in range(0, first, 500):
            some(500)
        memory, files, tasks = server.resident(), server.files(), server.tasks()
        for n in range(first, given.requests, 500):
            some(500)
        check("A8", server.resident() <= 1.05 * memory,
              f"{memory / 2**20:.0f} MiB after {first} requests, {server.resident() / 2**20:.0f} after {given.requests}")
        check("A8", server.files() <= files and server.tasks() <= tasks, f"files {files}, then {server.files()}; threads {tasks}, then {server.tasks()}")


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


def a10(given):
    """A program that saves a session is killed before its n-th change to a file, or half way in a write."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(given.tessera)))
    killer = next((os.path.join(root, name) for root, _, names in os.walk(folder) for name in names if name == "libtessera_kill_at.so"), None)
    if killer is None:
        return check("A10", False, f"no libtessera_kill_at.so below {folder}; build the target tessera_kill_at")

    def run(kill_at, *more):
        environment = dict(os.environ, OMP_WAIT_POLICY="passive")
        if kill_at:
            environment.update(LD_PRELOAD=killer, TESSERA_KILL_AT=str(kill_at))
        return subprocess.run([given.tessera, "generate", given.model, "--session", session, "--max-new-tokens", "3", "--temperature", "0",
                               "--threads", "1", *more], env=environment, capture_output=True, timeout=120).returncode

    def content():
        with open(session, "rb") as f:
            return f.read()

    with tempfile.TemporaryDirectory() as work:
        session = os.path.join(work, "session")
        assert run(0, "--prompt", "Once upon a time") == 0
        old = content()
        assert run(0) == 0
        new, bad, kills, kept, at = content(), [], 0, 0, 0
        while kills < given.kills:
            with open(session, "wb") as f:
                f.write(old)
            at += 1
            status, found = run(at), content()
            if found not in (old, new) or status not in (0, -9):
                bad.append((at, status))
            kept += found == old
            kills += status == -9
            at = at if status else 0  # all moments have been tried: from the first one again
        check("A10", not bad and kept, f"{kills} kills while a session was saved: {kept} times the old file, else the new one {bad[:3]}")


def a11(given):
    # what cannot be logged is not, and that is all
    with open("/dev/full", "w") as full, Tessera(given, log="json", errors=full) as server:
        want = server.post("/v1/completions", body_of(1))[1]["choices"][0]["text"]
        said = [server.post("/v1/completions", body_of(1))[1]["choices"][0]["text"] for _ in range(20)]
        check("A11", said == [want] * 20 and server.process.poll() is None, "20 requests are answered where their log is a full disk")


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
        page = {"/health", "/v1/health", "/", "/page.js", "/page.css", "/favicon.svg", "/favicon.ico"}
        check("A13", set(open_paths) <= page and not wrong, f"open without a key: {sorted(set(open_paths))}")


def a14(given):
    with Tessera(given) as server:
        def cached(**more):
            reply = server.post("/v1/completions", dict(body_of(4, 1), prompt=prompt_of(4) * 8, **more))[1]
            return reply["usage"]["prompt_tokens_details"]["cached_tokens"]

        found = [cached(cache_salt="a"), cached(cache_salt="a"), cached(cache_salt="b"), cached(), cached(cache_prompt=False)]
        check("A14", found[1] > 0 and found[0] == found[2] == found[3] == found[4] == 0, f"cached tokens of salt a, a, b, none, and no cache: {found}")


def bad_round(server, seed):
    """Malformed requests, 128 streams that are abandoned after a few pieces, 16 that are never read; none is left at the end."""
    def malformed(i):
        texts = [b"{", b"[]", b'{"prompt": 1e999}', b'{"messages": "' + b"x" * 100_000 + b'"}', b"\xff" * 5000, b'{"prompt": "a", "n_predict": "b"}']
        paths = ["/v1/completions", "/v1/chat/completions", "/completion", "/v1/embeddings", "/tokenize"]
        return server.ask("POST", paths[i % len(paths)], texts[i % len(texts)])[0]

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        bad = list(pool.map(malformed, range(120)))
        list(pool.map(lambda i: stream(server, body_of(1000 * seed + i, 60), leave_after=1 + i % 7), range(128)))
    unread = []
    for i in range(16):
        body = json.dumps(dict(body_of(1000 * seed + 500 + i, 200), stream=True)).encode()
        s = server.connect()
        s.sendall(head("/v1/completions", len(body)) + body)
        unread.append(s)
    time.sleep(2)
    for s in unread:
        s.close()
    return all(400 <= status < 500 for status in bad)


def a17(given):
    for cache in (0, 256):
        with Tessera(given, "--parallel", "32", "--queue", "1024", "--prefix-cache", str(cache)) as server:
            server.post("/v1/completions", body_of(0))
            found, accounts, refused = [], [], True
            begin = server.anonymous()
            for seed in range(6):
                refused = bad_round(server, seed) and refused
                server.comes_to_rest(120)
                time.sleep(6)  # idle memory is given back after a few seconds
                found.append(server.anonymous() - server.metric("prefix_cache_bytes"))
                accounts.append(server.accounted() / server.resident())
            check("A17", refused and found[-1] <= 1.1 * found[0] + 16e6,
                  f"prefix cache of {cache} MiB: {begin / 1e6:.0f} MB of anonymous memory before, without the cache after rounds of bad clients "
                  f"{', '.join(f'{one / 1e6:.0f}' for one in found)} MB")
            check("A17", all(abs(one - 1) <= 0.1 for one in accounts),
                  f"prefix cache of {cache} MiB: /metrics accounts for {100 * min(accounts):.0f} to {100 * max(accounts):.0f} % of the resident memory")


TESTS = {"A1": a1, "A2": a2, "A3": a3, "A4": a4, "A5": a5, "A6": a6, "A7": a7, "A8": a8, "A9": a9, "A10": a10, "A11": a11, "A12": a12, "A13": a13, "A14": a14, "A17": a17}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("tessera")
    arguments.add_argument("model")
    arguments.add_argument("--only", type=lambda text: text.upper().split(","), default=list(TESTS))
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--clients", type=int, default=64)
    arguments.add_argument("--requests", type=int, default=20_000)
    arguments.add_argument("--kills", type=int, default=100)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--table", action="store_true")
    given = arguments.parse_args()
    for name in given.only:
        if name not in TESTS:
            sys.exit(f"there is no test {name}; expected some of {', '.join(TESTS)}")
        begin = time.time()
        TESTS[name](given)
        print(f"{name:4} took {time.time() - begin:.0f} s", flush=True)
    if given.table:
        for test, holds, what in ROWS:
            print(f"| {test} | {'yes' if holds else '**no**'} | {what} |")
    sys.exit(1 if FAILED else 0)


if __name__ == "__main__":
    main()
