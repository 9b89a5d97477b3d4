import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import monitor from "../src/monitor.js";

const SECOND = 1000;

globalThis.IntersectionObserver = class {
  observe() {}
  disconnect() {}
};

test("a kernel that is busy is not asked again and again, but one whose answer was lost is", async (context) => {
  context.mock.timers.enable({ apis: ["setInterval"] });
  let now = 0;
  context.mock.method(performance, "now", () => now);
  const sent = [];
  const traits = { transport: "comm", interval_ms: SECOND };
  const model = { get: (name) => traits[name], send: (message) => sent.push(message), on: (_, receive) => (model.receive = receive), off: () => {} };
  const wait = (seconds) => {
    for (let second = 0; second < seconds; second++) {
      now += SECOND;
      context.mock.timers.tick(SECOND);
    }
  };
  const leave = await monitor.render({ model, el: document.createElement("div") });
  wait(9);
  assert.equal(sent.length, 1);
  model.receive({ type: "model", model: { state: "ready" } });
  wait(1);
  assert.equal(sent.length, 2);
  wait(10);
  assert.equal(sent.length, 3);
  leave();
});

test("a model that was unloaded because nobody asked it anything says so", async () => {
  const el = document.createElement("div");
  const traits = { transport: "comm", interval_ms: SECOND };
  const model = { get: (name) => traits[name], send: () => {}, on: (_, receive) => (model.receive = receive), off: () => {} };
  const leave = await monitor.render({ model, el });
  model.receive({ type: "model", model: { state: "stopped", name: "m", unasked_seconds: 12 } });
  assert.match(el.textContent, /stopped after 12 s without a request; the next one loads it/);
  model.receive({ type: "model", model: { state: "stopped", name: "m", unasked_seconds: null } });
  assert.doesNotMatch(el.textContent, /without a request/);
  leave();
});
