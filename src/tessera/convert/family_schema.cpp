#include "tessera/convert/propose.h"

namespace tessera::convert {

const char* family_schema() {
  return R"~json~({
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "Model family of tessera",
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "$schema": {"type": "string"},
    "family": {"type": "string", "description": "name, unique among all families"},
    "fragment": {"type": "string", "description": "instead of family: a part that families include"},
    "about": {"type": "string", "description": "one sentence"},
    "base": {"type": "string", "description": "family to build on"},
    "include": {"type": "array", "items": {"type": "string"}, "description": "fragments"},
    "drop": {
      "type": "array", "items": {"type": "string"},
      "description": "entries of the base to leave out: dotted paths, or tensors.GLOB by tessera's names"
    },
    "unsure": {"type": "array", "items": {"type": "string"}, "description": "open questions, printed on loading"},
    "spec": {"type": "object", "description": "template of the spec; \"=\" begins an expression"},
    "let": {"type": "object", "description": "derived values"},
    "meanings": {
      "type": "object", "additionalProperties": {"type": "string"},
      "description": "values, functions and tables: what each is, for `tessera families show` and the guide"
    },
    "values": {"type": "object", "description": "values from a spec, for writing"},
    "tables": {"type": "object", "description": "constants"},
    "functions": {"type": "object", "description": "\"name(a, b)\": body"},
    "tensors": {"type": "array", "items": {"$ref": "#/$defs/rule"}},
    "dialects": {
      "type": "object", "minProperties": 1, "additionalProperties": false,
      "properties": {
        "hf": {"$ref": "#/$defs/dialect"}, "gguf": {"$ref": "#/$defs/dialect"},
        "llama2c": {"$ref": "#/$defs/dialect"}, "ggmf": {"$ref": "#/$defs/dialect"}, "pth": {"$ref": "#/$defs/dialect"}
      }
    }
  },
  "oneOf": [{"required": ["family"]}, {"required": ["fragment"]}],
  "$defs": {
    "reasons": {"type": "object", "additionalProperties": {"type": "string"}},
    "renames": {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
    "name": {
      "anyOf": [
        {"type": "string"},
        {
          "type": "object", "additionalProperties": false, "required": ["for", "name"],
          "properties": {"for": {"type": "string"}, "name": {"type": "string"}}
        }
      ]
    },
    "names": {"anyOf": [{"$ref": "#/$defs/name"}, {"type": "array", "items": {"$ref": "#/$defs/name"}}]},
    "side": {
      "anyOf": [
        {"$ref": "#/$defs/names"},
        {
          "type": "object", "additionalProperties": false, "required": ["name"],
          "properties": {"name": {"$ref": "#/$defs/names"}, "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}}}
        }
      ]
    },
    "step": {
      "type": "object",
      "properties": {
        "transpose": {}, "reshape": {}, "squeeze": {}, "unsqueeze": {}, "split": {}, "join": {}, "stack": {}, "unstack": {}, "order": {},
        "interleave": {}, "deinterleave": {}, "swap_halves": {}, "first_rows": {}, "rows_before": {}, "repeat": {},
        "mxfp4": {}, "integers": {}, "ternary": {"type": "object"}, "round_ternary": {}, "add": {}, "scale": {}, "apply": {"enum": ["exp", "log", "neg"]},
        "only": {"type": "array", "items": {"type": "integer"}},
        "$if": {"type": "string"},
        "then": {"type": "array", "items": {"$ref": "#/$defs/step"}},
        "else": {"type": "array", "items": {"$ref": "#/$defs/step"}}
      },
      "additionalProperties": false
    },
    "rule": {
      "type": "object", "additionalProperties": false,
      "properties": {
        "for": {"type": "string", "description": "\"i in range(n_layers)\""},
        "if": {"type": "string", "description": "a condition"},
        "rules": {"type": "array", "items": {"$ref": "#/$defs/rule"}},
        "ours": {"$ref": "#/$defs/names"}, "keep": {"type": "string"}, "same_as": {"type": "string"},
        "copy_of": {"type": "string"}, "values": {"type": "string"}, "why": {"type": "string"},
        "hf": {"$ref": "#/$defs/side"}, "gguf": {"$ref": "#/$defs/side"},
        "llama2c": {"$ref": "#/$defs/side"}, "ggmf": {"$ref": "#/$defs/side"}, "pth": {"$ref": "#/$defs/side"}
      }
    },
    "dialect": {
      "type": "object", "additionalProperties": false,
      "properties": {
        "types": {"type": "array", "items": {"type": "string"}, "description": "model_type, or general.architecture"},
        "when": {"type": "string"}, "lift": {"type": "string"}, "about": {"type": "string"},
        "read": {"type": "object", "description": "values from the config"},
        "write": {"description": "the config from values"}, "read_only": {"type": ["string", "null"]},
        "written": {"type": "object"}, "fixed": {"type": "object"}, "remark": {},
        "expect": {"type": "object", "additionalProperties": {"type": ["array", "null"]}},
        "keys": {"$ref": "#/$defs/renames", "description": "key of the base: key of the file"},
        "names": {"$ref": "#/$defs/renames", "description": "tensor name of the base: name in the file; * = any text"},
        "ignored_keys": {"$ref": "#/$defs/reasons"}, "ignored_tensors": {"$ref": "#/$defs/reasons"},
        "ignored_heads": {"$ref": "#/$defs/reasons"},
        "claims": {"type": "array", "items": {"type": "string"}}
      }
    }
  }
}
)~json~";
}

}  // namespace tessera::convert
