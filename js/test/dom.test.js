import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { copyButton } from "../src/dom.js";

test("what the browser does not copy is not said to be copied", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  context.after(() => delete document.execCommand);
  const said = [];
  for (const copied of [true, false]) {
    document.execCommand = () => copied;
    const button = copyButton("Copy answer", () => "text");
    button.click();
    await new Promise(setImmediate);
    said.push(button.textContent);
    context.mock.timers.tick(1500);
    assert.equal(button.textContent, "Copy");
  }
  assert.deepEqual(said, ["Copied", "Not copied"]);
});
