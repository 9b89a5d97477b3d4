import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { ready } from "../src/compare.js";

test("cells that failed are no answers", () => {
  assert.equal(ready([{ failed: false }, { failed: false }]), "2 answers ready");
  assert.equal(ready([{ failed: true }, { failed: false }, { failed: true }]), "1 answer ready, 2 failed");
});
