"""Architectures as SVG, drawn from the outline that the library computes (also that of the web UI)."""
from __future__ import annotations

import os
from html import escape
from pathlib import Path
from typing import Any

_WIDTH, _STREAM = 380, 26  # pixels; x of the residual stream
_COLORS = {"embed": "#7a5195", "norm": "#8a8a8a", "head": "#7a5195", "mixer": "#2f6db3", "cross": "#2f6db3",
           "ffn": "#bf6b21"}
_STYLE = ("text{font-family:system-ui,sans-serif;fill:#222}.dim{fill:#666}.body{fill:#fff;stroke:#bbb}"
          ".stream{fill:none;stroke:#555;stroke-width:1.6}.joint{fill:#fff;stroke:#555}.frame{fill:none;stroke:#ccc}")


class Drawing:
    """A diagram: shown by Jupyter; `svg` is its text, `save(path)` writes it."""

    def __init__(self, outline: dict[str, Any]):
        views = [_Stack(stack) for stack in outline["stacks"]]
        height = max(view.height for view in views)
        width = _WIDTH * len(views)
        label = f"{outline['arch']}, {_scaled(outline['plan']['parameters'])} parameters"
        groups = "".join(f'<g transform="translate({_WIDTH * i} 0)">{view.body}</g>' for i, view in enumerate(views))
        self.svg: str = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 22}" width="{width}" '
                         f'height="{height + 22}" role="img" aria-label="{escape(label)}"><style>{_STYLE}</style>'
                         f'<rect width="100%" height="100%" fill="#fff"/>'
                         f'<text class="dim" x="8" y="16" font-size="12">{escape(label)}</text>'
                         f'<g transform="translate(0 22)">{groups}</g></svg>')

    def save(self, path: str | os.PathLike[str]) -> None:
        Path(path).write_text(self.svg, encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg


def _scaled(number: float) -> str:
    for unit, name in [(1e9, "B"), (1e6, "M"), (1e3, "k")]:
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:g}"


def _in_words(config: Any) -> str:
    """The numbers of a part that matter, in a few words."""
    if not isinstance(config, dict):
        return ""
    words = []
    for key, name in [("n_heads", "heads"), ("n_kv_heads", "KV heads"), ("d_state", "states"), ("d_hidden", "hidden")]:
        if config.get(key) and not (key == "n_kv_heads" and config[key] == config.get("n_heads")):
            words.append(f"{config[key]} {name}")
    if config.get("n_experts"):
        words.append(f"{(config.get('router') or {}).get('k', '?')} of {config['n_experts']} experts")
    if isinstance(config.get("act"), str):
        words.append(config["act"])
    for inner in ["pattern", "position"]:
        part = config.get(inner)
        if isinstance(part, dict) and part.get("type") not in (None, "none", "full"):
            words.append(part["type"] + (f" {part['width']}" if part.get("width") else ""))
    return " · ".join(words)


class _Stack:
    """One stack from the tokens to the logits: the residual stream as a line, its branches to the right."""

    def __init__(self, stack: dict[str, Any]):
        self._y = 8.0
        self._lines: list[str] = []
        self._boxes: list[str] = []
        if stack["name"]:
            self._boxes.append(f'<text x="{_STREAM + 14}" y="18" font-size="13" font-weight="600">'
                               f'{escape(stack["name"])}</text>')
            self._y += 20
        top = self._y
        for node in stack["nodes"]:
            self._node(node, 0)
        self.height = self._y + 6
        line = f'<line class="stream" x1="{_STREAM}" x2="{_STREAM}" y1="{top}" y2="{self.height - 8}"/>'
        self.body = line + "".join(self._lines) + "".join(self._boxes)

    def _box(self, kind: str, x: float, y: float, width: float, title: str, words: str) -> float:
        height = 42 if words else 28

        def fit(text: str, size: float) -> str:
            most = max(4, int((width - 18) / (size * 0.56)))
            return escape(text if len(text) <= most else text[:most - 1] + "…")

        self._boxes.append(
            f'<rect class="body" x="{x:g}" y="{y:g}" width="{width:g}" height="{height}" rx="7"/>'
            f'<rect x="{x + 1:g}" y="{y + 6:g}" width="4" height="{height - 12}" rx="2" '
            f'fill="{_COLORS.get(kind, "#3f7f5f")}"/>'
            f'<text x="{x + 13:g}" y="{y + 18:g}" font-size="13" font-weight="600">{fit(title, 13)}</text>'
            + (f'<text class="dim" x="{x + 13:g}" y="{y + 34:g}" font-size="11.5">{fit(words, 11.5)}</text>'
               if words else ""))
        return height

    def _node(self, node: dict[str, Any], depth: int) -> None:
        if node["kind"] in ("layers", "cycle"):
            self._repeated(node, depth)
            return
        words = "" if node["kind"] == "norm" else " · ".join(
            word for word in [_in_words(node["config"]), _scaled(node["parameters"]) if node["parameters"] else ""]
            if word)
        title = f"{node['name'].replace('_', ' ')} · {node['type']}"
        self._y += self._box(node["kind"], _STREAM - 14, self._y, _WIDTH - _STREAM + 8, title, words) + 12

    def _repeated(self, node: dict[str, Any], depth: int) -> None:
        top, times = self._y, node["times"]
        if times > 1:
            self._y += 22
            of = f": layers {node['first']} to {node['last']}" if "first" in node else ""
            self._boxes.append(f'<text class="dim" x="{_STREAM + 14}" y="{top + 15:g}" font-size="12" '
                               f'font-weight="600">{times} times{of}</text>')
        if node["kind"] == "cycle":
            for inner in node["nodes"]:
                self._node(inner, depth + 1)
        else:
            for group in node["groups"]:
                self._branches(group, depth)
        if times > 1:
            inset = 5 * depth
            self._lines.append(f'<rect class="frame" x="{4 + inset}" y="{top:g}" width="{_WIDTH - 8 - 2 * inset}" '
                               f'height="{self._y - top - 4:g}" rx="10"/>')
            self._y += 8

    def _branches(self, group: dict[str, Any], depth: int) -> None:
        branches = group["branches"]
        left = _STREAM + 26
        width = (_WIDTH - left - 14 - 5 * depth - 8 * (len(branches) - 1)) / len(branches)
        top, tallest = self._y + 4, 0.0
        for i, branch in enumerate(branches):
            words = " · ".join(word for word in [_in_words(branch["config"]), _scaled(branch["parameters"])] if word)
            tallest = max(tallest, self._box(branch["slot"], left + i * (width + 8), top, width,
                                             branch["type"].replace("_", " "), words))
        bottom = top + tallest
        # out of the stream, through the branch, and back into it
        self._lines.append(f'<path class="stream" d="M{_STREAM} {top + 6:g}H{left}"/>')
        if group["aside"]:
            self._lines.append(f'<text class="dim" x="{_STREAM + 4}" y="{top + tallest / 2:g}" font-size="10">aside</text>')
        else:
            joint = bottom - 7
            self._lines.append(f'<path class="stream" d="M{left} {joint:g}H{_STREAM + 7}"/>'
                               f'<circle class="joint" cx="{_STREAM}" cy="{joint:g}" r="6.5"/>'
                               f'<path class="stream" d="M{_STREAM - 3.5} {joint:g}h7m-3.5 -3.5v7"/>')
        self._y = bottom + 9
