// One stream for all panels of the page. A browser opens at most six connections to a server, for all tabs together: a
// stream for each panel would starve Jupyter itself. Adding a run aborts the stream and reopens it at the kept offsets.

import { LOST } from "./server.js";
import { events } from "./sse.js";

const RETRY_MS = [300, 1000, 3000, 5000];
const HIDDEN_MS = 5000;
const FRAME_MS = 16;

/** The page's bus for a server. The bundles of several notebooks in one page share it. */
export function pageBus(server) {
  const buses = (globalThis[Symbol.for("nbgen.bus")] ??= new Map());
  if (!buses.has(server.url)) buses.set(server.url, new Bus(server));
  return buses.get(server.url);
}

export class Bus {
  #server;
  #runs = new Map();
  #starts = [];
  #listeners = new Map();
  #awake = new Set();
  #stream = null;
  #reading = false;
  #paused = false;
  #wake = null;
  #retryMs;

  constructor(server, { retryMs = RETRY_MS, page = globalThis.document } = {}) {
    this.#server = server;
    this.#retryMs = retryMs;
    page?.addEventListener("visibilitychange", () => this.#visibility(page));
  }

  /** Call `listener(event, data)` for a chat's events, also on a hidden page if `awake`. Returns how to stop. */
  listen(chat, listener, awake = false) {
    if (awake) this.#awake.add(chat);
    const group = this.#listeners.get(chat) ?? new Set();
    this.#listeners.set(chat, group.add(listener));
    return () => group.delete(listener) && !group.size && this.#leave(chat);
  }

  /** Start a run; `body.id` and `body.chat` name it. Listeners get the fields of `beside`, too. */
  start(body, beside = {}) {
    this.#runs.set(body.id, { chat: body.chat, seq: 0 });
    this.#starts.push(body);
    this.#emit(body.chat, "started", { run: body.id, messages: body.messages, prompt: body.prompt, prefix_ids: body.prefix_ids, ...beside });
    this.#reopen();
  }

  /** Read a run from `seq` on. One that is being read already begins again: its listeners share one offset. */
  follow(chat, run, seq) {
    const known = this.#runs.get(run);
    if (known) this.#emit(chat, "restart", { run });
    this.#runs.set(run, { chat, seq: known ? 0 : seq });
    this.#reopen();
  }

  #reopen() {
    this.#stream?.abort();
    this.#wake?.();
    if (!this.#reading) this.#read();
  }

  async #read() {
    this.#reading = true;
    let failures = 0;
    while (this.#runs.size) {
      if (this.#paused && !this.#starts.length) await new Promise((resolve) => (this.#wake = resolve));
      this.#stream = new AbortController();
      const start = this.#starts[0];
      try {
        await this.#open(start, () => {
          if (failures) this.#toAll("online", {});
          failures = 0;
        });
        if (this.#stream.signal.aborted || !this.#runs.size) continue;
      } catch (error) {
        if (this.#stream.signal.aborted || this.#refused(error, start)) continue;
      }
      failures += 1;
      this.#toAll("offline", {});
      await this.#sleep(this.#retryMs[Math.min(failures, this.#retryMs.length) - 1]);
    }
    this.#reading = false;
  }

  async #open(start, opened) {
    const follow = {};
    for (const [run, { seq }] of this.#runs) {
      if (!this.#starts.some((body) => body.id === run)) follow[run] = seq;
    }
    const signal = this.#stream.signal;
    const response = await this.#server.request("subscribe", { body: { start, follow, frame_ms: FRAME_MS }, signal });
    opened();
    if (start) this.#starts.shift();
    if (this.#starts.length) return this.#stream.abort();
    const stream = this.#stream;
    for await (const { event, data } of events(response.body, () => stream.abort())) this.#event(event, JSON.parse(data), follow);
  }

  #event(event, data, follow) {
    const run = this.#runs.get(data.run);
    if (!run) return;
    if (data.run in follow && data.error?.code === 404) data.error.message = LOST;
    run.seq = data.seq ?? run.seq;
    if (event === "done" || event === "error") this.#runs.delete(data.run);
    this.#emit(run.chat, event, data);
  }

  /** Whether the server refused some run for good; the stream is then tried again at once without that run. */
  #refused(error, start) {
    if (!error.status) return false;
    const followed = [...this.#runs.keys()].filter((run) => run !== start?.id);
    if (start && (error.status !== 404 || !followed.length)) {
      this.#starts.shift();
      this.#fail(start.id, error);
      return true;
    }
    const final = [400, 401, 403, 404].includes(error.status);
    if (final) for (const run of followed) this.#fail(run, error);
    return final;
  }

  #fail(run, error) {
    const { chat } = this.#runs.get(run);
    this.#runs.delete(run);
    this.#emit(chat, "error", { run, error: { message: error.message, code: error.status } });
  }

  #visibility(page) {
    clearTimeout(this.hiding);
    if (!page.hidden) {
      this.#paused = false;
      this.#wake?.();
    } else {
      this.hiding = setTimeout(() => {
        if ([...this.#runs.values()].some(({ chat }) => this.#awake.has(chat))) return;
        this.#paused = true;
        this.#stream?.abort();
      }, HIDDEN_MS);
    }
  }

  #sleep(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#wake = () => resolve(clearTimeout(timer));
    });
  }

  /** Read a chat's runs no more, as nobody listens; but start those that are still to start. */
  #leave(chat) {
    this.#awake.delete(chat);
    const left = [...this.#runs].filter(([id, run]) => run.chat === chat && !this.#starts.some((body) => body.id === id));
    for (const [id] of left) this.#runs.delete(id);
    if (left.length) this.#stream?.abort();
  }

  /** A listener that fails is reported; the others hear, and the stream goes on. */
  #emit(chat, event, data) {
    for (const listener of this.#listeners.get(chat) ?? []) {
      try {
        listener(event, data);
      } catch (error) {
        reportError(error);
      }
    }
  }

  #toAll(event, data) {
    for (const chat of new Set([...this.#runs.values()].map((run) => run.chat))) this.#emit(chat, event, data);
  }
}
