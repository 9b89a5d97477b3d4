import assert from "node:assert/strict";
import { test } from "node:test";
import { Pieces } from "../src/pieces.js";

const told = (...texts) => texts.map((text, id) => ({ id, text }));
const pieces = (text, tokens) => {
  const split = new Pieces();
  return [...split.add(text, tokens), ...split.flush()].map(([, piece]) => piece);
};

test("tokens find their part of the text", () => {
  assert.deepEqual(pieces("a fox ran", told("a", " fox", " ran")), ["a", " fox", " ran"]);
});

test("a space that sentencepiece swallows belongs to its token", () => {
  assert.deepEqual(pieces("a fox ran", told("a", "fox", "ran")), ["a", " fox", " ran"]);
});

test("parts of a character show as one at the last of them", () => {
  assert.deepEqual(pieces("a🦊 b", told("a", "\ufffd", "\ufffd", "\ufffd", " b")), ["a", "", "", "🦊", " b"]);
});

test("the token that ends the answer has no text in it", () => {
  assert.deepEqual(pieces("yes", told("yes", "</s>")), ["yes", ""]);
});

test("however text and tokens arrive, nothing is lost or doubled", () => {
  const text = "the the fox é🦊 the end";
  const tokens = told("the", "the", "fox", " ", "\ufffd", "\ufffd", "\ufffd", "\ufffd", "the", "end", "</s>");
  for (let cut = 0; cut <= text.length; cut += 1) {
    for (let first = 0; first <= tokens.length; first += 1) {
      const split = new Pieces();
      const found = [...split.add(text.slice(0, cut), tokens.slice(0, first)), ...split.add(text.slice(cut), tokens.slice(first)), ...split.flush()];
      assert.equal(found.map(([, piece]) => piece).join(""), text);
      assert.deepEqual(found.map(([token]) => token), tokens);
    }
  }
});
