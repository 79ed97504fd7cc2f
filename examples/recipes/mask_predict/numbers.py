"""numbers.py FOLDER: numbers and how they are said, as pairs to learn from: FOLDER/train.jsonl (20,000) and
FOLDER/valid.jsonl (500 others). A line has "number", "words", and "line": the words and the end of a line."""
import json
import pathlib
import random
import sys

ONES = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen").split()
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()


def words(n):
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + ("-" + ONES[n % 10] if n % 10 else "")
    if n < 1000:
        return ONES[n // 100] + " hundred" + (" and " + words(n % 100) if n % 100 else "")
    rest = n % 1000
    joined = (" and " if 0 < rest < 100 else " ") + words(rest) if rest else ""
    return words(n // 1000) + " thousand" + joined


folder = pathlib.Path(sys.argv[1])
numbers = random.Random(1).sample(range(100_000), 20_500)
for name, some in (("valid", numbers[:500]), ("train", numbers[500:])):
    with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as file:
        for n in some:
            file.write(json.dumps({"number": str(n), "words": words(n), "line": words(n) + "\n"}) + "\n")
