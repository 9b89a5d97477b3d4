// A conversation as a tree of turns: an edited question and a second answer are branches. One path of it is shown.
// Mirrors what the server keeps of a chat (nbgen/server/chats.py). Knows nothing of the page.

import { lean, same, sendable } from "./content.js";

/** What stands for the result of a call that has none, as in nbgen/notebook/turns.py. */
export const NO_RESULT = "no result";

export class Tree {
  /** Runs whose answers were forgotten. */
  dropped = new Set();
  #turns = [];
  #answers = new Map(); // by their runs
  #following = new Map(); // those after a turn
  #chosen = new Map();

  /** From the server's or the notebook's list, where parents are places in it; the newest branch is chosen. */
  static from(list) {
    const tree = new Tree();
    for (const { parent, ...turn } of list) tree.#enter({ ...turn, parent: tree.#turns[parent] ?? null });
    tree.#chooseNewest();
    return tree;
  }

  /**
   * From two lists of the same chat: the newer one, and of the older one answers that it lacks. Without dropped runs.
   * `shown` of a newer list that a panel has, not a server.
   */
  static merged(older, newer, dropped = new Set(), shown = false) {
    const tree = new Tree();
    tree.dropped = dropped;
    tree.#take(newer, () => true);
    const own = new Set(tree.#turns);
    const last = tree.#turns.at(-1);
    const known = ({ run }) => Boolean(tree.answer(run));
    const ways = new Set();
    for (const [i, turn] of older.entries()) {
      for (let at = turn.run && !known(turn) ? i : null; at !== null && !ways.has(at); at = known(older[at]) ? null : older[at].parent) ways.add(at);
    }
    tree.#take(older, (i) => !last || ways.has(i));
    tree.#chooseNewest();
    const first = inOrder(tree.#turns.filter((turn) => !own.has(turn)));
    tree.#turns = [...first, ...tree.#turns.filter((turn) => !first.has(turn))];
    tree.#place(older);
    if (shown) tree.#place(newer);
    tree.#order(inOrder(tree.#turns));
    if (last) tree.choose(last);
    return tree;
  }

  /** Have what a server's list has beside, and choose its newest branch; the new turns. Those that are here stay what they are. */
  grow(list) {
    const whole = Tree.merged(this.list(), list, this.dropped);
    const here = this.#pairs(whole);
    const found = whole.#turns.filter((turn) => !here.has(turn));
    if (!found.some(({ run }) => run)) return [];
    const own = (turn) => here.get(turn) ?? turn;
    const parents = whole.#turns.map(({ parent }) => own(parent));
    this.#order(whole.#turns.map((turn, i) => Object.assign(own(turn), { parent: parents[i] })));
    this.#chosen = new Map([...whole.#chosen].map(([parent, turn]) => [own(parent), own(turn)]));
    return found;
  }

  get size() {
    return this.#turns.length;
  }

  /** The list again. */
  list() {
    const places = new Map(this.#turns.map((turn, i) => [turn, i]));
    return this.#turns.map(({ parent, ...turn }) => ({ parent: parent && places.get(parent), ...turn }));
  }

  /** As `list`, of the chosen branch alone. */
  branch() {
    return this.path().map(({ parent, ...turn }, i) => ({ parent: parent && i - 1, ...turn }));
  }

  /** A new answer, after the turns that led to it, of which the last may be another version of a question. */
  add(messages, run, version = false) {
    let parent = null;
    for (const [i, { role, content, tool_calls, tool_call_id }] of messages.entries()) {
      const own = { role, content, ...(tool_calls && { tool_calls }), ...(tool_call_id && { tool_call_id }) };
      const below = () => (version && i === messages.length - 1 ? parent : this.#below(parent, own));
      parent = this.#after(parent, own, says) ?? this.#append({ parent: below(), ...own });
    }
    return this.#append({ parent, role: "assistant", content: "", run });
  }

  /** The turn of a run. */
  answer(run) {
    return this.#answers.get(run);
  }

  /** Whether a run's answer has not ended, as far as is known. */
  static unfinished(turn) {
    return Boolean(turn.run) && !turn.finish_reason && !turn.error;
  }

  /** Whether a turn goes on with the answer before it: as a result of its calls, or what the model says to them. */
  static continues({ role, parent }) {
    return role === "tool" || parent?.role === "tool";
  }

  /** Messages of the chosen branch. */
  get said() {
    return this.messages(this.path().at(-1));
  }

  /** The same, up to the last question. */
  get asked() {
    return this.said.slice(0, this.said.findLastIndex(({ role }) => role === "user") + 1);
  }

  /** Turns of the chosen branch, first to last. */
  path() {
    const path = [];
    for (let turn = this.#chosen.get(null); turn; turn = this.#chosen.get(turn)) path.push(turn);
    return path;
  }

  /** The versions of a turn, itself among them. */
  versions(turn) {
    return this.#next(turn.parent, turn.role);
  }

  /** Show the branch that goes through this turn. */
  choose(turn) {
    for (let child = turn; child; child = child.parent) this.#chosen.set(child.parent, child);
  }

  /** Forget an answer that has nothing after it. */
  drop(turn) {
    this.dropped.add(turn.run);
    this.#order(this.#turns.filter((other) => other !== turn));
    const left = this.#following.get(turn.parent)?.at(-1);
    if (left) this.#chosen.set(turn.parent, left);
    else this.#chosen.delete(turn.parent);
  }

  /** The question that a turn answers, be it after calls and their results. */
  question(turn) {
    return lineage(turn).findLast(({ role }) => role === "user") ?? turn.parent;
  }

  /** Of the chosen branch, the results of a turn's calls, in their order. */
  results(turn) {
    const path = this.path();
    const after = path.slice(path.indexOf(turn) + 1);
    const end = after.findIndex(({ role }) => role !== "tool");
    const told = end < 0 ? after : after.slice(0, end);
    return (turn.tool_calls ?? []).map(({ id }, i) => (told.find((tool) => tool.tool_call_id === id) ?? told[i])?.content);
  }

  /** Messages as the model is to see them, up to and with `last`; a question that got no answer is left out. */
  messages(last) {
    const messages = [];
    for (const turn of lineage(last)) {
      if (!silent(turn)) messages.push(message(turn));
      else if (messages.at(-1)?.role === "user") messages.pop();
    }
    return messages;
  }

  /** Which turns of a tree are which of this one: answers by their runs, and what led to them. */
  #pairs(tree) {
    const pairs = new Map();
    const paired = new Set();
    for (const answer of this.#turns.filter(({ run }) => run)) {
      let [other, own] = [tree.answer(answer.run), answer];
      while (other && own && !pairs.has(other) && !paired.has(own) && (own === answer || is(other, own))) {
        pairs.set(other, own);
        paired.add(own);
        [other, own] = [other.parent, own.parent];
      }
    }
    return pairs;
  }

  /** The turns of a list that are wanted, and not here. */
  #take(list, wanted) {
    const met = [];
    for (const [i, { parent, ...turn }] of list.entries()) met.push(wanted(i) && this.#meet({ ...turn, parent: met[parent] ?? null }));
  }

  /** The turn that is this one, which may be new. */
  #meet(turn) {
    if (this.dropped.has(turn.run)) return turn.parent;
    const known = this.answer(turn.run) ?? this.#after(turn.parent, turn, is);
    if (!known) return this.#enter({ ...turn, parent: this.#below(turn.parent, turn) });
    if (turn.run && !known.run) this.#answers.set(turn.run, Object.assign(known, turn));
    if (same(lean(turn.content), known.content)) known.content = turn.content;
    return known;
  }

  /** The turn after `parent` that is this one; a question may stand below others that got no answer. */
  #after(parent, turn, alike) {
    const found = this.#following.get(parent)?.find((other) => alike(other, turn));
    const end = found ? null : this.#refusal(parent, turn);
    return end ? this.#after(end, turn, alike) : found;
  }

  /** Where a new turn goes: a question below those that got no answer, which requests leave out. */
  #below(parent, turn) {
    const end = this.#refusal(parent, turn);
    return end ? this.#below(end, turn) : parent;
  }

  /** What ended the last question there that got no answer. */
  #refusal(parent, { role }) {
    if (role !== "user") return null;
    const asked = parent?.role === "user" ? [parent] : this.#next(parent, "user");
    const failed = (turn) => silent(turn) && !Tree.unfinished(turn);
    return asked.map((turn) => this.#next(turn, "assistant")).findLast((answers) => answers.length && answers.every(failed))?.at(-1) ?? null;
  }

  /** Have questions stand where the list knows them to: a request does not say which question of no answer is before it. */
  #place(list) {
    const runs = new Set(list.map(({ run }) => run));
    for (const { run, parent } of list) {
      const asked = this.answer(run)?.parent;
      if (asked?.role !== "user" || list[parent]?.role !== "user") continue;
      const before = list[list[parent].parent];
      const place = before ? this.answer(before.run) : null;
      const told = silent(place) || (silent(asked.parent) && runs.has(asked.parent.run));
      if (told && place !== undefined && !lineage(place).includes(asked)) asked.parent = place;
    }
  }

  #append(turn) {
    this.choose(this.#enter(turn));
    return turn;
  }

  #enter(turn) {
    this.#turns.push(turn);
    if (turn.run) this.#answers.set(turn.run, turn);
    if (!this.#following.get(turn.parent)?.push(turn)) this.#following.set(turn.parent, [turn]);
    return turn;
  }

  /** Have these turns alone, in this order. */
  #order(turns) {
    this.#turns = [];
    this.#answers.clear();
    this.#following.clear();
    for (const turn of turns) this.#enter(turn);
  }

  /** Those of a role that come after a turn. */
  #next(parent, role) {
    return (this.#following.get(parent) ?? []).filter((turn) => turn.role === role);
  }

  /** After each turn, choose the way to the newest of those that follow it. */
  #chooseNewest() {
    for (const turn of [...this.#turns].reverse()) {
      for (let child = turn; child && !this.#chosen.has(child.parent); child = child.parent) this.#chosen.set(child.parent, child);
    }
  }
}

/** The messages, with a result for calls that nobody has made: models and servers want one for each. */
export function answered(messages) {
  const missing = ({ tool_calls = [] }, next) => (next?.role === "tool" ? [] : tool_calls.map(({ id }) => ({ role: "tool", tool_call_id: id, content: NO_RESULT })));
  return messages.flatMap((message, i) => [message, ...missing(message, messages[i + 1])]);
}

function message({ role, content, tool_calls, tool_call_id }) {
  return { role, content: sendable(content), ...(tool_calls?.length && { tool_calls }), ...(tool_call_id && { tool_call_id }) };
}

/** Whether it is an answer that says nothing. */
function silent(turn) {
  return turn?.role === "assistant" && !turn.content && !turn.tool_calls?.length;
}

/** Whether a turn is this message. */
function says(turn, { role, content, tool_calls, tool_call_id }) {
  return turn.role === role && same(turn.content, content) && turn.tool_call_id === tool_call_id && written(turn.tool_calls) === written(tool_calls);
}

/** Whether two turns after the same one are one, of which one may have lost its files or its run. */
function is(one, other) {
  if (one.run && other.run) return false;
  const light = [one, other].map((turn) => ({ ...turn, content: lean(turn.content) }));
  return says(one, other) || says(light[0], other) || says(one, light[1]);
}

function written(calls) {
  return JSON.stringify((calls ?? []).map(({ id, function: { name, arguments: given } }) => [id, name, given]));
}

/** Turns and what led to them, parents first. */
function inOrder(turns) {
  const found = new Set();
  for (const turn of turns) lineage(turn, found).forEach((each) => found.add(each));
  return found;
}

/** A turn after all that led to it, from the first on that is not among the `known`. */
function lineage(turn, known = new Set()) {
  const found = [];
  for (let at = turn; at && !known.has(at); at = at.parent) found.push(at);
  return found.reverse();
}
