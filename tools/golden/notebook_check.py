"""Runs the code cells of examples/notebook.ipynb without Jupyter: results, drawings, falling losses.

    TESSERA_LIBRARY=build/release/lib/libtessera.so PYTHONPATH=python python tools/golden/notebook_check.py
"""

import ast
import json
import os
from pathlib import Path
from xml.dom import minidom

os.chdir(Path(__file__).resolve().parents[2] / "examples")
notebook = json.loads(Path("notebook.ipynb").read_text(encoding="utf-8"))
assert notebook["nbformat"] == 4
names = {"__name__": "__main__"}
drawings = 0
for number, cell in enumerate(notebook["cells"]):
    if cell["cell_type"] != "code":
        continue
    assert not cell["outputs"], "a notebook is kept without outputs"
    tree = ast.parse("".join(cell["source"]), f"cell {number}")
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, f"cell {number}", "exec"), names)
    if last is None:
        continue
    value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    if hasattr(value, "_repr_svg_"):
        minidom.parseString(value._repr_svg_())
        drawings += 1
    else:
        print(repr(value)[:500])
assert names["losses"][-1] < names["losses"][0] and names["history"][-1] < names["history"][0] / 2, names["history"]
assert drawings == 2
print("ok")
