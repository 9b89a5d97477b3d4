import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { Stream } from "../src/stream.js";

test("an error that was there when the panel is opened is not read out, and one that comes is", async () => {
  const traits = { chat: "c", prompt: "hi", params: {}, beside: {}, alternatives: 0 };
  const stream = new Stream({ get: (name) => traits[name], send: () => {} }, "m");
  const alert = [...stream.element.elements()].find(({ attributes }) => attributes.class === "nbgen-error");
  await stream.open({ snapshot: async () => ({ run: { run: "r", prompt: "hi", state: "error" } }), follow: () => {} });
  stream.receive("error", { run: "r", error: { message: "full" } });
  assert.deepEqual([alert.textContent, alert.hidden, alert.attributes.role], ["full", false, "note"]);
  stream.receive("started", { run: "s", prompt: "hi" });
  stream.receive("error", { run: "s", error: { message: "gone" } });
  assert.deepEqual([alert.textContent, alert.hidden, alert.attributes.role], ["gone", false, "alert"]);
});

/** A panel, what it asks its server with, and how its buttons are pressed. */
function panel() {
  const traits = { chat: "c", prompt: "hi", params: {}, beside: {}, alternatives: 0 };
  const stream = new Stream({ get: (name) => traits[name], send: () => {} }, "m");
  const asked = [];
  const server = { run: null, snapshot: async () => ({ run: server.run }), follow: () => {} };
  server.start = (body) => {
    asked.push(body);
    stream.receive("started", { run: body.id, prompt: body.prompt, prefix_ids: body.prefix_ids });
  };
  const find = (words) => [...stream.element.elements()].find(({ textContent, tag }) => tag === "button" && textContent === words);
  const press = (words) => find(words).listeners.click({ detail: 1 });
  const alert = [...stream.element.elements()].find(({ attributes }) => attributes.class === "nbgen-error");
  /** The answer of the newest run, by its tokens: id, text, and characters before it. */
  const answer = (run, text, tokens, matched) => {
    stream.receive("delta", { run, text, logprobs: tokens.map(([id, written, offset]) => [id, written, -1, [], offset]) });
    stream.receive("done", { run, finish_reason: { type: "stop", matched } });
  };
  return { stream, server, asked, press, alert, answer };
}

test("the text that Undo brings back goes on without the token that ended it, and without the failure after it", async () => {
  const { stream, server, asked, press, alert, answer } = panel();
  await stream.open(server);
  press("Continue");
  answer(asked[0].id, " there", [[7, " there", 0], [2, "</s>", 6]], 2);
  press("More");
  assert.deepEqual(asked[1].prefix_ids, [7]);
  answer(asked[1].id, " there is", [[8, " is", 6]]);
  press("Undo");
  press("More");
  assert.deepEqual(asked[2].prefix_ids, [7], "nor after another ending");
  stream.receive("error", { run: asked[2].id, error: { message: "full" } });
  assert.equal(alert.hidden, false);
  press("Undo");
  assert.equal(alert.hidden, true);
});

test("a text that another page has gone on with stays whole: its first tokens are known by their ids alone", async () => {
  const { stream, server, asked, press, answer } = panel();
  server.run = { run: "r", prompt: "hi", prefix_ids: [5, 6], state: "done" };
  await stream.open(server);
  answer("r", " all there is", [[7, " there", 4], [8, " is", 10]]);
  const tokens = () => [...stream.element.elements()].filter(({ attributes }) => attributes.role === "option").map(({ textContent }) => textContent);
  assert.deepEqual(tokens(), [" there", " is"]);
  press("More");
  assert.deepEqual([asked[0].prompt, asked[0].prefix_ids], ["hi", [5, 6, 7, 8]]);
  answer(asked[0].id, " all there is here", [[9, " here", 13]]);
  assert.deepEqual(tokens(), [" there", " is", " here"]);
  stream.receive("started", { run: "other", prompt: "ho", prefix_ids: [1] });
  answer("other", "a b", [[2, " b", 1]]);
  assert.deepEqual(tokens(), [" b"], "what was kept here is not in it");
  press("More");
  assert.deepEqual([asked[1].prompt, asked[1].prefix_ids], ["ho", [1, 2]]);
  answer(asked[1].id, "a b c", [[3, " c", 3]]);
  press("Continue");
  assert.deepEqual(asked[2].prefix_ids, []);
});

test("a text that is begun and ends before it is known what was there stays", async () => {
  const { stream, server, answer } = panel();
  server.run = { run: "old", prompt: "hi", state: "done" };
  const opened = stream.open(server);
  stream.receive("started", { run: "new", prompt: "ho" });
  answer("new", " there", [[7, " there", 0]]);
  await opened;
  assert.match(stream.element.textContent, /ho there/);
});
