import assert from "node:assert/strict";
import { test } from "node:test";
import { Pieces } from "../src/pieces.js";

/** Tokens as [text, characters before it]. */
const told = (...tokens) => tokens.map(([text, offset], id) => ({ id, text, offset }));
const B = "\ufffd";
const texts = (found) => found.map(([, piece]) => piece);
const pieces = (text, tokens) => {
  const split = new Pieces();
  return texts([...split.add(text, tokens), ...split.flush()]);
};

test("tokens have the text between their starts", () => {
  assert.deepEqual(pieces("a fox ran", told(["a", 0], [" fox", 1], [" ran", 5])), ["a", " fox", " ran"]);
});

test("a space that sentencepiece swallows belongs to its token", () => {
  assert.deepEqual(pieces("a fox ran", told(["a", 0], ["fox", 1], ["ran", 5])), ["a", " fox", " ran"]);
});

test("each character shows at the token that completes it", () => {
  const tokens = told(["a", 0], [B, 1], [B, 1], [B, 1], [B, 1], [B, 2], [B, 2], [B, 2], [" b", 3]);
  assert.deepEqual(pieces("a🦊日 b", tokens), ["a", "", "", "", "🦊", "", "", "日", " b"]);
});

test("tokens with the end of one character and the beginning of the next complete one each", () => {
  assert.deepEqual(pieces("日本語", told([B, 0], [B, 0], [B, 1], [B, 2])), ["", "日", "本", "語"]);
});

test("bytes that are no character stand at the last of them", () => {
  assert.deepEqual(pieces(`a${B}${B}h`, told(["a", 0], [B, 1], [B, 1], ["h", 1])), ["a", "", B + B, "h"]);
});

test("whether text or tokens come first makes no difference", () => {
  const tokens = told([B, 0], [")", 0], [B, 2], [B, 2], ["a", 3]);
  const found = ["", B, `${B})`, `${B})é`, `${B})éa`].map((first) => {
    const split = new Pieces();
    return texts([...split.add(first, []), ...split.add("", tokens), ...split.add(`${B})éa`.slice(first.length), []), ...split.flush()]);
  });
  for (const each of found) assert.deepEqual(each, [B, ")", "", "é", "a"]);
});

test("a start that is told again further back, as in a run of sentencepiece's bytes, moves nothing", () => {
  assert.deepEqual(pieces("日本", told([B, 0], [B, 0], [B, 0], [B, 1], [B, 0], [B, 0])), ["", "", "日", "", "", "本"]);
});

test("a token shows as soon as its text is there, and a part of a character when the next token tells its start", () => {
  const split = new Pieces();
  assert.deepEqual(texts(split.add("a", told(["a", 0]))), ["a"]);
  assert.deepEqual(texts(split.add("", told([B, 1]))), []);
  assert.deepEqual(texts(split.add("é", told([B, 1]))), [""]);
  assert.deepEqual(texts(split.add("", told([B, 2]))), ["é"]);
  assert.deepEqual(texts(split.add("ü fox", told([B, 2], ["fox", 3]))), ["", "ü", " fox"]);
  assert.deepEqual(texts(split.flush()), []);
});

test("the token that ends the answer has no text in it", () => {
  assert.deepEqual(pieces("yes", told(["yes", 0], ["</s>", 3])), ["yes", ""]);
});

test("however text and tokens arrive, nothing is lost or doubled", () => {
  const text = "the the fox é🦊 the end";
  const tokens = told(
    ...[["the", 0], ["the", 3], ["fox", 7], [" ", 11], [B, 12], [B, 12], [B, 13], [B, 13], ["the", 14], ["end", 18], ["</s>", 22]],
  );
  for (let cut = 0; cut <= text.length; cut += 1) {
    if (/[\udc00-\udfff]/.test(text[cut])) continue; // texts on the wire are cut between characters
    for (let first = 0; first <= tokens.length; first += 1) {
      const split = new Pieces();
      const found = [...split.add(text.slice(0, cut), tokens.slice(0, first)), ...split.add(text.slice(cut), tokens.slice(first)), ...split.flush()];
      assert.equal(texts(found).join(""), text);
      assert.deepEqual(found.map(([token]) => token), tokens);
    }
  }
});

test("text without tokens is shown as it comes, at the latest with the text after it", () => {
  const split = new Pieces();
  const found = [split.add("Once", []), split.add(" upon", []), split.add("", []), split.add(" a", []), split.flush(), split.flush()];
  assert.deepEqual(found, [[], [[null, "Once"]], [], [[null, " upon"]], [[null, " a"]], []]);
});

test("what stands before the first token is nobody's", () => {
  assert.deepEqual(pieces("one two", told([" two", 3])), ["one", " two"]);
  const split = new Pieces();
  const found = [...split.add("", told([" two", 3], ["!", 7])), ...split.add("one", []), ...split.add(" two!", []), ...split.flush()];
  assert.deepEqual(found.map(([token, piece]) => [token?.id ?? null, piece]), [[null, "one"], [0, " two"], [1, "!"]]);
});

test("a long text that comes at once takes time in proportion to its length", () => {
  const tokens = Array.from({ length: 100_000 }, (_, i) => ({ text: " abcd", offset: 5 * i }));
  const start = performance.now();
  const pieces = new Pieces();
  assert.equal(pieces.add(" abcd".repeat(100_000), tokens).length + pieces.flush().length, 100_000);
  assert.ok(performance.now() - start < 2000);
});
