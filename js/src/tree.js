// A conversation as a tree of turns: an edited question or a second answer begins a branch. One branch is shown.
// Mirrors the tree that the server keeps of a chat (nbgen/server/chats.py). Knows nothing of the page.

import { lean, same, sendable, textOf } from "./content.js";

/** The result for a call that has none, as in nbgen/notebook/turns.py. */
export const NO_RESULT = "no result";

export class Tree {
  /** Ids of runs whose answers were dropped. */
  dropped = new Set();
  #turns = [];
  #answers = new Map(); // by their runs
  #following = new Map(); // those after a turn
  #chosen = new Map();

  /** A tree from the server's or the notebook's list, in which parents are indexes. Chooses the newest branch. */
  static from(list) {
    const tree = new Tree();
    for (const { parent, ...turn } of list) tree.#enter({ ...turn, parent: tree.#turns[parent] ?? null });
    tree.#chooseNewest();
    return tree;
  }

  /**
   * A tree from two lists of the same chat: all of the newer one, and answers of the older one that it lacks. Leaves
   * out dropped runs. `shown`: the newer list is from a panel, not from a server.
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

  /** Add the turns that only a server's list has, and choose its newest branch. Returns the new turns; the others stay the same objects. */
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

  /** The tree as a list, see `from`. */
  list() {
    const places = new Map(this.#turns.map((turn, i) => [turn, i]));
    return this.#turns.map(({ parent, ...turn }) => ({ parent: parent && places.get(parent), ...turn }));
  }

  /** Like `list`, for the chosen branch only. */
  branch() {
    return this.path().map(({ parent, ...turn }, i) => ({ parent: parent && i - 1, ...turn }));
  }

  /** Add a new answer, and those of its messages that are new; if `version`, the last is an edited question. */
  add(messages, run, version = false) {
    let parent = null;
    for (const [i, { role, content, tool_calls, tool_call_id }] of messages.entries()) {
      const own = { role, content, ...(tool_calls && { tool_calls }), ...(tool_call_id && { tool_call_id }) };
      const below = () => (version && i === messages.length - 1 ? parent : this.#below(parent, own));
      parent = this.#after(parent, own, says) ?? this.#append({ parent: below(), ...own });
    }
    return this.#append({ parent, role: "assistant", content: "", run });
  }

  /** The turn of a run's answer. */
  answer(run) {
    return this.#answers.get(run);
  }

  /** Whether a run's answer has not ended, as far as is known. */
  static unfinished(turn) {
    return Boolean(turn.run) && !turn.finish_reason && !turn.error;
  }

  /** Whether a turn continues the answer before it: as a result of its calls, or as the answer to these results. */
  static continues({ role, parent }) {
    return role === "tool" || parent?.role === "tool";
  }

  /** Messages of the chosen branch. */
  get said() {
    return this.messages(this.path().at(-1));
  }

  /** Messages of the chosen branch up to the last question. */
  get asked() {
    return this.said.slice(0, this.said.findLastIndex(({ role }) => role === "user") + 1);
  }

  /** Turns of the chosen branch, first to last. */
  path() {
    const path = [];
    for (let turn = this.#chosen.get(null); turn; turn = this.#chosen.get(turn)) path.push(turn);
    return path;
  }

  /** All versions of a turn, including itself. */
  versions(turn) {
    return this.#next(turn.parent, turn.role);
  }

  /** Show the branch that goes through this turn. */
  choose(turn) {
    for (let child = turn; child; child = child.parent) this.#chosen.set(child.parent, child);
  }

  /** Drop an answer, unless turns stand after it, as after one that failed. */
  drop(turn) {
    if (this.#following.get(turn)?.length) return;
    this.dropped.add(turn.run);
    this.#order(this.#turns.filter((other) => other !== turn));
    const left = this.#following.get(turn.parent)?.at(-1);
    if (left) this.#chosen.set(turn.parent, left);
    else this.#chosen.delete(turn.parent);
  }

  /** The question that a turn answers, also if calls and their results are between. */
  question(turn) {
    return lineage(turn).findLast(({ role }) => role === "user") ?? turn.parent;
  }

  /** The texts of the results of a turn's calls in the chosen branch, in the order of the calls. */
  results(turn) {
    const path = this.path();
    const after = path.slice(path.indexOf(turn) + 1);
    const end = after.findIndex(({ role }) => role !== "tool");
    const told = end < 0 ? after : after.slice(0, end);
    const texts = told.map(({ content }) => textOf(content));
    return (turn.tool_calls ?? []).map(({ id }, i) => texts[told.findIndex((tool) => tool.tool_call_id === id)] ?? texts[i]);
  }

  /** The messages to send to the model, up to and including `last`, without questions that got no answer. */
  messages(last) {
    const messages = [];
    for (const turn of lineage(last)) {
      if (!silent(turn)) messages.push(message(turn));
      else if (messages.at(-1)?.role === "user") messages.pop();
    }
    return messages;
  }

  /** Maps another tree's turns to this tree's: answers by their runs, and the turns before them. */
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

  /** Add the turns of a list that are `wanted(index)`, unless they are here already. */
  #take(list, wanted) {
    const met = [];
    for (const [i, { parent, ...turn }] of list.entries()) met.push(wanted(i) && this.#meet({ ...turn, parent: met[parent] ?? null }));
  }

  /** The tree's turn that is the same as this one; adds it if there is none. */
  #meet(turn) {
    if (this.dropped.has(turn.run)) return turn.parent;
    const known = this.answer(turn.run) ?? this.#after(turn.parent, turn, is);
    if (!known) return this.#enter({ ...turn, parent: this.#below(turn.parent, turn) });
    if (turn.run && !known.run) this.#answers.set(turn.run, Object.assign(known, turn));
    if (same(lean(turn.content), known.content)) known.content = turn.content;
    return known;
  }

  /** The turn after `parent` that is the same as this one; a question may be below others that got no answer. */
  #after(parent, turn, alike) {
    const found = this.#following.get(parent)?.find((other) => alike(other, turn));
    const end = found ? null : this.#refusal(parent, turn);
    return end ? this.#after(end, turn, alike) : found;
  }

  /** The parent for a new turn: a question goes below those that got no answer, which requests leave out. */
  #below(parent, turn) {
    const end = this.#refusal(parent, turn);
    return end ? this.#below(end, turn) : parent;
  }

  /** The failed answer of the last question there that got no answer; null if there is none. */
  #refusal(parent, { role }) {
    if (role !== "user") return null;
    const asked = parent?.role === "user" ? [parent] : this.#next(parent, "user");
    const failed = (turn) => silent(turn) && !Tree.unfinished(turn);
    return asked.map((turn) => this.#next(turn, "assistant")).findLast((answers) => answers.length && answers.every(failed))?.at(-1) ?? null;
  }

  /** Move questions to where the list has them: a request does not tell which unanswered questions were before it. */
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

  /** Rebuild the tree from these turns only, in this order. */
  #order(turns) {
    this.#turns = [];
    this.#answers.clear();
    this.#following.clear();
    for (const turn of turns) this.#enter(turn);
  }

  /** The turns of a role that come directly after a turn. */
  #next(parent, role) {
    return (this.#following.get(parent) ?? []).filter((turn) => turn.role === role);
  }

  /** After each turn, choose the way to the newest turn below it. */
  #chooseNewest() {
    for (const turn of [...this.#turns].reverse()) {
      for (let child = turn; child && !this.#chosen.has(child.parent); child = child.parent) this.#chosen.set(child.parent, child);
    }
  }
}

/** The messages, with a result for calls that nobody has made: models and servers expect one for each call. */
export function answered(messages) {
  const missing = ({ tool_calls = [] }, next) => (next?.role === "tool" ? [] : tool_calls.map(({ id }) => ({ role: "tool", tool_call_id: id, content: NO_RESULT })));
  return messages.flatMap((message, i) => [message, ...missing(message, messages[i + 1])]);
}

function message({ role, content, tool_calls, tool_call_id }) {
  return { role, content: sendable(content), ...(tool_calls?.length && { tool_calls }), ...(tool_call_id && { tool_call_id }) };
}

/** Whether it is an answer without text and calls. */
function silent(turn) {
  return turn?.role === "assistant" && !turn.content && !turn.tool_calls?.length;
}

/** Whether a turn has the same role, content and calls as this message. */
function says(turn, { role, content, tool_calls, tool_call_id }) {
  return turn.role === role && same(turn.content, content) && turn.tool_call_id === tool_call_id && written(turn.tool_calls) === written(tool_calls);
}

/** Whether two turns with the same parent are the same turn; one of them may have lost its files or its run. */
function is(one, other) {
  if (one.run && other.run) return false;
  const light = [one, other].map((turn) => ({ ...turn, content: lean(turn.content) }));
  return says(one, other) || says(light[0], other) || says(one, light[1]);
}

function written(calls) {
  return JSON.stringify((calls ?? []).map(({ id, function: { name, arguments: given } }) => [id, name, given]));
}

/** These turns and all turns before them, parents first. */
function inOrder(turns) {
  const found = new Set();
  for (const turn of turns) lineage(turn, found).forEach((each) => found.add(each));
  return found;
}

/** The turns that led to a turn, and itself, from the first one that is not `known`. */
function lineage(turn, known = new Set()) {
  const found = [];
  for (let at = turn; at && !known.has(at); at = at.parent) found.push(at);
  return found.reverse();
}
