import assert from "node:assert/strict";
import { test } from "node:test";
import { Tree } from "../src/tree.js";

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
