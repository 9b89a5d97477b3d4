// Colours for complete code, from highlight.js's token tree; code in an unknown language stays plain.

import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import cpp from "highlight.js/lib/languages/cpp";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import julia from "highlight.js/lib/languages/julia";
import python from "highlight.js/lib/languages/python";
import r from "highlight.js/lib/languages/r";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { h } from "./dom.js";

const MAX_LENGTH = 20_000;
/** Longest code in the languages whose patterns take quadratic time. */
const MAX_SLOW = 4000;
const MAX_DEPTH = 40;
const LANGUAGES = { bash, cpp, diff, go, java, javascript, json, julia, python, r, rust, sql, xml, yaml };
/** Other names that models use for these languages. */
const ALIASES = { bash: ["console", "shell"], cpp: ["c", "h"], javascript: ["ts", "tsx", "typescript"], julia: ["jl"], python: ["ipython3", "python3"] };

for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);
for (const [languageName, names] of Object.entries(ALIASES)) hljs.registerAliases(names, { languageName });
const SLOW = new Set(["cpp", "java"].map((name) => hljs.getLanguage(name)));

/** DOM nodes of a piece of code; only its text if it is too long or nested too deep. */
export function highlight(code, language) {
  const known = hljs.getLanguage(language);
  if (!known || code.length > (SLOW.has(known) ? MAX_SLOW : MAX_LENGTH)) return [code];
  try {
    return nodes(hljs.highlight(code, { language, ignoreIllegals: true })._emitter.rootNode);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return [code];
  }
}

function nodes(node, depth = 0) {
  if (typeof node === "string") return [node];
  const children = node.children.flatMap((child) => nodes(child, depth + 1));
  return node.scope && depth <= MAX_DEPTH ? [h("span", { class: `nbgen-hl-${node.scope.split(".")[0]}` }, ...children)] : children;
}
