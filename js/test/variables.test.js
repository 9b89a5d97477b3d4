import assert from "node:assert/strict";
import { test } from "node:test";
import { hasBraces, Variables } from "../src/variables.js";

function written(context, value) {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const sent = [];
  const said = [];
  const variables = new Variables({ send: (message) => sent.push(message) }, (words) => said.push(words));
  return { variables, sent, said, input: { value, dispatchEvent: () => {} } };
}

test("braces are filled in once, and then the text can be sent", (context) => {
  const { variables, sent, said, input } = written(context, "a {{b}}");
  assert.equal(variables.ready(input), false);
  assert.deepEqual(sent, [{ type: "expand", text: "a {{b}}" }]);
  variables.receive({ asked: "a {{b}}", text: "a {{c}}" });
  assert.equal(input.value, "a {{c}}");
  assert.match(said.at(-1), /press Enter/);
  assert.equal(variables.ready(input), true);
  input.value = "no braces";
  assert.equal(variables.ready(input), true);
});

test("what is written while the kernel works stays, and can be filled in again", (context) => {
  const { variables, sent, said, input } = written(context, "a {{b}}");
  variables.ready(input);
  input.value = "a {{b}} and more";
  variables.receive({ asked: "a {{b}}", text: "a c" });
  assert.equal(input.value, "a {{b}} and more");
  assert.match(said.at(-1), /changed/);
  assert.equal(variables.ready(input), false);
  variables.receive({ asked: "a {{b}}", text: "late" });
  assert.equal(input.value, "a {{b}} and more");
  assert.equal(sent.length, 2);
});

test("an answer to another view's question changes nothing", (context) => {
  const { variables, said, input } = written(context, "mine");
  variables.receive({ asked: "{{x}}", text: "y" });
  assert.equal(input.value, "mine");
  assert.deepEqual(said, []);
});

test("braces in what was filled in are not filled in, whatever its line ends", (context) => {
  const { variables, sent, input } = written(context, "{{page}}");
  let value = input.value;
  Object.defineProperty(input, "value", { get: () => value, set: (text) => (value = text.replace(/\r\n?/g, "\n")) }); // as a textarea's
  assert.equal(variables.ready(input), false);
  variables.receive({ asked: "{{page}}", text: "one\r\n{{two}}" });
  assert.equal(input.value, "one\n{{two}}");
  assert.equal(variables.ready(input), true);
  assert.equal(sent.length, 1);
});

test("braces are found wherever they stand, and soon where none of many are closed", () => {
  const found = ["{{a}}", "}} {{ {{a\n}}", "{{}}}", "{{{}}"].map(hasBraces);
  assert.deepEqual(found, [true, true, true, true]);
  assert.deepEqual(["", "{{", "{{}}", "}}{{", "{{a}", "{ {a}}"].map(hasBraces), [false, false, false, false, false, false]);
  const start = performance.now();
  assert.equal(hasBraces("{".repeat(200_000)), false);
  assert.ok(performance.now() - start < 1000);
});
