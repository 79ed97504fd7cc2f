// The tab of the model's architecture.

import { bytes, clip, copy, el, exact, narrow, percent, problem, scaled, svg } from "./dom.js";
import { app, inspection } from "./server.js";

export const kNeverSaid = new Set(["type", "dropout", "eps", "scale", "scale_value", "scale_on", "clip", "temperature", "softcap"]);
/** What matters of a part, in a few words. */
export function inWords(config) {
  if (!config || typeof config !== "object") return "";
  const words = [], number = (name, text) => { if (config[name] > 0) words.push(`${config[name]} ${text}`); };
  number("n_heads", "heads");
  if (config.n_kv_heads > 0 && config.n_kv_heads !== config.n_heads) number("n_kv_heads", "KV heads");
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
export class Drawing {
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

export class Inspector {
  id = "inspector"; name = "Model"; needs = null;

  build() {
    this.node = el("div", { class: "stack", id: "inspection" }, el("p", { class: "busy", text: "Loading the model …" }));
    this.of = null;
    return this.node;
  }
  redraw() { this.of = null; if (app.tabs.shown === this) this.enter(); }
  async enter() {
    if (!app.model || this.of === app.model.id) return;
    this.of = app.model.id;
    try {
      const found = await inspection();
      if (found.id === app.model.id) this.draw(found);
    } catch (error) { this.of = null; problem(error); }
  }
  draw(found) {
    const plan = found.plan, tile = (name, value, more) => el("div", { class: "tile" }, el("dt", { text: name }), el("dd", {}, value, more ? el("small", { text: more }) : null));
    this.detail = el("section", { class: "card stack", "aria-label": "Chosen part", "aria-live": "polite", id: "part" }, el("p", { class: "soft", text: "Select a part to see its shapes, cost and configuration." }));
    const stacks = found.stacks.map((stack) => el("figure", { class: "stack tight" }, stack.name ? el("figcaption", {}, el("h3", { text: stack.name })) : null,
      new Drawing(stack, (node, group) => this.choose(node, group)).view));
    this.node.replaceChildren(
      el("dl", { class: "tiles", id: "figures" }, tile("Parameters", scaled(plan.parameters), exact(plan.parameters)),
        plan.active_parameters !== plan.parameters ? tile("A token uses", scaled(plan.active_parameters), exact(plan.active_parameters)) : null,
        tile("Weights", bytes(found.weight_bytes)), tile("FLOPs per token", scaled(plan.flops_per_token, "FLOP"), `at ${exact(plan.context)} tokens`),
        tile("KV cache per token", plan.state_bytes_per_token ? bytes(plan.state_bytes_per_token) : "none", plan.state_bytes_fixed ? `and ${bytes(plan.state_bytes_fixed)} once` : `keys and values ${found.kv_type}`),
        tile("Context", found.context ? exact(found.context) : "any", "tokens"), tile("Vocabulary", exact(found.vocab)), tile("Width", exact(found.d_model))),
      el("p", { class: "hint" }, "Capabilities: ", (found.capabilities ?? []).map((name) => name.replaceAll("_", " ")).join(", ") || "logits only", "."),
      el("div", { class: "split drawn" }, el("section", { class: "card stack", "aria-label": "Architecture" }, el("h2", { text: "Architecture" }), el("div", { class: "drawing" }, stacks)),
        el("div", { class: "stack" }, this.detail, this.shares("Parameters by layer", found.by_place), this.shares("Parameters by kind", found.by_kind), this.growth(found))),
      el("details", { class: "card" }, el("summary", { text: "Architecture (spec) with all defaults" }),
        el("div", { class: "row end" }, el("button", { type: "button", class: "quiet", text: "Copy", onclick: (event) => copy(JSON.stringify(found.spec, null, 2), event.currentTarget) })),
        el("pre", { class: "spec", tabindex: 0, role: "region", "aria-label": "Spec", text: JSON.stringify(found.spec, null, 2) })),
      found.chat_template ? el("details", { class: "card" }, el("summary", { text: "Chat template" }), el("pre", { class: "spec", tabindex: 0, role: "region", "aria-label": "Chat template", text: found.chat_template })) : "");
  }
  choose(node, group) {
    for (const other of this.node.querySelectorAll(".node")) other.setAttribute("aria-pressed", String(other === group));
    const rows = [["Parameters", exact(node.parameters)], node.flops !== undefined ? ["FLOPs per token", scaled(node.flops, "FLOP")] : null,
      node.state_bytes !== undefined ? ["State per sequence", node.state_bytes ? bytes(node.state_bytes) : "none"] : null,
      node.norms?.length ? ["Norms", node.norms.join(", ")] : null, node.reads?.length ? ["Reads", node.reads.join(", ")] : null, node.share ? ["Shared as", node.share] : null].filter(Boolean);
    this.detail.replaceChildren(el("h2", { text: `${node.name.replaceAll("_", " ")} · ${node.type}` }),
      el("table", { class: "data" }, el("tbody", {}, rows.map(([name, value]) => el("tr", {}, el("th", { scope: "row", text: name }), el("td", { text: value }))))),
      node.tensors.length ? el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Tensors" }, el("table", { class: "data" }, el("thead", {}, el("tr", {}, ["Tensor", "Shape", "Kind"].map((text) => el("th", { scope: "col", text })))),
        el("tbody", {}, node.tensors.map((tensor) => el("tr", {}, el("td", { class: "mono", text: tensor.name }), el("td", { class: "mono", text: tensor.shape.join(" × ") }), el("td", { text: tensor.kind })))))) : el("p", { class: "hint", text: "No parameters." }),
      node.config ? el("details", {}, el("summary", { text: "Configuration" }), el("pre", { class: "spec", tabindex: 0, role: "region", "aria-label": "Configuration", text: JSON.stringify(node.config, null, 2) })) : "");
    if (matchMedia("(max-width: 61.99rem)").matches) this.detail.scrollIntoView({ block: "nearest" });
  }
  shares(name, list) {
    const all = list.reduce((sum, one) => sum + one.parameters, 0) || 1;
    return el("section", { class: "card stack tight" }, el("h3", { text: name }), el("div", { class: "parts", "aria-hidden": "true" }, list.map((one, i) => el("span", { class: "k" + Math.min(i, 5), style: { "flex-grow": one.parameters / all } }))),
      el("table", { class: "data" }, el("tbody", {}, list.map((one, i) => el("tr", {}, el("th", { scope: "row" }, el("i", { class: "swatch k" + Math.min(i, 5) }), one.name.replaceAll("_", " ")), el("td", { text: exact(one.parameters) }), el("td", { text: percent(one.parameters / all) }))))));
  }
  growth(found) {
    const list = found.contexts;
    if (!list.some((one) => one.state_bytes > 0)) return el("p", { class: "hint", text: "No state between tokens." });
    const width = narrow() ? 290 : 420, height = 150, left = 8, base = 128, x = (i) => left + 20 + (i * (width - 60)) / Math.max(1, list.length - 1);
    const logs = list.map((one) => Math.log(Math.max(1, one.state_bytes))), low = Math.min(...logs) - 0.4, high = Math.max(...logs, low + 1), y = (v) => base - 8 - ((v - low) / (high - low)) * (base - 34);
    return el("figure", { class: "card stack tight" }, el("h3", { text: "KV cache and state of one sequence" }),
      svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, svg("line", { class: "axis", x1: left, x2: width - 8, y1: base, y2: base }),
        svg("path", { class: "curve", d: list.map((_, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(logs[i]).toFixed(1)}`).join("") }),
        list.map((one, i) => [svg("circle", { class: "dot", cx: x(i), cy: y(logs[i]), r: 3.5 }), svg("text", { class: "dim", x: x(i), y: height - 6, "font-size": 11, "text-anchor": "middle", text: one.tokens >= 1024 ? one.tokens / 1024 + "k" : one.tokens }),
          i % 2 === 0 || (list.length < 6 && !narrow()) ? svg("text", { x: x(i), y: y(logs[i]) - 9, "font-size": 11, "text-anchor": "middle", text: bytes(one.state_bytes) }) : null])),
      el("details", {}, el("summary", { text: "As a table" }), el("table", { class: "data" }, el("thead", {}, el("tr", {}, ["Tokens", "State", "FLOPs per token"].map((text) => el("th", { scope: "col", text })))),
        el("tbody", {}, list.map((one) => el("tr", {}, el("th", { scope: "row", text: exact(one.tokens) }), el("td", { text: bytes(one.state_bytes) }), el("td", { text: scaled(one.flops_per_token, "FLOP") })))))));
  }
}
