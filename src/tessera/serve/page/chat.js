// The tab of conversations.

import { $, copy, download, el, ended, freshId, kept, lines, problem, seconds } from "./dom.js";
import { app, Runner, stream } from "./server.js";
import { blocks } from "./markdown.js";
import { Settings } from "./settings.js";
import { ofChat, TokenView } from "./tokens.js";

/** Reads an answer to who listens, a sentence at a time. */
export const aloud = {
  said: 0,
  begin() { this.said = 0; $("read-aloud").replaceChildren(); },
  more(text, last) {
    const fresh = text.slice(this.said);
    const end = last ? fresh.length : Math.max(...[...fresh.matchAll(/[.!?:]\s|\n/g)].map((m) => m.index + m[0].length), 0);
    if (end === 0) return;
    this.said += end;
    const sentence = fresh.slice(0, end).trim();
    if (sentence) $("read-aloud").append(el("p", { text: sentence }));
  },
};

export class Chat {
  id = "chat"; name = "Chat"; needs = "chat";

  build() {
    this.messages = kept.read(sessionStorage, "chat", []);
    this.settings = new Settings("/v1/chat/completions");
    this.system = el("textarea", { id: "system", rows: 3, placeholder: "You are a helpful assistant.", value: kept.read(sessionStorage, "system", ""),
      oninput: () => kept.write(sessionStorage, "system", this.system.value) });
    this.wantsTokens = el("input", { type: "checkbox", id: "chat-tokens", checked: kept.read(localStorage, "chat-tokens", false),
      onchange: () => kept.write(localStorage, "chat-tokens", this.wantsTokens.checked) });
    this.list = el("ol", { class: "turns", id: "turns", "aria-label": "Conversation" });
    this.input = el("textarea", { id: "message", rows: 1, placeholder: "Write a message", oninput: () => this.fit(), onkeydown: (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      this.send();
    } });
    this.button = el("button", { type: "button", class: "main", id: "send", text: "Send" });
    this.file = el("input", { type: "file", accept: ".jsonl,.json", hidden: true, "aria-label": "A saved conversation", onchange: () => this.import() });
    this.runner = new Runner(this.button, (signal, go) => (go ? this.answer(signal) : this.submit(signal)));
    const under = el("div", { class: "under" }, el("p", { class: "hint", id: "chat-note", role: "status" }),
      el("div", { class: "row" }, this.settings.button(), el("button", { type: "button", class: "quiet", id: "new-chat", text: "New chat", onclick: () => this.reset() }),
        el("button", { type: "button", class: "quiet", id: "export", text: "Export", onclick: () => this.export() }),
        el("button", { type: "button", class: "quiet", id: "import", text: "Import", onclick: () => this.file.click() }), this.file));
    const talk = el("div", { class: "talk" }, this.list, el("form", { class: "composer", onsubmit: (event) => event.preventDefault() },
      el("div", { class: "box" }, el("label", { class: "hidden", for: "message", text: "Message" }), this.input, this.button), under));
    this.settings.draw();
    const box = this.settings.box("Settings", el("div", { class: "field" }, el("label", { for: "system", text: "System prompt" }), this.system),
      el("div", { class: "check" }, this.wantsTokens, el("label", { for: "chat-tokens", text: "Show token probabilities" })));
    this.draw();
    return el("div", { class: "split" }, talk, box);
  }

  redraw() { this.settings.draw(); }
  run() { this.send(); }
  fit() {
    this.input.style.setProperty("height", "auto");
    this.input.style.setProperty("height", this.input.scrollHeight + "px");
  }
  keep() { kept.write(sessionStorage, "chat", this.messages.map(({ view, ...message }) => message)); }

  reset() {
    this.runner.stop();
    const before = this.messages;
    this.messages = [];
    this.keep();
    this.draw();
    this.input.focus();
    if (before.length > 0) this.note("The conversation was deleted.", "Undo", () => { this.messages = before; this.keep(); this.draw(); });
  }
  export() {
    const all = [...(this.system.value.trim() ? [{ role: "system", content: this.system.value }] : []), ...this.forServer()];
    download("chat.jsonl", "application/jsonl", all.map((message) => JSON.stringify(message)).join("\n") + "\n");
  }
  async import() {
    const file = this.file.files[0];
    this.file.value = "";
    if (!file) return;
    try {
      const text = await file.text();
      let list = null;
      try { const json = JSON.parse(text); list = json.messages ?? (Array.isArray(json) ? json : null); } catch { /* lines then */ }
      list ??= lines(text).map((line) => JSON.parse(line));
      if (!list.every((one) => typeof one?.role === "string")) throw new Error("expected messages with a role");
      this.runner.stop();
      const system = list[0]?.role === "system" ? list.shift().content : "";
      this.system.value = system;
      kept.write(sessionStorage, "system", system);
      this.messages = list.map((one) => ({ role: one.role, content: one.content ?? "", reasoning: one.reasoning_content, tool_calls: one.tool_calls, tool_call_id: one.tool_call_id }));
      this.keep();
      this.draw();
    } catch (error) { problem(new Error(`This file has no conversation: ${error.message}`)); }
  }

  send() {
    if (this.runner.busy) return;
    if (this.input.value.trim() === "") return this.input.focus();
    this.runner.start();
  }
  async submit(signal) {
    const text = this.input.value;
    if (text.trim() === "") return;
    this.settings.body();  // what cannot be sent is said before anything is
    this.input.value = "";
    this.fit();
    this.push({ role: "user", content: text });
    await this.answer(signal);
  }
  push(message) {
    this.messages.push(message);
    this.keep();
    if (this.messages.length === 1) this.list.replaceChildren();
    this.list.append(this.turn(message));
  }

  forServer() {
    return this.messages.filter((one) => !one.failed || one.content).map((one) => ({ role: one.role, content: one.content,
      ...(one.tool_calls ? { tool_calls: one.tool_calls } : {}), ...(one.tool_call_id ? { tool_call_id: one.tool_call_id } : {}) }));
  }

  /** Answers what the conversation ends with; goes on with it where that is an answer begun. */
  async answer(signal) {
    const last = this.messages.at(-1), goesOn = last?.role === "assistant" && !last.tool_calls;
    const body = { model: app.model.id, messages: [...(this.system.value.trim() ? [{ role: "system", content: this.system.value }] : []), ...this.forServer()],
      ...this.settings.body(), stream: true, stream_options: { include_usage: true } };
    const wantsTokens = this.wantsTokens.checked;
    if (wantsTokens) Object.assign(body, { logprobs: true, top_logprobs: 8 });
    else delete body.post_sampling_probs;  // there is nothing that it could change
    const message = goesOn ? last : { role: "assistant", content: "" };
    if (!goesOn) this.push(message);
    message.live = true;
    delete message.stopped;
    if (wantsTokens && !goesOn) message.tokens = [];
    this.update(message);
    this.scroll(true);
    aloud.begin();
    const begun = performance.now();
    let first = null, usage = null, drawn = false;
    try {
      await stream("/v1/chat/completions", body, signal, (event) => {
        if (event.seed !== undefined) message.seed = event.seed;
        if (event.usage) usage = event.usage;
        const choice = event.choices[0];
        if (!choice) return;
        const delta = choice.delta ?? {};
        if (first === null && (delta.content || delta.reasoning_content || delta.tool_calls)) first = performance.now();
        if (delta.reasoning_content) message.reasoning = (message.reasoning ?? "") + delta.reasoning_content;
        if (delta.content) message.content += delta.content;
        for (const call of delta.tool_calls ?? []) {
          message.tool_calls ??= [];
          const known = (message.tool_calls[call.index] ??= { id: call.id, type: "function", function: { name: call.function.name, arguments: "" } });
          known.function.arguments += call.function.arguments ?? "";
        }
        if (choice.logprobs?.content && message.tokens) message.tokens.push(...ofChat(choice.logprobs.content));
        if (choice.finish_reason) [message.finish, message.limit] = [choice.finish_reason, choice.limit];
        if (choice.sources) message.sources = choice.sources;
        aloud.more(message.content, false);
        if (!drawn) {
          drawn = true;
          requestAnimationFrame(() => { drawn = false; if (message.live) { this.update(message); this.scroll(); } });
        }
      });
    } catch (error) {
      if (error.name === "AbortError") message.finish = "stopped";
      else { message.failed = true; this.settings.blame(error); throw error; }
    } finally {
      delete message.live;
      const took = (performance.now() - (first ?? begun)) / 1000;
      if (usage) message.figures = { tokens: usage.completion_tokens, prompt: usage.prompt_tokens, cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
        first: first === null ? null : (first - begun) / 1000, rate: usage.completion_tokens > 1 && took > 0 ? (usage.completion_tokens - 1) / took : null };
      if (message.failed && !message.content && !message.reasoning) {
        this.messages.splice(this.messages.indexOf(message), 1);
        message.view?.remove();
        delete message.view;
      } else {
        aloud.more(message.content, true);
        this.update(message);
      }
      this.keep();
      this.scroll();
    }
  }

  scroll(always) {
    const left = document.documentElement.scrollHeight - innerHeight - scrollY;
    if (always || left < 160) scrollTo({ top: document.documentElement.scrollHeight });
  }

  draw() {
    if (this.messages.length > 0) return this.list.replaceChildren(...this.messages.map((message) => this.turn(message)));
    const tries = ["What is a Transformer, in two sentences?", "Write a limerick about a mosaic.", "Explain gravity to a child."];
    this.list.replaceChildren(el("li", { class: "welcome" }, el("h2", { text: "How can I help?" }),
      el("p", { class: "soft", text: "Messages go to this server only. Every answer shows its seed, so that you can generate it again." }),
      el("div", { class: "row" }, tries.map((text) => el("button", { type: "button", class: "plain", text, onclick: () => { this.input.value = text; this.fit(); this.send(); } })))));
  }

  turn(message) {
    message.view = el("li", { class: "turn " + message.role });
    this.update(message);
    return message.view;
  }

  update(message) {
    const view = message.view;
    if (!view) return;
    const mine = message.role === "user", tool = message.role === "tool";
    const open = view.querySelector(".thought")?.open;
    const parts = [el("header", {}, el("span", { text: mine ? "You" : tool ? "Tool" : app.model?.id ?? "Answer" }))];
    if (message.reasoning)
      parts.push(el("details", { class: "thought", open: open ?? false }, el("summary", { text: message.live && !message.content ? "Reasoning …" : "Reasoning" }), el("div", { text: message.reasoning })));
    if (message.showsTokens && message.tokens?.length) {
      // of an answer with thoughts in front nobody can say where its own text begins
      const tokens = new TokenView(message.reasoning ? undefined : (index, token) => this.branch(message, index, token));
      tokens.add(message.tokens);
      parts.push(tokens.node);
    } else if (mine || tool) {
      parts.push(el("div", { class: "said", text: message.content }));
    } else {
      const said = el("div", { class: "said" }, blocks(message.content));
      if (message.live) (said.lastElementChild?.tagName === "P" ? said.lastElementChild : said).append(el("span", { class: "waiting", "aria-hidden": "true" }));
      parts.push(said);
    }
    if (message.tool_calls) parts.push(this.calls(message));
    if (message.sources?.length) parts.push(el("ul", { class: "hint", "aria-label": "Retrieved passages" },
      message.sources.map((one) => el("li", { text: `${one.named ? "★ " : ""}[${one.number}] ${one.source}` }))));
    if (!message.live) parts.push(this.actions(message));
    view.replaceChildren(...parts);
  }

  actions(message) {
    const action = (text, act, more) => el("button", { type: "button", class: "quiet", text, onclick: act, ...more });
    const out = el("div", { class: "actions" });
    if (message.role === "user") out.append(action("Edit", () => this.edit(message)));
    if (message.role === "assistant") {
      out.append(action("Regenerate", () => this.retry(message)));
      if (message.variants?.length > 1) {
        const at = message.variant ?? 0, to = (step) => this.choose(message, (at + step + message.variants.length) % message.variants.length);
        out.append(action("‹", () => to(-1), { "aria-label": "Previous answer" }), el("span", { class: "hint", text: `${at + 1} of ${message.variants.length}` }),
          action("›", () => to(1), { "aria-label": "Next answer" }));
      }
      if ((message.finish === "length" && message.limit !== "context") || message.finish === "stopped")
        out.append(action("Continue", () => { if (this.messages.at(-1) === message) this.runner.start(true); }));
      if (message.tokens?.length)
        out.append(action("Tokens", () => { message.showsTokens = !message.showsTokens; this.update(message); }, { "aria-pressed": String(!!message.showsTokens) }));
      if (message.content && app.tabs.has("mixing")) out.append(action("Token mixing", () => app.tabs.get("mixing").show(message.content)));
    }
    if (message.content) out.append(action("Copy", (event) => copy(message.content, event.currentTarget)));
    const figures = message.figures;
    if (figures || message.finish === "stopped" || message.seed !== undefined) {
      const words = [];
      if (figures) words.push(figures.tokens === 1 ? "1 token" : `${figures.tokens} tokens`);
      if (figures?.rate) words.push(`${figures.rate.toFixed(1)} tokens/s`);
      if (figures?.first !== null && figures) words.push(`first token after ${seconds(figures.first)}`);
      if (figures?.cached) words.push(`${figures.cached} of ${figures.prompt} prompt tokens cached`);
      if (message.finish === "length") words.push(ended(message.limit));
      if (message.finish === "stopped") words.push("stopped");
      out.append(el("span", { class: "figures" }, words.join(" · ")));
      if (message.seed !== undefined)
        out.append(action(`seed ${message.seed}`, () => { this.settings.set("seed", String(message.seed)); this.note("This seed is in the settings now."); }, { "aria-label": `Use seed ${message.seed} from now on` }));
    }
    return out;
  }
  /** Says something for a while, with what can be done about it. */
  note(text, name, act) {
    const clear = () => $("chat-note").replaceChildren();
    $("chat-note").replaceChildren(text, name ? el("button", { type: "button", class: "quiet", text: name, onclick: () => { clear(); act(); this.input.focus(); } }) : "");
    clearTimeout(this.noted);
    this.noted = setTimeout(clear, name ? 12000 : 4000);
  }

  /** Calls of tools, with a place for what they give. */
  calls(message) {
    const last = () => this.messages.at(-1) === message;
    const results = [];
    const form = el("div", { class: "stack" }, message.tool_calls.map((call) => {
      let args = call.function.arguments;
      try { args = JSON.stringify(JSON.parse(args), null, 2); } catch { /* not whole yet */ }
      const id = freshId("result"), result = el("textarea", { id, rows: 2, class: "mono" });
      results.push([call, result]);
      return el("div", { class: "call stack tight" }, el("h3", {}, "Calls ", el("code", { text: call.function.name })), el("pre", { text: args }),
        message.live || !last() ? null : el("div", { class: "field" }, el("label", { for: id, text: "Result of the call" }), result));
    }));
    if (!message.live && last())
      form.append(el("button", { type: "button", class: "plain", text: "Send the results", onclick: () => {
        for (const [call, result] of results) this.push({ role: "tool", tool_call_id: call.id, content: result.value });
        this.update(message);
        this.runner.start(true);
      } }));
    return form;
  }

  cut(from) {
    for (const gone of this.messages.splice(from)) { gone.view?.remove(); delete gone.view; }
  }
  edit(message) {
    if (this.runner.busy) return;
    const id = freshId("edit"), text = el("textarea", { id, rows: Math.min(12, message.content.split("\n").length + 1), value: message.content });
    const back = () => { this.update(message); message.view.querySelector(".actions button")?.focus(); };
    const go = () => {
      if (text.value.trim() === "") return;
      message.content = text.value;
      this.cut(this.messages.indexOf(message) + 1);
      this.update(message);
      this.keep();
      this.input.focus();
      this.runner.start(true);
    };
    text.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.stopPropagation(); back(); }
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.stopPropagation(); go(); }
    });
    message.view.replaceChildren(el("div", { class: "stack tight" }, el("label", { for: id, text: "Edit your message; the messages after it are deleted" }), text,
      el("div", { class: "row" }, el("button", { type: "button", class: "main", text: "Send again", onclick: go }), el("button", { type: "button", class: "quiet", text: "Cancel", onclick: back }))));
    text.focus();
  }
  /** Another answer in place of this one, which stays to be gone back to. */
  async retry(message) {
    if (this.runner.busy) return;
    const variant = ({ content, reasoning, tool_calls, tokens, seed, figures, finish, limit }) => ({ content, reasoning, tool_calls, tokens, seed, figures, finish, limit });
    const variants = message.variants ?? [variant(message)];
    this.cut(this.messages.indexOf(message));
    await this.runner.start(true);
    const fresh = this.messages.at(-1);
    if (fresh?.role !== "assistant") return;
    variants.push(variant(fresh));
    fresh.variants = variants;
    fresh.variant = variants.length - 1;
    this.update(fresh);
    this.keep();
  }
  choose(message, index) {
    if (this.runner.busy) return;
    Object.assign(message, message.variants[index], { variant: index });
    this.cut(this.messages.indexOf(message) + 1);
    this.update(message);
    this.keep();
  }
  /** Goes on from another token than the one that came. */
  branch(message, index, token) {
    if (this.runner.busy) return;
    const before = message.tokens.slice(0, index).map((one) => one.token).join("");
    const at = message.content.startsWith(before) ? before : before.trimStart();
    this.cut(this.messages.indexOf(message) + 1);
    const place = message.tokens[index];
    message.tokens = [...message.tokens.slice(0, index), { ...place, token, logprob: place.top.find((one) => one.token === token)?.logprob ?? null }];
    message.content = at + token;
    message.showsTokens = false;
    this.runner.start(true);
  }
}
