// What every panel has around its content: the model's name, one line of status that speaks, a bar while a model loads.

import { composing, DONE, focusOf, h } from "./dom.js";
import { INSERT } from "./markdown.js";
import { Notebook } from "./notebook.js";

/** After which a screen reader has what it is to read; characters that take it five minutes. */
const HEARD_MS = 1000;
const MAX_READ = 5000;
const STATES = { queued: "Reading the prompt", loading: "Loading model", running: "Generating" };

export class Frame {
  #status = h("span", { class: "nbgen-status", role: "status" });
  #aloud = h("span", { class: "nbgen-offscreen", "aria-live": "polite" });
  #dot = h("span", { class: "nbgen-dot", role: "img" });
  #busy = false;
  #connected = true;
  #name = h("span", { class: "nbgen-name" }, "nbgen");
  #bar = h("progress", { class: "nbgen-progress", "aria-label": "Loading model", max: 1 });
  #share = h("span", { "aria-hidden": "true" });
  #loading = h("span", { class: "nbgen-loading", hidden: true }, this.#bar, this.#share);

  /** `key(event)` hears keys pressed within. Parts are in the order of the Tab key; CSS puts the head first. */
  constructor(model, { name, label, key, sized = false, tools = [], parts }) {
    // A click that no part takes the focus of, as on a button in Safari, gives it to the panel: keys cut and delete a cell that has it.
    this.element = h(
      "div",
      { class: "nbgen", tabindex: -1, role: "region", "aria-label": label, "data-lm-suppress-shortcuts": "true", "data-jp-suppress-context-menu": "true" },
      ...parts,
      h("div", { class: "nbgen-head" }, this.#dot, this.#name, this.#loading, this.#status, this.#aloud, ...tools),
    );
    this.element.addEventListener("keydown", (event) => {
      if (saves(event)) return this.#save(event);
      event.stopPropagation();
      if (!composing(event)) key(event);
    });
    this.notebook = new Notebook(model, this.element);
    this.element.classList.toggle("nbgen-in-notebook", this.notebook.reachable);
    this.element.addEventListener(INSERT, ({ detail }) => this.#insert(detail));
    this.element.addEventListener(DONE, ({ detail }) => this.say(detail));
    this.element.classList.toggle("nbgen-sized", sized);
    const size = () => this.element.style.setProperty("--height", `${model.get("height")}px`);
    model.on?.("change:height", size);
    size();
    this.call(name);
    this.#mark();
  }

  close() {
    this.notebook.close();
  }

  set busy(busy) {
    this.#busy = busy;
    this.#mark();
  }

  /** Whether somebody hears what is asked, as far as is known. */
  set connected(connected) {
    this.#connected = connected;
    this.#mark();
  }

  say(words = "", title = "") {
    if (this.#status.textContent !== words) this.#status.textContent = words;
    this.#status.title = title || words;
  }

  /** Have a screen reader read out once what an element shows, where its user is in this panel; nothing that takes long. */
  read(element) {
    if (focusOf(this.element)?.closest(".nbgen") !== this.element || element.textContent.length > MAX_READ) return;
    const copy = element.cloneNode(true);
    copy.querySelectorAll("button").forEach((button) => button.remove());
    this.#aloud.replaceChildren(copy);
    this.#aloud.textContent = this.#aloud.innerText;
    setTimeout(() => this.#aloud.replaceChildren(), HEARD_MS);
  }

  /** The model's name without the folders or the owner before it. */
  call(model) {
    if (!model) return;
    this.#name.textContent = model.split(/[\\/]/).at(-1);
    this.#name.title = model;
  }

  /** What a run does before its first token. */
  state({ state, place, model }) {
    this.say(place ? `Queued, ${place} before it` : STATES[state] ?? this.#status.textContent);
    this.call(model);
    this.#loading.hidden = state !== "loading";
  }

  /** How far loading is; `total` is 0 where nothing can be counted. The bar tells it: words that change are read out. */
  progress({ stage, done, total }) {
    this.say(STATES.loading, stage);
    this.#share.textContent = total ? `${Math.floor((100 * done) / total)}%` : "";
    this.#loading.hidden = false;
    if (total) this.#bar.value = done / total;
    else this.#bar.removeAttribute("value");
  }

  loaded() {
    this.#loading.hidden = true;
  }

  /** Nothing is written any more. */
  rest(words) {
    this.busy = false;
    this.connected = true;
    this.#loading.hidden = true;
    this.say(words);
  }

  /** The dot by its form, its colour and its name. */
  #mark() {
    this.element.classList.toggle("nbgen-busy", this.#busy);
    this.element.classList.toggle("nbgen-offline", !this.#connected);
    this.#dot.title = !this.#connected ? "Not connected" : this.#busy ? "Working" : "Ready";
    this.#dot.setAttribute("aria-label", this.#dot.title);
  }

  /** The notebook is saved, as from any other place in it. Elsewhere the key is not ours. */
  #save(event) {
    const notebook = this.element.closest(".jp-Notebook");
    if (!notebook) return;
    event.preventDefault();
    event.stopPropagation();
    notebook.dispatchEvent(new KeyboardEvent("keydown", event));
  }

  #insert({ code, replace }) {
    if (replace) this.say(this.notebook.replaceBelow(code) ? "Replaced the cell below" : "There is no code cell below");
    else this.say(this.notebook.insertBelow(code) ? "Inserted in the cell below" : "There is no notebook to insert into");
  }
}

function saves({ key, ctrlKey, metaKey, altKey, shiftKey }) {
  return key?.toLowerCase() === "s" && (ctrlKey || metaKey) && !altKey && !shiftKey;
}

/** Events that mean the same to every panel; whether this was one. */
export function common(frame, event, data, live) {
  if (event === "offline" || event === "online" || data.alone) frame.connected = event === "online";
  const say = {
    offline: () => frame.say("Reconnecting"),
    online: () => frame.say(live ? STATES.running : ""),
    notice: () => frame.say(data.message),
    busy: () => frame.say("The kernel is busy; interrupt it (■) to be heard now"),
    run: () => frame.state(data),
    progress: () => frame.progress(data),
  }[event];
  say?.();
  return Boolean(say);
}
