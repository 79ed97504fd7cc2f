"""`tessera serve` beside llama.cpp's server: tokens a second, and the time to the first, for some clients at a time.

    python bench/serve.py build/release/bin/tessera --peer vendor/llama.cpp/build/bin/llama-server MODEL.gguf
        [--clients 1,4,16] [--prompt 128] [--tokens 128] [--shared 0] [--repeats 5] [--threads 2] [--json]

The peer: cmake -S vendor/llama.cpp -B build -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF, target
llama-server. Without --peer, tessera alone.

A client asks again as soon as its answer is complete, four times in all; the clients begin together. Prompts are token ids drawn
from a seed, `--shared` of which begin all of them; answers have exactly --tokens tokens (ignore_eos). The two servers are timed in
turn (A/B/A/B ...), each started anew for every turn, and medians over the turns are reported. The first round of each turn is not
counted. Figures: new tokens of all clients / wall time; time from the last byte of a request to the first text, p50 and p95 by
nearest rank; time per token after that.
"""
import argparse
import http.client
import json
import math
import random
import socket
import statistics
import subprocess
import sys
import threading
import time

ROUNDS = 4
LARGEST_ID = 8000  # ids below it are ordinary text in every vocabulary


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A server process that answers at a port."""

    def __init__(self, command, port):
        self.port = port
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            if self.process.poll() is not None:
                sys.exit(f"{command[0]} ended with {self.process.returncode}")
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        sys.exit(f"{command[0]} does not answer")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()


def tessera(given):
    port = free_port()
    return Server([given.tessera, "serve", given.model, "--port", str(port), "--threads", str(given.threads), "--log", "none",
                   "--parallel", str(max(given.clients))], port)


def peer(given):
    port, slots = free_port(), max(given.clients)
    context = slots * (given.prompt + given.tokens + 64)
    return Server([given.peer, "-m", given.model, "--port", str(port), "-t", str(given.threads), "-tb", str(given.threads), "-np",
                   str(slots), "-c", str(context), "-fa", "on"], port)


def ask(port, prompt, tokens):
    """Seconds to the first text and to the last of one streamed answer."""
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "n_predict": tokens, "temperature": 0, "ignore_eos": True,
                       "stream": True})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    begin, first, last = time.perf_counter(), None, None
    reply = connection.getresponse()
    if reply.status != 200:
        sys.exit(f"status {reply.status}: {reply.read()[:500]}")
    for line in reply:
        if not line.startswith(b"data: {"):
            continue
        choices = json.loads(line[6:]).get("choices", [])
        if choices and choices[0].get("text"):
            last = time.perf_counter()
            first = first or last
    connection.close()
    if first is None:
        sys.exit("an answer without text")
    return first - begin, last - begin


def prompts_of(given, clients):
    draw = random.Random(7)
    shared = [draw.randrange(300, LARGEST_ID) for _ in range(given.shared)]
    return [[shared + [draw.randrange(300, LARGEST_ID) for _ in range(given.prompt - given.shared)] for _ in range(ROUNDS)]
            for _ in range(clients)]


def measure(server, given, clients):
    """One turn: tokens a second, times to the first token, times per token."""
    prompts, times = prompts_of(given, clients), []
    meet, begin = threading.Barrier(clients), []

    def client(mine):
        ask(server.port, mine[0], given.tokens)  # not counted
        meet.wait()
        begin.append(time.perf_counter())
        for prompt in mine[1:]:
            times.append(ask(server.port, prompt, given.tokens))

    threads = [threading.Thread(target=client, args=(mine,)) for mine in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - min(begin)
    return (len(times) * given.tokens / wall, [first for first, _ in times],
            [(last - first) / (given.tokens - 1) for first, last in times])


def rank(values, share):
    """By nearest rank."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("tessera")
    arguments.add_argument("model")
    arguments.add_argument("--peer")
    arguments.add_argument("--clients", type=lambda text: [int(n) for n in text.split(",")], default=[1, 4, 16])
    arguments.add_argument("--prompt", type=int, default=128)
    arguments.add_argument("--tokens", type=int, default=128)
    arguments.add_argument("--shared", type=int, default=0)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--json", action="store_true")
    given = arguments.parse_args()
    if not 0 <= given.shared < given.prompt or given.tokens < 2:
        sys.exit("expected --shared below --prompt, and --tokens of 2 or more")
    kinds = {"tessera": tessera}
    if given.peer:
        kinds["llama.cpp"] = peer
    turns = {(name, clients): [] for name in kinds for clients in given.clients}
    for _ in range(given.repeats):
        for clients in given.clients:
            for name, start in kinds.items():
                with start(given) as server:
                    turns[name, clients].append(measure(server, given, clients))
    rows = []
    for (name, clients), all_turns in turns.items():
        median = lambda figure: statistics.median(figure(turn) for turn in all_turns)
        rows.append({"server": name, "clients": clients, "prompt": given.prompt, "shared": given.shared, "tokens": given.tokens,
                     "turns": given.repeats, "tokens_per_s": median(lambda turn: turn[0]),
                     "first_token_p50_s": median(lambda turn: rank(turn[1], 0.5)),
                     "first_token_p95_s": median(lambda turn: rank(turn[1], 0.95)),
                     "per_token_p50_s": median(lambda turn: rank(turn[2], 0.5))})
    if given.json:
        print(json.dumps(rows, indent=2))
        return
    print("| server | clients | tokens/s | first token p50 | p95 | per token p50 |\n|---|---|---|---|---|---|")
    for row in sorted(rows, key=lambda row: (row["clients"], row["server"])):
        print(f"| {row['server']} | {row['clients']} | {row['tokens_per_s']:.1f} | {1000 * row['first_token_p50_s']:.0f} ms | "
              f"{1000 * row['first_token_p95_s']:.0f} ms | {1000 * row['per_token_p50_s']:.1f} ms |")


main()
