"""What the site's build adds to mkdocs: formulas as pictures, and no request to any other host.

Formulas between dollar signs arrive as <span class="arithmatex"> or <div class="arithmatex">
(pymdownx.arithmatex). MathJax, which quickjax runs within Python, draws them as SVG here, so that
the pages need neither scripts nor fonts for them; their TeX is what a screen reader reads. A
formula that MathJax cannot draw stops the build.
"""
import html
import os
import re

from mkdocs.utils import get_relative_url
from quickjax import MathJaxRenderer

_FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.S)
_DELIMITERS = re.compile(r"^\s*\\[(\[](.*)\\[)\]]\s*$", re.S)
_FIRST_CELL = re.compile(r"<tr>\n<td>.*?</td>", re.S)
_CODE = re.compile(r"<code>[^<]*</code>")
_OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
_FOREIGN_WORKER = re.compile(r'<script src="https://unpkg\.com/iframe-worker/shim"></script>')
_renderer = None


def _picture(match):
    global _renderer
    _renderer = _renderer or MathJaxRenderer()
    tag, body = match.group(1), html.unescape(match.group(2))
    tex = _DELIMITERS.match(body)
    if tex is None:
        raise ValueError(f"a formula without delimiters: {body!r}")
    svg = _renderer.render(tex.group(1), display=tag == "div")
    if "merror" in svg or 'fill="red"' in svg:
        raise ValueError(f"MathJax cannot draw {tex.group(1)!r}")
    label = html.escape(tex.group(1).strip(), quote=True)
    return f'<{tag} class="formula" role="math" aria-label="{label}">{svg}</{tag}>'


def on_config(config):
    """Pages of the guide and of mechanisms that mkdocs.yml does not list go to the end of these."""
    listed = set(re.findall(r"[a-z_/0-9]+\.md", str(config["nav"]), re.I))
    for section in config["nav"]:
        for title, pages in section.items():
            folder = title.lower()
            if folder not in ("guide", "mechanisms"):
                continue
            for name in sorted(os.listdir(os.path.join(config["docs_dir"], folder))):
                if name.endswith(".md") and f"{folder}/{name}" not in listed:
                    pages.append(f"{folder}/{name}")
    return config


def on_page_markdown(markdown, page, config, files):
    """Results of single studies come after the guide and the tutorials in the search."""
    if page.file.src_uri.startswith("studies/"):
        page.meta.setdefault("search", {})["boost"] = 0.3
    return markdown


def on_page_content(content, page, config, files):
    """Formulas of one page."""
    return _FORMULA.sub(_picture, content)


def _own_worker(output, url):
    """mkdocs-material's plugin "offline" has pages load a script from another host; ours is here."""
    here = get_relative_url("file_search.js", url)
    return _FOREIGN_WORKER.sub(f'<script src="{here}"></script>', output)


def _whole_options(cell):
    """Names of options in code, which a narrow screen would break at their hyphens (site.css)."""
    span = r'<span class="option">\g<0></span>'
    return _CODE.sub(lambda code: _OPTION.sub(span, code.group(0)), cell.group(0))


def on_post_page(output, page, config):
    """Every page."""
    return _own_worker(_FIRST_CELL.sub(_whole_options, output), page.url)


def on_post_template(output_content, template_name, config):
    """404.html."""
    return _own_worker(output_content, "") if template_name.endswith(".html") else output_content
