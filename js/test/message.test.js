import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { numbers } from "../src/message.js";

test("the time to the first token is told in milliseconds where hundredths of seconds say nothing", () => {
  const said = [0, 0.0004, 0.004, 0.0099, 0.01, 1.234].map((ttft_s) => numbers({ ttft_s }));
  assert.deepEqual(said, ["1 ms", "1 ms", "4 ms", "10 ms", "0.01 s", "1.23 s"].map((time) => `${time} to first token`));
});
