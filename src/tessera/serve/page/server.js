// The server: requests, streams, the key, and what all tabs know of the model that is chosen.

import { $, kept, problem } from "./dom.js";

export class Failure extends Error {
  constructor(message, status, code, param) { super(message); Object.assign(this, { status, code, param }); }
}

export let askingForKey = null;

/** Asks for a key, once for all who wait; false where the user will not give one. */
export function askForKey(wrong) {
  askingForKey ??= new Promise((resolve) => {
    const dialog = $("key-dialog"), note = $("key-problem");
    note.hidden = !wrong;
    note.textContent = wrong ? "Invalid API key." : "";
    $("key-input").value = "";
    const done = (given) => {
      askingForKey = null;
      $("key-form").onsubmit = dialog.oncancel = $("key-cancel").onclick = null;
      dialog.close();
      resolve(given);
    };
    $("key-form").onsubmit = (event) => {
      event.preventDefault();
      app.key = $("key-input").value;
      kept.write(sessionStorage, "key", app.key);
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

export async function request(path, { body, signal } = {}) {
  for (;;) {
    const headers = {}, used = app.key;
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
    if (response.status === 401 && (app.key !== used || await askForKey(used !== ""))) continue;
    const wait = response.headers.get("Retry-After");
    throw new Failure((told.message ? told.message[0].toUpperCase() + told.message.slice(1) : `The server answers ${response.status}`) +
                      (wait ? ` – try again in ${wait} s.` : "."), response.status, told.code, told.param);
  }
}
export const getJson = async (path) => (await request(path)).json();
export const post = async (path, body, signal) => (await request(path, { body, signal })).json();

/** Calls `take` with each event of a streamed answer. */
export async function stream(path, body, signal, take) {
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
      if (json.error) throw new Failure(json.error.message, 200, json.error.code, json.error.param);
      take(json);
    }
  }
  if (!done) throw new Failure("The connection broke before the answer was complete.", 200, "broken_off");
}

// --- state that tabs share

/** What the server has, and which of its models is chosen. */
export const app = { models: [], model: null, schemas: {}, props: {}, key: kept.read(sessionStorage, "key", ""), tabs: null };
export const can = (what) => app.model?.capabilities?.includes(what) ?? false;

/** The properties of a route's body, as the server tells them; null where it has no such route. */
export function fieldsOf(path) {
  const post = app.schemas.paths?.[path]?.post;
  if (!post) return null;
  return post.requestBody?.content?.["application/json"]?.schema?.properties ?? {};
}

export let inspected = null;
/** What the server tells of the model's make, asked for once. */
export function inspection() {
  if (inspected?.id !== app.model.id) {
    const asked = { id: app.model.id, answer: getJson("/inspect/" + encodeURIComponent(app.model.id)) };
    asked.answer.catch(() => { if (inspected === asked) inspected = null; });
    inspected = asked;
  }
  return inspected.answer;
}

/** A button that runs, then stops; `run(signal)` does the work. */
export class Runner {
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
export const running = new Set();
