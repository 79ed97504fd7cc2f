// Tabs that are a form, a button and a result: what encoders do, and the tokenizer.

import { $, clip, el, kept, lines, narrow, percent, problem, shown, svg } from "./dom.js";
import { app, Failure, inspection, post, Runner } from "./server.js";
import { bars } from "./tokens.js";

/** A tab that is a form, a button and a result. */
export class Form {
  constructor(id, name, needs, button, route) { Object.assign(this, { id, name, needs, route, buttonText: button }); }
  build() {
    this.button = el("button", { type: "button", class: "main", id: this.id + "-run", text: this.buttonText });
    this.result = el("section", { class: "stack", "aria-label": "Result" });
    this.runner = new Runner(this.button, async (signal) => {
      this.result.setAttribute("aria-busy", "true");
      try { this.result.replaceChildren(...[await this.answer(signal)].flat().filter(Boolean)); $("read-aloud").replaceChildren(el("p", { text: "The result is ready." })); } finally { this.result.removeAttribute("aria-busy"); }
    });
    const intro = this.intro ? el("p", { class: "soft", text: this.intro }) : null;
    return el("div", { class: "split even" }, el("div", { class: "stack" }, intro, this.form(), el("div", { class: "row" }, this.button, this.beside?.())), this.result);
  }
  run() { this.runner.start(); }
  redraw() { this.result.replaceChildren(); }
  area(id, label, value, rows = 6, hint) {
    const node = el("textarea", { id: `${this.id}-${id}`, rows, value: kept.read(sessionStorage, this.id + id, value), "aria-describedby": hint ? `${this.id}-${id}-hint` : undefined,
      oninput: () => kept.write(sessionStorage, this.id + id, node.value) });
    this[id] = node;
    return el("div", { class: "field" }, el("label", { for: node.id, text: label }), node, hint ? el("p", { class: "hint", id: `${this.id}-${id}-hint`, text: hint }) : null);
  }
  line(id, label, value, more = {}) {
    const node = el("input", { id: `${this.id}-${id}`, type: "text", value, ...more });
    this[id] = node;
    return el("div", { class: "field" }, el("label", { for: node.id, text: label }), node);
  }
}

export class FillMask extends Form {
  constructor() { super("fill-mask", "Fill mask", "fill_mask", "Fill", "/v1/fill-mask"); }
  sign = "[MASK]";
  form() { return this.area("text", "Text with a mask", `The capital of France is ${this.sign}.`, 4, "The mask stands for the word to predict."); }
  mask() { return this.sign; }
  async enter() {
    try {
      const { mask } = await inspection();
      if (!mask || mask === this.sign) return;
      this.text.value = this.text.value.replaceAll(this.sign, mask);
      this.sign = mask;
    } catch (error) { problem(error); }
  }
  beside() {
    return el("button", { type: "button", class: "plain", text: "Insert a mask", onclick: () => { this.text.setRangeText(this.mask(), this.text.selectionStart, this.text.selectionEnd, "end"); this.text.focus(); } });
  }
  async answer(signal) {
    const answer = await post("/v1/fill-mask", { model: app.model.id, input: this.text.value, top_k: 10 }, signal);
    // of thousands of words even the likeliest may be rare: a bar is as long as its share of that one's
    return answer.data[0].masks.map((mask, i) => el("div", { class: "card stack tight" }, el("h3", { text: answer.data[0].masks.length > 1 ? `Mask ${i + 1}` : "The mask" }),
      bars(mask.map((one) => ({ name: one.token_str, score: one.score, share: one.score / Math.max(mask[0].score, 1e-9), sequence: one.sequence })), { label: `Words for mask ${i + 1}`,
        pick: (row) => { let n = -1; this.text.value = this.text.value.replaceAll(this.mask(), (found) => (++n === i ? row.name.trim() : found)); this.text.focus(); } })));
  }
}

export class Classify extends Form {
  constructor() { super("classify", "Classify", "classify", "Classify", "/v1/classify"); }
  form() { return this.area("text", "Texts, one per line", "A wonderful, quiet film.\nTwo hours that I will not get back."); }
  async answer(signal) {
    const { labels } = await inspection(), input = lines(this.text.value), answer = await post("/v1/classify", { model: app.model.id, input }, signal);
    return answer.data.map((one) => {
      const rows = (one.probs ?? []).map((score, i) => ({ name: String(labels?.[i] ?? `class ${i}`), score })).sort((a, b) => b.score - a.score).slice(0, 12);
      return el("div", { class: "card stack tight" }, el("p", { text: input[one.index] }), one.label !== undefined && one.label !== null ? el("h3", { text: one.label }) : null,
        rows.length ? bars(rows, { label: "Probabilities" }) : null,
        one.tokens ? el("div", { class: "pieces" }, one.tokens.map((token) => el("span", {}, token.token, el("small", { text: `${token.label} ${percent(token.score)}` })))) : null);
    });
  }
}

export class Translate extends Form {
  constructor() { super("translate", "Translate", "translate", "Translate", "/v1/translate"); }
  form() {
    return el("div", { class: "stack" }, this.area("text", "Text; every line is translated on its own", "The weather is fine today."),
      el("div", { class: "fields" }, this.line("source", "Source language", "", { "aria-describedby": "translate-hint" }), this.line("target", "Target language", "", { "aria-describedby": "translate-hint" }),
        this.line("beams", "Beams", 4, { type: "number", min: 1, max: 16 })),
      el("p", { class: "hint", id: "translate-hint", text: "Languages are for multilingual models, as their tokens write them (de, de_DE, fra)." }));
  }
  async answer(signal) {
    const body = { model: app.model.id, input: lines(this.text.value), beams: Number(this.beams.value) };
    if (this.source.value) body.source_lang = this.source.value;
    if (this.target.value) body.target_lang = this.target.value;
    const answer = await post("/v1/translate", body, signal);
    return el("div", { class: "card stack tight" }, answer.data.map((one) => el("p", { text: one.text })));
  }
}

export class Rerank extends Form {
  constructor() { super("rerank", "Rerank", "rerank", "Rank", "/v1/rerank"); }
  form() {
    return el("div", { class: "stack" }, this.line("query", "Query", "How do plants make food?"),
      this.area("text", "Documents, one per line", "Photosynthesis turns light into sugar.\nThe train leaves at noon.\nChlorophyll makes leaves green.\nBread is baked from flour and water.", 8));
  }
  async answer(signal) {
    const documents = lines(this.text.value), answer = await post("/v1/rerank", { model: app.model.id, query: this.query.value, documents }, signal);
    const most = Math.max(...answer.results.map((one) => Math.abs(one.relevance_score)), 1e-9);
    return [el("ol", { class: "ranked", "aria-label": "Best first" }, answer.results.map((one) => el("li", { class: "stack tight" }, el("p", { text: documents[one.index] }),
      el("div", { class: "row" }, el("span", { class: "bar grow", "aria-hidden": "true" }, el("span", { style: { width: (100 * Math.max(0, one.relevance_score)) / Math.max(1, most) + "%" } })),
        el("span", { class: "hint", text: one.relevance_score.toFixed(4) }))))),
      answer.method ? el("p", { class: "hint", text: `Method: ${answer.method}` }) : null];
  }
}

export const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

/** The first two principal components of vectors, by power iteration on their Gram matrix. */
export function plane(vectors) {
  const n = vectors.length, mean = vectors[0].map((_, k) => vectors.reduce((sum, v) => sum + v[k], 0) / n);
  const centred = vectors.map((v) => v.map((x, k) => x - mean[k]));
  const gram = centred.map((a) => centred.map((b) => dot(a, b)));
  const total = gram.reduce((sum, row, i) => sum + row[i], 0) || 1;
  const axes = [];
  for (let axis = 0; axis < 2; ++axis) {
    let x = centred.map((_, i) => Math.sin(i + 1 + axis)), size = 0;
    for (let step = 0; step < 300; ++step) {
      const y = gram.map((row) => dot(row, x));
      size = Math.sqrt(dot(y, y));
      if (size < 1e-12) { x = x.map(() => 0); break; }
      x = y.map((value) => value / size);
    }
    axes.push({ places: x.map((value) => value * Math.sqrt(Math.max(0, size))), share: size / total });
    gram.forEach((row, i) => row.forEach((_, j) => { row[j] -= size * x[i] * x[j]; }));
  }
  return axes;
}

export class Embeddings extends Form {
  constructor() { super("embeddings", "Embeddings", "embedding", "Compare", "/v1/embeddings"); }
  form() {
    return this.area("text", "Texts, one per line", "The cat sleeps on the sofa.\nA kitten naps on the couch.\nDogs love to run.\nStock prices fell sharply.\nMarkets lost five percent.\nIt will rain tomorrow.", 9, "Up to 60 texts.");
  }
  async answer(signal) {
    const input = lines(this.text.value);
    if (input.length < 2) throw new Failure("There is nothing to compare; expected two texts or more, one per line.");
    if (input.length > 60) throw new Failure(`${input.length} texts; expected at most 60 here.`);
    const answer = await post("/v1/embeddings", { model: app.model.id, input }, signal);
    const vectors = answer.data.map((one) => { const size = Math.sqrt(dot(one.embedding, one.embedding)) || 1; return one.embedding.map((x) => x / size); });
    const cosine = vectors.map((a) => vectors.map((b) => dot(a, b)));
    const short = input.map((text) => clip(text, 34));
    return [el("p", { class: "hint", text: `${vectors.length} vectors of ${vectors[0].length} dimensions, ${answer.usage.prompt_tokens} tokens` }), this.map(vectors, short), this.matrix(cosine, short, input)];
  }
  map(vectors, names) {
    const [across, up] = plane(vectors), width = narrow() ? 268 : 460, height = narrow() ? 260 : 300, pad = 26;
    const scale = (places, from, to) => { const low = Math.min(...places), high = Math.max(...places); return places.map((x) => (high - low < 1e-9 ? (from + to) / 2 : from + ((x - low) / (high - low)) * (to - from))); };
    const xs = scale(across.places, pad, width - pad), ys = scale(up.places, height - pad, pad);
    // labels stand where no earlier one does
    const taken = [];
    const labels = xs.map((x, i) => {
      const text = clip(names[i], 26), w = text.length * 6.1, right = x + w + 12 < width;
      let y = ys[i] + 4;
      const left = right ? x + 9 : Math.max(2, x - 9 - w);
      for (let tries = 0; tries < 8 && taken.some((box) => left < box.x + box.w && left + w > box.x && Math.abs(y - box.y) < 13); ++tries) y += tries % 2 ? 13 * (tries + 1) : -13 * (tries + 1);
      y = Math.min(height - 4, Math.max(12, y));
      taken.push({ x: left, y, w });
      return svg("text", { x: left, y, "font-size": 11.5, text });
    });
    return el("figure", { class: "card stack tight" }, el("h3", { text: "Map" }),
      svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Map of ${names.length} texts: close points have similar meanings. The table below has the numbers.` },
        xs.map((x, i) => svg("circle", { class: "dot", cx: x, cy: ys[i], r: 4.5 })), labels),
      el("figcaption", { class: "hint", text: `The first two principal components: ${percent(across.share)} and ${percent(up.share)} of the variance.` }));
  }
  matrix(cosine, names, whole) {
    const least = Math.min(...cosine.flat()), span = Math.max(1e-9, 1 - least);
    return el("div", { class: "card stack tight" }, el("h3", { text: "Cosine similarity" }), el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of cosine similarities" },
      el("table", { class: "heat" }, el("caption", { class: "hidden", text: "Cosine similarity of each two texts" }),
        el("thead", {}, el("tr", {}, el("td"), names.map((_, i) => el("th", { scope: "col", title: whole[i], text: i + 1 })))),
        el("tbody", {}, cosine.map((row, i) => el("tr", {}, el("th", { scope: "row", title: whole[i], text: `${i + 1} ${names[i]}` }),
          row.map((value) => el("td", { style: { background: `rgba(var(--heat), ${(0.05 + 0.5 * ((value - least) / span) ** 2).toFixed(3)})` }, text: value.toFixed(2) }))))))));
  }
}

export class Tokens extends Form {
  constructor() { super("tokens", "Tokenizer", null, "Split", "/tokenize"); }
  form() { return this.area("text", "Text", "Unbelievable! 12345 naïve 🦊 tokens.", 5, "How the model's tokenizer splits text."); }
  beside() {
    this.special = el("input", { type: "checkbox", id: "tokens-special", checked: true });
    return el("span", { class: "check" }, this.special, el("label", { for: "tokens-special", text: "add special tokens (BOS, EOS)" }));
  }
  async answer(signal) {
    const answer = await post("/tokenize", { model: app.model.id, content: this.text.value, add_special: this.special.checked, with_pieces: true }, signal);
    const n = [...this.text.value].length;
    return [el("p", { class: "hint", text: `${answer.count} tokens of ${n} characters${answer.count ? `, ${(n / answer.count).toFixed(2)} each` : ""}` }),
      el("div", { class: "pieces", role: "group", "aria-label": "Tokens with their ids" }, answer.pieces.map((one) => el("span", {}, shown(one.piece), el("small", { text: one.id }))))];
  }
}
