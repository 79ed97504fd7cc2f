// The tab of texts that go on.

import { clip, copy, el, ended, kept, seconds, shown } from "./dom.js";
import { app, post, Runner, stream } from "./server.js";
import { Settings } from "./settings.js";
import { ofCompletion, TokenView } from "./tokens.js";

export class Completion {
  id = "completion"; name = "Completion"; needs = "completion";

  build() {
    this.branches = [];
    this.at = -1;
    this.settings = new Settings("/v1/completions", { max_completion_tokens: 128 });
    this.settings.draw();
    this.prompt = el("textarea", { id: "prompt", rows: 5, value: kept.read(sessionStorage, "prompt", "Once upon a time"), oninput: () => kept.write(sessionStorage, "prompt", this.prompt.value) });
    this.button = el("button", { type: "button", class: "main", id: "complete", text: "Generate" });
    this.score = el("button", { type: "button", class: "plain", id: "score", text: "Score the text" });
    this.choices = el("input", { id: "choices", type: "number", min: 1, max: 16, value: 1 });
    this.runner = new Runner(this.button, (signal, start) => this.complete(signal, start ?? { prompt: this.prompt.value }));
    this.scorer = new Runner(this.score, (signal) => this.scoreText(signal));
    this.tokens = new TokenView((index, token) => this.branchAt(index, token));
    this.list = el("div", { class: "branches", role: "group", "aria-label": "Branches", hidden: true });
    this.figures = el("p", { class: "hint", role: "status" });
    this.result = el("section", { class: "stack", "aria-label": "Result", hidden: true }, this.list, this.tokens.node, this.figures,
      el("div", { class: "row" }, el("button", { type: "button", class: "plain", text: "Continue", onclick: () => this.goOn() }),
        el("button", { type: "button", class: "quiet", text: "Copy", onclick: (event) => copy(this.textOf(this.branches[this.at]), event.currentTarget) }),
        el("button", { type: "button", class: "quiet", text: "Use as the text", onclick: () => { this.prompt.value = this.textOf(this.branches[this.at]); this.prompt.focus(); } })));
    return el("div", { class: "split" }, el("div", { class: "stack" },
      el("div", { class: "field" }, el("label", { for: "prompt", text: "Text" }), this.prompt),
      el("div", { class: "row" }, this.button, this.score, el("label", { for: "choices", text: "Completions" }), el("span", { style: { width: "5rem" } }, this.choices)), this.result),
      this.settings.box("Settings"));
  }
  redraw() { this.settings.draw(); }
  run() { this.runner.start(); }

  textOf(branch) { return branch.prompt + branch.tokens.map((token) => token.token).join(""); }
  select(index) {
    this.at = index;
    const branch = this.branches[index];
    this.tokens.clear(branch.prompt);
    this.tokens.add(branch.tokens);
    this.figures.textContent = branch.figures ?? "";
    this.list.hidden = this.branches.length < 2;
    this.list.replaceChildren(...this.branches.map((one, i) => el("button", { type: "button", class: "quiet", "aria-pressed": String(i === index), text: one.name, onclick: () => this.select(i) })));
    this.result.hidden = false;
  }
  open(branch) { this.branches.push(branch); this.select(this.branches.length - 1); }

  async complete(signal, start) {
    const wanted = start.from === undefined ? Number(this.choices.value) : 1, first = this.branches.length;
    const body = { model: app.model.id, prompt: start.prompt + (start.tokens ?? []).map((token) => token.token).join(""), ...this.settings.body(), n: wanted, logprobs: 10,
      stream: true, stream_options: { include_usage: true } };
    if (start.from === undefined && this.branches.length > 0) { this.branches = []; }
    const base = start.from === undefined ? 0 : first;
    for (let i = 0; i < wanted; ++i)
      this.branches.push({ prompt: start.prompt, tokens: [...(start.tokens ?? [])], name: start.name ?? (wanted > 1 ? `Choice ${i + 1}` : "First") });
    this.select(base);
    let seed, usage;
    const finish = [], begun = performance.now();
    try {
      await stream("/v1/completions", body, signal, (event) => {
        seed = event.seed ?? seed;
        usage = event.usage ?? usage;
        for (const choice of event.choices) {
          const fresh = ofCompletion(choice.logprobs), branch = this.branches[base + choice.index];
          branch.tokens.push(...fresh);
          if (choice.finish_reason) finish[choice.index] = choice.finish_reason === "length" ? ended(choice.limit) : choice.finish_reason;
          if (base + choice.index === this.at) this.tokens.add(fresh);
        }
      });
    } catch (error) {
      this.settings.blame(error);
      throw error;
    } finally {
      const took = (performance.now() - begun) / 1000;
      for (let i = 0; i < wanted; ++i) {
        const branch = this.branches[base + i];
        branch.figures = [`${branch.tokens.length} tokens`, finish[i] ?? "stopped", usage ? seconds(took) : "", seed !== undefined ? `seed ${seed}` : ""].filter(Boolean).join(" · ");
      }
      this.select(this.at);
    }
  }
  branchAt(index, token) {
    const branch = this.branches[this.at];
    if (this.runner.busy) return;
    this.runner.start({ prompt: branch.prompt, tokens: [...branch.tokens.slice(0, index), { ...branch.tokens[index], token, logprob: branch.tokens[index].top.find((one) => one.token === token)?.logprob ?? null }],
      from: this.at, name: `${clip(shown(token), 12)} at ${index + 1}` });
  }
  goOn() {
    const branch = this.branches[this.at];
    this.runner.start({ prompt: branch.prompt, tokens: branch.tokens, from: this.at, name: branch.name.endsWith("…") ? branch.name : branch.name + " …" });
  }
  /** How likely each token of the text itself is. */
  async scoreText(signal) {
    const answer = await post("/v1/completions", { model: app.model.id, prompt: this.prompt.value, max_tokens: 0, echo: true, logprobs: 10, temperature: 0 }, signal);
    const tokens = ofCompletion(answer.choices[0].logprobs);
    const known = tokens.filter((token) => token.logprob !== null), mean = known.reduce((sum, token) => sum + token.logprob, 0) / Math.max(1, known.length);
    this.branches = [];
    this.open({ prompt: "", tokens, name: "Scored", figures: `${tokens.length} tokens · ${(-mean / Math.LN2).toFixed(3)} bits per token · perplexity ${Math.exp(-mean).toFixed(2)}` });
  }
}
