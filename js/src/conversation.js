// The chosen branch of a conversation in the page. A turn's view is made once and stays: whatever is open, selected or
// being edited in it is left alone when others are shown beside it.

import { textOf } from "./content.js";
import { h } from "./dom.js";
import { Empty } from "./empty.js";
import { WayBack } from "./following.js";
import { Answer, numbers, Question } from "./message.js";
import { Tree } from "./tree.js";

export class Conversation {
  element = h("div", { class: "nbgen-log", role: "log", "aria-label": "Conversation", "aria-live": "off", tabindex: 0 });
  following = new WayBack(this.element);
  empty = new Empty();
  #views = new Map();
  #actions;

  /** `actions` are what messages offer, `retry(turn)` among them; `missing(turn)` stands for results of calls that have none. */
  constructor(actions) {
    this.#actions = { ...actions, painted: (work) => this.following.during(work) };
  }

  view(turn) {
    if (!this.#views.has(turn)) this.#views.set(turn, this.#make(turn));
    return this.#views.get(turn);
  }

  /** The tree's branch, with as little change to the page as possible. */
  show(tree) {
    const turns = tree.path().filter(({ role }) => role === "user" || role === "assistant");
    for (const turn of turns) {
      const versions = tree.versions(turn);
      this.view(turn).show(versions.indexOf(turn), versions.length);
      if (turn.tool_calls) this.view(turn).results(tree.results(turn).map((text) => text ?? this.#actions.missing(turn)));
    }
    const shown = turns.length ? turns.map((turn) => this.view(turn).element) : [this.empty.element];
    const { children } = this.element;
    shown.forEach((element, i) => children[i] === element || this.element.insertBefore(element, children[i] ?? null));
    while (children.length > shown.length) this.element.lastChild.remove();
  }

  /** Choose and show the version that is `by` places from this one; words for it. */
  step(tree, turn, by) {
    const versions = tree.versions(turn);
    const next = versions[(versions.indexOf(turn) + by + versions.length) % versions.length];
    tree.choose(next);
    this.following.instead(() => this.show(tree));
    this.view(next).element.querySelector(`[aria-label="${by < 0 ? "Previous" : "Next"} version"]`)?.focus();
    return `Version ${versions.indexOf(next) + 1} of ${versions.length}`;
  }

  /** Have the last question edited, if there is one. */
  editLast(tree, event) {
    const turn = tree.path().findLast(({ role }) => role === "user");
    if (!turn) return;
    event.preventDefault();
    this.view(turn).edit();
  }

  /** The question of these turns that somebody is editing. */
  edited(turns) {
    return turns.find((turn) => typeof this.#views.get(turn)?.written === "string");
  }

  /** What questions are being changed into, where that is something else. */
  get edits() {
    return [...this.#views].filter(([{ content }, { written }]) => written && written !== textOf(content)).map(([, { written }]) => written);
  }

  #make(turn) {
    if (turn.role === "user") return new Question(turn, this.#actions);
    const view = new Answer(turn, this.#actions);
    view.add(turn.content, turn.usage?.completion_tokens, turn.reasoning);
    view.call(turn.tool_calls ?? []);
    if (Tree.unfinished(turn)) return view;
    if (turn.error) view.fail({ message: turn.error }, () => this.#actions.retry(turn));
    else view.finish(numbers(turn));
    return view;
  }
}
