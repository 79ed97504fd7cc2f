"""tensorboard_check.py RUN: the event file of a run, read by the package tensorboard, says what its
log.jsonl says."""
import json
import pathlib
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

run = pathlib.Path(sys.argv[1])
lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
events = EventAccumulator(str(run)).Reload()
tags = events.Tags()["scalars"]
for key in ("loss", "lr", "grad_norm", "valid_loss"):
    want = [(line["step"], line[key]) for line in lines if key in line]
    assert want and key in tags, (key, tags)
    found = [(event.step, event.value) for event in events.Scalars(key)]
    assert [step for step, _ in found] == [step for step, _ in want], (key, found, want)
    for (_, a), (_, b) in zip(found, want):
        assert abs(a - b) <= 1e-6 * max(1, abs(b)), (key, a, b)
