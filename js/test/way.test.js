import assert from "node:assert/strict";
import { test } from "node:test";
import { Way } from "../src/way.js";

class Transport {
  done = [];
  start = ({ id }) => this.done.push(`start ${id}`);
  follow = (run) => this.done.push(`follow ${run}`);
  cancel = (run) => this.done.push(`cancel ${run}`);
  snapshot = () => this.done.push("snapshot");
  close = () => this.done.push("close");
}

test("what was begun before the kernel turned to another server is followed and stopped there", () => {
  const [before, after] = [new Transport(), new Transport()];
  const way = new Way(before);
  way.start({ id: "a" });
  way.take(after);
  way.start({ id: "b" });
  for (const run of ["a", "b"]) way.cancel(run);
  way.follow("a", 3);
  way.follow("c", 0);
  way.snapshot();
  way.close();
  assert.deepEqual(before.done, ["start a", "cancel a", "follow a", "close"]);
  assert.deepEqual(after.done, ["start b", "cancel b", "follow c", "snapshot", "close"]);
});
