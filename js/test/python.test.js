import assert from "node:assert/strict";
import { test } from "node:test";
import { literal, pythonCall } from "../src/python.js";

test("JSON values are written as Python writes them", () => {
  assert.equal(literal({ a: [true, false, null, 1.5, 'q"\n'] }), '{"a": [True, False, None, 1.5, "q\\"\\n"]}');
});

test("one question is a text, a conversation is a list", () => {
  const params = { temperature: 0.5, max_new_tokens: null, stop: ["x"] };
  assert.equal(
    pythonCall({ messages: [{ role: "user", content: "hi" }], params }),
    'import nbgen\n\nresult = nbgen.generate(\n    "hi",\n    temperature=0.5,\n    stop=["x"],\n)\n',
  );
  assert.match(pythonCall({ messages: [{ role: "system", content: "s" }, { role: "user", content: "u" }], params }), /\[\n {8}\{"role": "system", "content": "s"\},\n/);
});

test("a text that is continued says so", () => {
  assert.equal(
    pythonCall({ prompt: "Once", params: { max_new_tokens: null } }),
    'import nbgen\n\nresult = nbgen.generate(\n    "Once",\n    complete=True,\n    max_new_tokens=None,\n)\n',
  );
});

test("functions are named, and the template's options stand as they are", () => {
  const beside = { tools: [{ function: { name: "forecast" } }, { function: { name: "add" } }], template_options: { enable_thinking: false } };
  const code = pythonCall({ messages: [{ role: "user", content: "hi" }], params: {}, beside });
  assert.match(code, /^# tools: the functions that the panel was given\nimport nbgen/);
  assert.match(code, / {4}tools=\[forecast, add\],\n {4}template_options=\{"enable_thinking": False\},\n/);
});
