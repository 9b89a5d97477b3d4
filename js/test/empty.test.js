import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { Empty } from "../src/empty.js";

test("only what works while the kernel is busy is said to", () => {
  const direct = new Empty();
  direct.open({});
  assert.match(direct.element.textContent, /also while the kernel is busy/);
  const comm = new Empty();
  comm.open({ needsKernel: true });
  assert.doesNotMatch(comm.element.textContent, /busy/);
});

test("where there is no kernel any more, nobody is told to ask", () => {
  const empty = new Empty();
  empty.hear({ alone: false });
  assert.match(empty.element.textContent, /Ask/);
  empty.hear({ alone: true });
  assert.doesNotMatch(empty.element.textContent, /Enter/);
  assert.match(empty.element.textContent, /stands below/);
});
