// One prompt, several settings, side by side: every cell is a run of its own with the same seed, all over one stream.

import { Compose } from "./compose.js";
import { h, newId } from "./dom.js";
import { common, Frame } from "./frame.js";
import { Answer, numbers } from "./message.js";

const WORDS = { send: "Run", stop: "Stop", input: "Prompt" };

export class Compare {
  #model;
  #transport = null;
  #frame;
  #compose;
  #cells;
  #grid;

  #handlers = {
    delta: ({ text, tokens, index = 0 }, cell) => index === 0 && cell.answer.add(text, tokens),
    restart: (_, cell) => cell.answer.restart(),
    done: (data, cell) => this.#ended(cell, () => cell.answer.finish(numbers(data))),
    error: ({ error }, cell) => this.#ended(cell, () => cell.answer.fail(error)),
  };

  constructor(model, name) {
    this.#model = model;
    const send = (text) => text.trim() && this.#start(text);
    this.#compose = new Compose({ send, stop: () => this.#stop(), placeholder: "One prompt for all", rows: 1, words: WORDS });
    this.#compose.text = model.get("prompt");
    this.#cells = model.get("cells").map(({ label, params }) => new Cell(label, params));
    const style = `--columns: ${model.get("columns")}`;
    this.#grid = h("div", { class: "nbgen-grid", role: "group", "aria-label": "Answers", style }, ...this.#cells.map(({ element }) => element));
    this.#frame = new Frame(model, {
      name,
      label: "Comparison",
      key: (event) => this.#key(event),
      parts: [this.#compose.element, h("div", { class: "nbgen-log nbgen-comparison" }, this.#grid)],
    });
    this.element = this.#frame.element;
    this.element.classList.add("nbgen-wide");
  }

  /** Show what the server knows; run at once where nothing has been run yet. */
  async open(transport) {
    this.#transport = transport;
    try {
      const chat = await transport.snapshot();
      if (this.#live.length) return;
      if (chat?.turns?.length) this.#restore(chat);
      else if (this.#compose.text.trim()) this.#start(this.#compose.text);
    } catch (error) {
      this.#frame.say(error.message);
    }
  }

  close() {
    this.#transport?.close();
  }

  adopt() {}

  receive(event, data) {
    if (event === "started") return this.#started(data);
    const cell = this.#cells.find(({ run, live }) => live && run === data.run);
    if (data.run && !cell) return;
    if (!common(this.#frame, event, data, this.#live.length)) this.#handlers[event]?.(data, cell);
  }

  get #live() {
    return this.#cells.filter(({ live }) => live);
  }

  #start(prompt) {
    if (this.#live.length || !this.#transport) return;
    const { complete, system } = { complete: this.#model.get("complete"), system: this.#model.get("system") };
    const messages = [...(system ? [{ role: "system", content: system }] : []), { role: "user", content: prompt }];
    const round = newId();
    this.#cells.forEach(({ params }, i) => {
      const body = { id: `${round}.${i}`, chat: this.#model.get("chat"), params };
      this.#transport.start({ ...body, ...(complete ? { prompt } : { messages }) });
    });
  }

  #started({ run }) {
    const cell = this.#cells[Number(run.split(".").at(-1))];
    if (!cell || cell.run === run) return;
    cell.begin(run);
    this.#frame.busy = this.#compose.busy = true;
    this.#frame.say("Sending");
  }

  /** Every cell's newest answer. */
  #restore({ turns }) {
    this.#cells.forEach((cell, i) => {
      const turn = turns.findLast(({ run }) => run?.endsWith(`.${i}`));
      if (!turn) return;
      this.#started({ run: turn.run });
      if (!turn.finish_reason && !turn.error) return this.#transport.follow(turn.run, 0);
      cell.answer.add(turn.content);
      if (turn.error) this.#handlers.error({ error: { message: turn.error } }, cell);
      else this.#handlers.done(turn, cell);
    });
  }

  #ended(cell, show) {
    cell.live = false;
    show();
    const left = this.#live.length;
    this.#frame.say(left ? `${left} of ${this.#cells.length} still running` : "");
    if (left) return;
    this.#compose.busy = false;
    this.#frame.rest(`${this.#cells.length} answers ready`);
  }

  async #stop() {
    this.#frame.say("Stopping");
    const stopped = this.#live.map(({ run }) => this.#transport.cancel(run));
    for (const { reason } of await Promise.allSettled(stopped)) if (reason) this.#frame.say(reason.message);
  }

  #key(event) {
    if (event.key === "Escape" && this.#live.length) this.#stop();
    this.#compose.key(event);
  }
}

/** One setting and its answer. */
class Cell {
  run = null;
  live = false;
  answer;

  constructor(label, params) {
    this.params = params;
    this.element = h("section", { class: "nbgen-cell", "aria-label": label }, h("div", { class: "nbgen-label" }, label));
  }

  begin(run) {
    this.run = run;
    this.live = true;
    this.answer?.element.remove();
    this.answer = new Answer({ content: "" }, { painted: (work) => work() });
    this.element.append(this.answer.element);
  }
}
