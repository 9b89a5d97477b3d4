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
  const model = { get: (name) => traits[name], send: (message) => sent.push(message), on: (name, heard) => (model[name] = heard), off: () => {} };
  const wait = (seconds) => {
    for (let second = 0; second < seconds; second++) {
      now += SECOND;
      context.mock.timers.tick(SECOND);
    }
  };
  const leave = await monitor.render({ model, el: document.createElement("div") });
  wait(9);
  assert.equal(sent.length, 1);
  model["msg:custom"]({ type: "model", model: { state: "ready" } });
  wait(1);
  assert.equal(sent.length, 2);
  wait(10);
  assert.equal(sent.length, 3);
  leave();
});

test("a model that was unloaded because nobody asked it anything says so", async () => {
  const el = document.createElement("div");
  const traits = { transport: "comm", interval_ms: SECOND };
  const model = { get: (name) => traits[name], send: () => {}, on: (name, heard) => (model[name] = heard), off: () => {} };
  const leave = await monitor.render({ model, el });
  model["msg:custom"]({ type: "model", model: { state: "stopped", name: "m", unasked_seconds: 12 } });
  assert.match(el.textContent, /stopped after 12 s without a request; the next one loads it/);
  model["msg:custom"]({ type: "model", model: { state: "stopped", name: "m", unasked_seconds: null } });
  assert.doesNotMatch(el.textContent, /without a request/);
  const loaded = { model_type: "llama", dtype: "bfloat16", device: "cpu", context_length: 9 };
  const shown = (more) => (model["msg:custom"]({ type: "model", model: { state: "ready", name: "m", model: { ...loaded, ...more } } }), el.textContent);
  assert.match(shown({}), /llama · bfloat16 on cpu · context 9/);
  assert.match(shown({ layers_in: "transformers" }), /on cpu · context 9/);
  assert.match(shown({ layers_in: "C++", quantization: "int8" }), /llama · int8 bfloat16 on cpu in C\+\+ · context 9/);
  leave();
});

test("of a server of another kind nothing is shown that it does not tell", async () => {
  const el = document.createElement("div");
  const traits = { transport: "comm", interval_ms: SECOND };
  const model = { get: (name) => traits[name], send: () => {}, on: (name, heard) => (model[name] = heard), off: () => {} };
  const leave = await monitor.render({ model, el });
  const button = (words) => [...el.elements()].find(({ tag, textContent }) => tag === "button" && textContent === words);
  const gauges = () => [...el.elements()].find((element) => element.matches(".nbgen-gauges"));
  const seen = (model_) => {
    model["msg:custom"]({ type: "model", model: { state: "ready", name: "m", model: model_, status: null } });
    return [gauges().hidden, /tells nothing of its memory/.test(el.textContent), button("Unload").attributes["aria-disabled"]];
  };
  assert.deepEqual(seen(null), [true, true, "true"]);
  assert.deepEqual(seen({ model_type: "llama" }), [false, false, "false"]);
  leave();
});

test("where the kernel turns to another server than the page's, the kernel is asked", async (context) => {
  context.mock.timers.enable({ apis: ["setInterval"] });
  context.mock.method(globalThis, "fetch", async () => Response.json({ server_id: "page", state: "ready", name: "m" }));
  globalThis.location = { href: "http://localhost/" };
  document.cookie = "";
  const sent = [];
  const traits = { transport: "auto", interval_ms: SECOND, server_id: "page" };
  const widget_manager = { kernel: { serverSettings: { baseUrl: "http://localhost/", token: "" } } };
  const model = { widget_manager, get: (name) => traits[name], send: (message) => sent.push(message), on: (name, heard) => (model[name] = heard), off: () => {} };
  const leave = await monitor.render({ model, el: document.createElement("div") });
  await new Promise((resolve) => setImmediate(resolve));
  context.mock.timers.tick(SECOND);
  assert.deepEqual(sent, []);
  traits.server_id = "another";
  await model["change:server_id"]();
  context.mock.timers.tick(SECOND);
  assert.deepEqual(sent, [{ type: "look" }]);
  leave();
});

test("why a button did nothing stands there longer than until the next look", async (context) => {
  context.mock.timers.enable({ apis: ["setInterval"] });
  const el = document.createElement("div");
  const traits = { transport: "comm", interval_ms: SECOND };
  const model = { get: (name) => traits[name], send: () => {}, on: (name, heard) => (model[name] = heard), off: () => {} };
  const leave = await monitor.render({ model, el });
  const hear = (message) => (model["msg:custom"](message), el.textContent);
  const look = (state) => hear({ type: "model", model: { state, name: "m" } });
  look("ready");
  assert.match(hear({ type: "error", asked: "unload", message: "not here" }), /not here/);
  assert.match(look("ready"), /not here/);
  const unload = [...el.elements()].find(({ tag, textContent }) => tag === "button" && textContent === "Unload");
  unload.getAttribute = (name) => unload.attributes[name];
  unload.listeners.click({ currentTarget: unload });
  assert.doesNotMatch(el.textContent, /not here/);
  hear({ type: "error", asked: "unload", message: "not here" });
  assert.doesNotMatch(look("loading"), /not here/, "where all is otherwise");
  assert.match(hear({ type: "error", asked: "look", message: "gone" }), /gone/);
  assert.doesNotMatch(look("loading"), /gone/);
  leave();
});
