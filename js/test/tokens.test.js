import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { token, TokenView } from "../src/tokens.js";

globalThis.requestAnimationFrame = (paint) => setTimeout(paint, 0);
globalThis.cancelAnimationFrame = clearTimeout;

const spans = (view) => [...view.scroller.elements()].filter(({ attributes }) => attributes.role === "option");

test("tokens stand in the text as what can be chosen", () => {
  const view = new TokenView(() => {});
  view.begin("Once");
  view.add(" upon a", [token([1, " upon", -0.1, [], 0]), token([2, " a", -0.2, [], 5])]);
  view.finish();
  assert.deepEqual(spans(view).map(({ textContent }) => textContent), [" upon", " a"]);
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
