// One input and one button in one place: it sends, and while something is written it stops.

import { h } from "./dom.js";

const TALLEST = 160;
const DOUBLE_MS = 400;

/** What Enter says while an answer is being written. */
export const WAIT = "Still writing: Escape stops it";

export class Compose {
  #send;
  #stop;
  #wait;
  #busy = false;
  #clicked = -DOUBLE_MS;
  #words;

  /** `wait()` hears of Enter while something is written. `words` names the button's two states and the input. `files` may go along. */
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

  /** Write this below what is there. */
  add(text) {
    this.text = [this.text.trimEnd(), text].filter(Boolean).join("\n\n");
  }

  set busy(busy) {
    this.#busy = busy;
    this.button.textContent = busy ? this.#words.stop : this.#words.send;
  }

  /** Enter sends, Shift+Enter makes a line. */
  key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.target !== this.input) return;
    event.preventDefault();
    if (this.#busy) this.#wait();
    else this.#send(this.text);
  }

  /** The second press of a double click is not meant for what the button has become. */
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
