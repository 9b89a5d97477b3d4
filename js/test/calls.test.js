import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { asTurn, brief, Calls } from "../src/calls.js";

const call = (name, given) => asTurn({ id: name, name, arguments: given });

function shown(...calls) {
  const view = new Calls();
  view.add(calls);
  const lines = () => view.element.childNodes.map((line) => line.childNodes[0].textContent);
  return { view, lines };
}

test("a call is one line: what is called, with what, and what came of it", () => {
  const { view, lines } = shown(call("forecast", '{"city": "Oslo", "days": 2}'), call("add", ""), call("ask", "{"));
  assert.deepEqual(lines(), ['forecast(city="Oslo", days=2)…', "add()…", "ask({)…"]);
  view.results(["12 degrees,\n rain", undefined, null]);
  assert.deepEqual(lines(), ['forecast(city="Oslo", days=2) → 12 degrees, rain', "add() → not called", "ask({)…"]);
  view.clear();
  assert.deepEqual(lines(), []);
});

test("a call grows in its line while it is written", () => {
  const { view, lines } = shown(call("first", "{}"));
  view.grow([{ id: "b", name: "f", arguments: '{"city"' }, { id: "b", name: "f", arguments: ': "Os' }]);
  assert.deepEqual(lines(), ["first()…", 'f({"city": "Os)…']);
  view.element.childNodes[1].open = true;
  view.grow([{ id: "b", name: "f", arguments: "lo" }, { id: "c", name: "g", arguments: "{" }]);
  assert.ok(view.element.childNodes[1].textContent.includes('{"city": "Oslo'));
  view.add([asTurn({ id: "b", name: "f", arguments: '{"city": "Oslo"}' })]);
  view.results(["1", "sun"]);
  view.end();
  assert.deepEqual(lines(), ["first() → 1", 'f(city="Oslo") → sun', "g({) → not called"]);
  assert.ok(view.element.childNodes[1].open, "it is the same line");
});

test("only a whole call is parsed", (context) => {
  const { view, lines } = shown();
  view.grow([{ id: "a", name: "f", arguments: "" }]);
  view.element.childNodes[0].open = true;
  const { mock } = context.mock.method(JSON, "parse");
  for (const letter of '{"a": 1}') view.grow([{ id: "a", name: "f", arguments: letter }]);
  assert.equal(mock.callCount(), 0);
  assert.deepEqual(lines(), ['f({"a": 1})…']);
  view.add([asTurn({ id: "a", name: "f", arguments: '{"a": 1}' })]);
  assert.deepEqual(lines(), ["f(a=1)…"]);
});

test("what is long is cut in the line, and whole where it is opened", () => {
  const { view, lines } = shown(call("read", JSON.stringify({ text: "a".repeat(500) })));
  view.results(["🙂".repeat(500)]);
  assert.ok(lines()[0].length < 400);
  assert.doesNotMatch(lines()[0], /[\ud800-\udbff](?![\udc00-\udfff])/);
  const [line] = view.element.childNodes;
  assert.equal(line.childNodes[1].textContent, "");
  line.open = true;
  line.listeners.toggle();
  assert.ok(line.textContent.includes("🙂".repeat(500)));
  assert.ok(line.textContent.includes(`"text": "${"a".repeat(500)}"`));
});

test("arguments that are no object stand as they were written", () => {
  for (const given of ["[1]", "null", "no JSON"]) assert.equal(brief(given), given);
  assert.equal(brief({ city: "Oslo" }), 'city="Oslo"');
});

test("markup in a call is text", () => {
  const { view } = shown(call("<b>f</b>", '{"x": "<img src=x onerror=alert(1)>"}'));
  view.results(["<script>alert(1)</script>"]);
  view.element.childNodes[0].open = true;
  view.element.childNodes[0].listeners.toggle();
  const tags = [...view.element.elements()].map(({ tag }) => tag);
  assert.deepEqual(new Set(tags), new Set(["div", "details", "summary", "code", "span", "pre"]));
  assert.match(String(view.element), /&lt;script>alert/);
});

test("what is unfolded of a call stays, with its focus, when it is shown again and when more comes", () => {
  const { view } = shown(call("f", '{"a": 1}'));
  const [line] = view.element.childNodes;
  line.open = true;
  view.results([null]);
  const body = line.childNodes[1];
  const [title, given] = body.childNodes;
  view.results(["sun"]);
  assert.equal(body.textContent, 'Arguments{\n  "a": 1\n}Resultsun');
  assert.deepEqual([body.childNodes[0] === title, body.childNodes[1] === given], [true, true]);
  view.results(["rain"]);
  assert.match(body.textContent, /Resultrain$/);
  view.results([undefined]);
  assert.doesNotMatch(body.textContent, /Result/);
});
