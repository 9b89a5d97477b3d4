import assert from "node:assert/strict";
import { test } from "node:test";
import { Comm } from "../src/comm.js";

function opened(context) {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const sent = [];
  const heard = [];
  const model = { send: (message) => sent.push(message), on: (name, listener) => (name === "msg:custom" ? (model.receive = listener) : (model.ended = listener)), off: () => {} };
  const comm = new Comm(model, "c", (event, data) => heard.push([event, data.text]));
  comm.start({ id: "r", messages: [] });
  return { model, sent, heard, comm };
}

test("a gap is asked for, and what comes twice is dropped", (context) => {
  const { model, sent, heard } = opened(context);
  model.receive({ type: "delta", run: "r", from: 0, to: 2, text: "ab" });
  model.receive({ type: "delta", run: "r", from: 4, to: 5, text: "e" });
  assert.deepEqual(sent.at(-1), { type: "need", run: "r", from: 2 });
  model.receive({ type: "delta", run: "r", from: 2, to: 5, text: "cde" });
  model.receive({ type: "delta", run: "r", from: 2, to: 5, text: "cde" });
  assert.deepEqual(heard, [["started", undefined], ["delta", "ab"], ["delta", "cde"]]);
});

test("an end that comes before all of the text waits for it", (context) => {
  const { model, sent, heard } = opened(context);
  const end = { type: "event", event: "done", to: 3, data: { run: "r" } };
  model.receive(end);
  assert.deepEqual(sent.at(-1), { type: "need", run: "r", from: 0 });
  model.receive({ type: "delta", run: "r", from: 0, to: 3, text: "abc" });
  model.receive(end);
  assert.deepEqual(heard.map(([event]) => event), ["started", "delta", "done"]);
});

test("a run that is stopped is asked for once more: its end may have been dropped", (context) => {
  const { model, sent, heard, comm } = opened(context);
  model.receive({ type: "delta", run: "r", from: 0, to: 2, text: "ab" });
  comm.cancel("r");
  assert.deepEqual(sent.slice(-2), [{ type: "cancel", run: "r" }, { type: "need", run: "r", from: 2 }]);
  model.receive({ type: "event", event: "done", to: 2, data: { run: "r" } });
  assert.equal(heard.at(-1)[0], "done");
});

test("a silent kernel is said to be busy", (context) => {
  const { heard } = opened(context);
  context.mock.timers.tick(2000);
  assert.deepEqual(heard.at(-1), ["busy", undefined]);
});

test("a run whose kernel ends, ends", (context) => {
  const { model, heard, comm } = opened(context);
  model.ended();
  assert.deepEqual(heard.slice(-2).map(([event]) => event), ["error", "notice"]);
  context.mock.timers.tick(2000);
  assert.equal(heard.length, 3, "nor is the kernel busy");
  model.send = () => {
    throw new Error("Cannot send");
  };
  comm.cancel("r");
  assert.equal(heard.filter(([event]) => event === "error").length, 2);
});

test("what a kernel was asked is refused in words once it ends", async (context) => {
  const { model, comm } = opened(context);
  const waiting = comm.snapshot();
  model.ended();
  await assert.rejects(waiting, /The kernel has ended/);
});

test("a kernel that has ended is an error in words", (context) => {
  const { model, comm } = opened(context);
  const heard = [];
  model.send = () => {
    throw new Error("Cannot send");
  };
  const dead = new Comm(model, "c", (event, data) => heard.push([event, data.message ?? data.error?.message]));
  dead.start({ id: "r2", messages: [] });
  for (const [event, words] of heard.slice(-2)) assert.equal(words, "The kernel has ended: run the cell again.", event);
  assert.deepEqual(heard.slice(-2).map(([event]) => event), ["error", "notice"]);
  comm.close();
});

test("what is too large for the kernel's connection is refused in words", (context) => {
  const { model, sent } = opened(context);
  const heard = [];
  const comm = new Comm(model, "c", (event, data) => heard.push([event, data.error?.code]));
  const count = sent.length;
  comm.start({ id: "r3", messages: [{ role: "user", content: "a".repeat(9_000_000) }] });
  assert.deepEqual(heard, [["started", undefined], ["error", 400]]);
  assert.equal(sent.length, count);
});

test("who asks a kernel that has ended hears so, and so does who still waits for its answer", async (context) => {
  const { model, comm } = opened(context);
  const waiting = comm.model();
  model.send = () => {
    throw new Error("Cannot send");
  };
  const words = /The kernel has ended/;
  for (const asked of [comm.load(), comm.snapshot(), comm.turns(), waiting]) await assert.rejects(asked, words);
  model.send = () => {};
  const again = comm.model();
  model.receive({ type: "model", state: "ready" });
  assert.equal((await again).state, "ready");
  const unanswered = comm.turns();
  comm.close();
  await assert.rejects(unanswered, /turned to another/);
});

test("what is asked of the kernel is what it answers", async (context) => {
  const { model, sent, comm } = opened(context);
  const resumed = comm.load();
  assert.deepEqual(sent.at(-1), { type: "load", model: undefined });
  model.receive({ type: "load", error: "no room" });
  await assert.rejects(resumed, /no room/);
});

test("calls come with the text", (context) => {
  const { model, comm } = opened(context);
  const heard = [];
  const other = new Comm(model, "c", (event, data) => heard.push(data.tool_calls));
  other.start({ id: "s", messages: [] });
  model.receive({ type: "delta", run: "s", from: 0, to: 1, text: "", tool_calls: [{ id: "a", name: "f", arguments: "{}" }] });
  assert.deepEqual(heard.at(-1), [{ id: "a", name: "f", arguments: "{}" }]);
  comm.close();
});

test("an end that Jupyter has dropped is asked for after some silence, each time after a longer one", (context) => {
  const { model, sent, heard } = opened(context);
  model.receive({ type: "delta", run: "r", from: 0, to: 2, text: "ab" });
  const asked = () => sent.filter(({ type }) => type === "need").length;
  context.mock.timers.tick(4999);
  assert.equal(asked(), 0);
  context.mock.timers.tick(1);
  assert.deepEqual(sent.at(-1), { type: "need", run: "r", from: 2 });
  model.receive({ type: "heard", run: "r" });
  context.mock.timers.tick(9999);
  assert.equal(asked(), 1);
  context.mock.timers.tick(1);
  assert.equal(asked(), 2);
  assert.equal(heard.length, 2, "nor is a kernel that is asked so said to be busy");
  model.receive({ type: "event", event: "done", to: 2, data: { run: "r" } });
  assert.equal(heard.at(-1)[0], "done");
  context.mock.timers.tick(200_000);
  assert.equal(asked(), 2);
});

test("what Jupyter has dropped of the kernel's answers is asked for once more", async (context) => {
  const { model, sent, comm } = opened(context);
  model.receive({ type: "event", event: "done", to: 0, data: { run: "r" } });
  const snapshot = comm.snapshot();
  const loaded = comm.load("m");
  context.mock.timers.tick(5000);
  assert.deepEqual(sent.slice(-3), [{ type: "chat", chat: "c" }, { type: "load", model: "m" }, { type: "chat", chat: "c" }]);
  model.receive({ type: "chat", chat: "c", snapshot: { turns: [] } });
  model.receive({ type: "load" });
  assert.deepEqual(await snapshot, { turns: [] });
  await loaded;
  const count = sent.length;
  context.mock.timers.tick(200_000);
  comm.close();
  assert.equal(sent.length, count);
});
