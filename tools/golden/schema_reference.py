"""Schemas and instances for the grammars of JSON schemas, judged by PyPI's jsonschema.

    schema_reference.py draw COUNT FILE   draws schemas with instances, a line each
    schema_reference.py check FILE        every "answer" must be valid JSON of its "schema"
"""

import json
import random
import sys

import jsonschema

WORDS = ["a", "b", "name", "kind", "é", "x y", 'q"', "long_name"]


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def draw_string(r):
    out = {"type": "string"}
    roll = r.random()
    if roll < 0.3:
        least = r.randrange(4)
        out["minLength"] = least
        if r.random() < 0.7:
            out["maxLength"] = least + r.randrange(5)
    elif roll < 0.5:
        out["pattern"] = r.choice(
            ["^[a-z]+$", "^a|b$", "[0-9]{2}", "^(ab|c)*$", "^\\w{1,3}-\\d+$", "^[^a-y]?z$", "x+y?"]
        )
    elif roll < 0.65:
        out["format"] = r.choice(["date", "time", "date-time", "uuid", "ipv4", "ipv6", "email"])
    elif roll < 0.75:
        out["enum"] = r.sample(WORDS, r.randrange(1, 4))
    return out


def draw_number(r):
    out = {"type": r.choice(["integer", "number"])}
    if r.random() < 0.7:
        scale = r.choice([1, 10, 1000])
        low = r.randint(-scale, scale)
        if out["type"] == "number" and r.random() < 0.6:
            low = round(low + r.random(), r.randrange(1, 4))
        out[r.choice(["minimum", "exclusiveMinimum"])] = low
        if r.random() < 0.7:
            high = low + r.choice([1, 2, 0.5, 7, 1234])
            if out["type"] == "integer":
                high = int(high + 1)
            out[r.choice(["maximum", "exclusiveMaximum"])] = round(high, 4)
    elif r.random() < 0.3 and out["type"] == "integer":
        out["multipleOf"] = r.choice([2, 3, 7, 25])
    return out


def draw_array(r, depth):
    out = {"type": "array"}
    if r.random() < 0.4:
        out["prefixItems"] = [draw(r, depth + 1) for _ in range(r.randrange(1, 3))]
    if r.random() < 0.8:
        out["items"] = r.choice([False, draw(r, depth + 1), draw(r, depth + 1)])
    if r.random() < 0.5:
        out["minItems"] = r.randrange(3)
    if r.random() < 0.5:
        out["maxItems"] = out.get("minItems", 0) + r.randrange(4)
    if r.random() < 0.1:
        out["uniqueItems"] = True
    return out


def draw_object(r, depth):
    names = r.sample(WORDS, r.randrange(0, 4))
    out = {"type": "object", "properties": {n: draw(r, depth + 1) for n in names}}
    if names and r.random() < 0.7:
        out["required"] = r.sample(names, r.randrange(1, len(names) + 1))
    roll = r.random()
    if roll < 0.4:
        out["additionalProperties"] = False
    elif roll < 0.6:
        out["additionalProperties"] = draw(r, depth + 1)
    if r.random() < 0.1:
        out.setdefault("required", []).append("extra")
    return out


def draw(r, depth=0):
    roll = r.random()
    if depth > 3:
        roll = 0.3 + 0.4 * roll
    if roll < 0.2:
        return draw_object(r, depth)
    if roll < 0.32:
        return draw_array(r, depth)
    if roll < 0.5:
        return draw_string(r)
    if roll < 0.68:
        return draw_number(r)
    if roll < 0.72:
        return {"type": r.choice(["null", "boolean", ["null", "integer"], ["string", "boolean"]])}
    if roll < 0.76:
        return {"const": draw_value(r, 2)}
    if roll < 0.8:
        return {"enum": [draw_value(r, 2) for _ in range(r.randrange(1, 4))]}
    if roll < 0.85:
        return {"anyOf": [draw(r, depth + 1) for _ in range(r.randrange(1, 4))]}
    if roll < 0.89:
        return {"oneOf": [draw(r, depth + 1) for _ in range(2)]}
    if roll < 0.93:
        return {"allOf": [draw_number(r), {"minimum": r.randint(-20, 5)}]}
    if roll < 0.96:
        base = draw_object(r, depth)
        names = list(base["properties"])
        base["anyOf"] = [{"required": [n]} for n in names] or [{}]
        return base
    return {} if depth else {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": draw(r, depth + 1),
                    "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
                },
                "required": ["value"],
                "additionalProperties": False,
            }
        },
    }


def draw_value(r, depth=0):
    roll = r.random() * (1 if depth < 3 else 0.6)
    if roll < 0.15:
        return r.randint(-30, 30)
    if roll < 0.25:
        return round(r.uniform(-5, 5), 2)
    if roll < 0.45:
        return r.choice(WORDS + ["", "ab", "abc", "12", "z", "xy", "cab", "2024-01-31", "1.2.3.4"])
    if roll < 0.55:
        return r.choice([True, False, None])
    if roll < 0.8:
        return [draw_value(r, depth + 1) for _ in range(r.randrange(4))]
    return {n: draw_value(r, depth + 1) for n in r.sample(WORDS, r.randrange(3))}


def fit(r, schema, root, depth=0):
    """Tries to make a value of the schema; may fail to."""
    if depth > 6 or schema in (True, {}):
        return draw_value(r, 2)
    if not isinstance(schema, dict):
        return draw_value(r, 3)
    if "$ref" in schema:
        return fit(r, root["$defs"]["node"], root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return r.choice(schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema and "type" not in schema:
            return fit(r, r.choice(schema[key]), root, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = r.choice(kind)
    if kind == "object":
        out = {}
        for name, inner in schema.get("properties", {}).items():
            if name in schema.get("required", []) or r.random() < 0.5:
                out[name] = fit(r, inner, root, depth + 1)
        for name in schema.get("required", []):
            if name not in out:
                out[name] = fit(r, schema.get("additionalProperties", {}), root, depth + 1)
        return out
    if kind == "array":
        first = schema.get("prefixItems", [])
        n = r.randint(schema.get("minItems", 0), schema.get("maxItems", schema.get("minItems", 0) + 2))
        return [
            fit(r, first[i] if i < len(first) else schema.get("items", {}), root, depth + 1)
            for i in range(n)
        ]
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", -9))
        high = schema.get("maximum", schema.get("exclusiveMaximum", low + 20))
        value = r.uniform(low, high)
        step = schema.get("multipleOf")
        if step:
            return step * r.randrange(9)
        return round(value) if kind == "integer" or r.random() < 0.3 else round(value, 2)
    if kind == "string":
        n = r.randint(schema.get("minLength", 0), schema.get("maxLength", schema.get("minLength", 0) + 3))
        return "".join(r.choice("abzé\n\"9") for _ in range(n))
    return draw_value(r, 3)


def checker(schema):
    return jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )


def main():
    if sys.argv[1] == "draw":
        r = random.Random(7)
        with open(sys.argv[3], "w", encoding="utf-8") as out:
            for _ in range(int(sys.argv[2])):
                schema = draw(r)
                judge = checker(schema)
                values = [fit(r, schema, schema) for _ in range(6)] + [draw_value(r) for _ in range(4)]
                rows = [{"text": compact(v), "valid": judge.is_valid(v)} for v in values]
                out.write(json.dumps({"schema": schema, "instances": rows}) + "\n")
        return 0
    wrong = seen = 0
    with open(sys.argv[2], encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            seen += 1
            try:
                value = json.loads(row["answer"])
            except ValueError as error:
                problem = str(error)
            else:
                problem = next((e.message for e in checker(row["schema"]).iter_errors(value)), None)
            if problem:
                wrong += 1
                if wrong <= 5:
                    print(json.dumps(row["schema"]), row["answer"], problem, file=sys.stderr)
    print(f"{seen} answers, {wrong} wrong", file=sys.stderr)
    return 1 if wrong or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
