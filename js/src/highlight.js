// Colours for code that is complete, from highlight.js's token tree; a language it does not know stays plain.

import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import sql from "highlight.js/lib/languages/sql";
import { h } from "./dom.js";

const MAX_LENGTH = 20_000;

for (const [name, language] of Object.entries({ bash, javascript, json, python, sql })) hljs.registerLanguage(name, language);

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
