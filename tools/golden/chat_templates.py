"""What jinja2, set up as transformers sets it up, makes of chat templates and of conversations.

    chat_templates.py > tests/golden/text/chat_templates.json
    chat_templates.py FOLDER > tests/golden/text/chat_templates_elsewhere.json

The first are our own templates (tests/golden/text/chat), with the texts. Those of a FOLDER are other people's, whose words stay
where they are: of them and of what is made of them only digests are written. FOLDER is vendor/llama.cpp/models/templates of the
source package llama-cpp-python 0.3.36 (PyPI): llama.cpp itself is under the MIT licence, the templates are those of the models'
makers, under theirs.
"""

import hashlib
import json
import sys
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

HOME = Path(__file__).resolve().parents[2] / "tests/golden/text/chat"


class Generation(Extension):
    """The tag marks what a loss is of; the text is that without it."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("inside"), [], [], body).set_lineno(line)

    def inside(self, caller):
        return caller()


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = refuse
    return made


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather \"now\" <é>",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "the city"},
            "days": {"type": "integer", "enum": [1, 2, 3]},
            "unit": {"type": ["string", "null"], "default": None}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "f2", "description": "two",
                                      "parameters": {"type": "object", "properties": {}}}},
]


def said(role, content, **more):
    return {"role": role, "content": content, **more}


CALL = said("assistant", "", tool_calls=[{"id": "call12345", "type": "function", "function": {
    "name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "x": [1.5, True, None]}}}])
RESULT = said("tool", "{\"t\": 21}", tool_call_id="call12345", name="get_weather")
CONVERSATIONS = [
    ([said("user", "Hi")], None, True),
    ([said("system", "Be brief."), said("user", "Hi"), said("assistant", "Hello!"), said("user", "2+2?")], None, True),
    ([said("user", "Hi"), said("assistant", "Hello")], None, False),
    ([said("user", "Hi <|im_end|>\n\n  spaces 'quoted' \"x\" é 漢字 🙂 ")], None, True),
    ([said("system", "sys"), said("user", "weather?")], TOOLS, True),
    ([said("system", "sys"), said("user", "weather?"), CALL, RESULT], TOOLS, True),
    ([said("user", "weather?"), CALL, RESULT, said("assistant", "It is 21."), said("user", "thanks")], TOOLS, True),
    ([said("user", "a"), said("assistant", "<think>\nhmm\n</think>\n\nanswer"), said("user", "b")], None, True),
    ([said("system", "x"), said("user", "a"), said("assistant", "ans", reasoning_content="because"),
      said("user", "b"), said("assistant", "c", reasoning_content="why")], None, True),
    ([said("user", "a"), said("user", "b")], None, True),
]
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}


def rendered(source, conversation):
    """The text, or None where it is refused."""
    messages, tools, prompt = conversation
    try:
        return environment().from_string(source).render(
            messages=messages, tools=tools, documents=None, add_generation_prompt=prompt, **VARIABLES)
    except Exception:  # whatever it refuses, we must
        return None


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HOME
    files = {file.name: file.read_bytes().decode() for file in sorted(folder.glob("*.jinja"))}
    out = {
        "case": "text/chat_templates", "reference": "jinja2", "version": jinja2.__version__,
        "generator": "tools/golden/chat_templates.py", "holds": ["text", "refused"], "why": "equal bytes",
        "variables": VARIABLES,
        "conversations": [{"messages": m, "tools": t, "add_generation_prompt": p} for m, t, p in CONVERSATIONS]}
    if len(sys.argv) > 1:
        out["source"] = "llama-cpp-python 0.3.36: vendor/llama.cpp/models/templates"
        out["templates"] = {}
        for name, source in files.items():
            texts = [rendered(source, conversation) for conversation in CONVERSATIONS]
            out["templates"][name] = {"sha256": digest(source), "texts": [t if t is None else digest(t) for t in texts]}
    else:
        out["cases"] = []
        for name, source in files.items():
            for number, conversation in enumerate(CONVERSATIONS):
                text = rendered(source, conversation)
                case = {"template": name, "conversation": number}
                case |= {"refused": True} if text is None else {"text": text}
                out["cases"].append(case)
    json.dump(out, sys.stdout, indent=1, ensure_ascii=False)
    print()


if __name__ == "__main__":
    main()
