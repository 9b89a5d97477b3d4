// One input and one button in one place: it sends, and while something is written it stops.

import { h } from "./dom.js";

const TALLEST = 160;

export class Compose {
  #send;
  #stop;
  #busy = false;
  #words;

  /** `send(text)` says whether it took the text. `words` names the button's two states and the input. `files` may go along. */
  constructor({ send, stop, placeholder = "", rows = 1, files, words = { send: "Send", stop: "Stop", input: "Message" } }) {
    this.#send = send;
    this.#stop = stop;
    this.#words = words;
    this.input = h("textarea", { rows, placeholder, "aria-label": words.input, input: () => this.#grow() });
    this.button = h("button", { type: "button", class: "nbgen-send", click: () => this.press() }, words.send);
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

  set busy(busy) {
    this.#busy = busy;
    this.button.textContent = busy ? this.#words.stop : this.#words.send;
  }

  press() {
    if (this.#busy) this.#stop();
    else this.#send(this.text);
  }

  /** Enter sends, Shift+Enter makes a line. Whether the key was ours. */
  key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.target !== this.input) return false;
    event.preventDefault();
    if (!this.#busy) this.press();
    return true;
  }

  #grow() {
    this.input.style.height = "auto";
    if (!this.input.scrollHeight) return; // not in the page yet
    this.input.style.height = `${Math.min(this.input.scrollHeight, TALLEST)}px`;
  }
}
