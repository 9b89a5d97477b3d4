import assert from "node:assert/strict";
import { test } from "node:test";
import { answered, Tree } from "../src/tree.js";

const user = (content) => ({ role: "user", content });
const texts = (tree) => tree.path().map(({ content }) => content);

function talked() {
  const tree = new Tree();
  tree.add([user("one")], "r1").content = "first";
  tree.add([...tree.messages(tree.path().at(-1)), user("two")], "r2").content = "second";
  return tree;
}

test("a conversation is a path, and its messages are what the model sees", () => {
  const tree = talked();
  assert.deepEqual(texts(tree), ["one", "first", "two", "second"]);
  assert.deepEqual(tree.messages(tree.path().at(-1)).map(({ role }) => role), ["user", "assistant", "user", "assistant"]);
});

test("another answer is another version, and each keeps what follows it", () => {
  const tree = talked();
  const [question, first] = tree.path();
  const other = tree.add(tree.messages(question), "r3");
  other.content = "else";
  assert.deepEqual(texts(tree), ["one", "else"]);
  assert.deepEqual(tree.versions(other).map(({ run }) => run), ["r1", "r3"]);
  tree.choose(first);
  assert.deepEqual(texts(tree), ["one", "first", "two", "second"]);
});

test("an edited question is a branch", () => {
  const tree = talked();
  const edited = tree.path()[2];
  tree.add([...tree.messages(edited.parent), user("zwei")], "r3");
  assert.deepEqual(texts(tree), ["one", "first", "zwei", ""]);
  assert.deepEqual(tree.versions(tree.path()[2]).map(({ content }) => content), ["two", "zwei"]);
});

test("it is the same after a journey as JSON", () => {
  const tree = talked();
  tree.add(tree.messages(tree.path()[0]), "r3").content = "else";
  const again = Tree.from(JSON.parse(JSON.stringify(tree.list())));
  assert.deepEqual(again.list(), tree.list());
  assert.deepEqual(texts(again), texts(tree));
});

test("a question without an answer is left out of what follows", () => {
  const tree = talked();
  tree.add([...tree.messages(tree.path().at(-1)), user("lost")], "r3").error = "no";
  assert.deepEqual(tree.messages(tree.path().at(-1)).map(({ content }) => content), ["one", "first", "two", "second"]);
});

test("a dropped answer gives way to the version before it", () => {
  const tree = talked();
  const failed = tree.add(tree.messages(tree.path()[2]), "r3");
  tree.drop(failed);
  assert.deepEqual(texts(tree), ["one", "first", "two", "second"]);
});

const call = (id) => ({ id, type: "function", function: { name: "f", arguments: "{}" } });
const told = (id, content) => ({ role: "tool", content, tool_call_id: id });

/** A question, an answer that calls twice, the results, and the last answer. */
function called() {
  const tree = new Tree();
  const first = tree.add([user("one")], "r1");
  first.tool_calls = [call("a"), call("b")];
  tree.add([...tree.messages(first), told("a", "1"), told("b", "2")], "r2").content = "three";
  return { tree, first };
}

test("an answer's calls and their results are turns, found again whoever wrote them", () => {
  const { tree, first } = called();
  const roles = ["user", "assistant", "tool", "tool", "assistant"];
  assert.deepEqual(tree.messages(tree.path().at(-1)).map(({ role }) => role), roles);
  const server = { ...call("a"), function: { arguments: "{}", name: "f" } };
  const before = tree.size;
  tree.add([user("one"), { role: "assistant", content: "", tool_calls: [server, call("b")] }, told("a", "1"), told("b", "2")], "r3");
  assert.equal(tree.size, before + 1);
  assert.deepEqual(tree.results(first), ["1", "2"]);
  const again = Tree.from(JSON.parse(JSON.stringify(tree.list())));
  assert.deepEqual(again.list(), tree.list());
});

test("another answer begins at the question, whatever was called for the first", () => {
  const { tree, first } = called();
  assert.equal(tree.question(tree.path().at(-1)).content, "one");
  assert.equal(tree.question(first).content, "one");
  const other = tree.add(tree.messages(tree.question(first)), "r3");
  other.tool_calls = [call("c")];
  assert.deepEqual(tree.versions(other).map(({ run }) => run), ["r1", "r3"]);
  assert.deepEqual(tree.results(other), [undefined]);
  tree.choose(first);
  assert.equal(tree.path().at(-1).content, "three");
});

test("calls that nobody made get a result before the next question", () => {
  const { tree, first } = called();
  assert.deepEqual(answered(tree.messages(tree.path().at(-1))), tree.messages(tree.path().at(-1)));
  const asked = answered([...tree.messages(first), user("two")]);
  assert.deepEqual(asked.slice(2, 4), [told("a", "no result"), told("b", "no result")]);
});

test("an answer after results that failed before any text leaves them", () => {
  const { tree } = called();
  tree.path().at(-1).content = "";
  assert.deepEqual(tree.messages(tree.path().at(-1)).map(({ role }) => role), ["user", "assistant", "tool", "tool"]);
});

const image = (url) => ({ type: "image_url", ...(url && { image_url: { url } }) });
const about = (text, url) => user([{ type: "text", text }, image(url)]);
const runs = (tree) => tree.list().map(({ run }) => run).filter(Boolean);
const path = (tree) => tree.path().map(({ run, content }) => run ?? content);

/** What a server that was started again knows of the same talk: the way to one answer more, and no runs before it. */
function after(tree, run) {
  const again = new Tree();
  again.add([...tree.messages(tree.path().at(-1)), user("three")], run).content = "third";
  return again;
}

test("two lists of one chat are one tree, in which nothing is lost and nothing is there twice", () => {
  const tree = talked();
  const other = talked();
  other.add(other.messages(other.path()[2]), "r3").content = "else";
  const whole = ["one", "r1", "two", "r2"];
  for (const [older, newer, shown, all] of [
    [[], tree.list(), whole, ["r1", "r2"]],
    [tree.list(), [], whole, ["r1", "r2"]],
    [tree.list(), tree.list(), whole, ["r1", "r2"]],
    [other.list(), tree.list(), whole, ["r1", "r3", "r2"]],
    [tree.list(), other.list(), ["one", "r1", "two", "r3"], ["r1", "r2", "r3"]],
    [tree.list().slice(0, 2), tree.list(), whole, ["r1", "r2"]],
    [after(tree, "r3").list(), tree.list(), [...whole, "three", "r3"], ["r1", "r2", "r3"]],
    [other.list(), after(tree, "r4").list(), [...whole, "three", "r4"], ["r1", "r3", "r2", "r4"]],
  ]) {
    const merged = Tree.merged(older, newer);
    assert.deepEqual([path(merged), runs(merged)], [shown, all]);
    assert.deepEqual(path(Tree.from(merged.list())), shown);
  }
});

test("what was said elsewhere stands beside what is here, which stays what it is", () => {
  const server = talked();
  const tree = Tree.from(server.list());
  const here = tree.path();
  assert.deepEqual(tree.grow(server.list()), []);
  const again = server.add(server.messages(server.path()[0]), "r3");
  again.content = "else";
  server.add([...server.messages(again), user("three")], "r4");
  tree.choose(here[1]);
  assert.deepEqual(tree.grow(server.list()).map(({ run, content }) => run ?? content), ["r3", "three", "r4"]);
  assert.deepEqual(path(tree), ["one", "r3", "three", "r4"]);
  assert.deepEqual(tree.list(), server.list());
  tree.choose(here[3]);
  assert.deepEqual(tree.path(), here);
  const own = tree.add([...tree.messages(here[3]), user("mine")], "own");
  server.add([...server.messages(server.answer("r2")), user("theirs")], "r5");
  assert.deepEqual(tree.grow(server.list()).map(({ run, content }) => run ?? content), ["theirs", "r5"]);
  tree.choose(own);
  assert.deepEqual(path(tree), ["one", "r1", "two", "r2", "mine", "own"]);
  assert.deepEqual(runs(Tree.from(tree.list())), runs(tree));
});

test("a dropped answer does not come back with what was said elsewhere", () => {
  const tree = talked();
  const failed = tree.add(tree.messages(tree.path()[2]), "r3");
  const list = tree.list();
  tree.drop(failed);
  assert.deepEqual(tree.grow(list), []);
  assert.deepEqual(runs(tree), ["r1", "r2"]);
});

test("a question asked elsewhere after a refused one stands below it", () => {
  const server = refused();
  const tree = Tree.from(server.list().slice(0, 6));
  tree.grow(onServer(server));
  assert.deepEqual(path(tree), ALL);
});

test("what a notebook has cut off is no branch of its own", () => {
  const tree = talked();
  const cut = tree.list().slice(2).map((turn, i) => ({ ...turn, parent: i ? 0 : null }));
  assert.deepEqual(Tree.merged(cut, tree.list()).list(), tree.list());
  const longer = [...cut, { parent: 1, ...user("three") }, { parent: 2, role: "assistant", content: "third", run: "r3" }];
  const merged = Tree.merged(longer, tree.list());
  assert.equal(merged.size, 6);
  merged.choose(merged.answer("r3"));
  assert.deepEqual(path(merged), ["one", "r1", "two", "r2", "three", "r3"]);
});

test("a question is the same without its files, which stay where they are kept", () => {
  const full = new Tree();
  full.add([about("What is it?", "data:image/png;base64,AA==")], "r1").content = "a fox";
  const light = new Tree();
  light.add([about("What is it?")], "r2").content = "a cat";
  for (const [older, newer] of [[full, light], [light, full]]) {
    const merged = Tree.merged(older.list(), newer.list());
    assert.equal(merged.size, 3);
    assert.deepEqual(merged.path()[0].content, full.path()[0].content);
  }
});

test("a dropped answer stays away", () => {
  const tree = talked();
  const failed = tree.add(tree.messages(tree.path()[2]), "r3");
  const before = tree.list();
  tree.drop(failed);
  assert.deepEqual(runs(Tree.merged(tree.list(), before, tree.dropped)), ["r1", "r2"]);
  assert.deepEqual(runs(Tree.merged(before, tree.list(), tree.dropped)), ["r1", "r2"]);
});

/** A talk whose third question was refused, and a fourth that was asked after it. */
function refused() {
  const tree = talked();
  tree.add([...tree.messages(tree.path().at(-1)), user("three")], "r3").error = "too long";
  tree.add([...tree.messages(tree.path().at(-1)), user("four")], "r4").content = "fourth";
  return tree;
}

const ALL = ["one", "r1", "two", "r2", "three", "r3", "four", "r4"];

/** What a server keeps of a tree: a question that was left out of a request is nobody's parent. */
function onServer(tree) {
  const list = tree.list();
  const silent = (place) => list[place]?.role === "assistant" && !list[place].content;
  return list.map(({ parent, ...turn }) => ({ ...turn, parent: turn.role === "user" && silent(parent) ? list[list[parent].parent].parent : parent }));
}

test("a question after a refused one stands below it, and is asked without it", () => {
  const tree = refused();
  assert.deepEqual(path(tree), ALL);
  assert.equal(tree.versions(tree.path()[6]).length, 1);
  const said = tree.messages(tree.path().at(-1)).map(({ content }) => content);
  assert.deepEqual(said, ["one", "first", "two", "second", "four", "fourth"]);
  tree.add([...tree.messages(tree.path().at(-1)), user("five")], "r5");
  assert.deepEqual(path(tree), [...ALL, "five", "r5"]);
});

test("several refused questions stand below each other, and each can be tried again", () => {
  const tree = new Tree();
  for (const text of ["a", "b", "c"]) tree.add([...tree.messages(tree.path().at(-1)), user(text)], `r${text}`).error = "no";
  assert.deepEqual(path(tree), ["a", "ra", "b", "rb", "c", "rc"]);
  const failed = tree.path().at(-1);
  const asked = tree.messages(failed.parent);
  tree.drop(failed);
  tree.add(asked, "again");
  assert.deepEqual(path(tree), ["a", "ra", "b", "rb", "c", "again"]);
});

test("another version of a refused question takes its place", () => {
  const tree = talked();
  const failed = tree.add([...tree.messages(tree.path().at(-1)), user("three")], "r3");
  failed.error = "too long";
  tree.add([...tree.messages(failed.parent.parent), user("drei")], "r4", true).content = "vierte";
  assert.deepEqual(path(tree), ["one", "r1", "two", "r2", "drei", "r4"]);
  assert.equal(tree.versions(tree.path()[4]).length, 2);
  const kept = Tree.merged(tree.list().slice(0, 6), tree.list(), tree.dropped, true).list();
  assert.deepEqual(kept, tree.list());
  const merged = Tree.merged(kept, onServer(tree));
  assert.deepEqual(path(merged), path(tree));
  assert.equal(merged.versions(merged.path()[4]).length, 2);
});

test("a question below a refused one stays there, whoever kept the two", () => {
  const tree = refused();
  const forgotten = onServer(tree).filter(({ run, content }) => run !== "r3" && content !== "three");
  const server = forgotten.map((turn) => ({ ...turn, parent: turn.run === "r4" ? 4 : turn.parent }));
  for (const [older, newer] of [
    [[], onServer(tree)],
    [tree.list(), onServer(tree)],
    [tree.list(), server],
    [tree.list(), []],
  ]) {
    const merged = Tree.merged(older, newer);
    assert.deepEqual([path(merged), merged.size], [ALL, 8]);
    assert.deepEqual(path(Tree.from(merged.list())), ALL);
  }
});

test("a question that was refused before it reached the server is kept before those after it", () => {
  const tree = new Tree();
  for (const [i, text] of ["never sent", "refused"].entries()) tree.add([...tree.messages(tree.path().at(-1)), user(text)], `r${i}`).error = "no";
  const refusal = [{ parent: null, ...user("refused") }, { parent: 0, role: "assistant", content: "", run: "r1", error: "no" }];
  const server = [...refusal, { parent: null, ...user("next") }, { parent: 2, role: "assistant", content: "ok", run: "r2" }];
  for (const list of [tree.list(), Tree.merged(tree.list(), server).list()]) {
    assert.ok(list.every(({ parent }, i) => parent === null || parent < i));
    assert.deepEqual(Tree.from(list).list(), list);
  }
});

test("a conversation that holds the refused question shows its refusal", () => {
  const tree = talked();
  tree.add([...tree.messages(tree.path().at(-1)), user("three")], "r3").error = "too long";
  tree.add([...tree.messages(tree.path()[3]), user("three"), user("four")], "r4");
  assert.deepEqual(path(tree), ALL);
});

test("a long talk is opened in time", () => {
  const turns = Array.from({ length: 30_000 }, (_, i) => ({ parent: i ? i - 1 : null, ...(i % 2 ? { role: "assistant", content: "yes", run: `r${i}` } : user(`question ${i}`)) }));
  const start = process.cpuUsage(); // a busy machine takes longer by the clock
  const lists = [[turns, []], [[], turns], [turns, turns], [turns, turns.slice(0, 2)]].map(([older, newer]) => Tree.merged(older, newer).list());
  const tree = Tree.from(turns);
  assert.deepEqual(tree.grow(turns), []);
  tree.add([...tree.said, user("one more")], "new");
  const taken = process.cpuUsage(start).user / 1000;
  assert.ok(taken < 10_000, `${taken} ms: half a second; minutes where each turn looks through all others`);
  for (const list of lists) assert.ok(list.every(({ parent, content, run }, i) => parent === turns[i].parent && content === turns[i].content && run === turns[i].run));
});
