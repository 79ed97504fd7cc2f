"""tensorboard_check.py RUN: the event file of a run, read by the package tensorboard, says what its
log.jsonl says, and so does its log.csv."""
import csv
import json
import pathlib
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def numbers(value, under=""):
    """Every number of a line, those of objects in it as "losses/NAME"."""
    for key, one in value.items():
        if isinstance(one, dict):
            yield from numbers(one, under + key + "/")
        elif isinstance(one, (int, float)):
            yield under + key, one


run = pathlib.Path(sys.argv[1])
lines = [dict(numbers(json.loads(line))) for line in (run / "log.jsonl").read_text().splitlines()]
events = EventAccumulator(str(run)).Reload()
names = {name for line in lines for name in line} - {"step", "seconds"}
for name in ("loss", "lr", "grad_norm", "valid_loss", "noise_scale", "norms/layers.0.mixer/update"):
    assert name in names, (name, names)
assert names == set(events.Tags()["scalars"]), (names, events.Tags())
for name in names:
    want = [(line["step"], line[name]) for line in lines if name in line]
    found = [(event.step, event.value) for event in events.Scalars(name)]
    assert [step for step, _ in found] == [step for step, _ in want], (name, found, want)
    for (_, a), (_, b) in zip(found, want):
        assert abs(a - b) <= 1e-6 * max(1, abs(b)), (name, a, b)

with open(run / "log.csv", newline="") as file:
    rows = list(csv.DictReader(file))
assert len(rows) == len(lines)
for row, line in zip(rows, lines):
    assert {name: float(text) for name, text in row.items() if text} == line, (row, line)
