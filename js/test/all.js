// All tests in one process: most of what a process takes that runs one file is its start.

import { readdirSync } from "node:fs";
import { before } from "node:test";

const files = readdirSync(new URL(".", import.meta.url)).filter((name) => name.endsWith(".test.js"));
const loaded = (async () => {
  for (const name of files.sort()) await import(`./${name}`);
})();

before(() => loaded); // or else the first tests run while files are read, which takes them turns of the event loop
await loaded;
