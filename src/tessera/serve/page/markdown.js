// Markdown as elements around text nodes: no markup is ever made out of a string.

import { copy, el } from "./dom.js";

/** Text within a line: code, bold, italic, struck out, links to http and https alone. */
export function spans(text) {
  const out = [], pattern = /(`+)([^]*?[^`])\1(?!`)|\*\*([^\s*][^]*?)\*\*|__([^\s_][^]*?)__(?!\w)|(?<![\w*])\*([^\s*][^*]*?)\*(?![\w*])|(?<!\w)_([^\s_][^_]*?)_(?!\w)|~~([^\s~][^~]*?)~~|\[([^\]\n]+)\]\((https?:[^\s()]+)\)|(?<![\w(])(https?:\/\/[^\s<>()"'`]*[^\s<>()"'`.,;:!?\]])/g;
  let at = 0;
  for (const match of text.matchAll(pattern)) {
    if (match.index > at) out.push(text.slice(at, match.index));
    const [, , code, bold, bold2, italic, italic2, struck, name, address, bare] = match;
    out.push(code !== undefined ? el("code", { text: code.trim() || code })
      : bold ?? bold2 ? el("strong", {}, spans(bold ?? bold2))
      : italic ?? italic2 ? el("em", {}, spans(italic ?? italic2))
      : struck ? el("s", {}, spans(struck))
      : el("a", { href: address ?? bare, target: "_blank", rel: "noopener noreferrer nofollow", text: name ?? bare, title: address }));
    at = match.index + match[0].length;
  }
  if (at < text.length) out.push(text.slice(at));
  return out;
}

function codeBlock(language, code) {
  const text = code.join("\n");
  return el("div", { class: "code" }, el("div", { class: "code-head" }, el("span", { text: language || "code" }),
    el("button", { type: "button", class: "quiet", text: "Copy", "aria-label": "Copy this code", onclick: (event) => copy(text, event.currentTarget) })),
  el("pre", { tabindex: 0, role: "region", "aria-label": language ? `Code, ${language}` : "Code" }, el("code", { text })));
}

const kItem = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)/;
const indentOf = (line) => line.match(/^\s*/)[0].replaceAll("\t", "    ").length;

/** A list from line `i` on, with the lists in its items; returns it and the line after it. */
function list(all, i) {
  const [, , mark] = all[i].match(kItem), indent = indentOf(all[i]), ordered = /\d/.test(mark);
  const node = el(ordered ? "ol" : "ul", { start: ordered ? parseInt(mark, 10) : undefined });
  while (i < all.length) {
    const next = all[i].match(kItem), depth = indentOf(all[i]);
    if (next && depth >= indent && depth < indent + 2) {
      if (/\d/.test(next[2]) !== ordered) break;
      const task = next[3].match(/^\[([ xX])\]\s+(.*)/);
      node.append(el("li", {}, task ? [task[1] === " " ? "☐ " : "☑ ", ...spans(task[2])] : spans(next[3])));
      ++i;
    } else if (next && depth >= indent + 2 && node.lastChild) {
      const [inner, after] = list(all, i);
      node.lastChild.append(inner);
      i = after;
    } else if (!next && depth >= indent + 2 && all[i].trim() !== "" && node.lastChild) {
      node.lastChild.append(" ", ...spans(all[i].trim()));
      ++i;
    } else if (all[i].trim() === "" && kItem.test(all[i + 1] ?? "") && indentOf(all[i + 1]) >= indent) {
      ++i;  // a loose list
    } else {
      break;
    }
  }
  return [node, i];
}

export function blocks(text) {
  const out = [], all = text.split("\n");
  for (let i = 0; i < all.length;) {
    const line = all[i];
    const fence = line.match(/^\s*(```+|~~~+)\s*([\w+#.-]*)/), heading = line.match(/^(#{1,6})\s+(.*?)\s*#*$/);
    if (line.trim() === "") { ++i; continue; }
    if (fence) {
      const code = [], indent = indentOf(line);
      for (++i; i < all.length && !all[i].trim().startsWith(fence[1]); ++i) code.push(all[i].slice(Math.min(indent, indentOf(all[i]))));
      ++i;
      out.push(codeBlock(fence[2], code));
    } else if (heading) {
      // the page has h1 and h2
      out.push(el("h" + Math.min(6, heading[1].length + 2), {}, spans(heading[2])));
      ++i;
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      out.push(el("hr"));
      ++i;
    } else if (kItem.test(line)) {
      const [node, after] = list(all, i);
      out.push(node);
      i = after;
    } else if (line.startsWith(">")) {
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
      const paragraph = [], ends = (at) => at.trim() === "" || /^\s*(```|~~~)|^#{1,6}\s|^>/.test(at);
      for (; i < all.length && (paragraph.length === 0 || !(ends(all[i]) || kItem.test(all[i]))); ++i) paragraph.push(all[i]);
      out.push(el("p", {}, paragraph.flatMap((part, n) => (n === 0 ? spans(part) : [el("br"), ...spans(part)]))));
    }
  }
  return out;
}
