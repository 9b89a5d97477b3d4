// The engine's memory has been given to others: said in words, with a button that takes it back.

import { focusOf, h } from "./dom.js";

const RELEASED = "The model's memory is released: nothing can be generated until it is resumed.";

export class Released {
  #transport;
  #done;
  #button = h("button", { type: "button", class: "nbgen-small", click: () => this.#resume() }, "Resume");
  #words = h("span");

  /** `done()` gives the focus back. */
  constructor(transport, done) {
    this.#transport = transport;
    this.#done = done;
    this.element = h("div", { class: "nbgen-released nbgen-error", role: "alert", hidden: true }, this.#words, this.#button);
  }

  /** Ask the server, and show what it says. */
  async look() {
    const { state } = await this.#transport.model().catch(() => ({}));
    this.#show(state === "released");
  }

  /** An event of the panel's: a refusal may have this cause, and text that comes shows that it is over. */
  hear(event, { error }) {
    if (event === "error" && error.code === 503) this.look();
    else if (event === "delta" && !this.element.hidden) this.#show(false);
  }

  #show(released) {
    const left = !released && focusOf(this.#button) === this.#button;
    this.element.hidden = !released;
    if (left) this.#done();
    this.#words.textContent = released ? RELEASED : "";
  }

  async #resume() {
    this.#words.textContent = "Taking the memory back";
    try {
      await this.#transport.load();
      await this.look();
    } catch (error) {
      this.#show(true);
      this.#words.textContent = error.message;
    }
  }
}
