// One prompt, several settings or models, side by side: every cell is a run of its own with the same seed. Models that
// one server has to load are loaded one after the other; other servers answer meanwhile, through the kernel.

import { Comm } from "./comm.js";
import { Compose, WAIT } from "./compose.js";
import { h, newId } from "./dom.js";
import { Following } from "./following.js";
import { common, Frame } from "./frame.js";
import { tell } from "./kernel.js";
import { Answer, numbers } from "./message.js";

const WORDS = { send: "Run", stop: "Stop", input: "Prompt" };

export class Compare {
  #model;
  #transport = null;
  #kernel = null;
  #frame;
  #compose;
  #cells;
  #oneModel;
  #prompt;
  #round = "";

  #handlers = {
    delta: ({ text, tokens, reasoning, index = 0 }, cell) => index === 0 && cell.answer.add(text, tokens, reasoning),
    restart: (_, cell) => cell.answer.restart(),
    done: (data, cell) => this.#ended(cell, () => cell.answer.finish(numbers(data))),
    error: ({ error }, cell) => this.#failed(cell, error),
  };

  constructor(model, name) {
    this.#model = model;
    const send = (text) => text.trim() && this.#start(text);
    this.#compose = new Compose({ send, stop: () => this.#stop(), wait: () => this.#frame.say(WAIT), placeholder: "One prompt for all", rows: 1, words: WORDS });
    this.#compose.text = this.#prompt = model.get("prompt");
    model.on?.("change:prompt", () => this.#changed());
    this.#cells = model.get("cells").map((fields) => new Cell(fields));
    this.#oneModel = this.#cells.every(({ server, load, adapter }) => server === undefined && !load && !adapter);
    const style = `--columns: ${model.get("columns")}`;
    const grid = h("div", { class: "nbgen-grid", role: "group", "aria-label": "Answers", style }, ...this.#cells.map(({ element }) => element));
    this.#frame = new Frame(model, {
      name: this.#oneModel ? name : "Models",
      label: "Comparison",
      key: (event) => this.#key(event),
      parts: [this.#compose.element, h("div", { class: "nbgen-log nbgen-comparison" }, grid)],
    });
    this.element = this.#frame.element;
    this.element.classList.add("nbgen-wide");
  }

  /** Show the answers that the servers know; start the runs if there are none yet. */
  async open(transport) {
    this.#transport = transport;
    if (this.#cells.some(({ server }) => server !== undefined)) this.#kernel = this.#through();
    try {
      const known = await this.#look(this.#kernel?.turns());
      if (!known && !this.#cells.some(({ run }) => run) && !this.#open.length && this.#compose.text.trim()) this.#start(this.#compose.text);
    } catch (error) {
      this.#frame.say(error.message);
    }
  }

  /** Show runs that were started elsewhere meanwhile, such as in another window. */
  refresh() {
    return this.#look().catch(() => {});
  }

  close() {
    this.#kernel?.close();
    this.#frame.close();
    this.#transport?.close();
  }

  /** Follow a run that was started elsewhere. One that Python has "started" may not have reached the server yet. */
  adopt({ type, run }) {
    const cell = this.#cellOf(run);
    const way = cell && this.#transportOf(cell);
    if (!cell || cell.runs.has(run) || cell.state !== "idle" || (type === "started" && !way.needsKernel)) return;
    this.#started({ run });
    way.follow(run, 0);
  }

  receive(event, data) {
    if (event === "started") return this.#started(data);
    const cell = this.#cells.find(({ run, state }) => state === "live" && run === data.run);
    if ((data.run && !cell) || (event === "progress" && !this.#open.length)) return; // stopped since
    const shown = this.#oneModel ? data : { ...data, model: "" };
    if (!common(this.#frame, event, shown, this.#open.length)) this.#handlers[event]?.(data, cell);
  }

  /** Show the newest answers of the server and those `through` the kernel, except where a run has begun meanwhile. Returns how many are known. */
  async #look(through) {
    const shown = this.#cells.map(({ run }) => run);
    const [chat, others] = await Promise.all([this.#transport.snapshot(), through]);
    const turns = [...(chat?.turns ?? []), ...(others ?? [])];
    this.#restore(turns, shown);
    return turns.length;
  }

  /** The prompt has changed, such as in another window. A draft in this input stays. */
  #changed() {
    const prompt = this.#model.get("prompt");
    if (this.#compose.text === this.#prompt) this.#compose.text = prompt;
    this.#prompt = prompt;
  }

  /** The cells whose answers are still to come. */
  get #open() {
    return this.#cells.filter(({ state }) => state !== "idle");
  }

  /** A transport to servers that only the kernel can reach. */
  #through() {
    return new Comm(this.#model, this.#model.get("chat"), (event, data) => this.receive(event, data));
  }

  #transportOf({ server }) {
    return server === undefined ? this.#transport : this.#kernel;
  }

  async #start(prompt) {
    if (this.#open.length || !this.#transport) return;
    this.#model.set("prompt", prompt);
    this.#model.save_changes();
    const round = (this.#round = newId());
    const ask = (cell) => this.#ask(cell, prompt, `${round}.${this.#cells.indexOf(cell)}`);
    for (const cell of this.#cells) cell.wait();
    this.#busy("Sending");
    for (const cell of this.#cells) if (cell.server !== undefined) ask(cell);
    for (const load of new Set(this.#cells.filter(({ server }) => server === undefined).map((cell) => cell.load))) {
      const waiting = () => this.#cells.filter((cell) => cell.state === "waiting" && cell.server === undefined && cell.load === load);
      if (load && waiting().length) await this.#load(load, () => (this.#round === round ? waiting() : []));
      if (this.#round !== round) return; // stopped, and run again since
      const asked = waiting();
      asked.forEach(ask);
      await Promise.all(asked.map(({ over }) => over));
    }
  }

  #ask(cell, prompt, id) {
    const said = { prompt, complete: this.#model.get("complete"), system: this.#model.get("system") };
    this.#transportOf(cell).start({ id, chat: this.#model.get("chat"), ...asked(cell, said) }, { server: cell.server });
  }

  /** Have the server load a model for the cells that are `waiting()` for it. */
  async #load(model, waiting) {
    this.#frame.progress({ stage: model, total: 0 });
    try {
      await this.#transport.load(model);
    } catch (error) {
      for (const cell of waiting()) this.#failed(cell, error);
    }
    this.#frame.loaded();
  }

  #busy(words) {
    this.#frame.busy = this.#compose.busy = true;
    this.#frame.say(words);
  }

  #cellOf(run) {
    return this.#cells[Number(run.split(".").at(-1))];
  }

  #started({ run }) {
    const cell = this.#cellOf(run);
    if (!cell || cell.run === run) return;
    cell.begin(run);
    this.#busy("Sending");
  }

  /** Show every cell's newest answer, unless one is still to come, or the cell has begun a run since the request. */
  #restore(turns, shown) {
    this.#cells.forEach((cell, i) => {
      const turn = turns.findLast(({ run }) => run?.endsWith(`.${i}`));
      if (!turn || cell.runs.has(turn.run) || cell.run !== shown[i] || cell.state !== "idle") return;
      this.#started({ run: turn.run });
      if (!turn.finish_reason && !turn.error) return this.#transportOf(cell).follow(turn.run, 0);
      cell.answer.add(turn.content, 0, turn.reasoning);
      if (turn.error) this.#handlers.error({ error: { message: turn.error, kept: true } }, cell);
      else this.#handlers.done(turn, cell);
    });
  }

  #ended(cell, show) {
    cell.end(show);
    const left = this.#open.length;
    this.#frame.say(left ? `${left} of ${this.#cells.length} still to come` : "");
    if (left) return;
    this.#compose.busy = false;
    this.#frame.rest(ready(this.#cells));
    if (this.#round && this.#cells.some(({ run }) => run?.startsWith(this.#round))) this.#frame.kept();
    tell(this.#model, { type: "ended" });
  }

  #failed(cell, error) {
    cell.failed = true;
    this.#ended(cell, () => cell.answer.fail(error));
  }

  async #stop() {
    this.#frame.say("Stopping");
    for (const cell of this.#cells) if (cell.state === "waiting") this.#ended(cell, () => cell.answer.finish("not asked"));
    const live = this.#cells.filter(({ state }) => state === "live");
    const stopped = live.map((cell) => this.#transportOf(cell).cancel(cell.run));
    for (const { reason } of await Promise.allSettled(stopped)) if (reason) this.#frame.say(reason.message);
  }

  #key(event) {
    if (event.key === "Escape" && this.#open.length) this.#stop();
    this.#compose.key(event);
  }
}

/** The fields of a run's body: those of the cell, and those that all cells share. */
export function asked({ params, adapter, template_options }, { prompt, complete, system }) {
  const messages = [...(system ? [{ role: "system", content: system }] : []), { role: "user", content: prompt }];
  return { params, ...(adapter && { adapter }), ...(template_options && { template_options }), ...(complete ? { prompt } : { messages }) };
}

/** How the runs of all cells ended, in words. */
export function ready(cells) {
  const failed = cells.filter((cell) => cell.failed).length;
  const there = cells.length - failed;
  const words = `${there} ${there === 1 ? "answer" : "answers"} ready`;
  return failed ? `${words}, ${failed} failed` : words;
}

/** One model and setting, and its answer: "waiting" for its turn, "live", or "idle" once it is there. */
class Cell {
  run = null;
  runs = new Set(); // all that were shown here
  state = "idle";
  failed = false;
  answer;
  over;
  #ends;
  #following;

  constructor({ label, params, server, load = "", adapter, template_options }) {
    Object.assign(this, { params, server, load, adapter, template_options });
    this.element = h("section", { class: "nbgen-cell", "aria-label": label }, h("div", { class: "nbgen-label" }, label));
    this.#following = new Following(this.element);
  }

  wait() {
    this.state = "waiting";
    this.failed = false;
    this.over = new Promise((resolve) => (this.#ends = resolve));
    this.#renew();
  }

  begin(run) {
    this.run = run;
    this.runs.add(run);
    if (this.state !== "waiting") this.wait();
    this.state = "live";
  }

  end(show) {
    this.state = "idle";
    show();
    this.#ends?.();
  }

  #renew() {
    this.answer?.element.remove();
    this.answer = new Answer({ content: "" }, { painted: (work) => this.#following.during(work) });
    this.element.append(this.answer.element);
  }
}
