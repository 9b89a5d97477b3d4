// One input and one button. The button sends; while an answer is being written, it stops that.

import { h } from "./dom.js";

const TALLEST = 160;
const DOUBLE_MS = 400;

/** The status message for Enter while an answer is being written. */
export const WAIT = "Still writing: Escape stops it";

export class Compose {
  #send;
  #stop;
  #wait;
  #busy = false;
  #clicked = -DOUBLE_MS;
  #words;

  /** `wait()` is called for Enter during an answer. `words` names the button's two states and the input. `files` are Attachments, if any. */
  constructor({ send, stop, wait, placeholder = "", rows = 1, files, words = { send: "Send", stop: "Stop", input: "Message" } }) {
    this.#send = send;
    this.#stop = stop;
    this.#wait = wait;
    this.#words = words;
    this.input = h("textarea", { rows, placeholder, dir: "auto", "aria-label": words.input, input: () => this.#grow() });
    this.button = h("button", { type: "button", class: "nbgen-send", click: (event) => this.#click(event) }, words.send);
    const attach = files ? [files.element] : [];
    this.element = h("div", { class: "nbgen-compose" }, ...(files ? [files.list] : []), this.input, ...attach, this.button);
    if (files) this.input.addEventListener("paste", (event) => files.paste(event));
  }

  get text() {
    return this.input.value;
  }

  set text(text) {
    this.input.value = text;
    this.#grow();
  }

  /** Add this text below the text in the input. */
  add(text) {
    this.text = [this.text.trimEnd(), text].filter(Boolean).join("\n\n");
  }

  set busy(busy) {
    this.#busy = busy;
    this.button.textContent = busy ? this.#words.stop : this.#words.send;
  }

  /** Enter sends, Shift+Enter begins a new line. */
  key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.target !== this.input) return;
    event.preventDefault();
    if (this.#busy) this.#wait();
    else this.#send(this.text);
  }

  /** Ignores the second press of a double click: the button means something else by then. */
  #click({ detail, timeStamp }) {
    if (detail > 1 && timeStamp - this.#clicked < DOUBLE_MS) return;
    this.#clicked = timeStamp;
    if (this.#busy) this.#stop();
    else this.#send(this.text);
  }

  #grow() {
    this.input.style.height = "auto";
    if (!this.text || !this.input.scrollHeight) return; // as high as its rows, also where letters grow; or not in the page yet
    this.input.style.height = `${Math.min(this.input.scrollHeight, TALLEST)}px`;
  }
}
