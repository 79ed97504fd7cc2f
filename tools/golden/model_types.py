"""Writes the model types of transformers' Auto classes for text into src/tessera/convert/model_types.json.

    python tools/golden/model_types.py

The reasons of types that no family reads stay as they are; a new type gets "no family file yet", to be replaced by what
it would need. convert/model_types_test.cpp holds the file to the families.
"""

import json
import pathlib

import transformers
from transformers.models.auto import modeling_auto

FILE = pathlib.Path(__file__).resolve().parents[2] / "src/tessera/convert/model_types.json"
CLASSES = {
    "AutoModelForCausalLM": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "AutoModelForMaskedLM": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "AutoModelForSeq2SeqLM": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
}
FAMILIES = FILE.parent / "families"


def known_types():
    """model_type values that some family reads."""
    types = set()
    for path in FAMILIES.glob("*.json"):
        lines = (line for line in path.read_text().split("\n") if not line.strip().startswith("//"))
        types |= set(json.loads("\n".join(lines))["dialects"].get("hf", {}).get("types", []))
    return types


def main():
    before = json.loads(FILE.read_text()) if FILE.exists() else {}
    reasons, known = before.get("refused", {}), known_types()
    lists = {name: sorted(mapping) for name, mapping in CLASSES.items()}
    refused = sorted({kind for kinds in lists.values() for kind in kinds} - known)
    FILE.write_text(
        json.dumps(
            {
                "version": transformers.__version__,
                "classes": lists,
                "refused": {kind: reasons.get(kind, "no family file yet") for kind in refused},
            },
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
