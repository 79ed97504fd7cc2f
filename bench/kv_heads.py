"""One model with fewer and fewer key/value heads: perplexity, tokens a second and bytes that a token keeps.

    python bench/kv_heads.py build/release/bin/tessera MODEL TEXT --heads 8,4,2,1
    python bench/kv_heads.py build/release/bin/tessera MODEL TEXT --heads 8,4,2,1 --train recipe.json

MODEL is what `tessera convert` reads; heads are pooled by their means (`tessera convert --kv-heads`). With --train, every one
is trained on by the recipe from where the pooling left it, for as long as it says, and the model as it was too, so that rows
differ in their heads alone. Speed is that of one text at --depth tokens, where keys and values are what is read.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(str(part) for part in command)}: {done.stderr.strip()}")
    return done.stdout


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("tessera")
    arguments.add_argument("model")
    arguments.add_argument("text", help="what perplexity is of")
    arguments.add_argument("--heads", default="8,4,2,1", help="key/value heads; the first is the model's own")
    arguments.add_argument("--train", help="a recipe whose data every model is trained on by")
    arguments.add_argument("--tokens", type=int, default=16384, help="of the text, at most")
    arguments.add_argument("--window", type=int, default=512)
    arguments.add_argument("--depth", type=int, default=1024, help="tokens before those whose decoding is timed")
    arguments.add_argument("--threads", type=int, default=2)
    given = arguments.parse_args()
    print("| key/value heads | perplexity | tokens/s | bytes a token |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as work:
        for heads in map(int, given.heads.split(",")):
            folder = pathlib.Path(work) / f"heads{heads}"
            run(given.tessera, "convert", given.model, "--kv-heads", heads, "--to", "tessera", "--out", folder)
            if given.train:
                recipe = json.loads(pathlib.Path(given.train).read_text())
                recipe.pop("model", None)
                recipe["init"] = {"from": str(folder)}
                path = pathlib.Path(work) / f"heads{heads}.json"
                path.write_text(json.dumps(recipe))
                folder = pathlib.Path(work) / f"run{heads}"
                run(given.tessera, "train", path, "--out", folder)
            said = json.loads(run(given.tessera, "eval", folder, "--text", given.text, "--window", given.window, "--max-tokens", given.tokens, "--threads", given.threads, "--json"))
            row = json.loads(run(given.tessera, "bench", folder, "--prefill", 0, "--decode", 64, "--depth", given.depth, "--threads", given.threads, "--json"))["rows"][0]
            kept = row["state_bytes"] / (given.depth + 64)
            print(f"| {heads} | {said['perplexity']:.3f} | {row['decode_tokens_per_s']:.1f} | {kept:.0f} |", flush=True)


if __name__ == "__main__":
    main()
