// The tab of the server's load and speed.

import { bytes, el, exact, percent, problem, seconds, svg } from "./dom.js";
import { app, request } from "./server.js";

export function readMetrics(text) {
  const out = new Map();
  for (const line of text.split("\n")) {
    const match = line.match(/^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/);
    if (!match) continue;
    if (!out.has(match[1])) out.set(match[1], []);
    out.get(match[1]).push({ labels: match[2] ?? "", value: Number(match[3].replace("Inf", "Infinity")) });
  }
  return out;
}
export const sumOf = (metrics, name) => (metrics.get(name) ?? []).reduce((sum, one) => sum + one.value, 0);

/** A quantile of what a histogram counted between two readings, straight within a bucket. */
export function quantile(now, before, name, q) {
  const of = (metrics) => (metrics?.get(name + "_bucket") ?? []).map((one) => [Number(one.labels.match(/le="([^"]*)"/)[1].replace("+Inf", "Infinity")), one.value]);
  const a = of(now), b = new Map(of(before)), counts = a.map(([bound, n]) => [bound, n - (b.get(bound) ?? 0)]), total = counts.at(-1)?.[1] ?? 0;
  if (total <= 0 && b.size > 0 && a.at(-1)?.[1] > 0) return quantile(now, null, name, q);  // nothing lately: of all so far
  if (total <= 0) return NaN;
  let below = 0, low = 0;
  for (const [bound, n] of counts) {
    if (n >= q * total) return Number.isFinite(bound) ? low + ((bound - low) * (q * total - below)) / Math.max(1e-9, n - below) : low;
    below = n;
    low = bound;
  }
  return low;
}

export class Server {
  id = "server"; name = "Server"; needs = null;
  kEvery = 2; kKept = 45;

  build() {
    this.readings = [];
    this.paused = false;
    this.pause = el("button", { type: "button", class: "plain", id: "pause", text: "Pause", "aria-pressed": "false", onclick: () => {
      this.paused = !this.paused;
      this.pause.setAttribute("aria-pressed", String(this.paused));
      this.pause.textContent = this.paused ? "Resume" : "Pause";
      if (!this.paused) this.poll();
    } });
    this.tiles = el("dl", { class: "tiles", id: "gauges" });
    this.table = el("tbody", {});
    this.raw = el("pre", { class: "spec", tabindex: 0, role: "region", "aria-label": "Metrics as text" });
    return el("div", { class: "stack" }, el("div", { class: "row" }, el("p", { class: "soft grow", text: `Updated every ${this.kEvery} seconds from /metrics while this tab is open.` }), this.pause),
      this.tiles, el("section", { class: "card stack tight" }, el("h2", { text: "Requests" }), el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Requests by route" }, el("table", { class: "data" },
        el("thead", {}, el("tr", {}, ["Route", "Status", "Count"].map((text) => el("th", { scope: "col", text })))), this.table))),
      el("details", { class: "card" }, el("summary", { text: "All metrics (Prometheus)" }), this.raw));
  }
  enter() { this.poll(); }
  leave() { clearTimeout(this.timer); }
  async poll() {
    clearTimeout(this.timer);
    if (this.paused || app.tabs.shown !== this || document.hidden) return;
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
    const both = (name) => `p50 ${seconds(quantile(now, first, name, 0.5))}, p90 ${seconds(quantile(now, first, name, 0.9))}`;
    const prompt = sumOf(now, "tessera_prompt_tokens_total"), cached = sumOf(now, "tessera_cached_prompt_tokens_total");
    this.tiles.replaceChildren(
      tile(...plain("requests_running", "Running requests", count)), tile(...plain("requests_waiting", "Queued requests", count)),
      tile(...plain("", "Generated tokens/s", perSecond, rate("generated_tokens_total"))), tile(...plain("", "Prompt tokens/s", perSecond, rate("prompt_tokens_total"))),
      tile("Time to first token", seconds(quantile(now, first, ttft, 0.5)), median(ttft), both(ttft)), tile("Time per token", seconds(quantile(now, first, tpot, 0.5)), median(tpot), both(tpot)),
      tile(...plain("state_reserved_bytes", "KV cache", bytes), sumOf(now, "tessera_state_limit_bytes") ? `of ${bytes(sumOf(now, "tessera_state_limit_bytes"))}` : ""),
      tile(...plain("prefix_cache_bytes", "Prefix cache", bytes), prompt ? `${percent(cached / prompt)} of prompt tokens cached` : ""),
      tile(...plain("", "Memory", bytes, (metrics) => sumOf(metrics, "process_resident_memory_bytes"))),
      tile(...plain("", "CPU cores in use", perSecond, (metrics, before, time) => (before ? (sumOf(metrics, "process_cpu_seconds_total") - sumOf(before, "process_cpu_seconds_total")) / time : NaN))),
      tile(...plain("connections", "Connections", count)), tile("Generated tokens", exact(sumOf(now, "tessera_generated_tokens_total")), this.series(gauge("generated_tokens_total")), `${exact(prompt)} prompt tokens`));
    const label = (labels, name) => labels.match(new RegExp(`${name}="([^"]*)"`))?.[1] ?? "";
    this.table.replaceChildren(...(now.get("tessera_requests_total") ?? []).filter((one) => one.labels && !/route="\/([\w.]+\.(js|css|svg|ico))?"/.test(one.labels)).sort((a, b) => b.value - a.value)
      .map((one) => el("tr", {}, el("td", { class: "mono", text: label(one.labels, "route") }), el("td", { text: label(one.labels, "code") }), el("td", { text: exact(one.value) }))));
  }
}
