// Settings of a route: a control for every field that the server's /openapi.json lists, made by the
// type of the field, with the value that is in force, and an error at the field where a value is wrong.

import { el, freshId, kept } from "./dom.js";
import { app, Failure, fieldsOf } from "./server.js";

// --- what a field is called and where it stands ---------------------------------------------------------

/** Groups in their order, the most used first; fields in the order of the list. Others follow under "Other". */
const kGroups = {
  "Sampling": ["temperature", "top_p", "top_k", "min_p", "max_completion_tokens", "seed"],
  "Penalties": ["repetition_penalty", "presence_penalty", "frequency_penalty", "repeat_last_n", "no_repeat_ngram_size",
    "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"],
  "More samplers": ["typical_p", "top_n_sigma", "top_h", "epsilon_cutoff", "eta_cutoff", "xtc_probability", "xtc_threshold",
    "dynatemp_range", "dynatemp_exponent", "mirostat", "mirostat_tau", "mirostat_eta", "samplers"],
  "Length and stopping": ["min_tokens", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "t_max_predict_ms"],
  "Constrained decoding": ["response_format", "json_schema", "regex", "choice", "grammar"],
  "Banned and preferred tokens": ["bad_words", "logit_bias", "sequence_bias", "allowed_token_ids"],
  "Reasoning": ["reasoning_effort", "reasoning_budget", "reasoning_format"],
  "Tools and chat template": ["tools", "tool_choice", "parallel_tool_calls", "chat_template", "chat_template_kwargs", "documents"],
  "Retrieval (RAG)": ["retrieve"],
  "Output": ["post_sampling_probs", "parse_special", "suffix"],
  "Request": ["prediction", "timeout_ms", "priority", "cache_salt"],
};

const kTitles = {
  max_completion_tokens: "Maximum new tokens", top_p: "Top-p (nucleus)", top_k: "Top-k", min_p: "Min-p", seed: "Random seed",
  repeat_last_n: "Penalty window, tokens", no_repeat_ngram_size: "No repeated n-grams of size", typical_p: "Typical-p", top_n_sigma: "Top-n-sigma", top_h: "Top-H",
  dry_multiplier: "DRY strength", dry_base: "DRY base", dry_allowed_length: "DRY allowed length", dry_penalty_last_n: "DRY window, tokens",
  dry_sequence_breakers: "DRY sequence breakers", epsilon_cutoff: "Epsilon cutoff", eta_cutoff: "Eta cutoff", xtc_probability: "XTC probability",
  xtc_threshold: "XTC threshold", dynatemp_range: "Dynamic temperature range", dynatemp_exponent: "Dynamic temperature exponent", mirostat: "Mirostat",
  mirostat_tau: "Mirostat target surprise", mirostat_eta: "Mirostat learning rate", samplers: "Sampler order", min_tokens: "Minimum new tokens",
  stop: "Stop strings", stop_token_ids: "Stop token ids", include_stop_str_in_output: "Keep the stop string", ignore_eos: "Ignore end of text",
  response_format: "JSON mode", json_schema: "JSON schema", regex: "Regular expression", choice: "Choices", grammar: "Grammar (GBNF)",
  bad_words: "Banned strings", logit_bias: "Logit bias", allowed_token_ids: "Allowed token ids", retrieve: "Use retrieved passages",
  reasoning_effort: "Reasoning effort", reasoning_budget: "Reasoning budget, tokens", reasoning_format: "Reasoning output",
  chat_template: "Chat template (Jinja)", chat_template_kwargs: "Template variables", tool_choice: "Tool choice", tools: "Tools",
  parallel_tool_calls: "Parallel tool calls", post_sampling_probs: "Probabilities after sampling", parse_special: "Parse special tokens",
  prediction: "Predicted output", timeout_ms: "Timeout, ms", t_max_predict_ms: "Time for new text, ms", cache_salt: "Cache salt",
};
export const title = (name) => kTitles[name] ?? (name[0].toUpperCase() + name.slice(1)).replaceAll("_", " ");

/** Help where the server's own is about JSON, or about the API. */
const kHelp = {
  max_completion_tokens: "the answer ends after this many tokens at the latest",
  seed: "the same seed repeats an answer; empty = a new one for every answer",
  stop: "end the answer before one of these strings; one a line, a line break in it is written \\n",
  stop_token_ids: "end the answer before one of these tokens; ids with commas",
  t_max_predict_ms: "after this time the answer ends with its line; 0 = off",
  dry_sequence_breakers: "strings that end a match; one a line, a line break is written \\n",
  bad_words: "strings that the model must not write; one a line",
  allowed_token_ids: "the model may write no other tokens; ids with commas",
  samplers: "what acts on the logits, in this order, with commas; those left out are off",
  response_format: "the answer is a JSON object",
  json_schema: "the answer is JSON that this schema allows",
  regex: "the whole answer matches this pattern",
  choice: "the answer is one of these lines",
  grammar: "the answer follows this GBNF grammar (llama.cpp's; the rule \"root\")",
  logit_bias: "JSON: {\"token id or text\": bias from -100 to 100}",
  sequence_bias: "JSON: [[[token ids], bias], …], added to a sequence's last token",
  chat_template_kwargs: "JSON: variables of the chat template, such as {\"enable_thinking\": false}",
  documents: "JSON: a list that the chat template gets as \"documents\"",
  tools: "JSON: functions that the model may call, as in OpenAI's API",
  tool_choice: "whether the model calls functions",
  retrieve: "passages of the server's index are put before the question",
  prediction: "text that the answer probably repeats (prompt lookup drafts from it)",
  post_sampling_probs: "token probabilities after temperature, penalties and filters, where they are shown",
};
const kExamples = { json_schema: "{\"type\": \"object\", …}", logit_bias: "{\"50256\": -100}", sequence_bias: "[[[50256, 198], -5]]", chat_template_kwargs: "{\"enable_thinking\": false}",
  tools: "[{\"type\": \"function\", …}]", documents: "[{\"title\": …, \"text\": …}]", regex: "yes|no", grammar: "root ::= \"yes\" | \"no\"", seed: "random" };

/** Fields that a tab sets itself, that mean nothing on a page, or that streams do not have (beams). */
const kNotSettings = new Set(["model", "user", "messages", "prompt", "stream", "stream_options", "logprobs", "top_logprobs", "n_probs", "echo", "best_of", "n",
  "return_token_ids", "timings_per_token", "continue_final_message", "add_generation_prompt", "metadata", "store", "modalities", "service_tier", "safety_identifier",
  "prompt_cache_key", "cache_prompt", "input", "encoding_format", "reasoning", "beams", "length_penalty", "early_stopping"]);

/** Controls that stand for a part of a field: their kind, and the field's value by theirs. */
const kParts = {
  response_format: [["response_format", { kind: "flag", schema: { default: false } }, () => ({ type: "json_object" })]],
  structured_outputs: [["regex", { kind: "line", schema: {} }, (regex) => ({ regex })], ["choice", { kind: "lines", schema: {} }, (choice) => ({ choice })]],
  prediction: [["prediction", { kind: "text", schema: {} }, (content) => ({ type: "content", content })]],
};
const kOneOf = new Set(["response_format", "json_schema", "structured_outputs", "grammar"]);

// --- types -------------------------------------------------------------------------------------------------

/** What a person gives for a schema: the one place that reads types. "null" beside a type says only that the
 * field may be left out. "" where there is nothing to choose. */
export function kindOf(schema) {
  if (schema["x-no-effect"]) return "";  // what clients of other servers send along
  if (schema.enum) return schema.enum.filter((one) => typeof one === "string").length > 1 ? "choice" : "";
  const several = schema.oneOf ?? schema.anyOf;
  if (several) {
    const kinds = several.map(kindOf);
    return ["lines", "choice", "flag"].find((kind) => kinds.includes(kind)) ?? (kinds.includes("json") ? "json" : kinds.find(Boolean) ?? "");
  }
  const type = [schema.type ?? []].flat().find((one) => one !== "null");
  if (type === "number" || type === "integer") return type;
  if (type === "boolean") return "flag";
  if (type === "string") return schema.maxLength > 4096 ? "text" : "line";
  if (type === "object") return "json";
  if (type !== "array") return "";
  const items = schema.items ?? {};
  return items.enum ? "names" : items.type === "integer" ? "ids" : items.type === "string" ? "lines" : "json";
}
const choicesOf = (schema) => (schema.enum ?? (schema.oneOf ?? schema.anyOf ?? []).find((one) => one.enum)?.enum ?? []).filter((one) => typeof one === "string");

const kHuge = 1 << 20;
/** "a whole number from 0 to 10", without bounds that nobody reaches. */
function expectedNumber({ minimum: least, maximum: most }, whole) {
  const low = least !== undefined && least > -kHuge, high = most !== undefined && most <= kHuge;
  return (whole ? "a whole number" : "a number") + (low && high ? ` from ${least} to ${most}` : low ? ` from ${least}` : high ? ` up to ${most}` : "");
}
/** What a spinner adds: of ranges that do not begin at a multiple of 0.05, so little that they reach round numbers. */
const stepOf = (schema, whole) => (whole ? 1 : Math.abs(Math.round((schema.minimum ?? 0) * 20) - (schema.minimum ?? 0) * 20) < 1e-9 ? 0.05 : 0.01);

function readNumber(text, schema, whole) {
  const value = Number(text), good = text.trim() !== "" && Number.isFinite(value) && (!whole || Number.isSafeInteger(value)) &&
    !(value < schema.minimum) && !(value > schema.maximum);
  if (!good) throw new Failure(`expected ${expectedNumber(schema, whole)}`);
  return value;
}
const readLines = (text) => text.split("\n").filter((line) => line !== "").map((line) => line.replaceAll("\\n", "\n"));
const readNames = (text) => text.split(/[,;]/).map((one) => one.trim()).filter((one) => one !== "");

/** How a kind is typed (`make` gets the properties that all share), shown and read; `read` throws what was expected. */
const kKinds = {
  number: { inline: true, make: (schema, common) => el("input", { ...common, type: "number", min: schema.minimum, max: schema.maximum, step: stepOf(schema, false), inputmode: "decimal" }),
    read: (text, schema) => readNumber(text, schema, false) },
  integer: { inline: true, make: (schema, common) => el("input", { ...common, type: "number", min: schema.minimum > -kHuge ? schema.minimum : undefined, max: schema.maximum <= kHuge ? schema.maximum : undefined, step: 1,
    inputmode: schema.minimum >= 0 ? "numeric" : undefined }), read: (text, schema) => readNumber(text, schema, true) },
  flag: { make: (schema, common) => el("input", { ...common, type: "checkbox" }), read: (checked) => checked },
  choice: { make: (schema, common) => el("select", common, schema.default === undefined ? el("option", { value: "", text: "automatic" }) : null, choicesOf(schema).map((one) => el("option", { value: one, text: one }))),
    read: (text) => text },
  line: { make: (schema, common) => el("input", { ...common, type: "text", spellcheck: "false", autocomplete: "off" }), read: (text, schema) => short(text, schema) },
  text: { make: (schema, common) => el("textarea", { ...common, rows: 3, class: "mono", spellcheck: "false" }), read: (text, schema) => short(text, schema) },
  lines: { make: (schema, common) => el("textarea", { ...common, rows: 2, spellcheck: "false" }), show: (list) => list.map((one) => one.replaceAll("\n", "\\n")).join("\n"), read: readLines },
  ids: { make: (schema, common) => el("input", { ...common, type: "text", inputmode: "numeric", spellcheck: "false", autocomplete: "off" }), show: (list) => list.join(", "),
    read: (text) => {
      const ids = readNames(text.replace(/\s+/g, ","));
      if (!ids.every((id) => /^\d{1,9}$/.test(id))) throw new Failure("expected token ids with commas, such as 1, 2, 3");
      return ids.map(Number);
    } },
  names: { make: (schema, common) => el("textarea", { ...common, rows: 3, spellcheck: "false" }), show: (list) => list.join(", "),
    read: (text, schema) => {
      const names = readNames(text), wrong = names.find((name) => !schema.items.enum.includes(name));
      if (wrong !== undefined) throw new Failure(`there is no ${wrong}; expected some of ${schema.items.enum.join(", ")}`);
      return names;
    } },
  json: { make: (schema, common) => el("textarea", { ...common, rows: 3, class: "mono", spellcheck: "false" }), show: (value) => JSON.stringify(value, null, 1),
    read: (text, schema) => {
      const wanted = [schema.type ?? "object"].flat().includes("array") ? "list" : "object";
      let value;
      try { value = JSON.parse(text); } catch { throw new Failure(`this is no JSON; expected ${wanted === "list" ? "a list [...]" : "an object {...}"}`); }
      if (typeof value !== "object" || value === null || Array.isArray(value) !== (wanted === "list")) throw new Failure(`expected a JSON ${wanted}`);
      return value;
    } },
};
function short(text, schema) {
  const size = new TextEncoder().encode(text).length;
  if (size > schema.maxLength) throw new Failure(`expected at most ${schema.maxLength} bytes; these are ${size}`);
  return text;
}

// --- one control -----------------------------------------------------------------------------------------------

/** A field as it is typed. `changed(raw)` gets what was typed, undefined where that is what is in force anyway. */
class Control {
  constructor(name, of, { kind, schema }, encode, help, changed) {
    Object.assign(this, { name, of, kind, schema, encode, changed, raw: undefined, standard: undefined });
    this.how = kKinds[kind];
    const id = freshId("set"), hintId = id + "-hint", errorId = id + "-error";
    this.input = this.how.make(schema, { id, name, placeholder: kExamples[name], "aria-describedby": `${hintId} ${errorId}` });
    this.input.addEventListener(kind === "flag" || kind === "choice" ? "change" : "input", () => this.typed());
    // typing replaces a default, it does not go into the middle of it
    this.input.addEventListener("click", () => { if (this.raw === undefined) this.input.select?.(); });
    // what is emptied goes back to what is in force
    this.input.addEventListener("blur", () => { if (this.raw === undefined) this.show(); });
    this.back = el("button", { type: "button", class: "back", text: "↺", "aria-label": `${title(name)}: back to the default`, title: "Back to the default", hidden: true,
      onclick: () => { this.set(undefined); this.changed(undefined); this.input.focus(); } });
    this.error = el("p", { class: "field-error", id: errorId, role: "alert", hidden: true });
    const label = el("label", { for: id, text: title(name) }), hint = el("p", { class: "hint", id: hintId, text: help });
    this.node = el("div", { class: "field" + (this.how.inline ? " inline" : ""), data: { field: of, kind } },
      kind === "flag" ? el("div", { class: "check" }, this.input, label, this.back) : [el("div", { class: "row name" }, label, this.back), this.input], this.error, hint);
  }
  get text() { return this.kind === "flag" ? this.input.checked : this.input.value; }
  /** What is in force where nothing is typed. */
  inForce(value) { this.standard = value; this.show(); }
  set(raw) { this.raw = raw; this.show(); }

  shownStandard() {
    if (this.standard === undefined || this.standard === null) return this.kind === "flag" ? false : "";
    return this.kind === "flag" ? this.standard === true : this.how.show ? this.how.show(this.standard) : String(this.standard);
  }
  show() {
    const shown = this.raw ?? this.shownStandard();
    if (this.kind === "flag") this.input.checked = shown === true;
    else if (this.input.value !== shown) this.input.value = shown;
    this.look();
  }
  typed() {
    const bad = this.input.validity.badInput;
    this.raw = !bad && (this.text === "" || this.text === this.shownStandard()) ? undefined : this.text;
    this.changed(this.raw);
    this.look();
  }
  look() {
    this.node.classList.toggle("changed", this.raw !== undefined);
    this.back.hidden = this.raw === undefined;
    this.mark(this.problem());
  }
  problem() {
    try { this.read(); return ""; } catch (error) { return error.message; }
  }
  mark(message) {
    this.error.hidden = !message;
    this.error.textContent = message ? message[0].toUpperCase() + message.slice(1) : "";
    if (message) this.input.setAttribute("aria-invalid", "true");
    else this.input.removeAttribute("aria-invalid");
  }
  /** What goes into a body; undefined where nothing is typed. */
  read() {
    if (this.input.validity.badInput) throw new Failure(`expected ${expectedNumber(this.schema, this.kind === "integer")}`);
    if (this.raw === undefined) return undefined;
    const value = this.how.read(this.raw, this.schema);
    return this.encode && !(this.kind === "flag" && !value) ? this.encode(value) : this.encode ? undefined : value;
  }
  /** Shows the field to who has to mend it. */
  reveal() {
    for (let at = this.node; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    this.input.focus();
    this.node.scrollIntoView({ block: "center" });
  }
}

// --- all of a route ----------------------------------------------------------------------------------------------

export class Settings {
  /** `path`: whose fields; `presets`: what this page asks for where nothing is typed and the model's makers say nothing. */
  constructor(path, presets = {}) {
    this.path = path;
    this.presets = presets;
    this.controls = new Map();
    this.node = el("div", { class: "stack" });
    this.values = kept.read(localStorage, "settings" + path, {});
  }

  /** Controls by their name, of all fields that are settings here. */
  make() {
    this.controls.clear();
    for (const [field, schema] of Object.entries(fieldsOf(this.path) ?? {})) {
      if (kNotSettings.has(field) || schema.description?.startsWith("another name of")) continue;
      if (field === "retrieve" && app.props.retrieve === false) continue;
      if (field === "priority" && app.props.priorities === false) continue;
      const parts = kParts[field] ?? [[field, { kind: kindOf(schema), schema: this.bounded(field, schema) }]];
      for (const [name, how, encode] of parts)
        if (how.kind) this.controls.set(name, new Control(name, field, how, encode, kHelp[name] ?? schema.description ?? "", (raw) => this.keep(name, raw)));
    }
    const standards = this.standards();
    for (const [name, control] of this.controls) {
      control.standard = this.presets[name] ?? (control.encode ? undefined : standards[name]) ?? control.schema.default;
      control.set(this.values[name]);
    }
  }
  /** No text is longer than the model's context. */
  bounded(field, schema) {
    const context = app.model?.meta?.n_ctx ?? 0;
    return field === "max_completion_tokens" && context > 0 ? { ...schema, maximum: Math.min(schema.maximum, context) } : schema;
  }
  /** What the server does where a request does not say. */
  standards() {
    const of = app.props.models?.find((one) => one.id === app.model?.id)?.default_generation_settings ?? {};
    return { max_completion_tokens: this.path.includes("chat") ? of.max_tokens : 16, ...of, stop_token_ids: undefined };
  }

  draw() {
    this.make();
    const placed = new Set(Object.values(kGroups).flat()), others = [...this.controls.keys()].filter((name) => !placed.has(name));
    const groups = Object.entries({ ...kGroups, "Other": others }).map(([name, fields]) => [name, fields.filter((field) => this.controls.has(field))]).filter(([, fields]) => fields.length > 0);
    const nodes = (fields) => fields.map((field) => this.controls.get(field).node);
    const from = app.props.models?.find((one) => one.id === app.model?.id)?.default_generation_settings?.source;
    this.node.replaceChildren(el("p", { class: "hint", text: `Gray values are in force${from && from !== "server" ? `; the model's come from ${from}` : ""}.` }), ...groups.map(([name, fields], i) => i === 0
      ? el("section", { class: "stack", "aria-label": name, data: { group: name } }, nodes(fields))
      : el("details", { data: { group: name } }, el("summary", {}, name, el("span", { class: "count", "aria-label": "changed" })), el("div", { class: "stack" }, nodes(fields)))),
      el("button", { type: "button", class: "quiet", text: "Reset all to defaults", onclick: () => { this.values = {}; this.save(); for (const control of this.controls.values()) control.set(undefined); this.count(); } }));
    this.count();
  }
  /** How many of a folded group are changed. */
  count() {
    for (const group of this.node.querySelectorAll("details")) {
      const n = group.querySelectorAll(".field.changed").length, badge = group.querySelector(".count");
      badge.textContent = n > 0 ? String(n) : "";
      badge.hidden = n === 0;
    }
  }

  save() { kept.write(localStorage, "settings" + this.path, this.values); }
  keep(name, raw) {
    if (raw === undefined) delete this.values[name];
    else this.values[name] = raw;
    this.save();
    // by the control's own look, which follows this call
    queueMicrotask(() => this.count());
  }
  set(name, raw) {
    this.keep(name, raw);
    this.controls.get(name)?.set(raw);
  }

  /** What goes into a body. A wrong value is marked at its field, and nothing is sent. */
  body() {
    const out = {}, wrong = [];
    for (const [name, control] of this.controls) {
      try {
        const value = control.read() ?? (this.presets[name] === undefined ? undefined : this.presets[name]);
        if (value === undefined) continue;
        const other = kOneOf.has(control.of) ? [...kOneOf].find((one) => out[one] !== undefined) : undefined;
        if (other) {
          const first = [...this.controls.values()].find((one) => one.of === other && one.raw !== undefined);
          throw new Failure(`leave this or ${title(first?.name ?? other)} empty: the answer can follow one of them`);
        }
        out[control.of] = value;
      } catch (error) { wrong.push([control, error.message]); }
    }
    if (wrong.length === 0) return out;
    for (const [control, message] of wrong) control.mark(message);
    const [control, message] = wrong[0];
    control.reveal();
    throw Object.assign(new Failure(`${title(control.name)}: ${message}.`), { atField: true });
  }
  /** Marks the field that the server has refused. */
  blame(error) {
    const control = error.param && [...this.controls.values()].find((one) => error.param === one.of || error.param.startsWith(one.of + "."));
    if (!control) return;
    control.mark(error.message);
    control.reveal();
    error.atField = true;
  }

  /** The settings' box: open while the window is wide, folded and in front of the rest while it is narrow. */
  box(name, ...before) {
    const wide = matchMedia("(min-width: 62rem)");
    const folded = el("details", { open: wide.matches }, el("summary", { text: name }), el("div", { class: "stack" }, before, this.node));
    wide.addEventListener("change", () => { folded.open = wide.matches; });
    return this.aside = el("aside", { class: "card settings", "aria-label": name }, folded);
  }
  /** For narrow screens: goes to the box from wherever the page is scrolled to. */
  button() {
    return el("button", { type: "button", class: "quiet to-settings", text: "Settings", onclick: () => {
      const box = this.aside.firstChild;
      box.open = true;
      box.firstChild.focus();
      box.scrollIntoView({ block: "start" });
    } });
  }
}
