"""Goldens of the checkpoint families: tiny models of transformers, what they compute, and why.

    python tools/golden/families.py --out tests/golden/families [--only llama] [--missing]

Writes, per family, a folder per case (config.json, io.safetensors, case.json and, where a case
needs its own, model.safetensors), keys.json (what each config key does), rejects.json (what must
be refused) and gguf/ (the same weights in llama.cpp's dialect). README.md beside this file
explains the layout. A second run gives the same bytes. With --missing, cases that have their folder
already are read instead of made anew.
"""

import argparse
import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

import family_cases
import gguf_dialect
import qwen_mtp
import reference
import released_models

MOVED = 5e-4  # a case that moves less would not be noticed by a test
STILL = 2e-5  # a neutral case may differ by rounding
TOLERANCE = 1e-4  # float32 against float32, logits of order 1 to 10


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def flat(config, prefix=""):
    """Nested config keys as dotted paths."""
    result = {}
    for key, value in config.items():
        if isinstance(value, dict) and "__float__" not in value:
            result.update(flat(value, f"{prefix}{key}."))
        else:
            result[prefix + key] = value
    return result


def changed_keys(before, after):
    """{key: [before, after]} of two config.json; "absent" where a side lacks the key."""
    left, right = flat(before), flat(after)
    return {
        key: [left.get(key, "absent"), right.get(key, "absent")]
        for key in sorted(left.keys() | right.keys())
        if left.get(key, "absent") != right.get(key, "absent")
    }


class Writer:
    """Writes one family; remembers config, weights and results of every case."""

    def __init__(self, family, folder, missing):
        self.family, self.folder, self.missing = family, folder, missing
        self.configs, self.results, self.weights, self.io = {}, {}, {}, {}
        vocab = family.settings.get("vocab_size")
        if family.pair:
            self.inputs = reference.pair_inputs(family.name, vocab, family.features)
            self.mask = self.inputs["decoder_attention_mask"]
        elif family.features:
            self.inputs, self.mask = reference.feature_inputs(family.name, *family.features), None
        else:
            self.inputs = reference.inputs(family.name, vocab, family.padding, family.types)
            self.mask = self.inputs["attention_mask"]
        if family.global_tokens:
            self.inputs["global_attention_mask"] = reference.global_mask(family.global_tokens)
        self.rows = []

    def write(self):
        for case in self.family.cases:
            if self.missing and (self.folder / case.name / "case.json").exists():
                self.read_case(case.name)
            elif isinstance(case, family_cases.Case):
                self.write_case(case)
            else:
                self.write_rewrite(case)
        self.write_gguf()
        self.write_rejects()
        self.write_keys()

    # -- cases -------------------------------------------------------------------------------

    def write_case(self, case):
        family = self.family
        architecture = case.architecture or family.architecture
        model = reference.build(
            f"{family.name}/{family.draw}" if family.draw else family.name,
            architecture,
            family.model_type,
            family_cases.settings_of(family, case),
            family.zero_centred_norms,
            family.gains,
            case.storage,
        )
        folder = self.folder / case.name
        reference.save(model, folder)
        if family.as_released:
            file, saved = folder / "model.safetensors", json.loads((folder / "config.json").read_text())
            save_file(family.as_released(load_file(file), saved), file, metadata={"format": "pt"})
        self.weights[case.name] = self.share_weights(case.name)
        config = json.loads((folder / "config.json").read_text())

        # what counts is what a reader of the files gets
        loaded = self.load(config, case.name, architecture)
        result = reference.run(loaded, self.inputs, family.padding)
        self.configs[case.name], self.results[case.name] = config, result

        facts = {"base": case.of} if case.name != "base" else {}
        if case.name != "base" and architecture == self.architecture_of(case.of):
            facts["changed"] = changed_keys(self.configs[case.of], config)
            facts["moved_by"] = reference.difference(result, self.results[case.of], self.mask)
            self.check_moved(case, facts["moved_by"])
        if case.length_dependent:
            facts["length_dependent"] = True
        if case.padding_leaks:
            facts["padding_leaks"] = case.padding_leaks
        if case.neutral:
            facts["neutral"] = True
            self.io[case.name] = self.io[case.of]
        else:
            self.io[case.name] = case.name
            facts.update(self.write_io(loaded, result, folder, case.text))
        self.write_facts(case, facts, architecture)

    def read_case(self, name):
        """What an earlier run made."""
        folder = self.folder / name
        facts = json.loads((folder / "case.json").read_text())
        self.configs[name] = json.loads((folder / "config.json").read_text())
        self.weights[name], self.io[name] = facts["weights"], facts["io"]
        results = load_file(self.folder / facts["io"] / "io.safetensors")
        self.results[name] = {key: results[key] for key in reference.RESULTS if key in results}
        self.rows.append((name, facts))

    def architecture_of(self, name):
        case = next(c for c in self.family.cases if c.name == name)
        if isinstance(case, family_cases.Rewrite):
            return self.architecture_of(case.of)
        return case.architecture or self.family.architecture

    def share_weights(self, name):
        """The earlier case whose file is the same, byte for byte; otherwise the case itself."""
        own = self.folder / name / "model.safetensors"
        for earlier in dict.fromkeys(self.weights.values()):
            if (self.folder / earlier / "model.safetensors").read_bytes() == own.read_bytes():
                own.unlink()
                return earlier
        return name

    def load(self, config, weights, architecture="", **options):
        """The reference's model of a config and the weights of a case."""
        return reference.load(
            architecture or self.family.architecture,
            config,
            self.weights_file(weights),
            self.family.attention,
            **options,
        )

    def weights_file(self, name):
        return self.folder / self.weights[name] / "model.safetensors"

    def check_moved(self, case, moved):
        if case.neutral and moved > STILL:
            raise RuntimeError(f"{self.family.name}/{case.name}: neutral, yet moved by {moved}")
        if not case.neutral and moved <= MOVED:
            raise RuntimeError(f"{self.family.name}/{case.name}: moved by {moved} only")

    def write_io(self, model, result, folder, text=True):
        tensors, facts = dict(self.inputs), {}
        if self.family.padding == "none":
            tensors.pop("attention_mask", None)
        tensors.update(result)
        facts["largest"] = max(
            round(float(reference.counted(value, self.mask).abs().max()), 3)
            for name, value in result.items()
            if not name.startswith("encoder_")
        )
        masked = type(model).__name__.endswith("ForMaskedLM")  # no next token
        if "logits" in result and text and not self.family.no_text and not masked:
            found, facts["greedy"] = reference.greedy(
                model, self.family.name, self.family.settings["vocab_size"], self.family.features
            )
            self.check_greedy(folder.name, facts["greedy"])
            tensors.update(found)
        save_file(tensors, folder / "io.safetensors")
        return facts

    def check_greedy(self, name, facts):
        """Stops where the text says little; a listed case carries the reason why it may."""
        case = f"{self.family.name}/{name}"
        few = facts["distinct"] < reference.MIN_DISTINCT
        if facts["near_tie"]:
            raise RuntimeError(f"{case}: every greedy text has a near tie")
        if few and name != "base" and case in family_cases.FEW_TOKENS:
            facts["few"] = family_cases.FEW_TOKENS[case]
        elif few:
            raise RuntimeError(f"{case}: {facts['distinct']} distinct tokens in the most varied text")

    def reference(self, architecture):
        if architecture in released_models.CLASSES:
            return f"{released_models.CLASSES[architecture].source}, {architecture}, CPU"
        return f"transformers {architecture}, {self.family.attention} attention, CPU"

    def write_facts(self, case, facts, architecture):
        write_json(
            self.folder / case.name / "case.json",
            {
                "case": f"families/{self.family.name}/{case.name}",
                "reference": self.reference(architecture),
                "version": f"transformers {transformers.__version__}, torch {torch.__version__}",
                "generator": "tools/golden/families.py",
                "seed": reference.SEED,
                "dtype": "float32",
                "tolerance": TOLERANCE,
                "weights": self.weights[case.name],
                "io": self.io[case.name],
                "compare": (
                    "all positions"
                    if self.family.padding == "none"
                    else "decoder_attention_mask == 1, encoder's where attention_mask == 1"
                    if self.family.pair
                    else "attention_mask == 1"
                ),
                "padding": self.family.padding,
                **facts,
                "why": case.why or "one config key changed, all else equal",
            },
        )
        self.rows.append((case.name, facts))
        moved = facts.get("moved_by")
        print(
            f"  {case.name:40s} {'' if moved is None else f'{moved:.4g}':>10s}  "
            f"weights {self.weights[case.name]}, io {self.io[case.name]} {facts.get('greedy', '')}"
        )

    # -- the same model in other words -------------------------------------------------------

    def write_rewrite(self, case):
        folder = self.folder / case.name
        folder.mkdir(parents=True, exist_ok=True)
        architecture = self.architecture_of(case.of)
        config = self.configs[case.of]
        if case.config:
            config = case.config(json.loads(json.dumps(config)))
        self.configs[case.name] = config
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        self.weights[case.name] = self.weights[case.of]
        if case.tensors:
            tensors = case.tensors(load_file(self.weights_file(case.of)))
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
            self.weights[case.name] = case.name
        if case.reference_refuses:
            loaded, result = None, self.results[case.of]
        else:
            loaded = self.load(
                config, case.name, architecture, extra_allowed=bool(case.tensors)
            )
            result = reference.run(loaded, self.inputs, self.family.padding)
        if case.ahead:
            of = qwen_mtp if "mtp.fc.weight" in tensors else reference
            found = of.ahead(loaded, tensors, self.inputs["input_ids"][0])
            save_file(found, folder / "ahead.safetensors")
        self.results[case.name] = result
        moved = reference.difference(result, self.results[case.of], self.mask)
        facts = {
            "base": case.of,
            "changed": changed_keys(self.configs[case.of], config),
            "moved_by": moved,
        }
        if case.reference_refuses:
            facts["reference_refuses"] = case.reference_refuses
        if case.unread:
            facts["unread"] = self.check_unread(case, config, result)
        if case.same_result:
            if moved > STILL:
                raise RuntimeError(f"{self.family.name}/{case.name}: rewritten, moved by {moved}")
            self.io[case.name] = self.io[case.of]
        else:
            if moved <= MOVED:
                raise RuntimeError(f"{self.family.name}/{case.name}: moved by {moved} only")
            self.io[case.name] = case.name
            facts.update(self.write_io(loaded, result, folder))
        case.why = case.why or ("class defaults" if case.name == "defaults" else "older spelling")
        self.write_facts(case, facts, architecture)

    def check_unread(self, case, config, result):
        """The keys, of which another value gives the same."""
        for key in case.unread:
            changed = json.loads(json.dumps(config))
            at = changed
            *path, last = key.split(".")
            for part in path:
                at = at[part]
            at[last] = mutations(at[last])[0] if last != "partial_rotary_factor" else 0.75
            found = reference.run(self.load(changed, case.name), self.inputs, self.family.padding)
            moved = reference.difference(found, result, self.mask)
            if moved > STILL:
                raise RuntimeError(f"{self.family.name}/{case.name}: {key} is read: {moved}")
        return list(case.unread)

    # -- other files -------------------------------------------------------------------------

    def write_gguf(self):
        for name, architecture in self.family.gguf.items():
            tensors = load_file(self.weights_file(name))
            path = self.folder / "gguf" / f"{name}.gguf"
            if self.missing and path.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            case = next(c for c in self.family.cases if c.name == name)
            gguf_dialect.write(
                path,
                architecture,
                self.configs[name],
                tensors,
                older=name in self.family.gguf_older,
                storage=getattr(case, "storage", ""),
            )

    def write_rejects(self):
        family = self.family
        rejects = [
            {
                "name": "unknown_model_type",
                "set": {"model_type": "frobnicator"},
                "expect": "frobnicator",
            },
            {"name": "unknown_key", "set": {"frobnicate": 1}, "expect": "frobnicate"},
            {"name": "missing_tensor", "drop_tensor": family.missing, "expect": family.missing},
            {
                "name": "extra_tensor",
                "add_tensor": {"name": "frobnicate.weight", "dtype": "F32", "shape": [2, 3]},
                "expect": "frobnicate.weight",
            },
            {
                "name": "wrong_shape",
                "reshape_tensor": {"name": family.missing, "shape": [1, 1]},
                "expect": family.missing,
            },
        ]
        for reject in family.rejects:
            rejects.append({"expect": "frobnicate", **reject})
        write_json(self.folder / "rejects.json", [{"base": "base", **r} for r in rejects])

    def write_keys(self):
        """What each key of the base's config.json does, as the reference behaves."""
        moving = {}
        for name, facts in self.rows:
            case = next(c for c in self.family.cases if c.name == name)
            if isinstance(case, family_cases.Case) and not case.neutral:
                for key in facts.get("changed", {}):
                    moving.setdefault(key, []).append(name)
        config = self.configs["base"]
        tops = {key.split(".")[0] for key in moving}
        keys = {
            "mathematics": moving,
            "shape": self.measured_shapes(config, tops),
            "neutral": {},
            "refused": {},
            "moved": {},
        }
        for key, value in config.items():
            if (
                key in tops
                or key in keys["shape"]
                or key in ("model_type", "architectures")
            ):
                continue
            for other in mutations(value):
                kind, found = self.try_mutation({**config, key: other})
                keys[kind].setdefault(key, []).append([other, found])
        keys["initialisation"] = {
            key: keys["moved"].pop(key) for key in self.family.init_only if key in keys["moved"]
        }
        keys["precision"] = {
            key: keys["moved"].pop(key) for key in self.family.precision if key in keys["moved"]
        }
        if not keys["precision"]:
            del keys["precision"]
        if keys["moved"]:
            raise RuntimeError(f"{self.family.name}: keys without a case matter: {keys['moved']}")
        del keys["moved"]
        keys["neutral"] = sorted(keys["neutral"])
        keys["refused"] = {key: tried[0][1] for key, tried in sorted(keys["refused"].items())}
        write_json(self.folder / "keys.json", keys)

    def measured_shapes(self, config, tops):
        """The shape keys that do betray themselves; those that a case changes are taken as said."""
        return [
            key
            for key in self.family.shape_keys
            if key in tops
            or key not in config
            or any(self.try_mutation({**config, key: v})[0] == "refused" for v in mutations(config[key]))
        ]

    def try_mutation(self, config):
        try:
            model = self.load(config, "base")
            result = reference.run(model, self.inputs, self.family.padding)
        except Exception as error:  # the reference may refuse a value in any way it likes
            return "refused", f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
        moved = reference.difference(result, self.results["base"], self.mask)
        return ("neutral" if moved <= STILL else "moved", moved)


def mutations(value):
    """Other values of the same kind, to see whether a key matters at all."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 3]
    if isinstance(value, float):
        return [value * 2 + 0.05]
    if isinstance(value, str):
        return [value + "x"] if value != "float32" else ["bfloat16"]
    return [3] if value is None else []


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", action="append", help="a family; repeatable")
    parser.add_argument("--missing", action="store_true", help="makes only what is not there")
    options = parser.parse_args()
    known = [family.name for family in family_cases.FAMILIES]
    for name in options.only or []:
        if name not in known:
            sys.exit(f"no family {name!r}; there are {', '.join(known)}")
    for family in family_cases.FAMILIES:
        if options.only and family.name not in options.only:
            continue
        print(family.name)
        folder = options.out / family.name
        if not options.missing:
            shutil.rmtree(folder, ignore_errors=True)
        Writer(family, folder, options.missing).write()
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        print(f"  {size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
