import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { Chat } from "../src/chat.js";
import { Tree } from "../src/tree.js";

const TRAITS = { chat: "c", params: {}, placeholder: "", system: "" };
const ASKED = { parent: null, role: "user", content: "one" };
const BEGUN = { parent: 0, role: "assistant", content: "half", run: "r" };

/** A panel, the server that it is opened with, whose snapshots are counted, and what is kept in its notebook. */
function panel(context, turns) {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  context.mock.method(globalThis, "requestAnimationFrame", (paint) => paint());
  const kept = [];
  const sharedModel = { getMetadata: () => ({}), setMetadata: (name, { chats }) => kept.push(chats.c) };
  const model = { get: (name) => TRAITS[name], send: () => {}, widget_manager: { context: { model: { sharedModel } } } };
  const server = { asked: 0, run: { run: "r", seq: 4, state: "running" }, followed: [], model: async () => ({}), follow: (...run) => server.followed.push(run) };
  server.snapshot = async () => {
    server.asked += 1;
    if (server.asked === 1) await new Promise(setImmediate);
    return { turns, run: server.run };
  };
  const chat = new Chat(model, "m");
  const log = [...chat.element.elements()].find(({ attributes }) => attributes.role === "log");
  return { chat, server, kept, shown: () => log.textContent };
}

test("an answer that is being written is read from its beginning, with what has come of its call", async (context) => {
  const { chat, server, shown } = panel(context, [ASKED, BEGUN]);
  await chat.open(server);
  assert.deepEqual(server.followed, [["r", 0]]);
  const tool_call_deltas = [{ id: "a", name: "f", arguments: '{"city"' }];
  chat.receive("delta", { run: "r", text: "half", tokens: 1, tool_call_deltas });
  context.mock.timers.tick(0);
  assert.match(shown(), /half.*f\({"city"\)/);
  assert.doesNotMatch(shown(), /half.*half/);
});

test("what is looked for while the panel opens is not taken for another window's", async (context) => {
  const { chat, server, kept } = panel(context, [ASKED, BEGUN]);
  const opened = chat.open(server);
  await Promise.all([chat.refresh(), opened]);
  chat.receive("done", { run: "r", finish_reason: { type: "stop" } });
  assert.equal(kept.length, 1);
});

test("an answer that the server has forgotten ends with what had come", async (context) => {
  const { chat, server, shown } = panel(context, [ASKED, BEGUN]);
  server.run = null;
  await chat.open(server);
  context.mock.timers.tick(0);
  assert.match(shown(), /half.*lost.*Retry/);
  assert.deepEqual(server.followed, []);
});

test("a conversation that comes back is all that it was, where neither server nor notebook keep it", async (context) => {
  const { chat, server, shown } = panel(context, []);
  const left = { chat: "c", tree: Tree.from([ASKED, { ...BEGUN, content: "whole", finish_reason: { type: "stop" } }]) };
  const opened = chat.open(server);
  chat.draft = { text: "", files: [], left };
  await opened;
  assert.match(shown(), /one.*whole/);
});

test("answers and results that a program has sent in parts are shown as their text", async (context) => {
  const parts = (...texts) => texts.map((text) => ({ type: "text", text }));
  const tool_calls = [{ id: "a", type: "function", function: { name: "f", arguments: "{}" } }];
  const turns = [ASKED, { parent: 0, role: "assistant", content: parts("look", "ing"), tool_calls }, { parent: 1, role: "tool", tool_call_id: "a", content: parts("sun", "ny") }, { ...BEGUN, parent: 2, finish_reason: { type: "stop" } }];
  const { chat, server, shown } = panel(context, turns);
  await chat.open(server);
  context.mock.timers.tick(0);
  assert.match(shown(), /one.*looking.*f\(\) → sunny.*half/);
});

test("a glance at a panel whose answer comes asks nothing", async (context) => {
  const { chat, server } = panel(context, [ASKED, BEGUN]);
  await chat.open(server);
  const before = server.asked;
  await chat.refresh(true);
  assert.equal(server.asked, before);
  await chat.refresh();
  chat.receive("done", { run: "r", finish_reason: { type: "stop" } });
  await chat.refresh(true);
  assert.equal(server.asked, before + 2);
});

test("an answer that comes beside a question that is being edited is there once", async (context) => {
  const { chat, server, shown } = panel(context, [ASKED, { ...BEGUN, finish_reason: { type: "stop" } }]);
  await chat.open(server);
  const press = (label) => [...chat.element.elements()].find((each) => each.attributes["aria-label"] === label || each.textContent === label).click();
  press("Edit message");
  chat.adopt({ type: "started", run: "s", messages: [{ role: "user", content: "two" }] });
  chat.receive("delta", { run: "s", text: "first", tokens: 1 });
  chat.receive("error", { run: "s", error: { message: "full" } });
  assert.doesNotMatch(shown(), /first/);
  press("Cancel");
  press("Next version");
  context.mock.timers.tick(0);
  assert.match(shown(), /two.*first.*full/);
  assert.doesNotMatch(shown(), /first.*first|full.*full/);
});

test("the notebook keeps a question once it is asked", async (context) => {
  const { chat, server, kept } = panel(context, []);
  await chat.open(server);
  server.start = ({ id, messages }) => chat.receive("started", { run: id, messages });
  const elements = [...chat.element.elements()];
  elements.find(({ attributes }) => attributes["aria-label"] === "Message").value = "one";
  elements.find(({ textContent, tag }) => tag === "button" && textContent === "Send").listeners.click({ detail: 1 });
  assert.deepEqual(kept.at(-1)?.map(({ content }) => content), ["one", ""]);
});

test("an answer that failed is tried again where the talk has gone on, which stays", async (context) => {
  const { chat, server, kept, shown } = panel(context, []);
  await chat.open(server);
  let run;
  server.start = ({ id, messages }) => chat.receive("started", { run: (run = id), messages });
  const press = (label) => [...chat.element.elements()].findLast(({ attributes, textContent, tag }) => tag === "button" && (attributes["aria-label"] ?? textContent) === label).listeners.click({ detail: 1 });
  const ask = (text) => {
    [...chat.element.elements()].find(({ attributes }) => attributes["aria-label"] === "Message").value = text;
    context.mock.timers.tick(1000);
    press("Send");
  };
  const done = { finish_reason: { type: "stop" } };
  ask("one");
  chat.receive("error", { run, error: { message: "full", code: 503 } });
  ask("two");
  chat.receive("delta", { run, text: "second", tokens: 1 });
  chat.receive("done", { run, ...done });
  press("Retry");
  chat.receive("delta", { run, text: "first", tokens: 1 });
  chat.receive("done", { run, ...done });
  assert.deepEqual(kept.at(-1).map(({ content, parent }) => [content, parent]), [["one", null], ["", 0], ["two", 1], ["second", 2], ["first", 0]]);
  assert.match(shown(), /one.*first/);
  press("Previous version");
  assert.match(shown(), /one.*full.*two.*second/);
});

test("a question that is sent before it is known what was said goes with it", async (context) => {
  const { chat, server, shown } = panel(context, [ASKED, { ...BEGUN, finish_reason: { type: "stop" } }]);
  const asked = [];
  server.start = (body) => {
    asked.push(body.messages.map(({ content }) => content));
    chat.receive("started", { run: body.id, messages: body.messages });
  };
  const opened = chat.open(server);
  const elements = [...chat.element.elements()];
  elements.find(({ attributes }) => attributes["aria-label"] === "Message").value = "two";
  const send = elements.find(({ textContent, tag }) => tag === "button" && textContent === "Send");
  for (let press = 0; press < 2; press += 1) send.listeners.click({ detail: 1 });
  assert.deepEqual(asked, []);
  await opened;
  await new Promise(setImmediate);
  assert.deepEqual(asked, [["one", "half", "two"]]);
  assert.match(shown(), /one.*two/);
});

test("an answer that begins before it is known what was said stands after all of that", async (context) => {
  const { chat, server, shown } = panel(context, [ASKED, { ...BEGUN, finish_reason: { type: "stop" } }, { ...BEGUN, content: "other", run: "o", finish_reason: { type: "stop" } }]);
  const opened = chat.open(server);
  const messages = [ASKED, { role: "assistant", content: "half" }, { role: "user", content: "two" }];
  chat.receive("started", { run: "s", messages });
  await opened;
  await new Promise(setImmediate);
  assert.deepEqual(server.followed, [["s", 0]]);
  context.mock.timers.tick(0);
  assert.match(shown(), /one.*half.*two/);
  assert.match(shown(), /1\/2/, "the first question has two answers");
});
