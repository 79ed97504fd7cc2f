"""Makes tests/golden/sentence/similarity.json: correlations of the cosine of two vectors with a similarity, as the
EmbeddingSimilarityEvaluator of sentence-transformers computes them with folders of tests/golden/sentence.

    similarity.py --golden tests/golden/sentence
"""

import argparse
import base64
import json
import pathlib
import random
import shutil
import tempfile

import sentence_transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

WORDS = ["a", "b", "the", "cat", "dog", "dogs", "Cat", "q"]
CASES = ["mean", "dense_tanh", "normalize_before_dense", "prompt"]


def pairs(seed):
    draw = random.Random(seed)
    text = lambda: " ".join(draw.choices(WORDS, k=draw.randint(1, 8)))
    made = [[text(), text(), draw.choice([0.0, 0.5, 1.25, 3.0, 5.0])] for _ in range(20)]
    return made + [made[0][:2] + [5.0], [made[1][0], made[1][0], 2.5]]  # equal cosines too


def folder_of(golden, case, work):
    folder = pathlib.Path(work) / case["name"]
    shutil.copytree(golden / "base", folder)
    for path, content in case["files"].items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(base64.b64decode(content) if isinstance(content, str) else json.dumps(content).encode())
    return folder


def nearly_equal(model, a, b):
    """Whether two cosines are so near that vectors within 1e-5 may rank them otherwise."""
    vectors = [model.encode(list(texts), batch_size=1, normalize_embeddings=True) for texts in (a, b)]
    cosines = sorted(float(c) for c in (vectors[0] * vectors[1]).sum(-1))
    return any(1e-7 < y - x < 4e-5 for x, y in zip(cosines, cosines[1:]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--golden", type=pathlib.Path, required=True)
    golden = parser.parse_args().golden
    cases = json.loads((golden / "cases.json").read_text())["cases"]
    with tempfile.TemporaryDirectory() as work:
        models = {name: SentenceTransformer(str(folder_of(golden, cases[name] | {"name": name}, work))) for name in CASES}
        for seed in range(50, 1000):
            data = pairs(seed)
            a, b, scores = zip(*data)
            if not any(nearly_equal(model, a, b) for model in models.values()):
                break
        out = {"reference": f"sentence-transformers {sentence_transformers.__version__}", "generator": "tools/golden/similarity.py",
               "pairs": data, "cases": {}}
        for name, model in models.items():
            found = EmbeddingSimilarityEvaluator(list(a), list(b), list(scores), similarity_fn_names=["cosine"], batch_size=1)(model)
            out["cases"][name] = {key: float(value) for key, value in found.items()}
    (golden / "similarity.json").write_text(json.dumps(out) + "\n")


main()
