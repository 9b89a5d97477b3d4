// What a conversation shows before its first message.

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

  /** Add a button that leads back to the conversation before this one; only the first offer counts. */
  offer(back) {
    if (!this.#back.childNodes.length) this.#back.append(h("button", { type: "button", class: "nbgen-small", click: back }, "Back to the conversation before"));
  }

  /** Without a kernel, point to the transcript, which has all that is left. */
  hear({ alone }) {
    if (alone) this.element.textContent = ALONE;
  }
}
