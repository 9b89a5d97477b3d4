import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { Stream } from "../src/stream.js";
import { token, TokenView } from "../src/tokens.js";

const spans = (view) => [...view.scroller.elements()].filter(({ attributes }) => attributes.role === "option");

test("tokens stand in the text as what can be chosen", () => {
  const view = new TokenView(() => {});
  view.begin("Once");
  view.add(" upon a\n", [token([1, " upon", -0.1, [], 0]), token([2, " a", -0.2, [], 5]), token([3, "\n", -0.2, [], 7])]);
  view.finish();
  assert.deepEqual(spans(view).map(({ textContent }) => textContent), [" upon", " a", "\n"]);
  assert.deepEqual(spans(view).map(({ attributes }) => attributes["aria-label"]), [undefined, undefined, "↵"]);
});

test("a server that tells of no tokens has its text shown, line by line, with nothing to choose", async () => {
  const view = new TokenView(() => {});
  view.begin("Once");
  view.add(" upon a time\nthere ");
  view.add("was a fox.");
  while (view.scroller.textContent === "Once") await new Promise((done) => setTimeout(done, 5));
  assert.equal(view.scroller.textContent, "Once upon a time\nthere ", "while it is written");
  view.finish();
  assert.equal(view.scroller.textContent, "Once upon a time\nthere was a fox.");
  assert.deepEqual([view.scroller.childNodes.length, spans(view).length], [2, 0]);
});

test("what was begun elsewhere is shown, but for a draft, and a failure stays", async () => {
  const traits = { chat: "c", params: {}, prompt: "Once", beside: {} };
  const server = { followed: [], run: null, snapshot: async () => ({ run: server.run }), follow: (run) => server.followed.push(run) };
  const stream = new Stream({ get: (name) => traits[name], send: () => {} }, "m");
  const input = [...stream.element.elements()].find(({ attributes }) => attributes["aria-label"] === "Prompt");
  await stream.open(server);
  server.run = { run: "a", prompt: "Never" };
  await stream.adopt({ type: "begun", run: "a" });
  assert.deepEqual([server.followed, input.value], [["a"], "Never"]);
  stream.receive("done", { run: "a" });
  input.value = "a draft";
  server.run = { run: "b", prompt: "Once more" };
  await stream.refresh();
  assert.deepEqual([server.followed, input.value], [["a", "b"], "a draft"]);
  stream.receive("done", { run: "b" });
  stream.receive("started", { run: "failed", prompt: "x" });
  stream.receive("error", { run: "failed", error: { message: "full" } });
  await stream.refresh();
  assert.deepEqual(server.followed, ["a", "b"]);
});

test("a text of as many tokens as a model may write can come at once", () => {
  const view = new TokenView(() => {});
  view.add(" abcd".repeat(140_000), Array.from({ length: 140_000 }, (_, i) => token([1, " abcd", -0.1, [], 5 * i])));
  assert.equal(view.tokens.length, 140_000);
  view.restart();
});
