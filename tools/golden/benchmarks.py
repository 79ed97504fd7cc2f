"""Prompts, choices and right answers that lm-evaluation-harness makes of documents of its tasks.

    python tools/golden/benchmarks.py CHECKOUT tests/golden/tasks/benchmarks.json

CHECKOUT: a clone of https://github.com/EleutherAI/lm-evaluation-harness (its templates and functions are read, the
package need not be installed). The documents are made up; those in another layout (`also`) are the same document as the
authors of the data set publish it.
"""

import ast
import importlib.util
import json
import pathlib
import subprocess
import sys
import types

import jinja2
import yaml

CHECKOUT = pathlib.Path(sys.argv[1])
TASKS = CHECKOUT / "lm_eval/tasks"
sys.modules.setdefault("datasets", types.ModuleType("datasets"))
sys.modules["datasets"].Dataset = object
ENV = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)


class Loader(yaml.SafeLoader):
    pass


Loader.add_constructor("!function", lambda loader, node: ("function", node.value))


def load(path):
    config = yaml.load(path.read_text(), Loader)
    if "include" in config:
        config = {**load(path.parent / config["include"]), **config}
    return config


def call(folder, name):
    module, function = name.rsplit(".", 1)
    spec = importlib.util.spec_from_file_location(module, folder / (module + ".py"))
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return getattr(loaded, function)


def value(config, folder, document, key):
    """doc_to_text, doc_to_target, doc_to_choice as ConfigurableTask (lm_eval/api/task.py) reads them."""
    of = config.get(key)
    if isinstance(of, tuple):
        return call(folder, of[1])(document)
    if not isinstance(of, str):
        return of
    if of in document:
        return document[of]
    text = ENV.from_string(of).render(**document)
    if key == "doc_to_choice":
        return ast.literal_eval(text)
    if key == "doc_to_target" and text.strip().lstrip("-").isdigit() and config.get("doc_to_choice") is not None:
        return ast.literal_eval(text.strip())
    return text


class Map:
    """What process_docs() needs of a data set."""

    def __init__(self, document):
        self.document = document

    def map(self, function):
        return {**self.document, **function(self.document)}


ARC = {"id": "a", "question": "Which « thing » falls?", "choices": {"text": ["a stone", "a cloud", "ßteam"],
       "label": ["A", "B", "C"]}, "answerKey": "C"}
ARC_OWN = {"id": "a", "question": {"stem": ARC["question"], "choices": [
    {"text": t, "label": l} for t, l in zip(ARC["choices"]["text"], ARC["choices"]["label"])]}, "answerKey": "C"}
NUMBERED = {**ARC, "choices": {"text": ["one", "two", "three", "four"], "label": ["1", "2", "3", "4"]}, "answerKey": "2"}
BOOK = {"question_stem": "The sun is", "choices": {"text": ["hot", "cold"], "label": ["A", "B"]}, "answerKey": " A"}
BOOK_OWN = {"question": {"stem": "The sun is", "choices": [{"text": "hot", "label": "A"}, {"text": "cold", "label": "B"}]},
            "answerKey": "A"}
SENSE = {"question": " Where is bread sold? ", "choices": {"text": ["bank", "bakery", "lake", "moon", "mine"],
         "label": ["A", "B", "C", "D", "E"]}, "answerKey": "B"}
TRUTH = {"question": "Is the moon made of cheese?",
         "mc1_targets": {"choices": ["No.", "Yes.", "Partly."], "labels": [1, 0, 0]},
         "mc2_targets": {"choices": ["No.", "It is rock.", "Yes."], "labels": [1, 1, 0]}}
TRUTH_OWN = {"question": TRUTH["question"], "mc1_targets": {"No.": 1, "Yes.": 0, "Partly.": 0},
             "mc2_targets": {"No.": 1, "It is rock.": 1, "Yes.": 0}}

# task, file, document, the same in another layout
CASES = [
    ("hellaswag", "hellaswag/hellaswag.yaml", {
        "activity_label": "Making  tea", "ctx_a": " [header] How to boil [title] Fill a kettle.", "ctx_b": "then THE water [step] Wait",
        "endings": ["boils [title] and sings.", "[a [b] c] freezes", "is left ] alone", "  turns  green   [substeps] now "],
        "label": "3"}, None),
    ("hellaswag", "hellaswag/hellaswag.yaml", {
        "activity_label": "Ölen", "ctx_a": "A man oils", "ctx_b": "", "endings": ["x", "y [open", "z", "ü"], "label": 1}, None),
    ("arc_easy", "arc/arc_easy.yaml", ARC, ARC_OWN),
    ("arc_challenge", "arc/arc_challenge.yaml", NUMBERED, None),
    ("openbookqa", "openbookqa/openbookqa.yaml", BOOK, BOOK_OWN),
    ("piqa", "piqa/piqa.yaml", {"goal": "Open a jar", "sol1": "Turn the lid.", "sol2": "Eat it.", "label": 0}, None),
    ("winogrande", "winogrande/default.yaml", {
        "sentence": "The cup did not fit the box as _ was too_large.", "option1": "the cup", "option2": "the box",
        "answer": "1"}, None),
    ("lambada_openai", "lambada/lambada_openai.yaml", {"text": "He said  it to \"Mary,\" and looked at her face"}, None),
    ("boolq", "super_glue/boolq/default.yaml", {"passage": "Cats purr.", "question": "do cats purr", "label": 1},
     {"passage": "Cats purr.", "question": "do cats purr", "answer": True, "title": "Cat"}),
    ("boolq", "super_glue/boolq/default.yaml", {"passage": "Cats purr.", "question": "do dogs purr", "label": 0},
     {"passage": "Cats purr.", "question": "do dogs purr", "label": False}),
    ("sciq", "sciq/sciq.yaml", {"question": "What is ice?", "support": "  Water freezes.\n", "distractor1": "air",
                                "distractor2": "fire", "distractor3": "sand", "correct_answer": "water"}, None),
    ("truthfulqa_mc1", "truthfulqa/truthfulqa_mc1.yaml", TRUTH, TRUTH_OWN),
    ("truthfulqa_mc2", "truthfulqa/truthfulqa_mc2.yaml", TRUTH, TRUTH_OWN),
    ("mmlu", "mmlu/default/mmlu_high_school_biology.yaml", {
        "question": " What is a cell?\n", "subject": "high_school_biology", "choices": ["a unit", "a star", "a law", "a sea"],
        "answer": 0}, None),
    ("commonsense_qa", "commonsense_qa/default.yaml", SENSE, {
        "question": {"stem": SENSE["question"], "choices": [
            {"text": t, "label": l} for t, l in zip(SENSE["choices"]["text"], SENSE["choices"]["label"])]}, "answerKey": "B"}),
    ("social_iqa", "siqa/siqa.yaml", {"context": "Kim ran.", "question": "How does Kim feel?", "answerA": "tired",
                                      "answerB": "asleep", "answerC": "blue", "label": "1"}, None),
    ("logiqa", "logiqa/logiqa.yaml", {"context": "All A are B.", "question": "What follows?", "label": "c\n",
                                      "options": ["No A.", "No B.", "Some B.", "All B."]}, None),
    ("copa", "super_glue/copa/default.yaml", {"premise": "The glass fell. ", "choice1": "It broke.", "choice2": "I slept.",
                                              "question": "effect", "label": 0}, None),
    ("copa", "super_glue/copa/default.yaml", {"premise": "The glass fell.", "choice1": "Éva pushed it.", "choice2": "I slept.",
                                              "question": "cause", "label": 1}, None),
    ("cb", "super_glue/cb/default.yaml", {"premise": "It rains.", "hypothesis": "It is wet", "label": 2},
     {"premise": "It rains.", "hypothesis": "It is wet", "label": "neutral"}),
    ("sglue_rte", "super_glue/rte/default.yaml", {"premise": "It rains.", "hypothesis": "It is wet.", "label": 0},
     {"premise": "It rains.", "hypothesis": "It is wet.", "label": "entailment"}),
    ("wic", "super_glue/wic/default.yaml", {"sentence1": "A river bank.", "sentence2": "A bank of money.", "word": "bank",
                                            "start1": 8, "end1": 12, "label": 0},
     {"sentence1": "A river bank.", "sentence2": "A bank of money.", "word": "bank", "start1": 8, "end1": 12, "label": False}),
]

cases = []
for task, path, document, also in CASES:
    config, folder = load(TASKS / path), (TASKS / path).parent
    processed = document
    if "process_docs" in config:
        processed = call(folder, config["process_docs"][1])(Map(document))
    case = {"task": task, "document": document}
    if also is not None:
        case["also"] = also
    choices = value(config, folder, processed, "doc_to_choice")
    target = value(config, folder, processed, "doc_to_target")
    context = value(config, folder, processed, "doc_to_text")
    delimiter = config.get("target_delimiter", " ")
    if "description" in config:
        case["description"] = config["description"]
    if config["output_type"] == "multiple_choice" and isinstance(context, int):
        # several inputs: the choices are contexts, and doc_to_text is the right one (construct_requests())
        case["requests"] = [[choice, delimiter + target] for choice in choices]
        case["gold"] = [context]
    elif config["output_type"] == "multiple_choice":
        case["requests"] = [[context, delimiter + choice] for choice in choices]
        case["choices"] = choices
        gold = target
        if isinstance(gold, str):
            gold = choices.index(gold) if gold in choices else int(gold)
        case["gold"] = [gold]
        if task == "truthfulqa_mc2":  # utils.process_results_mc2
            case["gold"] = [i for i, label in enumerate(document["mc2_targets"]["labels"]) if label == 1]
    else:
        case["requests"] = [[context, target]]
    cases.append(case)

commit = subprocess.run(["git", "-C", CHECKOUT, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
story = {"reference": "lm-evaluation-harness", "version": sys.argv[3] if len(sys.argv) > 3 else commit,
         "generator": "tools/golden/benchmarks.py", "cases": cases}
pathlib.Path(sys.argv[2]).write_text(json.dumps(story, indent=1, ensure_ascii=False) + "\n")
