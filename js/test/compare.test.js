import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { asked, ready } from "../src/compare.js";

test("cells that failed are no answers", () => {
  assert.equal(ready([{ failed: false }, { failed: false }]), "2 answers ready");
  assert.equal(ready([{ failed: true }, { failed: false }, { failed: true }]), "1 answer ready, 2 failed");
});

test("a run is asked with all that is its cell's own", () => {
  const params = { top_k: 1 };
  const template_options = { enable_thinking: false };
  const user = { role: "user", content: "hi" };
  assert.deepEqual(asked({ params, adapter: "poet", template_options }, { prompt: "hi", system: "short" }), {
    params,
    adapter: "poet",
    template_options,
    messages: [{ role: "system", content: "short" }, user],
  });
  assert.deepEqual(asked({ params }, { prompt: "hi", system: "" }), { params, messages: [user] });
  assert.deepEqual(asked({ params }, { prompt: "hi", complete: true, system: "" }), { params, prompt: "hi" });
});
