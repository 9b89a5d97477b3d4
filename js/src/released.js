// A notice that the engine has released its memory to other programs, with a button that takes it back.

import { focusOf, h } from "./dom.js";

const RELEASED = "The model's memory is released: nothing can be generated until it is resumed.";
/** Between two requests for the state while it is released: somebody else may resume the engine. */
const AGAIN_MS = 2000;

export class Released {
  #transport;
  #done;
  #button = h("button", { type: "button", class: "nbgen-small", click: () => this.#resume() }, "Resume");
  #words = h("span");
  #again;
  #open = true;

  /** `done()` gives the focus back. */
  constructor(transport, done) {
    this.#transport = transport;
    this.#done = done;
    this.element = h("div", { class: "nbgen-released nbgen-error", role: "alert", hidden: true }, this.#words, this.#button);
  }

  close() {
    clearTimeout(this.#again);
    this.#open = false;
  }

  /** Ask the server and show the notice if the memory is released; asks again and again while it is. */
  async look() {
    clearTimeout(this.#again);
    const { state } = await this.#transport.model().catch(() => ({}));
    this.#show(state === "released");
    if (state === "released" && this.#open) this.#again = setTimeout(() => this.look(), AGAIN_MS);
  }

  /** Handle an event of the panel: a refusal may have this cause, and new text shows that the memory is back. */
  hear(event, { error }) {
    if (event === "error" && error.code === 503) this.look();
    else if (event === "delta" && !this.element.hidden) this.#show(false);
  }

  #show(released) {
    const left = !released && focusOf(this.#button) === this.#button;
    this.element.hidden = !released;
    if (left) this.#done();
    const words = released ? RELEASED : "";
    if (this.#words.textContent !== words) this.#words.textContent = words; // else it would be read out again
  }

  async #resume() {
    clearTimeout(this.#again);
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
