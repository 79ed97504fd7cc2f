// The page of `tessera serve`: modules without a library. This one has the tabs and the beginning.

import { $, el, exact, kept, problem, say, scaled } from "./dom.js";
import { app, askForKey, can, fieldsOf, getJson, post, running } from "./server.js";
import { Chat } from "./chat.js";
import { Completion } from "./completion.js";
import { Classify, Embeddings, FillMask, Rerank, Tokens, Translate } from "./forms.js";
import { Inspector } from "./inspector.js";
import { Mixing } from "./mixing.js";
import { Server } from "./figures.js";

// --- tabs -------------------------------------------------------------------------------------------

const tabs = app.tabs = {
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
$("key-button").hidden = !app.key;
$("key-button").addEventListener("click", async () => { if (await askForKey(false)) start(); });
$("model").addEventListener("change", () => use(app.models.find((one) => one.id === $("model").value)));

/** Takes a model; one that is not in memory is loaded first. */
async function use(next) {
  for (const runner of running) runner.stop();
  try {
    if (!next.loaded) {
      say(`Loading ${next.id} …`);
      await post("/tokenize", { model: next.id, content: "" });
      next = await getJson("/v1/models/" + encodeURIComponent(next.id));
      app.models = app.models.map((one) => (one.id === next.id ? next : one));
    }
    app.model = next;
    app.props = await getJson("/props");
    kept.write(localStorage, "model", app.model.id);
    const meta = app.model.meta ?? {};
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
    app.schemas = openapi;
    app.models = list.data;
    const wanted = kept.read(localStorage, "model", "");
    $("model").replaceChildren(...app.models.map((one) => el("option", { value: one.id, text: one.id })));
    $("model").disabled = false;
    const chosen = app.models.find((one) => one.id === wanted) ?? app.models.find((one) => one.loaded) ?? app.models[0];
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
