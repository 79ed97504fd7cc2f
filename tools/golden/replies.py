"""Makes tests/golden/text/replies.json: answers with calls of tools as chat templates of real families
write them, by jinja2, and the markers that each template holds.

    replies.py FOLDER > tests/golden/text/replies.json      FOLDER: llama.cpp's models/templates
"""

import json
import os
import re
import sys
from pathlib import Path

from chat_templates import environment

# which form each family's calls have; None: one that is not read
FORMATS = {
    "Bielik-11B-v3.0-Instruct": "hermes",
    "MiMo-VL": "hermes",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Reka-Edge": "hermes",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "Qwen3-Coder": "qwen3_coder",
    "Qwen3.5-4B": "qwen3_coder",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3_coder",
    "StepFun3.5-Flash": "qwen3_coder",
    "ByteDance-Seed-OSS": "seed",
    "GLM-4.6": "glm",
    "GLM-4.7-Flash": "glm",
    "Spark2.5": "glm",
    "inclusionai-ling-3.0-flash": "glm",
    "poolside-Laguna-S-2.1": "glm",
    "poolside-Laguna-XS-2.1": "glm",
    "poolside-Laguna-XS.2": "glm",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral_named",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral_named",
    "unsloth-mistral-Devstral-Small-2507": "mistral_named",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3",
    "Cohere2MoE": "command_r",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "command_r",
    "Apriel-1.6-15b-Thinker-fixed": "tool_calls",
    "unsloth-Apriel-1.5": "tool_calls",
    "MiniMax-M1": "tool_calls",
    "NVIDIA-Nemotron-Nano-v2": "nemotron",
    "GigaChat3.1-10B-A1.8B": "gigachat",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek",
    "deepseek-ai-DeepSeek-V3.1": "deepseek_v3_1",
    "deepseek-ai-DeepSeek-V3.2": "dsml",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "dsml_v4",
    "deepseek-ai-DeepSeek-V4": "dsml_v4",
    "MiniMax-M2": "minimax",
    "moonshotai-Kimi-K2": "kimi",
    "meetkai-functionary-medium-v3.1": "functionary",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    # forms that are not read, and templates without calls
    "Apertus-8B-Instruct": None,
    "LFM2.5-8B-A1B": None,
    "openai-gpt-oss-120b": None,
    "google-gemma-2-2b-it": None,
    "google-gemma-4-31B-it": None,
    "llama-cpp-rwkv-world": None,
    "microsoft-Phi-3.5-mini-instruct": None,
    "openbmb-MiniCPM5-1B": None,
    "muse-glimmer": None,
}
ENDS = ["<|im_end|>", "</s>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>",
        "<|END_OF_TURN_TOKEN|>", "<|end|>", "[e~[", "<SPECIAL_12>", "<end_of_sentence>", "<|message_sep|>",
        "<seed:eos>", "<sep>", "<|role_end|>", "</assistant>"]

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"]}}},
    {"type": "function", "function": {
        "name": "note-2", "description": "Notes", "parameters": {
            "type": "object", "properties": {"text": {"type": "string"}, "tags": {"type": "array"}}}}},
]
FIRST = ("get_weather", {"city": "São Paulo", "days": 2})
SECOND = ("note-2", {"text": 'a "b" </x> {c}\n12', "tags": ["x", {"y": 1.5}]})
CASES = [("", [FIRST]), ("", [FIRST, SECOND]), ("Let me see.", [SECOND])]


def messages(content, calls, as_object):
    return [{"role": "user", "content": "Q"},
            {"role": "assistant", "content": content, "tool_calls": [
                {"id": f"abcdef12{i}", "type": "function", "function": {
                    "name": name, "arguments": arguments if as_object else json.dumps(arguments, ensure_ascii=False)}}
                for i, (name, arguments) in enumerate(calls)]}]


def answer(template, content, calls):
    variables = {"tools": TOOLS, "bos_token": "<s>", "eos_token": "</s>"}
    for as_object in (True, False):
        try:
            prompt = template.render(messages=messages("", [], True)[:1], add_generation_prompt=True, **variables)
            whole = template.render(messages=messages(content, calls, as_object), add_generation_prompt=False, **variables)
        except Exception:  # a template may refuse what others take
            continue
        common = os.path.commonprefix([prompt, whole])
        if common.rfind("<") > common.rfind(">"):  # not within a marker
            common = common[:common.rfind("<")]
        text = whole[len(common):]
        for end in ENDS:
            if end in text:
                text = text[:text.index(end)]
        # some print lists as Python does
        lists = all(json.dumps(a["tags"]) in text for _, a in calls if "tags" in a)
        if all(name in text for name, _ in calls) and content in text and lists:
            return text
    return None


def main():
    made = environment()
    made.globals["strftime_now"] = lambda form: "26 Jul 2024"
    rows = []
    for name, form in sorted(FORMATS.items()):
        source = (Path(sys.argv[1]) / (name + ".jinja")).read_text(encoding="utf-8")
        markers = sorted(set(re.findall(
            r"</?[a-zA-Z｜|][^<>\s]{0,40}[>=]|\[/?[A-Z_]+\]|\b(?:arguments|parameters|tool_name|ipython|reasoning_effort|"
            r"function_calls|tool_calls|minimax:tool_call|```json)\b|```json|invoke name=|<parameter name=|<invoke name=|｜DSML｜", source)))
        template = made.from_string(source)
        answers = []
        for content, calls in CASES if form else []:
            text = answer(template, content, calls)
            if text is not None:
                answers.append({"text": text, "content": content,
                                "calls": [{"name": n, "arguments": a} for n, a in calls]})
        rows.append({"template": name, "format": form, "markers": markers, "answers": answers})
    json.dump({"case": "text/replies", "reference": "jinja2", "version": "3.1.6",
               "generator": "tools/golden/replies.py", "holds": ["calls", "content", "format"],
               "tools": TOOLS, "rows": rows}, sys.stdout, ensure_ascii=False, indent=1)
    print()


if __name__ == "__main__":
    main()
