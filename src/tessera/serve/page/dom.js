// The document: elements out of data, numbers as people read them, what the browser keeps. What models
// and users write enters the document as text nodes alone.

export const $ = (id) => document.getElementById(id);
export const narrow = () => matchMedia("(max-width: 30rem)").matches;
export const kSvg = "http://www.w3.org/2000/svg";

/** Sets what `props` names: class, text, on… listeners, data, properties, else attributes. */
export function fill(node, props, children) {
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
export const el = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const svg = (tag, props, ...children) => fill(document.createElementNS(kSvg, tag), props, children);

export let lastId = 0;
export const freshId = (kind) => `${kind}-${++lastId}`;
export const clip = (text, n) => (text.length > n ? text.slice(0, n - 1) + "…" : text);
/** White space made visible, for tokens. */
export const shown = (text) => text.replace(/ /g, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "∅";
export const percent = (p) => (p >= 0.0995 ? (100 * p).toFixed(p > 0.9995 ? 0 : 1) : p >= 0.00095 ? (100 * p).toFixed(2) : p >= 5e-6 ? (100 * p).toFixed(3) : p > 0 ? "< 0.001" : "0") + " %";
export function scaled(value, unit = "") {
  const prefixes = ["", "k", "M", "G", "T", "P"];
  let i = 0;
  for (; Math.abs(value) >= 1000 && i < 5; ++i) value /= 1000;
  const digits = i === 0 ? (Number.isInteger(value) ? 0 : 2) : value < 10 ? 2 : value < 100 ? 1 : 0;
  return value.toFixed(digits) + (prefixes[i] + unit ? " " + prefixes[i] + unit : "");
}
export function bytes(value) {
  const prefixes = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; value >= 1024 && i < 4; ++i) value /= 1024;
  return value.toFixed(i === 0 ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0) + " " + prefixes[i];
}
export const exact = (n) => Number(n).toLocaleString("en-GB").replace(/,/g, "\u202f");
export function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  return value < 1 ? (1000 * value).toFixed(0) + " ms" : value < 100 ? value.toFixed(2) + " s" : value.toFixed(0) + " s";
}
/** Why a text ended with "length". */
export const ended = (limit) => ({ context: "the context is full", time: "stopped at the time limit" })[limit] ?? "stopped at the token limit";
export const lines = (text) => text.split("\n").map((line) => line.trim()).filter((line) => line !== "");

export function say(text) { $("status").textContent = text; }
export function problem(error) {
  const box = $("problem");
  box.hidden = !error;
  box.textContent = error ? (error.message ?? String(error)) : "";
  if (error && !error.atField) box.scrollIntoView({ block: "nearest" });
}

export function download(name, type, text) {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
export function copy(text, button) {
  navigator.clipboard?.writeText(text).then(() => {
    const was = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = was; }, 1200);
  }, () => problem(new Error("The browser does not let this page copy.")));
}

/** What outlives a reload; a browser that forbids it forgets. */
export const kept = {
  read(store, name, otherwise) {
    try { return JSON.parse(store.getItem("tessera." + name)) ?? otherwise; } catch { return otherwise; }
  },
  write(store, name, value) {
    try { store.setItem("tessera." + name, JSON.stringify(value)); } catch { /* full, or forbidden */ }
  },
};
