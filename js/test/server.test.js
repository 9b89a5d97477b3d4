import assert from "node:assert/strict";
import { test } from "node:test";
import { pageServer } from "../src/server.js";

const nobody = {};
const { document } = globalThis;

function page(context, { config, body = {} }) {
  context.after(() => (globalThis.document = document));
  const element = config && { textContent: JSON.stringify(config) };
  globalThis.document = { getElementById: () => element ?? null, body: { dataset: body } };
}

test("a page's server is the kernel's, or that of JupyterLab's page, or that of nbclassic's", (context) => {
  page(context, { config: { baseUrl: "/lab/", token: "a" }, body: { baseUrl: "/classic/", jupyterApiToken: "b" } });
  const serverSettings = { baseUrl: "http://here/", token: "k" };
  assert.deepEqual(pageServer({ widget_manager: { kernel: { serverSettings } } }), { base: "http://here/", token: "k" });
  assert.deepEqual(pageServer(nobody), { base: "/lab/", token: "a" });
  page(context, { body: { baseUrl: "/classic/", jupyterApiToken: "b" } });
  assert.deepEqual(pageServer(nobody), { base: "/classic/", token: "b" });
  page(context, { body: { baseUrl: "/classic/" } });
  assert.deepEqual(pageServer(nobody), { base: "/classic/", token: "" });
});

test("other pages have none", (context) => {
  page(context, {});
  assert.equal(pageServer(nobody), null);
  delete globalThis.document;
  assert.equal(pageServer(nobody), null);
});
