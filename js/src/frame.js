// The frame around a panel's content: the model's name, a status that screen readers announce, a bar during a load.

import { composing, DONE, focusOf, h } from "./dom.js";
import { INSERT } from "./markdown.js";
import { Notebook } from "./notebook.js";
import { Written } from "./written.js";

/** Time after which a screen reader has taken the text to read; most characters to read, about five minutes. */
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
  #written;

  /** `key(event)` is called for keys pressed within. `parts` are in the Tab key's order; CSS puts the head first. */
  constructor(model, { name, label, key, sized = false, tools = [], parts }) {
    // A click that focuses nothing, as on a button in Safari, focuses the panel: in a focused cell, keys would cut or delete the cell.
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
    this.#written = new Written(model);
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
    this.#written.close();
  }

  /** An answer has ended that this page keeps in the notebook. */
  kept() {
    this.#written.expect();
  }

  set busy(busy) {
    this.#busy = busy;
    this.#mark();
  }

  /** Whether a server or kernel can be reached, as far as is known. */
  set connected(connected) {
    this.#connected = connected;
    this.#mark();
  }

  say(words = "", title = "") {
    if (this.#status.textContent !== words) this.#status.textContent = words;
    this.#status.title = title || words;
  }

  /** Have a screen reader read out an element's text once, if the focus is in this panel and the text is not too long. */
  read(element) {
    if (focusOf(this.element)?.closest(".nbgen") !== this.element || element.textContent.length > MAX_READ) return;
    const copy = element.cloneNode(true);
    copy.querySelectorAll("button").forEach((button) => button.remove());
    this.#aloud.replaceChildren(copy);
    this.#aloud.textContent = this.#aloud.innerText;
    setTimeout(() => this.#aloud.replaceChildren(), HEARD_MS);
  }

  /** Show the model's name, without the folders or the owner before it. */
  call(model) {
    if (!model) return;
    this.#name.textContent = model.split(/[\\/]/).at(-1);
    this.#name.title = model;
  }

  /** Show what a run does before its first token. */
  state({ state, place, model }) {
    this.say(place ? `Queued, ${place} before it` : STATES[state] ?? this.#status.textContent);
    this.call(model);
    this.#loading.hidden = state !== "loading";
  }

  /** Show how far loading is; `total` is 0 if unknown. Only the bar shows it: changing words are read out. */
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

  /** No answer is being written any more. */
  rest(words) {
    this.busy = false;
    this.connected = true;
    this.#loading.hidden = true;
    this.say(words);
  }

  /** Show the state by the dot's form, its colour and its name. */
  #mark() {
    this.element.classList.toggle("nbgen-busy", this.#busy);
    this.element.classList.toggle("nbgen-offline", !this.#connected);
    this.#dot.title = !this.#connected ? "Not connected" : this.#busy ? "Working" : "Ready";
    this.#dot.setAttribute("aria-label", this.#dot.title);
  }

  /** Save the notebook, as this key does anywhere else in it. Outside a notebook the key is not ours. */
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

/** Handle events that mean the same to every panel. Returns whether this was one. */
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
