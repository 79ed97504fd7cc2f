"""One model with fewer and fewer key/value heads: perplexity, tokens a second and bytes that a token keeps.

    python bench/kv_heads.py build/release/bin/tessera bench/kv_heads.json examples/data/shakespeare.txt --train-fraction 0.9 --window 128 --depth 8192
    python bench/kv_heads.py build/release/bin/tessera MODEL TEXT --heads 8,4,2,1
    python bench/kv_heads.py build/release/bin/tessera MODEL TEXT --heads 8,4,2,1 --train recipe.json

MODEL is a recipe, and then every row is trained by it from the beginning, with so many key/value heads; or what `tessera convert` reads, and then
heads are pooled by their means (`tessera convert --kv-heads`). With --train, every one of these is trained on by the recipe from where the pooling
left it, for as long as it says, and the model as it was too, so that rows differ in their heads alone. Speed is that of one text behind --depth
tokens, where keys and values are what is read.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(str(part) for part in command)}: {done.stderr.strip()}")
    return done.stdout


def read_recipe(path):
    """A recipe and what it extends; comments are lines of their own."""
    path = pathlib.Path(path)
    recipe = json.loads(re.sub(r"^\s*//.*$", "", path.read_text(), flags=re.MULTILINE))
    if "extends" in recipe:
        recipe = {**read_recipe(path.parent / recipe.pop("extends")), **recipe}
    texts = recipe.get("data", {}).get("train", [])
    if texts:
        recipe["data"] = {**recipe["data"], "train": [os.path.join(path.parent.absolute(), text) for text in texts]}
    return recipe


def with_heads(part, heads):
    """A spec with so many key/value heads in every mixer that says them."""
    if isinstance(part, list):
        return [with_heads(item, heads) for item in part]
    if isinstance(part, dict):
        return {key: heads if key == "n_kv_heads" else with_heads(value, heads) for key, value in part.items()}
    return part


def trained(tessera, recipe, work, name):
    path = work / f"{name}.json"
    path.write_text(json.dumps(recipe))
    run(tessera, "train", path, "--out", work / name)
    return work / name / "latest"


def model_of(given, heads, work):
    if given.recipe is not None:
        return trained(given.tessera, {**given.recipe, "spec": with_heads(given.recipe["spec"], heads)}, work, f"run{heads}")
    folder = work / f"heads{heads}"
    run(given.tessera, "convert", given.model, "--kv-heads", heads, "--to", "tessera", "--out", folder)
    if not given.train:
        return folder
    recipe = read_recipe(given.train)
    recipe.pop("model", None)
    recipe["init"] = {"from": str(folder)}
    return trained(given.tessera, recipe, work, f"run{heads}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("tessera")
    arguments.add_argument("model")
    arguments.add_argument("text", help="what perplexity is of")
    arguments.add_argument("--heads", default="8,4,2,1", help="key/value heads; the first is the model's own")
    arguments.add_argument("--train", help="a recipe whose data every model is trained on by")
    arguments.add_argument("--train-fraction", type=float, default=0, help="perplexity is of what stands behind this part of the text")
    arguments.add_argument("--tokens", type=int, default=16384, help="of the text, at most")
    arguments.add_argument("--window", type=int, default=512)
    arguments.add_argument("--depth", type=int, default=1024, help="tokens before those whose decoding is timed")
    arguments.add_argument("--threads", type=int, default=2)
    given = arguments.parse_args()
    given.recipe = read_recipe(given.model) if pathlib.Path(given.model).suffix == ".json" else None
    print("| key/value heads | perplexity | tokens/s | bytes a token |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as work:
        for heads in map(int, given.heads.split(",")):
            model = model_of(given, heads, pathlib.Path(work))
            said = json.loads(run(given.tessera, "eval", model, "--text", given.text, "--window", given.window, "--max-tokens", given.tokens,
                                  "--train-fraction", given.train_fraction, "--threads", given.threads, "--json"))
            row = json.loads(run(given.tessera, "bench", model, "--prefill", 0, "--decode", 64, "--depth", given.depth, "--threads", given.threads, "--json"))["rows"][0]
            kept = row["state_bytes"] / (given.depth + 64)
            print(f"| {heads} | {said['perplexity']:.3f} | {row['decode_tokens_per_s']:.1f} | {kept:.0f} |", flush=True)


if __name__ == "__main__":
    main()
