import assert from "node:assert/strict";
import { test } from "node:test";
import { SseDecoder } from "../src/sse.js";

const STREAM = ': keep-alive\n\nevent: delta\nid: r:1\ndata: {"a":1}\n\ndata: one\r\ndata:two\r\n\r\nevent: empty\n\ndata: last\n\n';
const EVENTS = [
  { event: "delta", data: '{"a":1}' },
  { event: "message", data: "one\ntwo" },
  { event: "message", data: "last" },
];

test("events are the same wherever the stream is cut", () => {
  for (let cut = 0; cut <= STREAM.length; cut += 1) {
    const decoder = new SseDecoder();
    assert.deepEqual([...decoder.feed(STREAM.slice(0, cut)), ...decoder.feed(STREAM.slice(cut))], EVENTS);
  }
});

test("an event that is not whole is held back", () => {
  assert.deepEqual(new SseDecoder().feed("data: half"), []);
});
