import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { asked, Compare, ready } from "../src/compare.js";

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

test("what was begun elsewhere is shown, and a failure stays, however often the server is asked", async () => {
  const traits = { chat: "c", cells: [{ label: "a", params: {} }], columns: 1, prompt: "hi" };
  const turns = [];
  const server = { started: [], followed: [], snapshot: async () => ({ turns }), start: (body) => server.started.push(body.id), follow: (run) => server.followed.push(run) };
  const grid = new Compare({ get: (name) => traits[name], set: () => {}, save_changes: () => {}, send: () => {} }, "m");
  await grid.open(server);
  const [own] = server.started;
  grid.receive("started", { run: own });
  turns.push({ run: own, content: "first", finish_reason: { type: "stop" } });
  grid.receive("done", { run: own });
  turns.push({ run: "other.0", content: "second", finish_reason: { type: "stop" } });
  await grid.refresh();
  assert.match(grid.element.textContent, /second/);
  grid.receive("started", { run: "failed.0" });
  grid.receive("error", { run: "failed.0", error: { message: "full" } });
  await grid.refresh();
  grid.adopt({ type: "begun", run: "other.0" });
  assert.match(grid.element.textContent, /full/);
  grid.adopt({ type: "begun", run: "third.0" });
  assert.deepEqual(server.followed, ["third.0"]);
});

test("an error that was there when the panel is opened is not read out", async () => {
  const traits = { chat: "c", cells: [{ label: "a", params: {} }], columns: 1, prompt: "hi" };
  const grid = new Compare({ get: (name) => traits[name], send: () => {} }, "m");
  await grid.open({ snapshot: async () => ({ turns: [{ run: "r.0", content: "", error: "full" }] }) });
  const error = [...grid.element.elements()].find(({ attributes }) => attributes.class === "nbgen-error");
  assert.deepEqual([error.textContent, error.attributes.role], ["full", undefined]);
});

/** A grid of one cell whose model has to be loaded; `loads` are the loads that go on. */
function loading() {
  const traits = { chat: "c", cells: [{ label: "a", params: {}, load: "m" }], columns: 1, prompt: "hi" };
  const loads = [];
  const server = { started: [], snapshot: async () => ({ turns: [] }), start: ({ id }) => server.started.push(id) };
  server.load = () => new Promise((done, fail) => loads.push({ done, fail }));
  const grid = new Compare({ get: (name) => traits[name], set: () => {}, save_changes: () => {}, send: () => {} }, "m");
  const press = (words) => [...grid.element.elements()].find(({ tag, textContent }) => tag === "button" && textContent === words).listeners.click({ detail: 1 });
  return { grid, server, loads, press };
}

test("a load that fails after it was stopped fails no cell, nor what was asked since", async () => {
  const { grid, server, loads, press } = loading();
  await grid.open(server);
  press("Stop");
  grid.receive("progress", { stage: "m", done: 1, total: 2 });
  assert.doesNotMatch(grid.element.textContent, /Loading model/);
  press("Run");
  loads[0].fail(new Error("no such model"));
  await new Promise(setImmediate);
  assert.doesNotMatch(grid.element.textContent, /no such model/);
  loads[1].fail(new Error("no room"));
  await new Promise(setImmediate);
  assert.match(grid.element.textContent, /no room/);
});

test("the thoughts of an answer are there again when the panel is", async () => {
  const traits = { chat: "c", cells: [{ label: "a", params: {} }], columns: 1, prompt: "hi" };
  const grid = new Compare({ get: (name) => traits[name], send: () => {} }, "m");
  await grid.open({ snapshot: async () => ({ turns: [{ run: "r.0", content: "yes", reasoning: "let me see", finish_reason: { type: "stop" } }] }) });
  assert.match(grid.element.textContent, /let me see/);
});

test("an answer that is begun and ends before it is known what was there stays, and is asked for once", async () => {
  for (const turns of [[{ run: "old.0", content: "first", finish_reason: { type: "stop" } }], []]) {
    const traits = { chat: "c", cells: [{ label: "a", params: {} }], columns: 1, prompt: "hi" };
    const server = { started: [], snapshot: async () => ({ turns }), start: (body) => server.started.push(body.id) };
    const grid = new Compare({ get: (name) => traits[name], set: () => {}, save_changes: () => {}, send: () => {} }, "m");
    const opened = grid.open(server);
    grid.receive("started", { run: "new.0" });
    grid.receive("error", { run: "new.0", error: { message: "full" } });
    await opened;
    assert.match(grid.element.textContent, /full/);
    assert.deepEqual(server.started, []);
  }
});
