import assert from "node:assert/strict";
import { test } from "node:test";
import { Bus } from "../src/bus.js";
import { Direct } from "../src/direct.js";

/** A server whose answers to `subscribe` are given one after the other: a function of the body that returns chunks. */
class FakeServer {
  url = "http://test/";
  bodies = [];

  constructor(...answers) {
    this.answers = answers;
  }

  async request(path, { body, signal }) {
    this.bodies.push(structuredClone(body));
    const answer = this.answers.shift();
    if (answer instanceof Error) throw answer;
    return { body: { getReader: () => reader(answer, signal) } };
  }
}

/** Reads the chunks; where a chunk is null it waits until it is aborted. */
function reader(chunks, signal) {
  const rest = [...chunks];
  return {
    read() {
      const chunk = rest.shift();
      if (chunk === undefined) return Promise.resolve({ done: true });
      if (chunk !== null) return Promise.resolve(chunk).then((text) => ({ done: false, value: new TextEncoder().encode(text) }));
      return new Promise((_, reject) => {
        if (signal.aborted) reject(new Error("aborted"));
        signal.addEventListener("abort", () => reject(new Error("aborted")));
      });
    },
  };
}

const event = (name, data) => `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
const delta = (run, seq, text) => event("delta", { run, seq, text, tokens: 1 });
const done = (run, seq) => event("done", { run, seq });
const quiet = () => new Promise((resolve) => setTimeout(resolve, 40));
/** The bus has said so; a test that waits in vain runs out of time. */
const until = async (said) => { while (!said()) await quiet(); };

function listening(server, ...chats) {
  const bus = new Bus(server, { retryMs: [1], page: null });
  const heard = [];
  for (const chat of chats) bus.listen(chat, (name, data) => heard.push([chat, name, data.text ?? data.error?.message ?? ""]));
  return { bus, heard };
}

function refusal(status, message) {
  return Object.assign(new Error(message), { status });
}

test("a run is started and read by one request", async () => {
  const server = new FakeServer([delta("r", 1, "a"), delta("r", 2, "b") + done("r", 2)]);
  const { bus, heard } = listening(server, "c");
  bus.start({ id: "r", chat: "c", messages: [] });
  await quiet();
  assert.deepEqual(server.bodies, [{ start: { id: "r", chat: "c", messages: [] }, follow: {}, frame_ms: 16 }]);
  assert.deepEqual(heard.map(([, name, text]) => name + text), ["started", "deltaa", "deltab", "done"]);
});

test("a second run re-opens the one stream at the offset of the first", async () => {
  const server = new FakeServer([delta("r", 5, "a"), null], [delta("s", 1, "x") + done("s", 1) + delta("r", 6, "b") + done("r", 6)]);
  const { bus, heard } = listening(server, "c", "d");
  bus.start({ id: "r", chat: "c" });
  await quiet();
  bus.start({ id: "s", chat: "d" });
  await quiet();
  assert.deepEqual(server.bodies[1], { start: { id: "s", chat: "d" }, follow: { r: 5 }, frame_ms: 16 });
  assert.deepEqual(heard.filter(([, name]) => name === "delta"), [["c", "delta", "a"], ["d", "delta", "x"], ["c", "delta", "b"]]);
});

test("after a loss it goes on where it was", async () => {
  const server = new FakeServer([delta("r", 3, "a")], new TypeError("network"), [delta("r", 4, "b") + done("r", 4)]);
  const { bus, heard } = listening(server, "c");
  bus.start({ id: "r", chat: "c" });
  await until(() => heard.at(-1)?.[1] === "done");
  assert.deepEqual(server.bodies.slice(1).map((body) => body.follow), [{ r: 3 }, { r: 3 }]);
  assert.deepEqual(heard.map(([, name]) => name), ["started", "delta", "offline", "offline", "online", "delta", "done"]);
});

test("a refused start is that run's error and nobody else's", async () => {
  const server = new FakeServer([delta("r", 1, "a"), null], refusal(503, "the queue is full"), [done("r", 1)]);
  const { bus, heard } = listening(server, "c", "d");
  bus.start({ id: "r", chat: "c" });
  await quiet();
  bus.start({ id: "s", chat: "d" });
  await quiet();
  assert.deepEqual(heard.slice(-2), [["d", "error", "the queue is full"], ["c", "done", ""]]);
});

test("a lost login ends all runs with words", async () => {
  const { bus, heard } = listening(new FakeServer(refusal(403, "log in again")), "c");
  bus.follow("c", "r", 7);
  await quiet();
  assert.deepEqual(heard, [["c", "error", "log in again"]]);
});

test("a second reader of a run makes it begin again for both", async () => {
  const server = new FakeServer([delta("r", 9, "a"), null], [done("r", 9)]);
  const { bus, heard } = listening(server, "c");
  bus.follow("c", "r", 0);
  await quiet();
  bus.follow("c", "r", 4);
  await quiet();
  assert.deepEqual(server.bodies.map((body) => body.follow), [{ r: 0 }, { r: 0 }]);
  assert.deepEqual(heard.map(([, name]) => name), ["delta", "restart", "done"]);
});

test("a hidden page lets go of the stream and takes it up again", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const turn = () => new Promise((resolve) => setImmediate(resolve));
  const page = Object.assign(new EventTarget(), { hidden: false });
  const server = new FakeServer([delta("r", 2, "a"), null], [done("r", 2)]);
  const bus = new Bus(server, { page });
  bus.follow("c", "r", 0);
  for (let i = 0; i < 5; i += 1) await turn();
  page.hidden = true;
  page.dispatchEvent(new Event("visibilitychange"));
  context.mock.timers.tick(6000);
  for (let i = 0; i < 5; i += 1) await turn();
  assert.equal(server.bodies.length, 1);
  page.hidden = false;
  page.dispatchEvent(new Event("visibilitychange"));
  for (let i = 0; i < 5; i += 1) await turn();
  assert.deepEqual(server.bodies[1].follow, { r: 2 });
});

test("a connection that brings nothing, not even a sign of life, is opened anew where it was", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const turns = async () => {
    for (let i = 0; i < 5; i += 1) await new Promise((resolve) => setImmediate(resolve));
  };
  let alive;
  const server = new FakeServer([delta("r", 2, "a"), new Promise((resolve) => (alive = resolve)), null], [done("r", 2)]);
  const bus = new Bus(server, { page: null });
  const heard = [];
  bus.listen("c", (name) => heard.push(name));
  bus.follow("c", "r", 0);
  await turns();
  context.mock.timers.tick(25_000);
  alive(": keep-alive\n\n");
  await turns();
  context.mock.timers.tick(25_000);
  await turns();
  assert.equal(server.bodies.length, 1);
  context.mock.timers.tick(6000);
  await turns();
  assert.deepEqual(server.bodies[1].follow, { r: 2 });
  assert.deepEqual(heard, ["delta", "done"]);
});

test("a model's loading is asked after again where nothing is heard of it", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const server = new FakeServer([event("progress", { done: 1 }), null], [event("progress", { done: 2 }) + event("ready", {})]);
  const heard = [];
  const loading = new Direct(server, "c", (name, { done }) => heard.push(name + done)).load("m");
  for (let i = 0; i < 5; i += 1) await new Promise((resolve) => setImmediate(resolve));
  context.mock.timers.tick(31_000);
  await loading;
  assert.deepEqual(heard, ["progress1", "progress2"]);
  assert.deepEqual(server.bodies, [{ model: "m" }, { model: "m" }]);
});

test("a hidden page reads on where somebody has to", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const turn = () => new Promise((resolve) => setImmediate(resolve));
  const page = Object.assign(new EventTarget(), { hidden: false });
  const server = new FakeServer([delta("r", 2, "a"), null]);
  const bus = new Bus(server, { page });
  bus.listen("c", () => {}, true);
  bus.follow("c", "r", 0);
  for (let i = 0; i < 5; i += 1) await turn();
  page.hidden = true;
  page.dispatchEvent(new Event("visibilitychange"));
  const aborted = context.mock.method(AbortController.prototype, "abort");
  context.mock.timers.tick(6000);
  assert.equal(aborted.mock.callCount(), 0);
});

test("a run that the server has forgotten is told so, whatever the server calls it", async () => {
  const error = { code: 404, message: "there is no run 'r'; finished runs are kept for 10 minutes" };
  const server = new FakeServer([event("error", { run: "r", error })]);
  const { bus, heard } = listening(server, "c");
  bus.follow("c", "r", 0);
  await quiet();
  assert.deepEqual(heard.map(([, name]) => name), ["error"]);
  assert.match(heard[0][2], /^The end of this answer is lost/);
});

test("what nobody listens to is read no more, but started, and keeps no hidden page awake", async () => {
  const server = new FakeServer([delta("r", 1, "a"), null], [delta("s", 2, "b"), null], [delta("s", 3, "c"), null], [done("t", 1)]);
  const bus = new Bus(server, { retryMs: [1], page: null });
  const leave = bus.listen("c", () => {}, true);
  const others = bus.listen("d", () => {});
  bus.start({ id: "r", chat: "c" });
  await quiet();
  bus.start({ id: "s", chat: "d" });
  await quiet();
  assert.deepEqual(server.bodies.at(-1).follow, { r: 1 });
  leave();
  await quiet();
  assert.deepEqual(server.bodies.at(-1).follow, { s: 2 });
  const again = bus.listen("c", () => {});
  bus.start({ id: "t", chat: "c" });
  again();
  others();
  await quiet();
  assert.deepEqual(server.bodies.at(-1), { start: { id: "t", chat: "c" }, follow: {}, frame_ms: 16 });
});

test("a listener that fails is reported, and keeps nobody from hearing", async (context) => {
  const reported = [];
  globalThis.reportError = ({ message }) => reported.push(message);
  context.after(() => delete globalThis.reportError);
  const server = new FakeServer([delta("r", 1, "a") + done("r", 1)]);
  const { bus, heard } = listening(server);
  bus.listen("c", () => refuse("broken"));
  bus.listen("c", (name) => heard.push(name));
  bus.start({ id: "r", chat: "c" });
  await quiet();
  assert.deepEqual([reported, heard], [["broken", "broken", "broken"], ["started", "delta", "done"]]);
});

function refuse(message) {
  throw new Error(message);
}

test("who listens is told what stands beside a run", async () => {
  const server = new FakeServer([done("r", 1)]);
  const bus = new Bus(server, { retryMs: [1], page: null });
  const told = [];
  bus.listen("c", (name, data) => name === "started" && told.push(data.version));
  bus.start({ id: "r", chat: "c" }, { version: true });
  await quiet();
  assert.deepEqual(told, [true]);
  assert.equal("version" in server.bodies[0].start, false);
});
