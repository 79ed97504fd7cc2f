// The tab of attention maps and token mixing.

import { clip, el, problem, shown, svg } from "./dom.js";
import { Form } from "./forms.js";
import { app, inspection, post } from "./server.js";

export class Mixing extends Form {
  constructor() { super("mixing", "Token mixing", null, "Compute", "/attention-maps"); }
  intro = "Which tokens a layer mixes: how much its output at each row changes when the input at a column is replaced by the mean. Attention layers also have an attention map of each head.";
  form() {
    this.layer = el("select", { id: "mixing-layer" });
    this.head = el("select", { id: "mixing-head", onchange: () => this.answered && this.result.replaceChildren(...this.maps()) });
    this.heads(0);
    return el("div", { class: "stack" }, this.area("text", "Text", "The keys to the old cabinet are on the table.", 4, "The last 32 tokens are used."),
      el("div", { class: "field" }, el("label", { for: "mixing-layer", text: "Layer" }), this.layer),
      el("div", { class: "field" }, el("label", { for: "mixing-head", text: "Map" }), this.head));
  }
  heads(n) {
    const chosen = Math.min(n, Math.max(0, this.head.selectedIndex));
    this.head.replaceChildren(...["Change of the output", ...Array.from({ length: n }, (_, i) => `Attention map of head ${i + 1}`)].map((text, value) => el("option", { value, text })));
    this.head.selectedIndex = chosen;
  }
  async enter() {
    if (!app.model || this.of === app.model.id) return;
    this.of = app.model.id;
    try {
      const found = await inspection();
      this.layer.replaceChildren(...found.mixers.map((one) => el("option", { value: one.name, text: `${one.name} · ${one.type}` })));
      this.button.disabled = found.mixers.length === 0;
    } catch (error) { this.of = null; problem(error); }
  }
  redraw() { this.of = this.answered = null; this.heads(0); this.result.replaceChildren(); if (app.tabs.shown === this) this.enter(); }
  show(text) {
    this.text.value = text;
    app.tabs.select(this, true);
    this.enter().then(() => this.run());
  }
  async answer(signal) {
    this.answered = await post("/attention-maps", { model: app.model.id, content: this.text.value, branch: this.layer.value, weights: true }, signal);
    this.heads(this.answered.weights.length);
    return this.maps();
  }
  maps() {
    const answer = this.answered, head = this.head.selectedIndex, values = head > 0 ? answer.weights[head - 1] : answer.values;
    const names = answer.tokens.map((token) => shown(token.text)), n = names.length;
    const cell = n <= 12 ? 30 : n <= 20 ? 25 : 21, side = 96, size = side + n * cell + 46, what = this.head.selectedOptions[0].text;
    // a token takes most from itself where its output's change is looked at; attention has no such rule
    const strongest = values.map((row, i) => row.map((value, j) => ({ j, value })).filter((one) => head > 0 || one.j !== i).sort((a, b) => b.value - a.value)[0]);
    const cells = values.flatMap((row, i) => {
      const most = Math.max(...row, 1e-12);
      return row.map((value, j) => svg("rect", { x: side + j * cell, y: side + i * cell, width: cell - 1.5, height: cell - 1.5, rx: 3,
        style: { fill: `rgba(var(--heat), ${value > 0 ? (0.04 + 0.96 * (head > 0 ? value : Math.sqrt(value / most))).toFixed(3) : 0.03})` } }, svg("title", { text: `${names[i]} from ${names[j]}: ${value.toFixed(3)}` })));
    });
    const labels = names.flatMap((name, i) => [
      svg("text", { x: side - 6, y: side + (i + 0.5) * cell + 3, "font-size": 11.5, "text-anchor": "end", text: clip(name, 13) }),
      svg("text", { x: 0, y: 0, "font-size": 11.5, transform: `translate(${side + (i + 0.5) * cell + 3} ${side - 6}) rotate(-60)`, text: clip(name, 13) })]);
    return [el("figure", { class: "card stack tight" }, el("h3", { text: `${answer.branch} · ${answer.type} · ${what.toLowerCase()}` }),
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Heat map" }, svg("svg", { id: "map", viewBox: `0 0 ${size} ${size - 42}`, width: size, height: size - 42, role: "img", "aria-label": `Heat map of which token flows into which: ${what.toLowerCase()}; the table below names the strongest` }, cells, labels)),
      el("figcaption", { class: "hint", text: head > 0 ? "Attention weights of each row's token over the columns; a row sums to at most 1." : "Each row relative to its largest value. The diagonal is the row's own token." })),
    el("details", { class: "card" }, el("summary", { text: "Strongest source of each token" }), el("table", { class: "data", id: "map-table" }, el("thead", {}, el("tr", {}, ["Token", "takes most from", head > 0 ? "Weight" : "Change"].map((text) => el("th", { scope: "col", text })))),
      el("tbody", {}, strongest.map((one, i) => el("tr", {}, el("th", { scope: "row", class: "mono", text: names[i] }), el("td", { class: "mono", text: one?.value > 0 ? names[one.j] : "–" }), el("td", { text: one?.value > 0 ? one.value.toFixed(3) : "–" }))))))];
  }
}
