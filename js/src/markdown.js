// Markdown to DOM nodes, from marked's token tree. Raw HTML except line breaks is shown as text, images as links, and
// only web and mail addresses become links: a model's text may be hostile.

import { Lexer, Tokenizer } from "marked";
import { copyButton, h, reach, scroller } from "./dom.js";
import { highlight } from "./highlight.js";
import { extensions, formula, startInHeading } from "./maths.js";

const ADDRESS = /^(https?:\/\/|mailto:|#)/i;
const NAMED = { __proto__: null, amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", hellip: "…", mdash: "—" };
const MAX_DEPTH = 40;
/** How models break lines in the cells of tables. */
const BREAK = /<br *\/?>/i;
/** What inline markup may begin or end with. marked's time grows with the square of their number, for links with the cube. */
const MARK = /[\\<![`*~_$@]{1,3}|\]\(|:\/\/|www\.| {2}\n/g;
const MAX_MARKS = 300;

/** The event that makes a code block a cell: its detail is the code, and whether it replaces a cell. */
export const INSERT = "nbgen-insert";

/** marked's lexer, but a paragraph of more than MAX_MARKS marks is plain: endless repetition then takes linear time. */
class BoundedLexer extends Lexer {
  inlineTokens(text, tokens = []) {
    if ((text.match(MARK)?.length ?? 0) <= MAX_MARKS) return super.inlineTokens(text, tokens);
    tokens.push({ type: "text", raw: text, text });
    return tokens;
  }
}

/** marked's tokenizer, but it seeks a heading's underline only up to the next formula, where a paragraph ends, too. */
class BoundedTokenizer extends Tokenizer {
  /** A single tilde strikes nothing out: "3~5 or 10~20" are ranges. */
  del(text) {
    return text.startsWith("~~") ? super.del(text) : undefined;
  }

  lheading(text) {
    const start = startInHeading(text.slice(1));
    return super.lheading(start < 0 ? text : text.slice(0, start + 1));
  }
}

/** marked's block tokens of `text`, which has no carriage returns; one plain token if it is nested too deep. */
export function lex(text) {
  try {
    return new BoundedLexer({ gfm: true, extensions, tokenizer: new BoundedTokenizer() }).lex(text);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return [{ type: "escape", raw: text, text }];
  }
}

/** Nodes for block or inline tokens. */
export function nodes(tokens, depth = 0) {
  return tokens.flatMap((token) => (depth > MAX_DEPTH ? [token.raw] : node(token, depth + 1)));
}

function node(token, depth) {
  const make = MAKERS[token.type];
  return make ? make(token, depth) : [token.raw ?? ""];
}

/** Puts list marks, quotation bars and first columns where lines begin: on the right for right-to-left text. */
const AS_WRITTEN = { dir: "auto" };

const wrap = (tag, attributes = {}) => (token, depth) => [h(tag, attributes, ...nodes(token.tokens ?? [], depth))];

const MAKERS = {
  space: () => [],
  def: () => [],
  hr: () => [h("hr")],
  br: () => [h("br")],
  paragraph: wrap("p"),
  blockquote: wrap("blockquote", AS_WRITTEN),
  strong: wrap("strong"),
  em: wrap("em"),
  del: wrap("del"),
  heading: (token, depth) => [h(`h${Math.min(6, token.depth + 2)}`, {}, ...nodes(token.tokens, depth))],
  text: (token, depth) => (token.tokens ? nodes(token.tokens, depth) : [decode(token.text)]),
  escape: (token) => [token.text],
  html: ({ raw }) => raw.split(BREAK).flatMap((text, i) => [...(i ? [h("br")] : []), ...(text ? [text] : [])]),
  maths: (token) => [formula(token)],
  codespan: (token) => [h("code", {}, token.text)],
  code: (token) => [codeBlock(token)],
  link: (token, depth) => link(token.href, nodes(token.tokens, depth)),
  image: (token) => link(token.href, [`image: ${decode(token.text || token.href)}`]),
  list: (token, depth) => [list(token, depth)],
  table: (token, depth) => [scroller("Table", "div", { class: "nbgen-table", ...AS_WRITTEN }, table(token, depth))],
  checkbox: (token) => [token.checked ? "☑ " : "☐ "],
};

function link(written, children) {
  const href = decode(written);
  if (!ADDRESS.test(href)) return children;
  return [h("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children)];
}

function list(token, depth) {
  const items = token.items.map((item) => h("li", { class: item.task && "nbgen-task" }, ...nodes(parts(item), depth)));
  const start = token.ordered && token.start !== 1 ? { start: token.start } : {};
  return h(token.ordered ? "ol" : "ul", { ...AS_WRITTEN, ...start }, ...items);
}

/** A list item's tokens: its texts become paragraphs if the list has blank lines, and a task's box joins the first. */
function parts({ task, checked, loose, tokens }) {
  const all = tokens.map((token) => (loose && token.type === "text" ? { ...token, type: "paragraph" } : token));
  if (!task) return all;
  const box = { type: "escape", text: checked ? "☑ " : "☐ " };
  const [first, ...others] = all;
  return first?.tokens ? [{ ...first, tokens: [box, ...first.tokens] }, ...others] : [box, ...all];
}

function table(token, depth) {
  const row = (cells, tag) =>
    h("tr", {}, ...cells.map((cell, i) => h(tag, { align: token.align[i] }, ...nodes(cell.tokens, depth))));
  return h("table", {}, h("thead", {}, row(token.header, "th")), h("tbody", {}, ...token.rows.map((cells) => row(cells, "td"))));
}

function languageOf({ lang = "" }) {
  return /^[\w+#-]*/.exec(lang)[0].toLowerCase();
}

function coloured(token) {
  const complete = /\n {0,3}(?:`{3,}|~{3,})[ \t]*\n*$/.test(token.raw);
  return complete ? highlight(token.text, languageOf(token)) : [token.text];
}

/** Update a code block in the page in place, so that its scroll position and focus stay. Returns whether it is that block. */
export function grown([block], [token]) {
  if (token?.type !== "code" || !block?.matches?.(".nbgen-code") || block.firstChild.firstChild.textContent !== (token.lang ?? "")) return false;
  const code = block.querySelector("code");
  code.replaceChildren(...coloured(token));
  reach(code.parentNode);
  return true;
}

function codeBlock(token) {
  const language = languageOf(token);
  const code = h("code", {}, ...coloured(token));
  const toCell = (words, label, replace) => {
    const button = h("button", { type: "button", class: "nbgen-quiet nbgen-insert", "aria-label": label, title: label }, words);
    const detail = () => ({ code: code.textContent, replace });
    button.addEventListener("click", () => button.dispatchEvent(new CustomEvent(INSERT, { bubbles: true, detail: detail() })));
    return button;
  };
  const insert = toCell("Insert below", "Insert code in a cell below", false);
  const replace = toCell("Replace", "Replace the cell below with this code", true);
  const copy = copyButton("Copy code", () => code.textContent);
  const bar = h("div", { class: "nbgen-codebar" }, h("span", {}, token.lang ?? ""), copy, insert, replace);
  return h("div", { class: "nbgen-code" }, bar, scroller(`Code${language && `, ${language}`}`, "pre", {}, code));
}

function decode(text) {
  return text.replace(/&(?:#x([0-9a-f]{1,6})|#([0-9]{1,7})|([a-z]+));/gi, (whole, hex, decimal, name) => {
    if (name) return NAMED[name] ?? whole;
    const point = hex ? parseInt(hex, 16) : Number(decimal);
    return point > 0 && point <= 0x10ffff ? String.fromCodePoint(point) : whole;
  });
}
