// `{{…}}` in a user's text: the kernel fills them in, and the user sees the result before it is sent.

import { BUSY_MS, ENDED, tell } from "./kernel.js";

/** Whether a text has `{{…}}`. A pattern would take quadratic time for braces that are not closed. */
export function hasBraces(text) {
  const opening = text.indexOf("{{");
  return opening >= 0 && text.includes("}}", opening + 3);
}

export class Variables {
  #model;
  #say;
  #filled = "";
  #asking = null;
  #waiting = 0;

  constructor(model, say) {
    this.#model = model;
    this.#say = say;
  }

  /** Whether an input's text can be sent as it is; else the kernel is asked to fill it in. */
  ready(input) {
    const ready = input.value === this.#filled || !hasBraces(input.value);
    if (!ready) this.#ask(input);
    return ready;
  }

  /** Put the kernel's answer into the input, unless the text there has changed meanwhile. */
  receive({ asked, text, error }) {
    if (asked !== this.#asking?.text) return;
    const { input } = this.#asking;
    this.#asking = null;
    clearTimeout(this.#waiting);
    if (input.value !== asked) return this.#say("The message has changed since: press Enter to fill in its variables");
    input.value = text;
    this.#filled = input.value; // whose line ends are its own
    input.dispatchEvent(new Event("input"));
    this.#say(error ?? "Variables filled in: press Enter to send");
  }

  #ask(input) {
    this.#asking = { input, text: input.value };
    this.#say("Asking the kernel for the variables");
    clearTimeout(this.#waiting);
    this.#waiting = setTimeout(() => this.#say("The kernel is busy: the variables come when it is free"), BUSY_MS);
    if (tell(this.#model, { type: "expand", text: input.value })) return;
    clearTimeout(this.#waiting);
    this.#say(ENDED);
  }
}
