"""Asks the search of a built site: python search.py SITE < QUERIES.

Runs the site's own scripts within Python as a browser does: mkdocs-material's worker with lunr, its
index, and docs/search_query.js, which the field's text passes through. For each line of standard input one line of JSON: the first
results as readers see them, which are pages, each with its best section: [[page, location], ...].
"""
import glob
import json
import os
import sys

import quickjs

SHOWN = 10  # results that the page lists before it is scrolled

# what a browser gives to a worker's script
_WORKER = """
var self = globalThis, answers = [], listeners = [];
var console = { warn: (text) => { throw new Error(text); } };
function addEventListener(type, listener) { listeners.push(listener); }
function postMessage(data) { answers.push(data); }
class Worker {
  postMessage(message) { listeners.forEach((listen) => listen({ data: message })); }
}
function importScripts() { throw new Error("the search loads scripts of other languages"); }
"""

# its messages: setup and ready, query and result
_SEND = """
function send(type, json) {
  answers = [];
  new Worker().postMessage({ type: type, data: JSON.parse(json) });
}
function results(shown) {
  const pages = answers[0].data.items.slice(0, shown);
  return JSON.stringify(pages.map((found) => [found[0].location.split("#")[0], found[0].location]));
}
"""


class Search:
    """The search of one built site."""

    def __init__(self, site):
        (worker,) = glob.glob(os.path.join(site, "assets/javascripts/workers/search.*.min.js"))
        self._js = quickjs.Context()
        self._js.set_max_stack_size(16 << 20)
        self._js.eval(_WORKER)
        for script in (worker, os.path.join(site, "search_query.js")):
            with open(script, encoding="utf-8") as file:
                self._js.eval(file.read())
        self._js.eval(_SEND)
        with open(os.path.join(site, "search/search_index.json"), encoding="utf-8") as file:
            index = json.load(file)
        setup = {"config": index["config"], "docs": index["docs"], "options": {"suggest": False}}
        self._send(0, setup)

    def _send(self, kind, data):
        self._js.get("send")(kind, json.dumps(data))
        while self._js.execute_pending_job():
            pass
        if self._js.eval("answers.length") != 1:
            raise RuntimeError("the search did not answer")

    def find(self, query):
        """[page, location of its best section] of each result, best first."""
        self._send(2, query)
        return json.loads(self._js.get("results")(SHOWN))


if __name__ == "__main__":
    search = Search(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(search.find(line.strip())))
