"""Prompts of RULER around a context, and how often the words of its frequent-words task occur.

    python tools/golden/ruler.py CHECKOUT tests/golden/tasks/ruler.json

CHECKOUT: a clone of https://github.com/NVIDIA/RULER, whose templates (scripts/data/synthetic/constants.py) are read and
filled as its generators do it.
"""

import importlib.util
import json
import pathlib
import subprocess
import sys

import numpy as np
from scipy.special import zeta

CHECKOUT = pathlib.Path(sys.argv[1])
spec = importlib.util.spec_from_file_location("constants", CHECKOUT / "scripts/data/synthetic/constants.py")
constants = importlib.util.module_from_spec(spec)
spec.loader.exec_module(constants)


def template(task):
    return constants.TASKS[task]["template"] + constants.TASKS[task]["answer_prefix"]


def needles(values, queries, answers):
    """generate_input_output() of niah.py."""
    text, kind = template("niah"), values
    query = ", ".join(queries[:-1]) + ", and " + queries[-1] if len(queries) > 1 else queries[0]
    if answers == 1:
        text = text.replace("Some", "A").replace("are all", "is").replace("are", "is").replace("answers", "answer")
        kind = kind[:-1]
    return text.format(type_needle_v=kind, context="<context>", query=query)


NAMES = {"needles": "niah", "variables": "variable_tracking", "common_words": "common_words_extraction",
         "frequent_words": "freq_words_extraction", "questions": "qa"}
story = {
    "reference": "RULER",
    "version": sys.argv[3] if len(sys.argv) > 3 else subprocess.run(
        ["git", "-C", CHECKOUT, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip(),
    "generator": "tools/golden/ruler.py",
    "answer_tokens": {ours: constants.TASKS[theirs]["tokens_to_generate"] for ours, theirs in NAMES.items()},
    "needles": [{"task": task, "queries": queries, "prompt": needles(values, queries, answers)} for task, values, queries, answers in [
        ("niah_single_1", "numbers", ["warm-lake"], 1), ("niah_single_3", "uuids", ["warm-lake"], 1),
        ("niah_multivalue", "numbers", ["warm-lake"], 4), ("niah_multiquery", "numbers", ["a-b", "c-d", "e-f", "g-h"], 4)]],
    # tessera leaves out the space at the end of the answer's beginning
    "variables": template("variable_tracking").format(context="<context>", query="12345", num_v=5).rstrip(" "),
    "common_words": template("common_words_extraction").format(context="<context>", query="", num_cw=10),
    "frequent_words": template("freq_words_extraction").format(context="<context>", query=""),
    "questions": template("qa").format(context="<context>", query="<query>"),
    "frequencies": {str(n): [int(c) for c in (n * (np.arange(1, 41) ** -2.0) / zeta(2.0)).astype(int)] for n in (64, 300, 1000)},
}
pathlib.Path(sys.argv[2]).write_text(json.dumps(story, indent=1) + "\n")
