// The token view: a text whose tokens are coloured by their probability, with the likeliest alternatives of each. Mouse
// and keys do the same; what the colours mean is there in words as well.

import { h } from "./dom.js";
import { Following } from "./following.js";
import { isPart, Pieces } from "./pieces.js";

const STEPS = [0.95, 0.8, 0.6, 0.4, 0.2, 0.05];
const SLOW_MS = 8;

/** A token from its form on the wire: [id, text, logprob, alternatives, number of whole characters before it]. */
export function token([id, text, logprob, top = [], offset]) {
  return { id, text, logprob, top, offset };
}

const percent = (logprob) => {
  const p = 100 * Math.exp(logprob ?? -Infinity);
  return `${p >= 10 ? p.toFixed(0) : p >= 0.1 ? p.toFixed(1) : "<0.1"}%`;
};

/** Text with signs for its spaces and line ends. */
const visible = (text) => (text === "" ? "∅" : text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥"));

export class TokenView {
  tokens = [];
  text = "";
  #pieces = new Pieces();
  #arrived = [];
  #spans = [];
  #current = -1;
  #option = -1;
  #pinned = false;
  #frame = 0;
  #timer = 0;
  #due = false;
  #cost = 0;
  #choose;
  #following;
  #given = h("span", { class: "nbgen-given" });
  #paragraph;
  #box;

  /** `choose(index, alternative)` is called to continue the text from another token. */
  constructor(choose) {
    this.#choose = choose;
    this.#box = new Alternatives((alternative) => {
      this.scroller.focus({ preventScroll: true }); // the button will be gone
      this.#choose(this.#current, alternative);
    });
    const text = h(
      "div",
      { class: "nbgen-tokens", role: "listbox", "aria-label": "Tokens", tabindex: 0, "aria-describedby": this.#box.element.id },
    );
    text.addEventListener("keydown", (event) => this.#key(event));
    text.addEventListener("pointerover", ({ target }) => this.#pinned || this.#point(target));
    text.addEventListener("click", ({ target }) => (this.#pinned = this.#point(target)));
    text.addEventListener("focus", () => this.#current < 0 && this.#show(0));
    this.element = h("div", { class: "nbgen-tokenview" }, text, this.#box.element);
    this.scroller = text;
    this.#following = new Following(text, () => this.#current >= 0); // a token under the pointer is not scrolled away
    this.restart();
  }

  /** Begin again after `prompt`. The `kept` tokens stay; their text comes again with the answer. */
  begin(prompt, kept = []) {
    this.restart(kept);
    this.#given.textContent = prompt;
    this.#following.toEnd();
  }

  restart(kept = []) {
    this.#cancel();
    Object.assign(this, { tokens: [], text: "" });
    this.#pieces = new Pieces();
    this.#arrived = [];
    this.#spans = [];
    this.#current = this.#option = -1;
    this.#pinned = false;
    this.#paragraph = paragraph(this.#given);
    this.scroller.replaceChildren(this.#paragraph);
    this.#box.clear();
    this.scroller.removeAttribute("aria-activedescendant");
    this.add("", kept);
  }

  add(text, tokens = []) {
    this.text += text;
    for (const each of tokens) this.tokens.push(each); // one by one: a call takes only so many
    for (const piece of this.#pieces.add(text, tokens)) this.#arrived.push(piece);
    if (!this.#due) this.#schedule();
  }

  finish() {
    this.#arrived.push(...this.#pieces.flush());
    this.#cancel();
    this.#paint();
  }

  /** Paint at the next frame; later if painting is slow, so that the page is free for two thirds of the time. */
  #schedule() {
    this.#due = true;
    const wait = this.#cost > SLOW_MS ? 2 * this.#cost : 0;
    this.#timer = setTimeout(() => (this.#frame = requestAnimationFrame(() => this.#paint())), wait);
  }

  #cancel() {
    clearTimeout(this.#timer);
    cancelAnimationFrame(this.#frame);
    this.#due = false;
  }

  #paint() {
    this.#due = false;
    const start = performance.now();
    this.#following.during(() => {
      for (const [token, piece] of this.#arrived.splice(0)) token ? this.#append(token, piece) : this.#write(piece);
    });
    this.#cost = performance.now() - start;
  }

  /** Add a token's element. A line end begins a new paragraph, so that earlier ones need not be laid out again. */
  #append(token, piece) {
    const step = STEPS.findIndex((least) => Math.exp(token.logprob ?? 0) >= least);
    const part = isPart(token);
    const kind = piece ? "" : part ? " nbgen-part" : " nbgen-unsaid";
    const span = h(
      "span",
      { class: `nbgen-token nbgen-p${step < 0 ? STEPS.length : step}${kind}`, role: "option", "aria-selected": "false", "aria-label": piece.trim() ? null : visible(token.text) },
      piece || (part ? "·" : visible(token.text)),
    );
    if (piece.includes("\n")) span.classList.add("nbgen-newline");
    span.dataset.index = this.#spans.length;
    this.#spans.push({ span, token, piece });
    this.#box.element.hidden = false;
    this.#paragraph.append(span);
    if (piece.includes("\n")) this.scroller.append((this.#paragraph = paragraph()));
  }

  /** Add text whose tokens are unknown, so without alternatives. */
  #write(text) {
    for (const line of text.split(/(?<=\n)/)) {
      this.#paragraph.append(line);
      if (line.endsWith("\n")) this.scroller.append((this.#paragraph = paragraph()));
    }
  }

  #point(target) {
    const span = target.closest?.(".nbgen-token");
    if (span) this.#show(Number(span.dataset.index));
    return Boolean(span);
  }

  #show(index) {
    if (!this.#spans[index]) return;
    this.#spans[this.#current]?.span.setAttribute("aria-selected", "false");
    this.#current = index;
    this.#option = -1;
    const { span, token, piece } = this.#spans[index];
    span.setAttribute("aria-selected", "true");
    span.id = `${this.#box.element.id}-${index}`;
    this.scroller.setAttribute("aria-activedescendant", span.id);
    this.#box.show(token, piece || token.text);
  }

  /** Left and right move between tokens, up and down between alternatives; Enter continues from an alternative. */
  #key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    const last = this.#spans.length - 1;
    if (event.key in steps) this.#show(Math.max(0, Math.min(last, this.#current + steps[event.key])));
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") this.#mark(event.key === "ArrowDown" ? 1 : -1);
    else if (event.key === "Enter" && this.#option >= 0) this.#choose(this.#current, this.#box.alternatives[this.#option]);
    else return;
    event.preventDefault();
    this.#pinned = true;
    this.#spans[this.#current]?.span.scrollIntoView({ block: "nearest" });
  }

  #mark(by) {
    const { length } = this.#box.alternatives;
    if (!length) return;
    this.#option = (this.#option + by + length) % length;
    this.#box.mark(this.#option);
  }
}

function paragraph(...children) {
  return h("div", { class: "nbgen-paragraph", role: "presentation" }, ...children);
}

/** The box for the current token: its probability and its alternatives. Hidden until there are tokens. */
class Alternatives {
  alternatives = [];
  #choose;
  #title = h("div", { class: "nbgen-alternatives-title" });
  #list = h("div", { class: "nbgen-alternatives-list" });

  constructor(choose) {
    this.#choose = choose;
    const id = `nbgen-${Math.random().toString(36).slice(2)}`;
    this.element = h("div", { class: "nbgen-alternatives", id, role: "group", "aria-label": "Alternatives", "aria-live": "polite", hidden: true }, this.#title, this.#list);
    this.clear();
  }

  clear() {
    this.alternatives = [];
    this.#title.textContent = "Point at a token, or walk with the arrow keys, to see what else it could have been.";
    this.#list.replaceChildren();
  }

  show(chosen, piece) {
    this.alternatives = chosen.top.map(token);
    const known = chosen.logprob != null;
    this.#title.textContent = `${visible(piece)} · ${known ? percent(chosen.logprob) : "given"}`;
    this.#list.replaceChildren(...this.alternatives.map((alternative) => this.#button(alternative, chosen)));
  }

  mark(option) {
    [...this.#list.children].forEach((button, i) => button.classList.toggle("nbgen-marked", i === option));
    const { text, logprob } = this.alternatives[option];
    this.#title.textContent = `Enter continues with ${visible(text)} · ${percent(logprob)}`;
  }

  #button(alternative, chosen) {
    const { id, text, logprob } = alternative;
    const button = h(
      "button",
      { type: "button", tabindex: -1, class: "nbgen-alternative", "aria-label": `Continue with ${visible(text)}, ${percent(logprob)}`, click: () => this.#choose(alternative) },
      h("span", {}, visible(text)),
      h("span", { class: "nbgen-share" }, percent(logprob)),
    );
    button.style.setProperty("--share", `${100 * Math.exp(logprob ?? -Infinity)}%`);
    button.classList.toggle("nbgen-chosen", id === chosen.id);
    return button;
  }
}
