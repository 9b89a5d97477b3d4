import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { Conversation } from "../src/conversation.js";
import { Tree } from "../src/tree.js";

const heard = {};
globalThis.addEventListener = (name, listener) => (heard[name] = listener);
globalThis.removeEventListener = (name, listener) => heard[name] === listener && delete heard[name];

/** A conversation of so many questions in the page, and the texts that it shows. */
function shown(questions) {
  const list = Array.from({ length: questions }, (_, i) => [
    { parent: i ? 2 * i - 1 : null, role: "user", content: `q${i}` },
    { parent: 2 * i, role: "assistant", content: `a${i}`, finish_reason: { type: "stop" } },
  ]).flat();
  const tree = Tree.from(list);
  const conversation = new Conversation({ step: () => {} });
  const { element } = conversation;
  Object.assign(element, { scrollHeight: 1000, clientHeight: 100, scrollTop: 900 });
  conversation.tree = tree;
  conversation.show();
  const articles = () => element.children.filter(({ tag }) => tag === "article");
  const texts = () => articles().map(({ textContent }) => /[qa]\d+/.exec(textContent)[0]);
  const earlier = () => element.children.find(({ tag }) => tag === "button");
  return { tree, conversation, element, texts, articles, earlier };
}

test("of a long conversation the end is shown, and more of it to those who ask or scroll up", () => {
  const { texts, earlier, element } = shown(70);
  assert.deepEqual([texts().length, texts()[0], texts().at(-1)], [40, "q50", "a69"]);
  earlier().click();
  assert.deepEqual([texts().length, texts()[0]], [80, "q30"]);
  for (const top of [500, 100, 100]) {
    element.scrollTop = top;
    element.listeners.scroll();
  }
  assert.deepEqual([texts().length, texts()[0], earlier()], [140, "q0", undefined]);
  assert.equal(shown(20).earlier(), undefined);
  const keyed = shown(70);
  keyed.element.listeners.keydown({ key: "Home", target: keyed.element });
  assert.equal(keyed.texts().length, 140);
});

test("what is shown stays in the page as it is, until a reader at the end has long left it behind", () => {
  const { tree, conversation, articles, texts, earlier } = shown(70);
  const before = articles();
  const ask = (i) => {
    Object.assign(tree.add([...tree.said, { role: "user", content: `q${i}` }], `r${i}`), { content: `a${i}`, finish_reason: { type: "stop" } });
    conversation.show();
  };
  for (let i = 70; i < 90; i += 1) ask(i);
  assert.deepEqual(articles().slice(0, 40), before);
  assert.equal(texts().length, 80);
  ask(90);
  assert.deepEqual([texts().length, texts()[0]], [40, "q71"]);
  earlier().click();
  assert.deepEqual([texts().length, texts()[0]], [80, "q51"]);
});

test("another version far above the end is shown with what stands below it", () => {
  const { tree, conversation, texts, earlier } = shown(70);
  const [question] = tree.path();
  Object.assign(tree.add([{ role: "user", content: "q100" }], "r"), { content: "a100", finish_reason: { type: "stop" } });
  conversation.show();
  assert.deepEqual([texts(), earlier()], [["q100", "a100"], undefined]);
  conversation.step(tree.path()[0], -1);
  assert.deepEqual([texts().length, texts()[0], tree.path()[0]], [140, "q0", question]);
});

test("on paper is all of a long conversation, as long as its panel is there", () => {
  const { texts, conversation } = shown(70);
  heard.beforeprint();
  assert.equal(texts().length, 140);
  conversation.close();
  assert.deepEqual(heard, {});
});
