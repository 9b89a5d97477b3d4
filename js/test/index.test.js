import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";

const heard = {};
globalThis.window = { addEventListener: (type, listener) => (heard[type] = listener), removeEventListener: () => {} };
Object.assign(document, { addEventListener: () => {}, removeEventListener: () => {} });
globalThis.location = { href: "http://here/" };
document.cookie = "";
const { default: widget } = await import("../src/index.js");

test("a panel that takes another's place looks for what was said elsewhere, whatever the other one still waits for", async () => {
  const traits = { panel: "chat", chat: "a", params: {}, placeholder: "", system: "", server_id: "s", height: 440, transport: "auto" };
  const listeners = {};
  const model = { get: (name) => traits[name], on: (name, listener) => (listeners[name] = listener), off: () => {}, send: () => {} };
  model.widget_manager = { kernel: { serverSettings: { baseUrl: "http://here/", token: "" } } };
  const asked = [];
  let hold = () => Promise.resolve();
  globalThis.fetch = async (url) => {
    asked.push(url);
    if (url.includes("/chats/")) await hold();
    return { ok: true, json: async () => ({ server_id: "s", turns: [], state: "ready" }) };
  };
  await widget.render({ model, el: document.createElement("div") });
  await new Promise(setImmediate);
  const looks = async (chat) => {
    asked.length = 0;
    heard.focus({ type: "focus" });
    await new Promise(setImmediate);
    return asked.filter((url) => url.endsWith(`/chats/${chat}`)).length;
  };
  assert.equal(await looks("a"), 1);
  let fail;
  hold = () => new Promise((_, reject) => (fail = reject));
  assert.equal(await looks("a"), 1);
  assert.equal(await looks("a"), 0, "it looks already");
  hold = () => Promise.resolve();
  traits.chat = "b";
  listeners["change:chat"]();
  fail(new Error("the network is gone"));
  await new Promise(setImmediate);
  assert.equal(await looks("b"), 1);
});
