// The page of `tessera serve`: one module, no library. What models and users write enters the
// document as text nodes alone; there is no markup made out of strings anywhere.

// --- the document -----------------------------------------------------------------------------

const $ = (id) => document.getElementById(id);
const narrow = () => matchMedia("(max-width: 30rem)").matches;
const kSvg = "http://www.w3.org/2000/svg";

/** Sets what `props` names: class, text, on… listeners, data, properties, else attributes. */
function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "text") node.textContent = value;
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "style") for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "hidden") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(3)) if (child !== null && child !== undefined && child !== false) node.append(child);
  return node;
}
const el = (tag, props, ...children) => fill(document.createElement(tag), props, children);
const svg = (tag, props, ...children) => fill(document.createElementNS(kSvg, tag), props, children);

let lastId = 0;
const freshId = (kind) => `${kind}-${++lastId}`;
const clip = (text, n) => (text.length > n ? text.slice(0, n - 1) + "…" : text);
/** White space made visible, for tokens. */
const shown = (text) => text.replace(/ /g, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "∅";
const percent = (p) => (p >= 0.0995 ? (100 * p).toFixed(p > 0.9995 ? 0 : 1) : p >= 0.00095 ? (100 * p).toFixed(2) : p >= 5e-6 ? (100 * p).toFixed(3) : p > 0 ? "< 0.001" : "0") + " %";
function scaled(value, unit = "") {
  const prefixes = ["", "k", "M", "G", "T", "P"];
  let i = 0;
  for (; Math.abs(value) >= 1000 && i < 5; ++i) value /= 1000;
  const digits = i === 0 ? (Number.isInteger(value) ? 0 : 2) : value < 10 ? 2 : value < 100 ? 1 : 0;
  return value.toFixed(digits) + (prefixes[i] + unit ? " " + prefixes[i] + unit : "");
}
function bytes(value) {
  const prefixes = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; value >= 1024 && i < 4; ++i) value /= 1024;
  return value.toFixed(i === 0 ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0) + " " + prefixes[i];
}
const exact = (n) => Number(n).toLocaleString("en-GB").replace(/,/g, "\u202f");
function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  return value < 1 ? (1000 * value).toFixed(0) + " ms" : value < 100 ? value.toFixed(2) + " s" : value.toFixed(0) + " s";
}
const lines = (text) => text.split("\n").map((line) => line.trim()).filter((line) => line !== "");

function say(text) { $("status").textContent = text; }
function problem(error) {
  const box = $("problem");
  box.hidden = !error;
  box.textContent = error ? (error.message ?? String(error)) : "";
  if (error) box.scrollIntoView({ block: "nearest" });
}

function download(name, type, text) {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
function copy(text, button) {
  navigator.clipboard?.writeText(text).then(() => {
    const was = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = was; }, 1200);
  }, () => problem(new Error("The browser does not let this page copy.")));
}

/** What outlives a reload; a browser that forbids it forgets. */
const kept = {
  read(store, name, otherwise) {
    try { return JSON.parse(store.getItem("tessera." + name)) ?? otherwise; } catch { return otherwise; }
  },
  write(store, name, value) {
    try { store.setItem("tessera." + name, JSON.stringify(value)); } catch { /* full, or forbidden */ }
  },
};

// --- the server -------------------------------------------------------------------------------

class Failure extends Error {
  constructor(message, status, code) { super(message); this.status = status; this.code = code; }
}

let key = kept.read(sessionStorage, "key", "");
let askingForKey = null;

/** Asks for a key, once for all who wait; false where the user will not give one. */
function askForKey(wrong) {
  askingForKey ??= new Promise((resolve) => {
    const dialog = $("key-dialog"), note = $("key-problem");
    note.hidden = !wrong;
    note.textContent = wrong ? "The server does not know this key." : "";
    $("key-input").value = "";
    const done = (given) => {
      askingForKey = null;
      $("key-form").onsubmit = dialog.oncancel = $("key-cancel").onclick = null;
      dialog.close();
      resolve(given);
    };
    $("key-form").onsubmit = (event) => {
      event.preventDefault();
      key = $("key-input").value;
      kept.write(sessionStorage, "key", key);
      $("key-button").hidden = false;
      done(true);
    };
    dialog.oncancel = (event) => { event.preventDefault(); done(false); };
    $("key-cancel").onclick = () => done(false);
    dialog.showModal();
    $("key-input").focus();
  });
  return askingForKey;
}

async function request(path, { body, signal } = {}) {
  for (;;) {
    const headers = {}, used = key;
    if (used) headers.Authorization = "Bearer " + used;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(path, { method: body === undefined ? "GET" : "POST", headers, signal, cache: "no-store",
                                     body: body === undefined ? undefined : JSON.stringify(body) });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Failure("The server does not answer. Is it still running?", 0, "unreachable");
    }
    if (response.ok) return response;
    const told = (await response.json().catch(() => ({}))).error ?? {};
    if (response.status === 401 && (key !== used || await askForKey(used !== ""))) continue;
    const wait = response.headers.get("Retry-After");
    throw new Failure((told.message ? told.message[0].toUpperCase() + told.message.slice(1) : `The server answers ${response.status}`) +
                      (wait ? ` – try again in ${wait} s.` : "."), response.status, told.code);
  }
}
const getJson = async (path) => (await request(path)).json();
const post = async (path, body, signal) => (await request(path, { body, signal })).json();

/** Calls `take` with each event of a streamed answer. */
async function stream(path, body, signal, take) {
  const response = await request(path, { body, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "", done = false;
  for (;;) {
    const { value, done: ended } = await reader.read();
    if (ended) break;
    held += value;
    for (let end; (end = held.indexOf("\n\n")) >= 0; held = held.slice(end + 2)) {
      const event = held.slice(0, end);
      if (!event.startsWith("data: ")) continue;
      const data = event.slice(6);
      if (data === "[DONE]") { done = true; continue; }
      const json = JSON.parse(data);
      if (json.error) throw new Failure(json.error.message, 200, json.error.code);
      take(json);
    }
  }
  if (!done) throw new Failure("The answer broke off.", 200, "broken_off");
}

// --- state that tabs share ----------------------------------------------------------------------

let models = [], model = null, schemas = {};
const can = (what) => model?.capabilities?.includes(what) ?? false;

/** The properties of a route's body, as the server tells them; null where it has no such route. */
function fieldsOf(path) {
  const post = schemas.paths?.[path]?.post;
  if (!post) return null;
  return post.requestBody?.content?.["application/json"]?.schema?.properties ?? {};
}

let inspected = null;
/** What the server tells of the model's make, asked for once. */
function inspection() {
  if (inspected?.id !== model.id) {
    const asked = { id: model.id, answer: getJson("/inspect/" + encodeURIComponent(model.id)) };
    asked.answer.catch(() => { if (inspected === asked) inspected = null; });
    inspected = asked;
  }
  return inspected.answer;
}

/** A button that runs, then stops; `run(signal)` does the work. */
class Runner {
  constructor(button, run) {
    this.button = button;
    this.label = button.textContent;
    this.run = run;
    this.abort = null;
    button.addEventListener("click", () => (this.abort ? this.stop() : this.start()));
  }
  get busy() { return this.abort !== null; }
  stop() { this.abort?.abort(); }
  async start(...given) {
    if (this.busy) return;
    problem(null);
    this.abort = new AbortController();
    this.button.textContent = "Stop";
    running.add(this);
    try {
      await this.run(this.abort.signal, ...given);
    } catch (error) {
      if (error.name !== "AbortError") problem(error);
    } finally {
      this.abort = null;
      this.button.textContent = this.label;
      running.delete(this);
    }
  }
}
const running = new Set();

// --- settings, out of what the server says it takes -----------------------------------------------

const kNotSettings = new Set(["model", "user", "messages", "prompt", "stream", "stream_options", "logprobs", "top_logprobs", "echo",
  "suffix", "best_of", "n", "return_token_ids", "continue_final_message", "add_generation_prompt", "metadata", "store", "modalities",
  "service_tier", "safety_identifier", "prompt_cache_key", "cache_prompt", "input", "encoding_format"]);
const kFirst = ["temperature", "top_p", "top_k", "min_p", "max_completion_tokens", "seed"];
const kTitles = { max_completion_tokens: "Longest answer", top_p: "Top p", top_k: "Top k", min_p: "Min p" };
const title = (name) => kTitles[name] ?? (name[0].toUpperCase() + name.slice(1)).replaceAll("_", " ");

class Settings {
  /** `path`: whose fields; `skip`: those that the tab itself asks for. */
  constructor(path, skip = []) {
    this.path = path;
    this.skip = new Set(skip);
    this.controls = new Map();
    this.node = el("div", { class: "stack" });
    this.values = kept.read(localStorage, "settings" + path, {});
  }

  draw() {
    this.controls.clear();
    const groups = { first: [], penalties: [], more: [], shape: [] };
    for (const [name, schema] of Object.entries(fieldsOf(this.path) ?? {})) {
      if (kNotSettings.has(name) || this.skip.has(name)) continue;
      if (schema.description?.startsWith("another name of")) continue;
      const control = this.control(name, schema);
      if (!control) continue;
      const group = kFirst.includes(name) ? "first"
        : /penalty|repeat|dry_|ngram|bias|bad_words/.test(name) ? "penalties"
        : /format|schema|grammar|structured|tool/.test(name) ? "shape" : "more";
      groups[group].push([name, control]);
    }
    groups.first.sort((a, b) => kFirst.indexOf(a[0]) - kFirst.indexOf(b[0]));
    const fold = (name, list) => list.length === 0 ? null
      : el("details", {}, el("summary", { text: name }), el("div", { class: "stack" }, list.map(([, node]) => node)));
    this.node.replaceChildren(...[...groups.first.map(([, node]) => node), fold("Penalties", groups.penalties),
      fold("Further sampling", groups.more), fold("Format and tools", groups.shape)].filter(Boolean),
      el("button", { type: "button", class: "quiet", text: "Back to the defaults", onclick: () => { this.values = {}; this.save(); this.draw(); } }));
  }

  save() { kept.write(localStorage, "settings" + this.path, this.values); }
  set(name, value) {
    if (value === "" || value === undefined) delete this.values[name];
    else this.values[name] = value;
    this.save();
  }

  control(name, schema) {
    const id = freshId("set"), hintId = id + "-hint";
    const number = schema.type === "number" || schema.type === "integer";
    const value = this.values[name] ?? "";
    const common = { id, "aria-describedby": hintId, name };
    let input, inline = false;
    if (number) {
      inline = true;
      input = el("input", { ...common, type: "number", step: schema.type === "integer" ? 1 : "any", min: schema.minimum, placeholder: "default",
        max: schema.maximum < 1e6 ? schema.maximum : undefined, value, inputmode: "decimal", oninput: () => this.set(name, input.value) });
    } else if (schema.type === "boolean") {
      input = el("input", { ...common, type: "checkbox", checked: value === true, onchange: () => this.set(name, input.checked || "") });
      this.controls.set(name, schema);
      return el("div", { class: "stack tight" }, el("div", { class: "check" }, input, el("label", { for: id, text: title(name) })),
        el("p", { class: "hint", id: hintId, text: schema.description }));
    } else if (schema.enum?.length > 1) {
      input = el("select", { ...common, onchange: () => this.set(name, input.value) },
        el("option", { value: "", text: "default" }), schema.enum.map((choice) => el("option", { value: choice, text: choice })));
      input.value = value;
    } else if (schema.type === "string" && !(schema.maxLength > 4096)) {
      input = el("input", { ...common, type: "text", value, placeholder: "default", oninput: () => this.set(name, input.value) });
    } else if (schema.type || schema.oneOf || name === "tool_choice") {
      input = el("textarea", { ...common, rows: 2, class: "mono", value, spellcheck: "false", oninput: () => this.set(name, input.value),
        placeholder: name === "stop" ? "one a line" : schema.type === "string" ? "" : "JSON" });
    } else {
      return null;  // what clients send without need
    }
    this.controls.set(name, schema);
    return el("div", { class: "field" + (inline ? " inline" : "") }, el("label", { for: id, text: title(name) }), input,
      el("p", { class: "hint", id: hintId, text: schema.description }));
  }

  /** What goes into a body. Nothing is changed on the way: the server says what it does not take. */
  body() {
    const out = {};
    for (const [name, schema] of this.controls) {
      const value = this.values[name];
      if (value === undefined || value === "") continue;
      if (schema.type === "number" || schema.type === "integer") {
        out[name] = Number(value);
        if (schema.type === "integer" && !Number.isSafeInteger(out[name]))
          throw new Failure(`${title(name)} is ${value}; expected a whole number of at most 15 digits`);
      } else if (schema.type === "boolean" || schema.type === "string" || schema.enum) {
        out[name] = value;
      } else if (name === "stop") {
        out[name] = value.split("\n").filter((line) => line !== "").map((line) => line.replaceAll("\\n", "\n"));
      } else if (name === "tool_choice" && !value.trim().startsWith("{")) {
        out[name] = value.trim();
      } else {
        try { out[name] = JSON.parse(value); } catch (error) { throw new Failure(`${title(name)} is no JSON: ${error.message}`); }
      }
    }
    return out;
  }

  /** The settings' box: open on wide screens. */
  box(name, ...before) {
    return el("aside", { class: "card settings", "aria-label": name },
      el("details", { open: matchMedia("(min-width: 62rem)").matches }, el("summary", { text: name }), el("div", { class: "stack" }, before, this.node)));
  }
}

// --- probabilities ------------------------------------------------------------------------------

const bucketOf = (p) => (p < 0.01 ? 0 : p < 0.05 ? 1 : p < 0.2 ? 2 : p < 0.5 ? 3 : p < 0.9 ? 4 : 5);
const legend = () => el("p", { class: "legend" }, el("span", { text: "Probability:" }),
  ["under 1 %", "under 5 %", "under 20 %", "under 50 %", "under 90 %", "more"].map((text, i) => el("span", {}, el("i", { class: "swatch s" + i }), text)));

/** Rows of a name, a bar and a value; `pick` makes names buttons. */
function bars(rows, { pick, value = percent, label } = {}) {
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
class TokenView {
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
        data: { p: p === null ? 5 : bucketOf(p) }, text: token.token.replace(/\n/g, "⏎\n"), title: p === null ? "the first token follows nothing" : percent(p),
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
      rows.length === 0 ? el("p", { class: "hint", text: "It follows nothing, so that nothing else was possible." })
        : el("div", { class: "stack tight" }, bars(rows, { pick, label: "What might have come" }),
          rest > 5e-5 ? el("p", { class: "hint", text: `All others together: ${percent(rest)}` }) : null,
          el("p", { class: "hint", text: "Of the model as it is, before temperature and filters." + (pick ? " Choose one to go on from there." : "") })));
    this.panel.hidden = false;
    this.panel.scrollIntoView({ block: "nearest" });
  }
}

const ofChat = (content) => content.map((one) => ({ token: one.token, logprob: one.logprob, top: one.top_logprobs }));
const ofCompletion = (logprobs) => (logprobs?.tokens ?? []).map((token, i) => ({ token, logprob: logprobs.token_logprobs[i],
  top: Object.entries(logprobs.top_logprobs?.[i] ?? {}).map(([other, logprob]) => ({ token: other, logprob })).sort((a, b) => b.logprob - a.logprob) }));

// --- what models write: blocks and spans of Markdown, as elements around text nodes ---------------

function spans(text) {
  const out = [], pattern = /(`+)([^]*?[^`])\1(?!`)|\*\*([^\s*][^]*?)\*\*|(?<![\w*])\*([^\s*][^*]*?)\*(?![\w*])/g;
  let at = 0;
  for (const match of text.matchAll(pattern)) {
    if (match.index > at) out.push(text.slice(at, match.index));
    out.push(match[2] !== undefined ? el("code", { text: match[2].trim() || match[2] })
      : match[3] !== undefined ? el("strong", {}, spans(match[3])) : el("em", {}, spans(match[4])));
    at = match.index + match[0].length;
  }
  if (at < text.length) out.push(text.slice(at));
  return out;
}

function blocks(text) {
  const out = [], all = text.split("\n");
  for (let i = 0; i < all.length;) {
    const line = all[i];
    const fence = line.match(/^\s*(```+|~~~+)/), heading = line.match(/^(#{1,6})\s+(.*)/), item = line.match(/^\s*([-*+]|\d+[.)])\s+/);
    if (line.trim() === "") { ++i; continue; }
    if (fence) {
      const code = [];
      for (++i; i < all.length && !all[i].trim().startsWith(fence[1]); ++i) code.push(all[i]);
      ++i;
      out.push(el("pre", { tabindex: 0, role: "region", "aria-label": "Code" }, el("code", { text: code.join("\n") })));
    } else if (heading) {
      out.push(el("p", {}, el("strong", {}, spans(heading[2]))));
      ++i;
    } else if (item) {
      const ordered = /\d/.test(item[1]), list = el(ordered ? "ol" : "ul", { start: ordered ? parseInt(item[1], 10) : undefined });
      for (; i < all.length; ++i) {
        const next = all[i].match(/^\s*([-*+]|\d+[.)])\s+(.*)/);
        if (next && /\d/.test(next[1]) === ordered) list.append(el("li", {}, spans(next[2])));
        else if (!next && /^\s{2,}\S/.test(all[i]) && list.lastChild) list.lastChild.append("\n", ...spans(all[i].trim()));
        else break;
      }
      out.push(list);
    } else if (line.startsWith("> ")) {
      const quoted = [];
      for (; i < all.length && all[i].startsWith(">"); ++i) quoted.push(all[i].replace(/^>\s?/, ""));
      out.push(el("blockquote", {}, blocks(quoted.join("\n"))));
    } else if (line.includes("|") && /^\s*\|?[\s:|-]+\|[\s:|-]*$/.test(all[i + 1] ?? "")) {
      const cells = (row) => row.trim().replace(/^\||\|$/g, "").split("|").map((cell) => spans(cell.trim()));
      const table = el("table", {}, el("thead", {}, el("tr", {}, cells(line).map((cell) => el("th", {}, cell))))), rows = el("tbody");
      for (i += 2; i < all.length && all[i].includes("|"); ++i) rows.append(el("tr", {}, cells(all[i]).map((cell) => el("td", {}, cell))));
      table.append(rows);
      out.push(table);
    } else {
      const paragraph = [];
      for (; i < all.length && all[i].trim() !== "" && !/^\s*(```|~~~)|^#{1,6}\s|^> /.test(all[i]) && (paragraph.length === 0 || !/^\s*([-*+]|\d+[.)])\s+/.test(all[i])); ++i) paragraph.push(all[i]);
      out.push(el("p", {}, paragraph.flatMap((part, n) => (n === 0 ? spans(part) : [el("br"), ...spans(part)]))));
    }
  }
  return out;
}

// --- chat -----------------------------------------------------------------------------------------

/** Reads an answer to who listens, a sentence at a time. */
const aloud = {
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

class Chat {
  id = "chat"; name = "Chat"; needs = "chat";

  build() {
    this.messages = kept.read(sessionStorage, "chat", []);
    this.settings = new Settings("/v1/chat/completions");
    this.system = el("textarea", { id: "system", rows: 3, placeholder: "What the model is to be", value: kept.read(sessionStorage, "system", ""),
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
      el("div", { class: "row" }, el("button", { type: "button", class: "quiet", id: "new-chat", text: "New", onclick: () => this.reset() }),
        el("button", { type: "button", class: "quiet", id: "export", text: "Export", onclick: () => this.export() }),
        el("button", { type: "button", class: "quiet", id: "import", text: "Import", onclick: () => this.file.click() }), this.file));
    const talk = el("div", { class: "talk" }, this.list, el("form", { class: "composer", onsubmit: (event) => event.preventDefault() },
      el("div", { class: "box" }, el("label", { class: "hidden", for: "message", text: "Message" }), this.input, this.button), under));
    this.settings.draw();
    const box = this.settings.box("Settings", el("div", { class: "field" }, el("label", { for: "system", text: "System message" }), this.system),
      el("div", { class: "check" }, this.wantsTokens, el("label", { for: "chat-tokens", text: "Probabilities of tokens" })));
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
    if (before.length > 0) this.note("The conversation is gone.", "Bring it back", () => { this.messages = before; this.keep(); this.draw(); });
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
    } catch (error) { problem(new Error(`This file holds no conversation: ${error.message}`)); }
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
    const body = { model: model.id, messages: [...(this.system.value.trim() ? [{ role: "system", content: this.system.value }] : []), ...this.forServer()],
      ...this.settings.body(), stream: true, stream_options: { include_usage: true } };
    const wantsTokens = this.wantsTokens.checked;
    if (wantsTokens) Object.assign(body, { logprobs: true, top_logprobs: 8 });
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
        if (choice.finish_reason) message.finish = choice.finish_reason;
        if (choice.sources) message.sources = choice.sources;
        aloud.more(message.content, false);
        if (!drawn) {
          drawn = true;
          requestAnimationFrame(() => { drawn = false; if (message.live) { this.update(message); this.scroll(); } });
        }
      });
    } catch (error) {
      if (error.name === "AbortError") message.finish = "stopped";
      else { message.failed = true; throw error; }
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
    const tries = ["What is a Transformer, in two sentences?", "Write a limerick about a mosaic.", "Explain attention to a child."];
    this.list.replaceChildren(el("li", { class: "welcome" }, el("h2", { text: "Ask something" }),
      el("p", { class: "soft", text: "Every answer names its seed, by which it can be made again. What you write stays between this page and this server." }),
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
    const parts = [el("header", {}, el("span", { text: mine ? "You" : tool ? "Tool" : model?.id ?? "Answer" }))];
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
    if (message.sources?.length) parts.push(el("ul", { class: "hint", "aria-label": "Passages before the question" },
      message.sources.map((one) => el("li", { text: `${one.named ? "★ " : ""}[${one.number}] ${one.source}` }))));
    if (!message.live) parts.push(this.actions(message));
    view.replaceChildren(...parts);
  }

  actions(message) {
    const action = (text, act, more) => el("button", { type: "button", class: "quiet", text, onclick: act, ...more });
    const out = el("div", { class: "actions" });
    if (message.role === "user") out.append(action("Edit", () => this.edit(message)));
    if (message.role === "assistant") {
      out.append(action("Retry", () => this.retry(message)));
      if (message.variants?.length > 1) {
        const at = message.variant ?? 0, to = (step) => this.choose(message, (at + step + message.variants.length) % message.variants.length);
        out.append(action("‹", () => to(-1), { "aria-label": "The answer before" }), el("span", { class: "hint", text: `${at + 1} of ${message.variants.length}` }),
          action("›", () => to(1), { "aria-label": "The next answer" }));
      }
      if (message.finish === "length" || message.finish === "stopped")
        out.append(action("Continue", () => { if (this.messages.at(-1) === message) this.runner.start(true); }));
      if (message.tokens?.length)
        out.append(action("Tokens", () => { message.showsTokens = !message.showsTokens; this.update(message); }, { "aria-pressed": String(!!message.showsTokens) }));
      if (message.content && tabs.has("mixing")) out.append(action("Token mixing", () => tabs.get("mixing").show(message.content)));
    }
    if (message.content) out.append(action("Copy", (event) => copy(message.content, event.currentTarget)));
    const figures = message.figures;
    if (figures || message.finish === "stopped" || message.seed !== undefined) {
      const words = [];
      if (figures) words.push(`${figures.tokens} tokens`);
      if (figures?.rate) words.push(`${figures.rate.toFixed(1)} a second`);
      if (figures?.first !== null && figures) words.push(`first after ${seconds(figures.first)}`);
      if (figures?.cached) words.push(`${figures.cached} of ${figures.prompt} cached`);
      if (message.finish === "length") words.push("cut at its limit");
      if (message.finish === "stopped") words.push("stopped");
      out.append(el("span", { class: "figures" }, words.join(" · ")));
      if (message.seed !== undefined)
        out.append(action(`seed ${message.seed}`, () => { this.settings.set("seed", String(message.seed)); this.settings.draw(); this.note("This seed is in the settings now."); }, { "aria-label": `Use seed ${message.seed} from now on` }));
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
        message.live || !last() ? null : el("div", { class: "field" }, el("label", { for: id, text: "What it gives" }), result));
    }));
    if (!message.live && last())
      form.append(el("button", { type: "button", class: "plain", text: "Send results", onclick: () => {
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
    message.view.replaceChildren(el("div", { class: "stack tight" }, el("label", { for: id, text: "Edit your message; what follows it goes" }), text,
      el("div", { class: "row" }, el("button", { type: "button", class: "main", text: "Send again", onclick: go }), el("button", { type: "button", class: "quiet", text: "Cancel", onclick: back }))));
    text.focus();
  }
  /** Another answer in place of this one, which stays to be gone back to. */
  async retry(message) {
    if (this.runner.busy) return;
    const variant = ({ content, reasoning, tool_calls, tokens, seed, figures, finish }) => ({ content, reasoning, tool_calls, tokens, seed, figures, finish });
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

// --- completion ---------------------------------------------------------------------------------

class Completion {
  id = "completion"; name = "Completion"; needs = "completion";

  build() {
    this.branches = [];
    this.at = -1;
    this.settings = new Settings("/v1/completions");
    this.settings.draw();
    this.prompt = el("textarea", { id: "prompt", rows: 5, value: kept.read(sessionStorage, "prompt", "Once upon a time"), oninput: () => kept.write(sessionStorage, "prompt", this.prompt.value) });
    this.button = el("button", { type: "button", class: "main", id: "complete", text: "Continue the text" });
    this.score = el("button", { type: "button", class: "plain", id: "score", text: "Score the text" });
    this.choices = el("input", { id: "choices", type: "number", min: 1, max: 16, value: 1 });
    this.runner = new Runner(this.button, (signal, start) => this.complete(signal, start ?? { prompt: this.prompt.value }));
    this.scorer = new Runner(this.score, (signal) => this.scoreText(signal));
    this.tokens = new TokenView((index, token) => this.branchAt(index, token));
    this.list = el("div", { class: "branches", role: "group", "aria-label": "Branches", hidden: true });
    this.figures = el("p", { class: "hint", role: "status" });
    this.result = el("section", { class: "stack", "aria-label": "Result", hidden: true }, this.list, this.tokens.node, this.figures,
      el("div", { class: "row" }, el("button", { type: "button", class: "plain", text: "Go on", onclick: () => this.goOn() }),
        el("button", { type: "button", class: "quiet", text: "Copy", onclick: (event) => copy(this.textOf(this.branches[this.at]), event.currentTarget) }),
        el("button", { type: "button", class: "quiet", text: "Take as the text", onclick: () => { this.prompt.value = this.textOf(this.branches[this.at]); this.prompt.focus(); } })));
    return el("div", { class: "split" }, el("div", { class: "stack" },
      el("div", { class: "field" }, el("label", { for: "prompt", text: "Text" }), this.prompt),
      el("div", { class: "row" }, this.button, this.score, el("label", { for: "choices", text: "Choices" }), el("span", { style: { width: "5rem" } }, this.choices)), this.result),
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
    const body = { model: model.id, prompt: start.prompt + (start.tokens ?? []).map((token) => token.token).join(""), ...this.settings.body(), n: wanted, logprobs: 10,
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
          if (choice.finish_reason) finish[choice.index] = choice.finish_reason;
          if (base + choice.index === this.at) this.tokens.add(fresh);
        }
      });
    } finally {
      const took = (performance.now() - begun) / 1000;
      for (let i = 0; i < wanted; ++i) {
        const branch = this.branches[base + i];
        branch.figures = [`${branch.tokens.length} tokens`, finish[i] === "length" ? "cut at its limit" : finish[i] ?? "stopped", usage ? seconds(took) : "", seed !== undefined ? `seed ${seed}` : ""].filter(Boolean).join(" · ");
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
    const answer = await post("/v1/completions", { model: model.id, prompt: this.prompt.value, max_tokens: 0, echo: true, logprobs: 10, temperature: 0 }, signal);
    const tokens = ofCompletion(answer.choices[0].logprobs);
    const known = tokens.filter((token) => token.logprob !== null), mean = known.reduce((sum, token) => sum + token.logprob, 0) / Math.max(1, known.length);
    this.branches = [];
    this.open({ prompt: "", tokens, name: "Scored", figures: `${tokens.length} tokens · ${(-mean / Math.LN2).toFixed(3)} bits a token · perplexity ${Math.exp(-mean).toFixed(2)}` });
  }
}

// --- what encoders do -----------------------------------------------------------------------------

/** A tab that is a form, a button and a result. */
class Form {
  constructor(id, name, needs, button, route) { Object.assign(this, { id, name, needs, route, buttonText: button }); }
  build() {
    this.button = el("button", { type: "button", class: "main", id: this.id + "-run", text: this.buttonText });
    this.result = el("section", { class: "stack", "aria-label": "Result" });
    this.runner = new Runner(this.button, async (signal) => {
      this.result.setAttribute("aria-busy", "true");
      try { this.result.replaceChildren(...[await this.answer(signal)].flat().filter(Boolean)); $("read-aloud").replaceChildren(el("p", { text: "The result is there." })); } finally { this.result.removeAttribute("aria-busy"); }
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

class FillMask extends Form {
  constructor() { super("fill-mask", "Fill mask", "fill_mask", "Fill", "/v1/fill-mask"); }
  sign = "[MASK]";
  form() { return this.area("text", "Text with a mask", `The capital of France is ${this.sign}.`, 4, "The mask stands for the word that is asked for."); }
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
    const answer = await post("/v1/fill-mask", { model: model.id, input: this.text.value, top_k: 10 }, signal);
    return answer.data[0].masks.map((mask, i) => el("div", { class: "card stack tight" }, el("h3", { text: answer.data[0].masks.length > 1 ? `Mask ${i + 1}` : "The mask" }),
      bars(mask.map((one) => ({ name: one.token_str, score: one.score, sequence: one.sequence })), { label: `Words for mask ${i + 1}`,
        pick: (row) => { let n = -1; this.text.value = this.text.value.replaceAll(this.mask(), (found) => (++n === i ? row.name.trim() : found)); this.text.focus(); } })));
  }
}

class Classify extends Form {
  constructor() { super("classify", "Classify", "classify", "Classify", "/v1/classify"); }
  form() { return this.area("text", "Texts, one a line", "A wonderful, quiet film.\nTwo hours that I will not get back."); }
  async answer(signal) {
    const { labels } = await inspection(), input = lines(this.text.value), answer = await post("/v1/classify", { model: model.id, input }, signal);
    return answer.data.map((one) => {
      const rows = (one.probs ?? []).map((score, i) => ({ name: String(labels?.[i] ?? `class ${i}`), score })).sort((a, b) => b.score - a.score).slice(0, 12);
      return el("div", { class: "card stack tight" }, el("p", { text: input[one.index] }), one.label !== undefined && one.label !== null ? el("h3", { text: one.label }) : null,
        rows.length ? bars(rows, { label: "Probabilities" }) : null,
        one.tokens ? el("div", { class: "pieces" }, one.tokens.map((token) => el("span", {}, token.token, el("small", { text: `${token.label} ${percent(token.score)}` })))) : null);
    });
  }
}

class Translate extends Form {
  constructor() { super("translate", "Translate", "translate", "Translate", "/v1/translate"); }
  form() {
    return el("div", { class: "stack" }, this.area("text", "Text; each line by itself", "The weather is fine today."),
      el("div", { class: "row" }, el("div", { class: "grow" }, this.line("source", "From (where the model knows languages)", "")), el("div", { class: "grow" }, this.line("target", "To", ""))),
      this.line("beams", "Beams", 4, { type: "number", min: 1, max: 16 }));
  }
  async answer(signal) {
    const body = { model: model.id, input: lines(this.text.value), beams: Number(this.beams.value) };
    if (this.source.value) body.source_lang = this.source.value;
    if (this.target.value) body.target_lang = this.target.value;
    const answer = await post("/v1/translate", body, signal);
    return el("div", { class: "card stack tight" }, answer.data.map((one) => el("p", { text: one.text })));
  }
}

class Rerank extends Form {
  constructor() { super("rerank", "Rerank", "rerank", "Rank", "/v1/rerank"); }
  form() {
    return el("div", { class: "stack" }, this.line("query", "Question", "How do plants make food?"),
      this.area("text", "Documents, one a line", "Photosynthesis turns light into sugar.\nThe train leaves at noon.\nChlorophyll makes leaves green.\nBread is baked from flour and water.", 8));
  }
  async answer(signal) {
    const documents = lines(this.text.value), answer = await post("/v1/rerank", { model: model.id, query: this.query.value, documents }, signal);
    const most = Math.max(...answer.results.map((one) => Math.abs(one.relevance_score)), 1e-9);
    return [el("ol", { class: "ranked", "aria-label": "Best first" }, answer.results.map((one) => el("li", { class: "stack tight" }, el("p", { text: documents[one.index] }),
      el("div", { class: "row" }, el("span", { class: "bar grow", "aria-hidden": "true" }, el("span", { style: { width: (100 * Math.max(0, one.relevance_score)) / Math.max(1, most) + "%" } })),
        el("span", { class: "hint", text: one.relevance_score.toFixed(4) }))))),
      answer.method ? el("p", { class: "hint", text: `Method: ${answer.method}` }) : null];
  }
}

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

/** The first two principal components of vectors, by power iteration on their Gram matrix. */
function plane(vectors) {
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

class Embeddings extends Form {
  constructor() { super("embeddings", "Embeddings", "embedding", "Compare", "/v1/embeddings"); }
  form() {
    return this.area("text", "Texts, one a line", "The cat sleeps on the sofa.\nA kitten naps on the couch.\nDogs love to run.\nStock prices fell sharply.\nMarkets lost five percent.\nIt will rain tomorrow.", 9, "Up to 60 texts.");
  }
  async answer(signal) {
    const input = lines(this.text.value);
    if (input.length < 2) throw new Failure("There is nothing to compare; expected two texts or more, one a line.");
    if (input.length > 60) throw new Failure(`${input.length} texts; expected at most 60 here.`);
    const answer = await post("/v1/embeddings", { model: model.id, input }, signal);
    const vectors = answer.data.map((one) => { const size = Math.sqrt(dot(one.embedding, one.embedding)) || 1; return one.embedding.map((x) => x / size); });
    const cosine = vectors.map((a) => vectors.map((b) => dot(a, b)));
    const short = input.map((text) => clip(text, 34));
    return [el("p", { class: "hint", text: `${vectors.length} vectors of ${vectors[0].length} numbers, ${answer.usage.prompt_tokens} tokens` }), this.map(vectors, short), this.matrix(cosine, short, input)];
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
      svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Map of ${names.length} texts: those that lie close mean much the same. The table below has the numbers.` },
        xs.map((x, i) => svg("circle", { class: "dot", cx: x, cy: ys[i], r: 4.5 })), labels),
      el("figcaption", { class: "hint", text: `The two directions in which they differ most: ${percent(across.share)} and ${percent(up.share)} of all.` }));
  }
  matrix(cosine, names, whole) {
    const least = Math.min(...cosine.flat()), span = Math.max(1e-9, 1 - least);
    return el("div", { class: "card stack tight" }, el("h3", { text: "Cosines" }), el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of cosines" },
      el("table", { class: "heat" }, el("caption", { class: "hidden", text: "The cosine of the angle between each two texts" }),
        el("thead", {}, el("tr", {}, el("td"), names.map((_, i) => el("th", { scope: "col", title: whole[i], text: i + 1 })))),
        el("tbody", {}, cosine.map((row, i) => el("tr", {}, el("th", { scope: "row", title: whole[i], text: `${i + 1} ${names[i]}` }),
          row.map((value) => el("td", { style: { background: `rgba(var(--heat), ${(0.05 + 0.5 * ((value - least) / span) ** 2).toFixed(3)})` }, text: value.toFixed(2) }))))))));
  }
}

class Tokens extends Form {
  constructor() { super("tokens", "Tokenizer", null, "Split", "/tokenize"); }
  form() { return this.area("text", "Text", "Unbelievable! 12345 naïve 🦊 tokens.", 5, "How the model's tokenizer cuts a text."); }
  beside() {
    this.special = el("input", { type: "checkbox", id: "tokens-special", checked: true });
    return el("span", { class: "check" }, this.special, el("label", { for: "tokens-special", text: "with what the tokenizer adds" }));
  }
  async answer(signal) {
    const answer = await post("/tokenize", { model: model.id, content: this.text.value, add_special: this.special.checked, with_pieces: true }, signal);
    const n = [...this.text.value].length;
    return [el("p", { class: "hint", text: `${answer.count} tokens of ${n} characters${answer.count ? `, ${(n / answer.count).toFixed(2)} each` : ""}` }),
      el("div", { class: "pieces", role: "group", "aria-label": "Tokens with their ids" }, answer.pieces.map((one) => el("span", {}, shown(one.piece), el("small", { text: one.id }))))];
  }
}

// --- the model --------------------------------------------------------------------------------------

const kNeverSaid = new Set(["type", "dropout", "eps", "scale", "scale_value", "scale_on", "clip", "temperature", "softcap"]);
/** What matters of a part, in a few words. */
function inWords(config) {
  if (!config || typeof config !== "object") return "";
  const words = [], number = (name, text) => { if (config[name] > 0) words.push(`${config[name]} ${text}`); };
  number("n_heads", "heads");
  if (config.n_kv_heads > 0 && config.n_kv_heads !== config.n_heads) number("n_kv_heads", "of keys");
  if (config.n_experts > 0) words.push(`${config.router?.k ?? "?"} of ${config.n_experts} experts`);
  number("d_state", "states");
  number("d_hidden", "hidden");
  if (config.expert?.d_hidden) words.push(`${config.expert.d_hidden} hidden`);
  if (typeof config.act === "string") words.push(config.act);
  for (const inner of ["pattern", "position"]) {
    const part = config[inner];
    if (part?.type && part.type !== "none" && part.type !== "full") words.push(part.type + (part.width ? ` ${part.width}` : ""));
  }
  if (config.width > 0 && words.length === 0) words.push(`${config.width} wide`);
  return words.join(" · ");
}

/** One stack, from the tokens down to the logits: the stream as a line, what joins it beside it. */
class Drawing {
  constructor(stack, choose) {
    this.choose = choose;
    this.width = narrow() ? 272 : 380;
    this.x = 26;
    this.y = 8;
    this.parts = [];
    this.lines = [];
    for (const node of stack.nodes) this.node(node, 0);
    const height = this.y + 6;
    this.view = svg("svg", { viewBox: `0 0 ${this.width} ${height}`, role: "group", "aria-label": `${stack.name || "Model"}, from the first part to the last` },
      svg("line", { class: "stream", x1: this.x, x2: this.x, y1: 10, y2: height - 8 }), this.lines, this.parts);
  }
  box(node, kind, x, y, width, title_, words, label) {
    const height = words ? 42 : 28, fit = (text, size) => clip(text, Math.max(4, Math.floor((width - 18) / (size * 0.56))));
    const act = () => this.choose(node, group);
    const group = svg("g", { class: "node " + kind, tabindex: 0, role: "button", "aria-pressed": "false", "aria-label": label, onclick: act,
      onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); } } },
      svg("rect", { class: "body", x, y, width, height, rx: 7 }), svg("rect", { class: "edge", x: x + 1, y: y + 6, width: 4, height: height - 12, rx: 2 }),
      svg("text", { x: x + 13, y: y + 18, "font-size": 13, "font-weight": 600, text: fit(title_, 13) }),
      words ? svg("text", { class: "dim", x: x + 13, y: y + 34, "font-size": 11.5, text: fit(words, 11.5) }) : null);
    this.parts.push(group);
    return height;
  }
  node(node, depth) {
    if (node.kind === "layers") return this.layers(node, depth);
    if (node.kind === "cycle") return this.repeated(node, depth, () => node.nodes.forEach((inner) => this.node(inner, depth + 1)));
    const label = `${node.name}: ${node.type}, ${exact(node.parameters)} parameters`;
    const words = node.kind === "norm" ? "" : [inWords(node.config), node.parameters ? scaled(node.parameters) : ""].filter(Boolean).join(" · ");
    this.y += this.box(node, node.kind, this.x - 14, this.y, this.width - this.x + 8, `${node.name.replaceAll("_", " ")} · ${node.type}`, words, label) + 12;
  }
  repeated(node, depth, draw) {
    const top = this.y, times = node.times ?? 1;
    if (times > 1) {
      this.y += 22;
      this.parts.push(svg("text", { class: "dim", x: this.x + 14, y: top + 15, "font-size": 12, "font-weight": 600, text: `${times} times` + (node.first !== undefined ? `: layers ${node.first} to ${node.last}` : "") }));
    }
    draw();
    if (times > 1) {
      const inset = 5 * depth;
      this.lines.push(svg("rect", { class: "frame", x: 4 + inset, y: top, width: this.width - 8 - 2 * inset, height: this.y - top - 4, rx: 10 }));
      this.y += 8;
    }
  }
  layers(node, depth) {
    this.repeated(node, depth, () => {
      for (const group of node.groups) {
        const n = group.branches.length, left = this.x + 26, room = this.width - left - 14 - 5 * depth, width = (room - 8 * (n - 1)) / n, top = this.y + 4;
        let tallest = 0;
        group.branches.forEach((branch, i) => {
          const x = left + i * (width + 8), norms = branch.norms.filter((norm) => norm !== "none").join(", ");
          const words = [inWords(branch.config), scaled(branch.parameters)].filter(Boolean).join(" · ");
          const label = `${branch.name}: ${branch.type}${inWords(branch.config) ? ", " + inWords(branch.config) : ""}, ${exact(branch.parameters)} parameters${norms ? `, norm ${norms}` : ""}`;
          tallest = Math.max(tallest, this.box(branch, branch.slot, x, top, width, branch.type.replaceAll("_", " "), words, label));
        });
        const bottom = top + tallest, middle = top + tallest / 2;
        // out of the stream, through the branch, and back into it
        this.lines.push(svg("path", { class: "stream", d: `M${this.x} ${top + 6}H${left}` }));
        if (!group.aside)
          this.lines.push(svg("path", { class: "stream", d: `M${left} ${bottom - 7}H${this.x + 7}` }), svg("circle", { class: "joint", cx: this.x, cy: bottom - 7, r: 6.5 }),
            svg("path", { class: "stream", d: `M${this.x - 3.5} ${bottom - 7}h7m-3.5 -3.5v7`, "stroke-width": 1.2 }));
        else this.lines.push(svg("text", { class: "dim", x: this.x + 4, y: middle, "font-size": 10, text: "aside" }));
        this.y = bottom + 9;
      }
    });
  }
}

class Inspector {
  id = "inspector"; name = "Model"; needs = null;

  build() {
    this.node = el("div", { class: "stack", id: "inspection" }, el("p", { class: "busy", text: "Reads the model …" }));
    this.of = null;
    return this.node;
  }
  redraw() { this.of = null; if (tabs.shown === this) this.enter(); }
  async enter() {
    if (!model || this.of === model.id) return;
    this.of = model.id;
    try {
      const found = await inspection();
      if (found.id === model.id) this.draw(found);
    } catch (error) { this.of = null; problem(error); }
  }
  draw(found) {
    const plan = found.plan, tile = (name, value, more) => el("div", { class: "tile" }, el("dt", { text: name }), el("dd", {}, value, more ? el("small", { text: more }) : null));
    this.detail = el("section", { class: "card stack", "aria-label": "Chosen part", "aria-live": "polite", id: "part" }, el("p", { class: "soft", text: "Choose a part to see its shapes, its costs and how it is set up." }));
    const stacks = found.stacks.map((stack) => el("figure", { class: "stack tight" }, stack.name ? el("figcaption", {}, el("h3", { text: stack.name })) : null,
      new Drawing(stack, (node, group) => this.choose(node, group)).view));
    this.node.replaceChildren(
      el("dl", { class: "tiles", id: "figures" }, tile("Parameters", scaled(plan.parameters), exact(plan.parameters)),
        plan.active_parameters !== plan.parameters ? tile("A token uses", scaled(plan.active_parameters), exact(plan.active_parameters)) : null,
        tile("Weights", bytes(found.weight_bytes)), tile("Work for a token", scaled(plan.flops_per_token, "FLOP"), `at ${exact(plan.context)} tokens`),
        tile("State for a token", plan.state_bytes_per_token ? bytes(plan.state_bytes_per_token) : "none", plan.state_bytes_fixed ? `and ${bytes(plan.state_bytes_fixed)} once` : `keys and values ${found.kv_type}`),
        tile("Context", found.context ? exact(found.context) : "any", "tokens"), tile("Vocabulary", exact(found.vocab)), tile("Width", exact(found.d_model))),
      el("p", { class: "hint" }, "It can: ", (model.capabilities ?? []).map((name) => name.replaceAll("_", " ")).join(", ") || "give logits alone", "."),
      el("div", { class: "split drawn" }, el("section", { class: "card stack", "aria-label": "Architecture" }, el("h2", { text: "Architecture" }), el("div", { class: "drawing" }, stacks)),
        el("div", { class: "stack" }, this.detail, this.shares("Parameters by place", found.by_place), this.shares("Parameters by kind", found.by_kind), this.growth(found))),
      el("details", { class: "card" }, el("summary", { text: "The resolved spec, every default written out" }),
        el("div", { class: "row end" }, el("button", { type: "button", class: "quiet", text: "Copy", onclick: (event) => copy(JSON.stringify(found.spec, null, 2), event.currentTarget) })),
        el("pre", { class: "spec", tabindex: 0, role: "region", "aria-label": "Spec", text: JSON.stringify(found.spec, null, 2) })),
      found.chat_template ? el("details", { class: "card" }, el("summary", { text: "Chat template" }), el("pre", { class: "spec", tabindex: 0, role: "region", "aria-label": "Chat template", text: found.chat_template })) : "");
  }
  choose(node, group) {
    for (const other of this.node.querySelectorAll(".node")) other.setAttribute("aria-pressed", String(other === group));
    const rows = [["Parameters", exact(node.parameters)], node.flops !== undefined ? ["Work for a token", scaled(node.flops, "FLOP")] : null,
      node.state_bytes !== undefined ? ["State of a row", node.state_bytes ? bytes(node.state_bytes) : "none"] : null,
      node.norms?.length ? ["Norms", node.norms.join(", ")] : null, node.reads?.length ? ["Reads", node.reads.join(", ")] : null, node.share ? ["Shared as", node.share] : null].filter(Boolean);
    this.detail.replaceChildren(el("h2", { text: `${node.name.replaceAll("_", " ")} · ${node.type}` }),
      el("table", { class: "data" }, el("tbody", {}, rows.map(([name, value]) => el("tr", {}, el("th", { scope: "row", text: name }), el("td", { text: value }))))),
      node.tensors.length ? el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Tensors" }, el("table", { class: "data" }, el("thead", {}, el("tr", {}, ["Tensor", "Shape", "Kind"].map((text) => el("th", { scope: "col", text })))),
        el("tbody", {}, node.tensors.map((tensor) => el("tr", {}, el("td", { class: "mono", text: tensor.name }), el("td", { class: "mono", text: tensor.shape.join(" × ") }), el("td", { text: tensor.kind })))))) : el("p", { class: "hint", text: "It has no parameters of its own." }),
      node.config ? el("details", {}, el("summary", { text: "How it is set up" }), el("pre", { class: "spec", tabindex: 0, role: "region", "aria-label": "Set-up", text: JSON.stringify(node.config, null, 2) })) : "");
    if (matchMedia("(max-width: 61.99rem)").matches) this.detail.scrollIntoView({ block: "nearest" });
  }
  shares(name, list) {
    const all = list.reduce((sum, one) => sum + one.parameters, 0) || 1;
    return el("section", { class: "card stack tight" }, el("h3", { text: name }), el("div", { class: "parts", "aria-hidden": "true" }, list.map((one, i) => el("span", { class: "k" + Math.min(i, 5), style: { "flex-grow": one.parameters / all } }))),
      el("table", { class: "data" }, el("tbody", {}, list.map((one, i) => el("tr", {}, el("th", { scope: "row" }, el("i", { class: "swatch k" + Math.min(i, 5) }), one.name.replaceAll("_", " ")), el("td", { text: exact(one.parameters) }), el("td", { text: percent(one.parameters / all) }))))));
  }
  growth(found) {
    const list = found.contexts;
    if (!list.some((one) => one.state_bytes > 0)) return el("p", { class: "hint", text: "It keeps no state from token to token." });
    const width = narrow() ? 290 : 420, height = 150, left = 8, base = 128, x = (i) => left + 20 + (i * (width - 60)) / Math.max(1, list.length - 1);
    const logs = list.map((one) => Math.log(Math.max(1, one.state_bytes))), low = Math.min(...logs) - 0.4, high = Math.max(...logs, low + 1), y = (v) => base - 8 - ((v - low) / (high - low)) * (base - 34);
    return el("figure", { class: "card stack tight" }, el("h3", { text: "State of one text" }),
      svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, svg("line", { class: "axis", x1: left, x2: width - 8, y1: base, y2: base }),
        svg("path", { class: "curve", d: list.map((_, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(logs[i]).toFixed(1)}`).join("") }),
        list.map((one, i) => [svg("circle", { class: "dot", cx: x(i), cy: y(logs[i]), r: 3.5 }), svg("text", { class: "dim", x: x(i), y: height - 6, "font-size": 11, "text-anchor": "middle", text: one.tokens >= 1024 ? one.tokens / 1024 + "k" : one.tokens }),
          i % 2 === 0 || (list.length < 6 && !narrow()) ? svg("text", { x: x(i), y: y(logs[i]) - 9, "font-size": 11, "text-anchor": "middle", text: bytes(one.state_bytes) }) : null])),
      el("details", {}, el("summary", { text: "As a table" }), el("table", { class: "data" }, el("thead", {}, el("tr", {}, ["Tokens", "State", "Work for a token"].map((text) => el("th", { scope: "col", text })))),
        el("tbody", {}, list.map((one) => el("tr", {}, el("th", { scope: "row", text: exact(one.tokens) }), el("td", { text: bytes(one.state_bytes) }), el("td", { text: scaled(one.flops_per_token, "FLOP") })))))));
  }
}

// --- which token a layer mixes into which --------------------------------------------------------

class Mixing extends Form {
  constructor() { super("mixing", "Token mixing", null, "Draw", "/token-mixing"); }
  intro = "What a layer carries from token to token: how much its output at a row changes when the input at a column is taken away, whatever it is made of; of attention also what each head looks at.";
  form() {
    this.layer = el("select", { id: "mixing-layer" });
    this.head = el("select", { id: "mixing-head", onchange: () => this.answered && this.result.replaceChildren(...this.maps()) });
    this.heads(0);
    return el("div", { class: "stack" }, this.area("text", "Text", "The keys to the old cabinet are on the table.", 4, "Its last 32 tokens are looked at."),
      el("div", { class: "field" }, el("label", { for: "mixing-layer", text: "Layer" }), this.layer),
      el("div", { class: "field" }, el("label", { for: "mixing-head", text: "Map" }), this.head));
  }
  heads(n) {
    const chosen = Math.min(n, Math.max(0, this.head.selectedIndex));
    this.head.replaceChildren(...["Change of the output", ...Array.from({ length: n }, (_, i) => `Attention of head ${i + 1}`)].map((text, value) => el("option", { value, text })));
    this.head.selectedIndex = chosen;
  }
  async enter() {
    if (!model || this.of === model.id) return;
    this.of = model.id;
    try {
      const found = await inspection();
      this.layer.replaceChildren(...found.mixers.map((one) => el("option", { value: one.name, text: `${one.name} · ${one.type}` })));
      this.button.disabled = found.mixers.length === 0;
    } catch (error) { this.of = null; problem(error); }
  }
  redraw() { this.of = this.answered = null; this.heads(0); this.result.replaceChildren(); if (tabs.shown === this) this.enter(); }
  show(text) {
    this.text.value = text;
    tabs.select(this, true);
    this.enter().then(() => this.run());
  }
  async answer(signal) {
    this.answered = await post("/token-mixing", { model: model.id, content: this.text.value, branch: this.layer.value, weights: true }, signal);
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
      el("figcaption", { class: "hint", text: head > 0 ? "What the token of a row gives to that of each column; a row adds up to 1 at most." : "Each row by its largest value. A row's own token lies on the diagonal." })),
    el("details", { class: "card" }, el("summary", { text: "The strongest source of each token" }), el("table", { class: "data", id: "map-table" }, el("thead", {}, el("tr", {}, ["Token", "takes most from", head > 0 ? "Weight" : "Change"].map((text) => el("th", { scope: "col", text })))),
      el("tbody", {}, strongest.map((one, i) => el("tr", {}, el("th", { scope: "row", class: "mono", text: names[i] }), el("td", { class: "mono", text: one?.value > 0 ? names[one.j] : "–" }), el("td", { text: one?.value > 0 ? one.value.toFixed(3) : "–" }))))))];
  }
}

// --- the server's figures ---------------------------------------------------------------------------

function readMetrics(text) {
  const out = new Map();
  for (const line of text.split("\n")) {
    const match = line.match(/^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/);
    if (!match) continue;
    if (!out.has(match[1])) out.set(match[1], []);
    out.get(match[1]).push({ labels: match[2] ?? "", value: Number(match[3].replace("Inf", "Infinity")) });
  }
  return out;
}
const sumOf = (metrics, name) => (metrics.get(name) ?? []).reduce((sum, one) => sum + one.value, 0);

/** A quantile of what a histogram counted between two readings, straight within a bucket. */
function quantile(now, before, name, q) {
  const of = (metrics) => (metrics?.get(name + "_bucket") ?? []).map((one) => [Number(one.labels.match(/le="([^"]*)"/)[1].replace("+Inf", "Infinity")), one.value]);
  const a = of(now), b = new Map(of(before)), counts = a.map(([bound, n]) => [bound, n - (b.get(bound) ?? 0)]), total = counts.at(-1)?.[1] ?? 0;
  if (total <= 0) return NaN;
  let below = 0, low = 0;
  for (const [bound, n] of counts) {
    if (n >= q * total) return Number.isFinite(bound) ? low + ((bound - low) * (q * total - below)) / Math.max(1e-9, n - below) : low;
    below = n;
    low = bound;
  }
  return low;
}

class Server {
  id = "server"; name = "Server"; needs = null;
  kEvery = 2; kKept = 45;

  build() {
    this.readings = [];
    this.paused = false;
    this.pause = el("button", { type: "button", class: "plain", id: "pause", text: "Pause", "aria-pressed": "false", onclick: () => {
      this.paused = !this.paused;
      this.pause.setAttribute("aria-pressed", String(this.paused));
      this.pause.textContent = this.paused ? "Go on" : "Pause";
      if (!this.paused) this.poll();
    } });
    this.tiles = el("dl", { class: "tiles", id: "gauges" });
    this.table = el("tbody", {});
    this.raw = el("pre", { class: "spec", tabindex: 0, role: "region", "aria-label": "Metrics as text" });
    return el("div", { class: "stack" }, el("div", { class: "row" }, el("p", { class: "soft grow", text: `Read every ${this.kEvery} seconds from /metrics while this tab is open.` }), this.pause),
      this.tiles, el("section", { class: "card stack tight" }, el("h2", { text: "Requests" }), el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Requests by route" }, el("table", { class: "data" },
        el("thead", {}, el("tr", {}, ["Route", "Status", "Count"].map((text) => el("th", { scope: "col", text })))), this.table))),
      el("details", { class: "card" }, el("summary", { text: "All of it, as Prometheus reads it" }), this.raw));
  }
  enter() { this.poll(); }
  leave() { clearTimeout(this.timer); }
  async poll() {
    clearTimeout(this.timer);
    if (this.paused || tabs.shown !== this || document.hidden) return;
    try {
      const text = await (await request("/metrics")).text();
      this.readings.push({ at: performance.now() / 1000, metrics: readMetrics(text) });
      if (this.readings.length > this.kKept) this.readings.shift();
      if (!this.raw.parentElement.open || this.raw.textContent === "") this.raw.textContent = text;
      this.draw();
      problem(null);
    } catch (error) { problem(error); }
    this.timer = setTimeout(() => this.poll(), 1000 * this.kEvery);
  }
  series(value) { return this.readings.map((reading, i) => value(reading.metrics, this.readings[i - 1]?.metrics, i ? reading.at - this.readings[i - 1].at : NaN)); }
  draw() {
    const now = this.readings.at(-1).metrics, first = this.readings[0].metrics === now ? null : this.readings[0].metrics;
    const gauge = (name) => (metrics) => sumOf(metrics, "tessera_" + name);
    const rate = (name) => (metrics, before, time) => (before ? (sumOf(metrics, "tessera_" + name) - sumOf(before, "tessera_" + name)) / time : NaN);
    const tile = (name, value, values, more) => {
      const known = values.filter(Number.isFinite), most = Math.max(...known, 1e-9), x = (i) => (i * 100) / Math.max(1, this.kKept - 1), y = (v) => 30 - 28 * (v / most);
      const from = this.kKept - values.length, points = values.map((v, i) => [x(from + i), y(Number.isFinite(v) ? v : 0)]);
      const line = points.map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(2)} ${py.toFixed(2)}`).join("");
      return el("div", { class: "tile" }, el("dt", { text: name }), el("dd", {}, value, more ? el("small", { text: more }) : null,
        svg("svg", { viewBox: "0 0 100 31", preserveAspectRatio: "none", "aria-hidden": "true" }, points.length > 1 ? [svg("path", { class: "spark-area", d: `${line}L100 31L${x(from).toFixed(2)} 31Z` }), svg("path", { class: "spark", d: line })] : null)));
    };
    const plain = (name, unit, show, take = gauge(name)) => { const values = this.series(take); return [unit, show(values.at(-1)), values]; };
    const count = (v) => (Number.isFinite(v) ? exact(v) : "–"), perSecond = (v) => (Number.isFinite(v) ? v.toFixed(1) : "–");
    const ttft = "tessera_time_to_first_token_seconds", tpot = "tessera_time_per_output_token_seconds";
    const median = (name) => this.series((metrics, before) => quantile(metrics, before, name, 0.5));
    const both = (name) => `half within ${seconds(quantile(now, first, name, 0.5))}, 9 of 10 within ${seconds(quantile(now, first, name, 0.9))}`;
    const prompt = sumOf(now, "tessera_prompt_tokens_total"), cached = sumOf(now, "tessera_cached_prompt_tokens_total");
    this.tiles.replaceChildren(
      tile(...plain("requests_running", "Running", count)), tile(...plain("requests_waiting", "Waiting", count)),
      tile(...plain("", "Tokens per second", perSecond, rate("generated_tokens_total"))), tile(...plain("", "Prompt tokens per second", perSecond, rate("prompt_tokens_total"))),
      tile("First token", seconds(quantile(now, first, ttft, 0.5)), median(ttft), both(ttft)), tile("Each token", seconds(quantile(now, first, tpot, 0.5)), median(tpot), both(tpot)),
      tile(...plain("state_reserved_bytes", "States", bytes), sumOf(now, "tessera_state_limit_bytes") ? `of ${bytes(sumOf(now, "tessera_state_limit_bytes"))}` : ""),
      tile(...plain("prefix_cache_bytes", "Prefix cache", bytes), prompt ? `${percent(cached / prompt)} of prompt tokens came from it` : ""),
      tile(...plain("", "Memory", bytes, (metrics) => sumOf(metrics, "process_resident_memory_bytes"))),
      tile(...plain("", "Processors busy", perSecond, (metrics, before, time) => (before ? (sumOf(metrics, "process_cpu_seconds_total") - sumOf(before, "process_cpu_seconds_total")) / time : NaN))),
      tile(...plain("connections", "Connections", count)), tile("Tokens made", exact(sumOf(now, "tessera_generated_tokens_total")), this.series(gauge("generated_tokens_total")), `of ${exact(prompt)} read`));
    const label = (labels, name) => labels.match(new RegExp(`${name}="([^"]*)"`))?.[1] ?? "";
    this.table.replaceChildren(...(now.get("tessera_requests_total") ?? []).filter((one) => one.labels).sort((a, b) => b.value - a.value)
      .map((one) => el("tr", {}, el("td", { class: "mono", text: label(one.labels, "route") }), el("td", { text: label(one.labels, "code") }), el("td", { text: exact(one.value) }))));
  }
}

// --- tabs -------------------------------------------------------------------------------------------

const tabs = {
  all: [new Chat(), new Completion(), new FillMask(), new Classify(), new Translate(), new Rerank(), new Embeddings(), new Tokens(), new Inspector(), new Mixing(), new Server()],
  built: new Map(), shown: null, bar: document.querySelector('[role="tablist"]'),
  has(id) { return this.built.has(id); },
  get(id) { return this.built.get(id); },

  /** Those that this model has something for. */
  draw() {
    const wanted = this.all.filter((tab) => (!tab.needs || can(tab.needs)) && (!tab.route || fieldsOf(tab.route)));
    this.bar.replaceChildren();
    for (const [id, tab] of this.built) if (!wanted.includes(tab)) { tab.panel.remove(); this.built.delete(id); }
    for (const tab of wanted) {
      tab.button_ = el("button", { type: "button", role: "tab", id: "tab-" + tab.id, "aria-controls": "panel-" + tab.id, "aria-selected": "false", tabindex: -1, text: tab.name,
        onclick: () => this.select(tab) });
      this.bar.append(tab.button_);
      if (this.built.has(tab.id)) { tab.redraw?.(); continue; }
      this.built.set(tab.id, tab);
      tab.panel = el("section", { role: "tabpanel", id: "panel-" + tab.id, "aria-labelledby": "tab-" + tab.id, hidden: true }, tab.build());
      $("main").append(tab.panel);
    }
    const asked = location.hash.slice(1);
    this.select(this.built.get(asked) ?? (wanted.includes(this.shown) ? this.shown : wanted[0]));
  },
  select(tab, focus) {
    if (this.shown !== tab) this.shown?.leave?.();
    this.shown = tab;
    for (const other of this.built.values()) {
      const chosen = other === tab;
      other.panel.hidden = !chosen;
      other.button_.setAttribute("aria-selected", String(chosen));
      other.button_.tabIndex = chosen ? 0 : -1;
    }
    problem(null);
    history.replaceState(null, "", "#" + tab.id);
    document.title = `${tab.name} – tessera`;
    if (focus) tab.button_.focus();
    tab.button_.scrollIntoView({ block: "nearest", inline: "nearest" });
    tab.enter?.();
  },
};

tabs.bar.addEventListener("keydown", (event) => {
  const all = [...tabs.built.values()].sort((a, b) => tabs.all.indexOf(a) - tabs.all.indexOf(b)), at = all.indexOf(tabs.shown);
  const to = { ArrowRight: (at + 1) % all.length, ArrowLeft: (at - 1 + all.length) % all.length, Home: 0, End: all.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  tabs.select(all[to], true);
});
addEventListener("hashchange", () => { const tab = tabs.get(location.hash.slice(1)); if (tab && tab !== tabs.shown) tabs.select(tab); });
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) for (const runner of running) runner.stop();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !document.querySelector("dialog[open]")) { event.preventDefault(); tabs.shown?.run?.(); }
});
document.addEventListener("visibilitychange", () => { if (!document.hidden && tabs.shown?.id === "server") tabs.shown.poll(); });

// --- the beginning ------------------------------------------------------------------------------------

const kThemes = ["system", "light", "dark"];
let theme = kept.read(localStorage, "theme", "system");
function setTheme(next) {
  theme = kThemes.includes(next) ? next : "system";
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $("theme").textContent = "Theme: " + theme;
  kept.write(localStorage, "theme", theme);
}
setTheme(theme);
$("theme").addEventListener("click", () => setTheme(kThemes[(kThemes.indexOf(theme) + 1) % kThemes.length]));
$("help-button").addEventListener("click", () => $("help-dialog").showModal());
$("key-button").hidden = !key;
$("key-button").addEventListener("click", async () => { if (await askForKey(false)) start(); });
$("model").addEventListener("change", () => use(models.find((one) => one.id === $("model").value)));

/** Takes a model; one that is not in memory is loaded first. */
async function use(next) {
  for (const runner of running) runner.stop();
  try {
    if (!next.loaded) {
      say(`Loads ${next.id} …`);
      await post("/tokenize", { model: next.id, content: "" });
      next = await getJson("/v1/models/" + encodeURIComponent(next.id));
      models = models.map((one) => (one.id === next.id ? next : one));
    }
    model = next;
    kept.write(localStorage, "model", model.id);
    const meta = model.meta ?? {};
    say([meta.n_params ? `${scaled(meta.n_params)} parameters` : "", meta.n_ctx ? `context ${exact(meta.n_ctx)}` : ""].filter(Boolean).join(" · "));
    tabs.draw();
  } catch (error) {
    say("");
    problem(error);
  }
}

async function start() {
  try {
    const [openapi, list] = await Promise.all([getJson("/openapi.json"), getJson("/v1/models")]);
    schemas = openapi;
    models = list.data;
    const wanted = kept.read(localStorage, "model", "");
    $("model").replaceChildren(...models.map((one) => el("option", { value: one.id, text: one.id })));
    $("model").disabled = false;
    const chosen = models.find((one) => one.id === wanted) ?? models.find((one) => one.loaded) ?? models[0];
    $("model").value = chosen.id;
    problem(null);
    await use(chosen);
  } catch (error) {
    say("not connected");
    problem(error);
    if (error.status === 401) $("key-button").hidden = false;
    else if (error.status === 0 || error.status === 503) setTimeout(start, 3000);
  }
}
start();
