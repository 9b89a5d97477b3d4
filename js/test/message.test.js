import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { Answer, numbers, Question } from "../src/message.js";

test("the time to the first token is told in milliseconds where hundredths of seconds say nothing", () => {
  const said = [0, 0.0004, 0.004, 0.0099, 0.01, 1.234].map((ttft_s) => numbers({ ttft_s }));
  assert.deepEqual(said, ["1 ms", "1 ms", "4 ms", "10 ms", "0.01 s", "1.23 s"].map((time) => `${time} to first token`));
});

test("what is so long that a line of it with its own direction takes seconds stands in a box whose lines have none", () => {
  const boxes = (content) => [...new Question({ role: "user", content }, {}).element.elements()].filter(({ tag, attributes }) => tag === "div" && !attributes.class);
  assert.deepEqual(boxes("x".repeat(100_000)), []);
  assert.deepEqual(boxes("x".repeat(100_001)).map(({ textContent }) => textContent.length), [100_001]);
});

test("how an answer ended is told where that is not by itself", () => {
  const said = ["stop", "tool_calls", "length", "abort"].map((type) => numbers({ usage: { completion_tokens: 1 }, finish_reason: { type } }));
  assert.deepEqual(said, ["1 token", "1 token", "1 token · cut off", "1 token · stopped"]);
});

test("an answer that had no room, also one that was kept, is not tried again", () => {
  const buttons = (message) => {
    const answer = new Answer({ role: "assistant" }, { fresh: () => {}, painted: (work) => work() });
    answer.fail({ message }, () => {});
    const error = [...answer.element.elements()].find(({ attributes }) => attributes.class === "nbgen-error");
    return [...error.elements()].filter(({ tag }) => tag === "button").map(({ textContent }) => textContent);
  };
  assert.deepEqual(buttons("2013 tokens exceed the model's maximum context length of 1024"), ["New chat"]);
  assert.deepEqual(buttons("The engine was stopped"), ["Retry"]);
});

test("an error that was kept is not read out once more", () => {
  const roles = [false, true].map((kept) => {
    const answer = new Answer({ role: "assistant" }, { painted: (work) => work() });
    answer.fail({ message: "full", kept });
    return [...answer.element.elements()].find(({ attributes }) => attributes.class === "nbgen-error").attributes.role;
  });
  assert.deepEqual(roles, ["alert", undefined]);
});

test("what was there before is no part of the rate at which an answer comes", (context) => {
  let now = 1;
  context.mock.method(performance, "now", () => now);
  context.mock.timers.enable({ apis: ["setTimeout"] });
  context.mock.method(globalThis, "requestAnimationFrame", (paint) => paint());
  const answer = new Answer({ role: "assistant" }, { painted: (work) => work() });
  for (const begin of [() => {}, () => answer.restart()]) {
    begin();
    for (const [tokens, ms] of [[1000, 5000], [20, 2000]]) {
      answer.add("a", tokens);
      context.mock.timers.tick(0);
      now += ms;
    }
    answer.add("a", 20);
    context.mock.timers.tick(0);
    assert.match(answer.element.textContent, /1040 tokens · 6 tokens\/s/);
  }
});

test("a line end is one, also where it comes in two pieces", () => {
  const answer = new Answer({ role: "assistant" }, { painted: (work) => work() });
  for (const piece of ["a\r", "", "\nb\r", "\r\nc\n", "\n"]) answer.add(piece);
  assert.equal(answer.text, "a\nb\n\nc\n\n");
  answer.add("\r");
  answer.restart();
  answer.add("\nd");
  assert.equal(answer.text, "\nd");
});

test("each of many images is looked at once", (context) => {
  const url = `data:image/jpeg;base64,${"A".repeat(1000)}`;
  const looked = context.mock.method(RegExp.prototype, "test");
  const question = new Question({ role: "user", content: Array.from({ length: 16 }, () => ({ type: "image_url", image_url: { url } })) }, {});
  assert.equal(looked.mock.calls.filter(({ arguments: [text] }) => text === url).length, 16);
  const names = [...question.element.elements()].filter(({ tag }) => tag === "img").map(({ attributes }) => attributes.alt);
  assert.deepEqual([names[0], names.at(-1)], ["Image 1 of 16", "Image 16 of 16"]);
});
