// The chosen branch of a conversation in the page; of a long branch only the end, until the reader wants more. A turn's
// view is made once and kept: what is open, selected or being edited in it stays so when other turns are added.

import { textOf } from "./content.js";
import { focusOf, h } from "./dom.js";
import { Empty } from "./empty.js";
import { WayBack } from "./following.js";
import { Answer, numbers, Question } from "./message.js";
import { Tree } from "./tree.js";

/** How many turns of a long branch are shown at first, and how many more each time: a page draws these in a moment. */
const SHOWN = 40;
/** Within so many pixels of the top, more turns are shown to a reader who scrolls up. */
const NEAR = 200;

export class Conversation {
  element = h("div", { class: "nbgen-log", role: "log", "aria-label": "Conversation", "aria-live": "off", tabindex: 0 });
  following = new WayBack(this.element);
  empty = new Empty();
  tree = new Tree();
  #views = new Map();
  #actions;
  #oldest = null;
  #earlier = h("button", { type: "button", class: "nbgen-small nbgen-earlier", click: () => this.#more() }, "Earlier messages");
  #all = () => this.#more(Infinity);

  /** `actions` are what messages offer, such as `retry(turn)`; `missing(turn)` returns what to show for missing results. */
  constructor(actions) {
    this.#actions = { ...actions, painted: (work) => this.following.during(work) };
    this.element.addEventListener("scroll", () => this.element.scrollTop < NEAR && this.#more(), { passive: true });
    this.element.addEventListener("keydown", ({ key, target }) => key === "Home" && target === this.element && this.#all(), true);
    globalThis.addEventListener?.("beforeprint", this.#all);
  }

  close() {
    globalThis.removeEventListener?.("beforeprint", this.#all);
  }

  view(turn) {
    if (!this.#views.has(turn)) this.#views.set(turn, this.#make(turn));
    return this.#views.get(turn);
  }

  /** Show the tree's branch, with as little change to the page as possible; if `still`, no fewer turns than before. */
  show(still = false) {
    const path = this.#path();
    const first = this.#first(path, still);
    for (const turn of path.slice(0, first)) this.#views.delete(turn);
    const turns = path.slice(first);
    this.#oldest = turns[0];
    for (const turn of turns) {
      const versions = this.tree.versions(turn);
      this.view(turn).show(versions.indexOf(turn), versions.length);
      if (turn.tool_calls) this.view(turn).results(this.tree.results(turn).map((text) => text ?? this.#actions.missing(turn)));
    }
    const shown = turns.length ? turns.map((turn) => this.view(turn).element) : [this.empty.element];
    if (first) shown.unshift(this.#earlier);
    const { children } = this.element;
    const kept = new Set(shown);
    for (const element of [...children]) if (!kept.has(element)) element.remove();
    shown.forEach((element, i) => children[i] === element || this.element.insertBefore(element, children[i] ?? null));
  }

  #path() {
    return this.tree.path().filter(({ role }) => role === "user" || role === "assistant");
  }

  /** The index of the first turn that is shown: the same as before, unless a reader at the end is far from it. */
  #first(path, still) {
    const last = Math.max(0, path.length - SHOWN);
    const first = path.indexOf(this.#oldest);
    const far = last - first > SHOWN && !still && this.following.follows && !this.edited(path.slice(first, last));
    return first < 0 || far ? last : Math.min(first, last);
  }

  /** Show so many more turns above; the reader stays in place. */
  #more(count = SHOWN) {
    const path = this.#path();
    const first = path.indexOf(this.#oldest);
    if (first <= 0) return;
    this.#oldest = path[Math.max(0, first - count)];
    const { element } = this;
    const focused = focusOf(element) === this.#earlier;
    const below = element.scrollHeight - element.scrollTop;
    this.following.instead(() => {
      this.show(true);
      element.scrollTop = element.scrollHeight - below;
    });
    if (focused && this.#oldest === path[0]) element.focus({ preventScroll: true }); // the button is gone
  }

  /** Choose and show the version that is `by` steps from this one. Returns words for the status. */
  step(turn, by) {
    const { tree } = this;
    const versions = tree.versions(turn);
    const next = versions[(versions.indexOf(turn) + by + versions.length) % versions.length];
    tree.choose(next);
    if (!tree.path().includes(this.#oldest)) this.#oldest = next;
    this.following.instead(() => this.show(true));
    this.view(next).element.querySelector(`[aria-label="${by < 0 ? "Previous" : "Next"} version"]`)?.focus();
    return `Version ${versions.indexOf(next) + 1} of ${versions.length}`;
  }

  /** Begin to edit the last question, if there is one. */
  editLast(event) {
    const turn = this.tree.path().findLast(({ role }) => role === "user");
    if (!turn) return;
    event.preventDefault();
    this.view(turn).edit();
  }

  /** The question among these turns that is being edited. */
  edited(turns) {
    return turns.find((turn) => typeof this.#views.get(turn)?.written === "string");
  }

  /** The new texts of questions that are being edited, if they differ. */
  get edits() {
    return [...this.#views].filter(([{ content }, { written }]) => written && written !== textOf(content)).map(([, { written }]) => written);
  }

  #make(turn) {
    if (turn.role === "user") return new Question(turn, this.#actions);
    const view = new Answer(turn, this.#actions);
    view.add(textOf(turn.content), turn.usage?.completion_tokens, turn.reasoning);
    view.call(turn.tool_calls ?? []);
    if (Tree.unfinished(turn)) return view;
    if (turn.error) view.fail({ message: turn.error, kept: true }, () => this.#actions.retry(turn));
    else view.finish(numbers(turn));
    return view;
  }
}
