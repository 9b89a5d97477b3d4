// What a conversation says before anything is said in it.

import { h } from "./dom.js";

const ASK = "Ask something. Answers stream in here";
const ALONE = "Whatever was written here stands below.";

export class Empty {
  element = h("p", { class: "nbgen-empty" }, `${ASK}.`);

  open({ needsKernel }) {
    if (!needsKernel) this.element.textContent = `${ASK}, also while the kernel is busy.`;
  }

  /** What is left where there is no kernel any more stands in the transcript. */
  hear({ alone }) {
    if (alone) this.element.textContent = ALONE;
  }
}
