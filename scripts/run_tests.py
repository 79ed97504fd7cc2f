#!/usr/bin/env python3
"""Runs every test of a build folder: run_tests.py BUILD (scripts/test.sh sets the environment)

A GoogleTest program is split into shards by its cost (seconds, TESTS_COST in cmake/Layers.cmake). As
many shards run at a time as there are cores, the longest first, each on a core of its own: a program
then computes with one thread unless its tests choose a number. JOBS sets how many run at a time; with
JOBS=1 programs use all cores. Prints a line for each program, the output of shards that failed, and
one closing line: N passed, N failed, N skipped. Temporary files are in memory where /dev/shm has room,
because tests write thousands of small files with fsync; TMPDIR chooses another folder.
"""
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile

SHARD_SECONDS = 30
MEMORY = "/dev/shm"
MEMORY_BYTES = 8 << 30  # free there, at least: packages with libtorch in them take some


class Test:
    """An entry of ctest and the shards of it that are to run."""

    def __init__(self, entry: dict):
        self.name, self.command = entry["name"], entry["command"]
        properties = {p["name"]: p["value"] for p in entry.get("properties", [])}
        cost = float(properties.get("COST", 1))
        # other checks are no GoogleTest programs: whole, and judged by their exit status
        self.is_program = len(self.command) == 1
        self.shards = max(1, math.ceil(cost / SHARD_SECONDS)) if self.is_program else 1
        self.seconds = cost / self.shards
        self.left = self.shards
        self.passed = self.failed = self.skipped = 0

    def start(self, shard: int, core: int | None, build: str, files: str, log) -> subprocess.Popen:
        environment, command = os.environ | {"TMPDIR": files}, [self.command[0], "--gtest_brief=1"]
        if self.shards > 1:
            environment |= {"GTEST_TOTAL_SHARDS": str(self.shards), "GTEST_SHARD_INDEX": str(shard)}
        if not self.is_program:
            command = ["ctest", "--test-dir", build, "--output-on-failure", "-R", f"^{self.name}$"]
        bind = None if core is None else lambda: os.sched_setaffinity(0, {core})
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                stderr=subprocess.STDOUT, preexec_fn=bind)

    def finish(self, status: int, output: str) -> None:
        self.left -= 1
        if self.is_program:
            def count(pattern: str) -> int:
                return sum(int(n) for n in re.findall(pattern, output, re.M))
            self.passed += count(r"^\[  PASSED  \] (\d+) test")
            self.skipped += count(r"^\[  SKIPPED \] (\d+) test")
            failed = len(re.findall(r"^\[  FAILED  \] .*ms\)$", output, re.M))
            self.failed += failed or int(status != 0)  # it crashed
        else:
            self.passed += int(status == 0)
            self.failed += int(status != 0)
        if status != 0:
            print(output, end="" if output.endswith("\n") else "\n")
        if self.left == 0:
            print(f"{self.name:<28} {self.passed:5} passed {self.skipped:4} skipped {self.failed:4} failed", flush=True)


def folder_of_files() -> str:
    if "TMPDIR" in os.environ:
        return os.environ["TMPDIR"]
    if os.access(MEMORY, os.W_OK):
        room = os.statvfs(MEMORY)
        # tests start programs that they install there
        if room.f_bavail * room.f_frsize >= MEMORY_BYTES and not room.f_flag & os.ST_NOEXEC:
            return MEMORY
    return tempfile.gettempdir()


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__.splitlines()[0], file=sys.stderr)
        return 2
    build = sys.argv[1]
    listed = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"],
                            capture_output=True, text=True, check=True)
    tests = [Test(entry) for entry in json.loads(listed.stdout)["tests"] if entry.get("command")]
    if not tests:
        print(f"no test was found in {build}")
        return 1
    cores = sorted(os.sched_getaffinity(0))
    jobs = int(os.environ.get("JOBS") or len(cores))
    waiting = [(test, shard) for test in tests for shard in range(test.shards)]
    waiting.sort(key=lambda item: -item[0].seconds)  # stable: else in ctest's order
    free = list(range(jobs))
    running = {}
    files = tempfile.TemporaryDirectory(prefix="tessera-tests-", dir=folder_of_files(), ignore_cleanup_errors=True)
    # SIGTERM ends like Ctrl-C: programs that run are ended
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while waiting or running:
            while waiting and free:
                slot, (test, shard) = free.pop(0), waiting.pop(0)
                core = cores[slot % len(cores)] if jobs > 1 else None
                log = tempfile.TemporaryFile()
                process = test.start(shard, core, build, files.name, log)
                running[process.pid] = (process, test, slot, log)
            pid, status = os.wait()
            process, test, slot, log = running.pop(pid)
            process.returncode = os.waitstatus_to_exitcode(status)
            log.seek(0)
            test.finish(process.returncode, log.read().decode(errors="replace"))
            log.close()
            free.append(slot)
    except KeyboardInterrupt:
        for signal_of_end in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_of_end, signal.SIG_IGN)
        for process, *_ in running.values():
            process.terminate()
            process.wait()
        print("interrupted", file=sys.stderr)
        return 130
    passed, failed, skipped = (sum(getattr(t, of) for t in tests) for of in ("passed", "failed", "skipped"))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
