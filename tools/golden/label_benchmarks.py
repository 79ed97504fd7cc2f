"""Scores of SuperGLUE for made-up predictions: scikit-learn, and SQuAD's comparison of answers.

    python tools/golden/label_benchmarks.py
"""

import re
import string
from collections import Counter, defaultdict

import numpy as np
from sklearn.metrics import f1_score


def words(text):
    """The normalization of SQuAD's evaluation: no case, punctuation, articles."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def compute_exact(truth, said):
    return float(words(truth) == words(said))


def compute_f1(truth, said):
    same = sum((Counter(words(truth)) & Counter(words(said))).values())
    return 0.0 if same == 0 else 2 * same / (len(words(truth)) + len(words(said)))


# (question, answer is right, margin of "true")
ANSWERS = [("a", 1, .5), ("a", 0, -.2), ("b", 1, -1.), ("b", 1, .1), ("b", 0, -3.), ("c", 0, 2.), ("c", 0, -.1), ("d", 1, 1.)]
truth = np.array([right for _, right, _ in ANSWERS])
said = np.array([int(margin > 0) for _, _, margin in ANSWERS])
groups = defaultdict(list)
for i, (name, _, _) in enumerate(ANSWERS):
    groups[name].append(i)
print("multirc f1", f1_score(truth, said), "exact_match", np.mean([(truth[g] == said[g]).all() for g in groups.values()]))
print("copa", np.mean([truth[g[int(np.argmax([ANSWERS[i][2] for i in g]))]] for g in groups.values()]))

# (query, entity, is an answer, margin)
ENTITIES = [("a", "The Red House", 1, 1.), ("a", "Bern", 0, 2.), ("a", "red house of Bern", 1, 0.),
            ("b", "Ada Lovelace", 0, 3.), ("b", "Lovelace", 1, 1.), ("c", "the Alps", 1, -1.), ("c", "Rome", 0, -2.)]
queries = defaultdict(list)
for i, (name, *_rest) in enumerate(ENTITIES):
    queries[name].append(i)
exact, f1 = [], []
for members in queries.values():
    chosen = ENTITIES[max(members, key=lambda i: ENTITIES[i][3])][1]
    right = [ENTITIES[i][1] for i in members if ENTITIES[i][2]]
    exact.append(max(compute_exact(r, chosen) for r in right))
    f1.append(max(compute_f1(r, chosen) for r in right))
print("record exact_match", np.mean(exact), "answer_f1", np.mean(f1))
