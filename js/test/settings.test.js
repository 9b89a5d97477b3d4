import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { settings } from "../src/settings.js";

test("stop strings may have line ends, and stay what they are", () => {
  const traits = { params: { stop: ["\n\n", "C:\\new", "\\d", "\\", "\\\n", "\ta"] } };
  const model = { get: (name) => traits[name], set: (name, value) => (traits[name] = value), save_changes: () => {} };
  const before = traits.params.stop;
  const element = settings(model, { system: false });
  const input = [...element.elements()].find(({ attributes }) => attributes.placeholder?.startsWith("one a line"));
  assert.equal(input.value.split("\n").length, 6);
  input.listeners.change();
  assert.deepEqual(traits.params.stop, before);
  input.value = "\\n\\n\n\nEnd";
  input.listeners.change();
  assert.deepEqual(traits.params.stop, ["\n\n", "End"]);
  input.value = "";
  input.listeners.change();
  assert.deepEqual(traits.params, {});
});
