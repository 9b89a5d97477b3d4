// A conversation as a tree of turns: an edited question and a second answer are branches. One path of it is shown.
// Mirrors what the server keeps of a chat (nbgen/server/chats.py). Knows nothing of the page.

import { same, sendable } from "./content.js";

export class Tree {
  #turns = [];
  #chosen = new Map();

  /** From the server's or the notebook's list, where parents are places in it; the newest branch is chosen. */
  static from(list) {
    const tree = new Tree();
    for (const { parent, ...turn } of list) tree.#append({ ...turn, parent: tree.#turns[parent] ?? null });
    return tree;
  }

  get size() {
    return this.#turns.length;
  }

  /** The list again. */
  list() {
    return this.#turns.map(({ parent, ...turn }) => ({ parent: parent && this.#turns.indexOf(parent), ...turn }));
  }

  /** As `list`, of the chosen branch alone. */
  branch() {
    return this.path().map(({ parent, ...turn }, i) => ({ parent: parent && i - 1, ...turn }));
  }

  /** A new answer, after the turns that led to it. */
  add(messages, run) {
    let parent = null;
    for (const { role, content } of messages) {
      const known = (turn) => turn.parent === parent && turn.role === role && same(turn.content, content);
      parent = this.#turns.find(known) ?? this.#append({ parent, role, content });
    }
    return this.#append({ parent, role: "assistant", content: "", run });
  }

  /** The turn of a run. */
  answer(run) {
    return this.#turns.findLast((turn) => turn.run === run);
  }

  /** Whether a run's answer has not ended, as far as is known. */
  static unfinished(turn) {
    return Boolean(turn.run) && !turn.finish_reason && !turn.error;
  }

  /** Turns of the chosen branch, first to last. */
  path() {
    const path = [];
    for (let turn = this.#chosen.get(null); turn; turn = this.#chosen.get(turn)) path.push(turn);
    return path;
  }

  /** The versions of a turn, itself among them. */
  versions(turn) {
    return this.#turns.filter((other) => other.parent === turn.parent && other.role === turn.role);
  }

  /** Show the branch that goes through this turn. */
  choose(turn) {
    for (let child = turn; child; child = child.parent) this.#chosen.set(child.parent, child);
  }

  /** Forget an answer that has nothing after it. */
  drop(turn) {
    this.#turns = this.#turns.filter((other) => other !== turn);
    const left = this.#turns.findLast((other) => other.parent === turn.parent);
    if (left) this.#chosen.set(turn.parent, left);
    else this.#chosen.delete(turn.parent);
  }

  /** Messages as the model is to see them, up to and with `last`; a question that got no answer is left out. */
  messages(last) {
    const messages = [];
    for (const turn of last ? lineage(last) : []) {
      if (turn.role === "assistant" && !turn.content) messages.pop();
      else messages.push({ role: turn.role, content: sendable(turn.content) });
    }
    return messages;
  }

  #append(turn) {
    this.#turns.push(turn);
    this.choose(turn);
    return turn;
  }
}

function lineage(turn) {
  return turn ? [...lineage(turn.parent), turn] : [];
}
