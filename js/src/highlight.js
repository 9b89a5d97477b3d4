// Colours for code that is complete, from highlight.js's token tree; a language it does not know stays plain.

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
const LANGUAGES = { bash, cpp, diff, go, java, javascript, json, julia, python, r, rust, sql, xml, yaml };
/** What models call them, too. */
const ALIASES = { bash: ["console", "shell"], cpp: ["c", "h"], javascript: ["ts", "tsx", "typescript"], julia: ["jl"], python: ["ipython3", "python3"] };

for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);
for (const [languageName, names] of Object.entries(ALIASES)) hljs.registerAliases(names, { languageName });

/** Nodes of a piece of code. */
export function highlight(code, language) {
  if (!hljs.getLanguage(language) || code.length > MAX_LENGTH) return [code];
  return nodes(hljs.highlight(code, { language, ignoreIllegals: true })._emitter.rootNode);
}

function nodes(node) {
  if (typeof node === "string") return [node];
  const children = node.children.flatMap(nodes);
  return node.scope ? [h("span", { class: `nbgen-hl-${node.scope.split(".")[0]}` }, ...children)] : children;
}
