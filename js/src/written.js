// The transcript below a panel. The kernel changes it as any output that it has displayed, but a page that was loaded
// since does not know which output that is: there the panel finds its own, and brings it up to date.

import { tell } from "./kernel.js";

const VIEW = "application/vnd.jupyter.widget-view+json";
const TEXT = "text/markdown";
/** After it has changed a transcript, the kernel says so; Jupyter may take so long to show that. */
const SHOWN_MS = 500;

/** The checksum of RFC 1950 of a text in UTF-8, as Python's zlib has it. */
export function adler32(text) {
  let [sum, sums] = [1, 0];
  for (const byte of new TextEncoder().encode(text)) {
    sum = (sum + byte) % 65521;
    sums = (sums + sum) % 65521;
  }
  return sums * 65536 + sum;
}

export class Written {
  #model;
  #timer = 0;
  #mine = false;
  #asked = false;
  #id = ""; // of the widget
  #receive = (message) => {
    this.#id = message.panel ?? this.#id;
    if (message.type === "written") this.#later(message.checksum);
    else if (message.type === "transcript" && this.#asked) this.#renew(message.data);
  };

  constructor(model) {
    this.#model = model;
    model.on?.("msg:custom", this.#receive);
  }

  /** An answer has ended that this page keeps in the notebook: of several windows, one writes there. */
  expect() {
    this.#mine = true;
  }

  close() {
    clearTimeout(this.#timer);
    this.#model.off?.("msg:custom", this.#receive);
  }

  /** The whole transcript is sent by the kernel only where the page has another one. */
  #later(checksum) {
    if (!this.#mine) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#mine = false;
      const others = this.#transcripts().some(([outputs, place]) => adler32(outputs.get(place).data[TEXT]) !== checksum);
      this.#asked = others;
      if (others) tell(this.#model, { type: "transcript" });
    }, SHOWN_MS);
  }

  #renew(data) {
    this.#asked = false;
    for (const [outputs, place] of this.#transcripts()) {
      const output = outputs.get(place).toJSON();
      if (outputs.get(place).data[TEXT] !== data[TEXT]) outputs.set(place, { ...output, data });
    }
  }

  /** Where the notebook has the panel's transcript: the output after each display of the panel. */
  #transcripts() {
    const found = [];
    for (const { outputs } of this.#model.widget_manager?.context?.model?.cells ?? []) {
      for (let place = 1; place < (outputs?.length ?? 0); place++) {
        const shown = outputs.get(place - 1).data[VIEW]?.model_id === this.#id;
        if (shown && typeof outputs.get(place).data[TEXT] === "string") found.push([outputs, place]);
      }
    }
    return found;
  }
}
