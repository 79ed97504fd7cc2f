// Tokens by their probability.

import { el, percent, shown } from "./dom.js";

export const bucketOf = (p) => (p < 0.01 ? 0 : p < 0.05 ? 1 : p < 0.2 ? 2 : p < 0.5 ? 3 : p < 0.9 ? 4 : 5);
export const legend = () => el("p", { class: "legend" }, el("span", { text: "Probability:" }),
  ["under 1 %", "under 5 %", "under 20 %", "under 50 %", "under 90 %", "more"].map((text, i) => el("span", {}, el("i", { class: "swatch s" + i }), text)));

/** Rows of a name, a bar and a value; `pick` makes names buttons. */
export function bars(rows, { pick, value = percent, label } = {}) {
  const most = Math.max(...rows.map((row) => row.share ?? row.score), 1e-9);
  return el("ul", { class: "bars", "aria-label": label }, rows.map((row) => {
    const share = row.share ?? row.score, width = (100 * Math.max(0, share)) / Math.max(1, most);
    const name = pick
      ? el("button", { type: "button", class: "name", text: row.shown ?? row.name, "aria-label": `${row.name}, ${value(row.score)}`, onclick: () => pick(row) })
      : el("span", { class: "name", title: row.name, text: row.shown ?? row.name });
    return el("li", {}, name, el("span", { class: "bar", "aria-hidden": "true" }, el("span", { style: { width: width + "%" } })),
      el("span", { class: "value", text: value(row.score) }));
  }));
}

/** The rare token that needs a look stands out; a click shows what else might have come. */
export class TokenView {
  constructor(branch) {
    this.branch = branch;  // (index, alternative) => …, or none
    this.tokens = [];
    this.line = el("div", { class: "tokens", role: "group", "aria-label": "Tokens by probability; arrow keys go from one to the next" });
    this.panel = el("div", { class: "card stack", "aria-live": "polite", hidden: true });
    this.node = el("div", { class: "stack" }, legend(), this.line, this.panel);
    this.line.addEventListener("keydown", (event) => this.move(event));
  }
  clear(given) {
    this.tokens = [];
    this.line.replaceChildren(...(given ? [el("span", { class: "given", text: given })] : []));
    this.panel.hidden = true;
  }
  add(tokens) {
    for (const token of tokens) {
      const index = this.tokens.push(token) - 1, p = token.logprob === null ? null : Math.exp(token.logprob);
      this.line.append(el("span", { role: "button", tabindex: index === 0 ? 0 : -1, "aria-pressed": "false",
        data: { p: p === null ? 5 : bucketOf(p) }, text: token.token.replace(/\n/g, "⏎\n"), title: p === null ? "the first token has no probability" : percent(p),
        "aria-label": `${shown(token.token)}, ${p === null ? "no probability" : percent(p)}`, onclick: () => this.show(index) }));
    }
  }
  buttons() { return [...this.line.querySelectorAll('[role="button"]')]; }
  move(event) {
    const all = this.buttons(), at = all.indexOf(document.activeElement);
    if (at < 0) return;
    if ((event.key === "Enter" || event.key === " ") && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      return this.show(at);
    }
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || !all[to]) return;
    event.preventDefault();
    all[at].tabIndex = -1;
    all[to].tabIndex = 0;
    all[to].focus();
  }
  show(index) {
    const token = this.tokens[index];
    this.buttons().forEach((button, i) => {
      button.setAttribute("aria-pressed", String(i === index));
      button.tabIndex = i === index ? 0 : -1;
    });
    const rows = (token.top ?? []).map((other) => ({ name: shown(other.token), token: other.token, score: Math.exp(other.logprob) }));
    if (token.logprob !== null && !rows.some((row) => row.token === token.token))
      rows.push({ name: shown(token.token), token: token.token, score: Math.exp(token.logprob) });
    const rest = 1 - rows.reduce((sum, row) => sum + row.score, 0);
    const pick = this.branch && !token.given ? (row) => this.branch(index, row.token) : undefined;
    this.panel.replaceChildren(
      el("div", { class: "row" }, el("h3", { class: "grow" }, `Token ${index + 1}: `, el("code", { text: shown(token.token) })),
        el("button", { type: "button", class: "quiet", text: "Close", onclick: () => { this.panel.hidden = true; this.buttons()[index].setAttribute("aria-pressed", "false"); this.buttons()[index].focus(); } })),
      rows.length === 0 ? el("p", { class: "hint", text: "The first token has no probability." })
        : el("div", { class: "stack tight" }, bars(rows, { pick, label: "Alternatives" }),
          rest > 5e-5 ? el("p", { class: "hint", text: `All others together: ${percent(rest)}` }) : null,
          el("p", { class: "hint", text: "Probabilities of the model, before temperature and filters." + (pick ? " Select one to continue from there." : "") })));
    this.panel.hidden = false;
    this.panel.scrollIntoView({ block: "nearest" });
  }
}

export const ofChat = (content) => content.map((one) => ({ token: one.token, logprob: one.logprob, top: one.top_logprobs }));
export const ofCompletion = (logprobs) => (logprobs?.tokens ?? []).map((token, i) => ({ token, logprob: logprobs.token_logprobs[i],
  top: Object.entries(logprobs.top_logprobs?.[i] ?? {}).map(([other, logprob]) => ({ token: other, logprob })).sort((a, b) => b.logprob - a.logprob) }));
