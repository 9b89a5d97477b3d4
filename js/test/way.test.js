import assert from "node:assert/strict";
import { test } from "node:test";
import { Comm } from "../src/comm.js";
import { Unreachable } from "../src/unreachable.js";
import { Way } from "../src/way.js";

class Transport {
  done = [];
  start = ({ id }) => this.done.push(`start ${id}`);
  follow = (run) => this.done.push(`follow ${run}`);
  cancel = (run) => this.done.push(`cancel ${run}`);
  snapshot = () => this.done.push("snapshot");
  close = () => this.done.push("close");
}

const DIRECT = {};

/** A way that begins directly, and the transports that it makes, in their order. */
function begun() {
  const made = [];
  const way = new Way(() => made[made.push(new Transport()) - 1], DIRECT);
  return { way, made };
}

test("what was begun before the kernel turned to another server is followed and stopped there", () => {
  const { way, made } = begun();
  way.start({ id: "a" });
  way.take(null);
  way.start({ id: "b" });
  for (const run of ["a", "b"]) way.cancel(run);
  way.follow("a", 3);
  way.follow("c", 0);
  way.snapshot();
  way.close();
  assert.deepEqual(made[0].done, ["start a", "cancel a", "follow a", "close"]);
  assert.deepEqual(made[1].done, ["start b", "cancel b", "follow c", "snapshot", "close"]);
});

test("a transport that was left is closed with its last run, and used again before that", () => {
  const { way, made } = begun();
  way.take(null);
  assert.deepEqual(made[0].done, ["close"]);
  way.start({ id: "a" });
  way.start({ id: "b" });
  way.take(DIRECT);
  way.hear("delta", { run: "a" });
  way.hear("done", { run: "a" });
  assert.deepEqual(made[1].done, ["start a", "start b"]);
  way.take(null);
  way.hear("error", { run: "b" });
  assert.equal(made.length, 3);
  assert.deepEqual(made[2].done, ["close"]);
  way.take(DIRECT);
  assert.deepEqual(made[1].done.at(-1), "close");
});

test("what a busy kernel was asked the next transport answers, and a panel that is gone hears nothing", async () => {
  const model = { send: () => {}, on: () => {}, off: () => {} };
  const direct = { snapshot: async () => "snapshot", model: async () => "model", close: () => {} };
  const way = new Way((to) => (to ? direct : new Comm(model, "c", () => {})), null);
  const answers = Promise.all([way.snapshot(), way.model()]);
  way.take(DIRECT);
  assert.deepEqual(await answers, ["snapshot", "model"]);
  way.take(null);
  const heard = [];
  way.snapshot().then(() => heard.push("answer"), (error) => heard.push(error.message));
  way.close();
  await new Promise(setImmediate);
  assert.deepEqual(heard, []);
});

test("where the kernel's way is not wanted, a page that cannot reach the server refuses in words", async () => {
  const heard = [];
  const refusing = new Unreachable((event, { run, error }) => heard.push([event, run, error?.message.slice(0, 23)]));
  refusing.start({ id: "a", messages: [] });
  assert.deepEqual(heard, [["started", "a", undefined], ["error", "a", "This page cannot reach "]]);
  for (const asked of ["snapshot", "model", "load", "cancel"]) await assert.rejects(refusing[asked](), /cannot reach/, asked);
});

test("a way that is closed makes no transport any more", () => {
  const { way, made } = begun();
  way.close();
  way.take(null);
  assert.equal(made.length, 1);
});
