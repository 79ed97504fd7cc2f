"""What programs of others make of `tessera serve`: schemathesis of /openapi.json, prometheus-client of /metrics.

    python tools/golden/serve_clients_check.py TESSERA MODEL [--examples 30]

Needs the packages `schemathesis` (4.x) and `prometheus-client`. Starts the server with a key on a free port; schemathesis makes requests
that follow the schemas and such that do not, to every route that the model can answer, and holds the answers to what is documented.
Exits with 1 at the first difference; 77 where a package is absent. About two minutes with a small model.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request

try:
    import schemathesis  # noqa: F401
    from prometheus_client.parser import text_string_to_metric_families
except ImportError as error:
    print(f"{error.name} is not installed", file=sys.stderr)
    sys.exit(77)

KEY = "secret"
# that a right body may be refused follows from the model (a context, a vocabulary) and from fields together: no schema says that
LEFT_OUT = "positive_data_acceptance"
# what a model cannot do is a 400 that says so
CONFIG = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "4xx", "504"]
[checks.negative_data_rejection]
expected-statuses = ["4xx"]
"""


def check(holds, what):
    if not holds:
        sys.exit(f"serve_clients_check: {what}")


class Server:
    def __init__(self, program, model):
        environment = dict(os.environ, TESSERA_API_KEY=KEY)
        self.process = subprocess.Popen([program, "serve", model, "--port", "0", "--log", "none", "--deadline", "5", "--max-tokens", "16"],
                                        stdout=subprocess.PIPE, text=True, env=environment)
        self.address = self.process.stdout.readline().strip()
        check(self.address.startswith("http://"), "the server does not say where it is")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=60)

    def get(self, path):
        request = urllib.request.Request(self.address + path, headers={"Authorization": "Bearer " + KEY})
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.read().decode()


def routes(server, examples):
    api = json.loads(server.get("/openapi.json"))
    names = [operation["operationId"] for methods in api["paths"].values() for operation in methods.values()]
    check(len(set(names)) == len(names), "an operationId comes twice")
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "schemathesis.toml")
        with open(config, "w") as file:
            file.write(CONFIG)
        status = subprocess.run([os.path.join(os.path.dirname(sys.executable), "st"), "--config-file", config, "run",
                                 server.address + "/openapi.json", "--checks", "all", "--exclude-checks", LEFT_OUT, "--max-examples",
                                 str(examples), "--seed", "1", "--request-timeout", "30", "--header", "Authorization: Bearer " + KEY,
                                 "--exclude-path", "/models/unload", "--exclude-path", "/models/load", "--no-shrink"], cwd=folder).returncode
    check(status == 0, "schemathesis found something")
    check(json.loads(server.get("/health"))["status"] == "ok", "the server is not well afterwards")


def metrics(server):
    families = list(text_string_to_metric_families(server.get("/metrics")))
    names = {family.name for family in families}
    check({"tessera_requests", "tessera_time_to_first_token_seconds", "process_cpu_seconds"} <= names, f"names: {sorted(names)}")
    for family in families:
        check(family.type in ("counter", "gauge", "histogram") and family.documentation, f"{family.name}: {family.type}")
        if family.type != "histogram":
            continue
        buckets = [(float(s.labels["le"]), s.value) for s in family.samples if s.name.endswith("_bucket")]
        count = next(s.value for s in family.samples if s.name.endswith("_count"))
        check(buckets == sorted(buckets) and buckets[-1] == (float("inf"), count), f"{family.name}: buckets do not add up")
        check([n for _, n in buckets] == sorted(n for _, n in buckets), f"{family.name}: buckets are not cumulative")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("tessera")
    arguments.add_argument("model")
    arguments.add_argument("--examples", type=int, default=30)
    given = arguments.parse_args()
    with Server(given.tessera, given.model) as server:
        routes(server, given.examples)
        metrics(server)
    print("serve_clients_check: schemathesis and prometheus-client agree with what is documented")


if __name__ == "__main__":
    main()
