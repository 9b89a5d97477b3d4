import assert from "node:assert/strict";
import { test } from "node:test";
import { newest } from "../src/content.js";
import { Notebook } from "../src/notebook.js";
import { Tree } from "../src/tree.js";

const id = (digit) => digit.repeat(32);

/** A notebook's shared model, and panels in it. */
function opened() {
  const shared = {
    metadata: {},
    getMetadata: (name) => shared.metadata[name],
    setMetadata: (name, value) => (shared.metadata[name] = JSON.parse(JSON.stringify(value))),
  };
  const panel = (chat) => new Notebook({ get: () => chat, widget_manager: { context: { model: { sharedModel: shared } } } }, {});
  return { panel, kept: () => Object.keys(shared.metadata.nbgen.chats), chats: () => shared.metadata.nbgen.chats };
}

function talk(...contents) {
  const tree = new Tree();
  contents.forEach((content, i) => (tree.add([...tree.messages(tree.path().at(-1)), { role: "user", content }], `r${i}`).content = "yes"));
  return tree;
}

test("a chat without a name is forgotten once no panel shows it", () => {
  const { panel, kept } = opened();
  const first = panel(id("a"));
  first.keep(id("a"), talk("one"));
  panel("plans").keep("plans", talk("two"));
  assert.deepEqual(kept(), [id("a"), "plans"]);
  first.close();
  panel(id("b")).keep(id("b"), talk("three"));
  assert.deepEqual(kept(), ["plans", id("b")]);
});

test("two views show a chat until both are gone", () => {
  const { panel, kept } = opened();
  const [first] = [panel(id("a")), panel(id("a"))];
  first.keep(id("a"), talk("one"));
  first.close();
  panel("plans").keep("plans", talk("two"));
  assert.deepEqual(kept(), [id("a"), "plans"]);
});

test("a chat without a name is found by the next one, once no panel shows it", () => {
  const { panel } = opened();
  const first = panel(id("a"));
  first.keep(id("a"), talk("one"));
  const second = panel(id("b"));
  assert.equal(second.left, null);
  first.close();
  assert.deepEqual([second.left.chat, second.left.tree.said[0].content], [id("a"), "one"]);
  assert.equal(panel("plans").left, null);
});

test("a chat that gives way to a new one is dropped, unless it has a name", () => {
  const { panel, kept } = opened();
  for (const chat of [id("a"), "b".repeat(24), "plans"]) {
    panel(chat).keep(chat, talk("one"));
    panel(chat).drop(chat);
  }
  assert.deepEqual(kept(), ["plans"]);
});

test("of a conversation that is too long the shown branch is kept, then its newest turns, and this is said", () => {
  const { panel, chats } = opened();
  const notebook = panel("plans");
  const tree = talk("a".repeat(90_000), "b".repeat(90_000));
  assert.equal(notebook.keep("plans", tree), "");
  tree.add([{ role: "user", content: "c".repeat(90_000) }], "r2").content = "other";
  assert.match(notebook.keep("plans", tree), /versions that are shown/);
  assert.deepEqual(chats().plans.map(({ role, parent, content }) => [role, parent, content[0]]), [["user", null, "c"], ["assistant", 0, "o"]]);
  const another = opened();
  const { chats: kept } = another;
  const long = talk("a".repeat(90_000), "b".repeat(90_000), "c".repeat(90_000));
  assert.match(another.panel("plans").keep("plans", long), /newest turns/);
  assert.deepEqual(kept().plans.map(({ parent, content }) => [parent, content[0]]), [[null, "b"], [0, "y"], [1, "c"], [2, "y"]]);
  assert.match(another.panel("plans").keep("plans", talk("a".repeat(300_000))), /too long/);
  assert.equal(kept().plans.length, 4);
});

test("two panels keep what each of them was told", () => {
  const { panel, chats } = opened();
  const id = "plans.0123456789abcdef";
  for (const [run, content] of [["r1", "one"], ["r2", "two"]]) {
    const tree = new Tree();
    tree.add([{ role: "user", content }], run).content = "yes";
    panel(id).keep(id, tree);
  }
  assert.deepEqual(chats().plans.map(({ parent, run, content }) => [parent, run ?? content]), [[null, "one"], [0, "r1"], [null, "two"], [2, "r2"]]);
  assert.deepEqual(panel("plans.fedcba9876543210").kept("plans.fedcba9876543210"), chats().plans);
});

test("the newest turns begin with the system prompt and a question", () => {
  const turn = (role, content, parent) => ({ role, content, parent });
  const turns = [turn("system", "s", null), turn("user", "u".repeat(100), 0), turn("assistant", "a".repeat(50), 1), turn("user", "v", 2), turn("assistant", "b", 3)];
  assert.deepEqual(newest(turns, 250).map(({ content, parent }) => [content, parent]), [["s", null], ["v", 0], ["b", 1]]);
  assert.equal(newest(turns, 80), null);
});

test("the cell below is found also where the page holds only the cells in view", () => {
  const cells = ["a", "b", "c", "d", "e"].map((source) => ({ cell_type: "code", source, setSource: (next) => (cells.find((cell) => cell.source === source).source = next) }));
  const sharedModel = { cells, getCell: (i) => cells[i], insertCell: (i, cell) => cells.splice(i, 0, cell) };
  /** The notebook of a widget that stands in this cell of those in the page. */
  const shown = (places, place) => {
    const nodes = places.map((windowedListIndex) => ({ dataset: { windowedListIndex: String(windowedListIndex) }, closest: () => ({ querySelectorAll: () => nodes }) }));
    return new Notebook({ get: () => "c", widget_manager: { context: { model: { sharedModel } } } }, { closest: () => nodes[places.indexOf(place)] });
  };
  assert.ok(shown([2, 3, 4], 3).replaceBelow("new"));
  assert.deepEqual(cells.map(({ source }) => source), ["a", "b", "c", "d", "new"]);
  assert.equal(shown([2, 3, 4], 4).replaceBelow("none"), false);
  shown([undefined, undefined, undefined, undefined, undefined], undefined).insertBelow("f");
  assert.deepEqual(cells.map(({ source }) => source), ["a", "f", "b", "c", "d", "new"]);
});

test("a chat may be called as what every object of JavaScript has", () => {
  const { panel, kept } = opened();
  for (const id of ["constructor", "__proto__"]) {
    const notebook = panel(id);
    assert.deepEqual(notebook.kept(id), []);
    notebook.keep(id, talk("one"));
    assert.equal(notebook.kept(id)[0].content, "one");
  }
  assert.deepEqual(kept(), ["constructor", "__proto__"]);
});
