import assert from "node:assert/strict";
import { test } from "node:test";
import { Caller } from "../src/caller.js";

const answer = { run: "me-1", tool_calls: ["forecast", "add", "add"].map((name) => ({ id: name, function: { name, arguments: "{}" } })) };

function waiting(turn = answer, owner = "me") {
  const sent = [];
  const said = [];
  const failed = [];
  const heard = {};
  const model = { get: () => owner, send: (message) => sent.push(message), on: (name, listener) => (heard[name] = listener) };
  const caller = new Caller(model, { say: (words) => said.push(words), fail: (words) => failed.push(words) });
  caller.call(turn);
  return { caller, model, sent, said, failed, tell: heard["msg:custom"], end: heard.comm_live_update };
}

test("the kernel is asked whether it listens, and then to call", () => {
  const { caller, sent, said, tell } = waiting();
  assert.deepEqual(sent, [{ type: "hear", run: "me-1" }]);
  assert.deepEqual(said, ["Waiting for the kernel to call forecast, add"]);
  tell({ type: "heard", run: "another" });
  tell({ type: "heard", run: "me-1" });
  assert.deepEqual(sent.slice(1), [{ type: "call", run: "me-1" }]);
  tell({ type: "calling", run: "me-1" });
  assert.equal(said.at(-1), "Calling forecast, add");
  assert.equal(caller.waiting, true);
  caller.done();
  assert.equal(caller.waiting, false);
});

test("a kernel that listens late finds nobody who still waits", () => {
  const { caller, sent, failed, tell } = waiting();
  caller.stop();
  tell({ type: "heard", run: "me-1" });
  assert.deepEqual(sent.map(({ type }) => type), ["hear", "cancel"]);
  assert.deepEqual(failed, ["Stopped"]);
  assert.equal(caller.stopped("me-1"), true);
});

test("why nothing is called is said in words, once", () => {
  const { failed, tell, end } = waiting();
  tell({ type: "uncalled", run: "me-1", message: "Nobody here can call add." });
  end();
  assert.deepEqual(failed, ["Nobody here can call add."]);
  const dead = waiting();
  dead.end();
  assert.match(dead.failed[0], /The kernel has ended/);
});

test("calls of other kernels, and of none, are left alone", () => {
  for (const owner of ["you", ""]) {
    const { caller, sent, failed } = waiting(answer, owner);
    assert.deepEqual([sent, failed, caller.waiting], [[], ["Nobody here can call forecast, add."], false]);
  }
});

test("runs are named after who makes their calls", () => {
  const { caller } = waiting();
  assert.match(caller.newId(), /^me-[0-9a-f]{24}$/);
  caller.done();
  assert.match(waiting(answer, "").caller.newId(), /^[0-9a-f]{24}$/);
});

test("of calls whose answer has ended well and is this kernel's, the kernel knows more", () => {
  const { caller, tell } = waiting();
  const whole = { ...answer, finish_reason: { type: "stop" } };
  const cases = [[whole, true], [answer, false], [{ ...whole, finish_reason: { type: "abort" } }, false], [{ ...whole, run: "you-1" }, false], [{ ...whole, run: undefined }, false], [{ ...whole, tool_calls: undefined }, false]];
  for (const [turn, known] of cases) assert.equal(caller.knows(turn), known);
  assert.equal(caller.missing("me-1"), undefined);
  tell({ type: "uncalled", run: "me-1", message: "The call was interrupted.", begun: true });
  assert.equal(caller.missing("me-1"), "no result");
  caller.call(answer);
  caller.stop();
  assert.equal(caller.knows(whole), false);
});

test("a kernel of which nothing is heard is asked again, after longer and longer, until nobody waits", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const { caller, sent, tell } = waiting();
  const asked = () => sent.filter(({ type }) => type === "hear").length;
  for (const [pause, count] of [[4999, 1], [1, 2], [9999, 2], [1, 3]]) {
    context.mock.timers.tick(pause);
    assert.equal(asked(), count);
  }
  tell({ type: "heard", run: "me-1" });
  assert.deepEqual(sent.at(-1), { type: "call", run: "me-1" });
  caller.done();
  context.mock.timers.tick(200_000);
  assert.equal(asked(), 3);
});
