import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { Stream } from "../src/stream.js";

globalThis.cancelAnimationFrame = () => {};
globalThis.requestAnimationFrame = () => {};

test("an error that was there when the panel is opened is not read out, and one that comes is", async () => {
  const traits = { chat: "c", prompt: "hi", params: {}, beside: {}, alternatives: 0 };
  const stream = new Stream({ get: (name) => traits[name], send: () => {} }, "m");
  const alert = [...stream.element.elements()].find(({ attributes }) => attributes.class === "nbgen-error");
  await stream.open({ snapshot: async () => ({ run: { run: "r", prompt: "hi", state: "error" } }), follow: () => {} });
  stream.receive("error", { run: "r", error: { message: "full" } });
  assert.deepEqual([alert.textContent, alert.hidden, alert.attributes.role], ["full", false, "note"]);
  stream.receive("started", { run: "s", prompt: "hi" });
  stream.receive("error", { run: "s", error: { message: "gone" } });
  assert.deepEqual([alert.textContent, alert.hidden, alert.attributes.role], ["gone", false, "alert"]);
});
