// What a conversation says before anything is said in it.

import { h } from "./dom.js";

const ASK = "Ask something. Answers stream in here";
const KEYS = "Shift+Enter begins a new line, ↑ edits the last message, {{name}} puts in a variable of the notebook.";
const ALONE = "Whatever was written here stands below.";

export class Empty {
  #ask = h("span", {}, `${ASK}.`);
  #back = h("span", {});
  element = h("p", { class: "nbgen-empty" }, this.#ask, h("small", {}, KEYS), this.#back);

  open({ needsKernel }) {
    if (!needsKernel) this.#ask.textContent = `${ASK}, also while the kernel is busy.`;
  }

  /** A way back to the conversation that gave way to this one, the first that is offered. */
  offer(back) {
    if (!this.#back.childNodes.length) this.#back.append(h("button", { type: "button", class: "nbgen-small", click: back }, "Back to the conversation before"));
  }

  /** What is left where there is no kernel any more stands in the transcript. */
  hear({ alone }) {
    if (alone) this.element.textContent = ALONE;
  }
}
