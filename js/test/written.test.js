import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { adler32, Written } from "../src/written.js";

// By Python's zlib.adler32, of "old" and of what is as long.
const OLD = 42729792;
const NEW = 42860875;
const VIEW = "application/vnd.jupyter.widget-view+json";

/** A page's list of a cell's outputs, as JupyterLab has it. */
function listed(...all) {
  const made = (data) => ({ data, toJSON: () => ({ output_type: "display_data", metadata: {}, data: { ...data } }) });
  const outputs = all.map(made);
  return { length: all.length, get: (place) => outputs[place], set: (place, { data }) => (outputs[place] = made(data)) };
}

test("where a page does not change the transcript by itself, the panel does, and asks for it only then", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const own = listed({ [VIEW]: { model_id: "own" } }, { "text/markdown": "old" }, { "text/markdown": "another's" });
  const beside = listed({ [VIEW]: { model_id: "beside" } }, { "text/markdown": "old" });
  const sent = [];
  const cells = [{ outputs: own }, { outputs: beside }, {}];
  const model = { widget_manager: { context: { model: { cells } } }, send: (message) => sent.push(message), on: (_, heard) => (model.heard = heard), off: () => (model.heard = null) };
  const written = new Written(model);
  model.heard({ type: "written", panel: "own", checksum: NEW });
  context.mock.timers.tick(1000);
  assert.deepEqual(sent, [], "another window keeps what was said");
  model.heard({ type: "transcript", data: { "text/markdown": "newer" } });
  assert.equal(own.get(1).data["text/markdown"], "old");
  written.expect();
  model.heard({ type: "written", panel: "own", checksum: OLD });
  context.mock.timers.tick(1000);
  assert.deepEqual(sent, []);
  written.expect();
  model.heard({ type: "written", panel: "own", checksum: NEW });
  context.mock.timers.tick(1000);
  assert.deepEqual(sent, [{ type: "transcript" }]);
  model.heard({ type: "transcript", data: { "text/markdown": "newer" } });
  assert.deepEqual([own.get(1).data, own.get(2).data, beside.get(1).data].map((data) => data["text/markdown"]), ["newer", "another's", "old"]);
  written.expect();
  model.heard({ type: "written", panel: "own", checksum: NEW + 1 });
  written.close();
  context.mock.timers.tick(1000);
  assert.equal(sent.length, 1);
});

test("a text has the checksum that Python's zlib gives it", () => {
  assert.deepEqual(["", "old", "new", "é€😀".repeat(5000)].map(adler32), [1, OLD, NEW, 1829560978]);
});
