import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import "./page.js";
import { Blocks, split } from "../src/blocks.js";
import { lex, nodes } from "../src/markdown.js";

/** What hostile text has looked like elsewhere. */
const VECTORS = JSON.parse(readFileSync(new URL("vectors.json", import.meta.url)));
/** Texts, and what of them is maths: each formula, and whether it stands by itself. Outputs of cells agree (`test_shown_text`). */
const MATHS = JSON.parse(readFileSync(new URL("maths.json", import.meta.url)));
const ALLOWED = new Set(
  "div p h3 h4 h5 h6 ul ol li strong em del code pre blockquote hr br a table thead tbody tr th td span button".split(" "),
);
const MATHML = new Set("math mrow mi mn mo ms mtext mspace mfrac msqrt mroot mstyle mpadded mphantom menclose msub msup msubsup munder mover munderover mtable mtr mtd".split(" "));
const ATTRIBUTES = new Set(["class", "href", "target", "rel", "align", "start", "type", "title", "aria-label", "role", "dir"]);

function page(text) {
  const root = document.createElement("div");
  root.append(...nodes(lex(text)));
  return root;
}

function streamed(text, size) {
  const root = document.createElement("div");
  const blocks = new Blocks(root);
  for (let end = size; end < text.length + size; end += size) blocks.update(text.slice(0, end));
  blocks.finish(text);
  return root;
}

function check(root, text) {
  for (const element of root.elements()) {
    assert.ok(ALLOWED.has(element.tag) || MATHML.has(element.tag), `${element.tag} from ${JSON.stringify(text)}`);
    if (MATHML.has(element.tag)) assert.doesNotMatch(JSON.stringify([element.attributes, element.style]), /url|script|:\/\/|href/i);
    else for (const [name, value] of Object.entries(element.attributes)) {
      assert.ok(ATTRIBUTES.has(name), `${name} from ${JSON.stringify(text)}`);
      if (name === "href") assert.match(value, /^(https?:\/\/|mailto:|#)/i, text);
    }
    if (element.tag === "a") assert.equal(element.attributes.rel, "noopener noreferrer nofollow");
  }
}

test("nothing that a model writes becomes more than text, marks and web links", () => {
  for (const text of VECTORS) check(page(text), text);
});

test("nor does it when it is cut anywhere", () => {
  for (const text of VECTORS) {
    for (let cut = 0; cut <= text.length; cut += 1) {
      const root = document.createElement("div");
      const blocks = new Blocks(root);
      blocks.update(text.slice(0, cut));
      check(root, text.slice(0, cut));
      blocks.update(text);
      check(root, text);
      blocks.finish(text);
      check(root, text);
    }
    check(streamed(text, 1), text);
  }
});

test("complete code is coloured, whatever it says, and keeps every character", () => {
  const code = "def f(x):\n    return '<b>' # \\u202e & $x$";
  const shown = page(`\`\`\`python\n${code}\n\`\`\``);
  assert.ok([...shown.elements()].some(({ attributes }) => attributes.class === "nbgen-hl-keyword"));
  assert.ok(shown.textContent.includes(code));
  check(shown, code);
  assert.ok(!String(page(`\`\`\`python\n${code}`)).includes("nbgen-hl"), "not while it grows");
});

test("the languages of notebooks are coloured, by the names that models give them", () => {
  const written = { julia: "function f(x) x end", jl: "function f(x) x end", r: "f <- function(x) 1", R: "f <- function(x) 1", python3: "def f(): pass", yaml: "a: 1", html: "<b>x</b>", "c++": "int main() {}", c: "int main() {}", ts: "const a = 1", rust: "fn main() {}", go: "func main() {}", java: "class A {}", diff: "+ a", console: "cd x" };
  for (const [language, code] of Object.entries(written)) {
    const shown = page(`\`\`\`${language}\n${code}\n\`\`\``);
    assert.match(String(shown), /class="nbgen-hl-/, language);
    assert.ok(shown.textContent.includes(code), language);
  }
});

test("code that is nested or repeated beyond measure stays plain", () => {
  const colours = (language, code) => String(page(`\`\`\`${language}\n${code}\n\`\`\``)).includes("nbgen-hl-");
  assert.ok(!colours("rust", "/*".repeat(9000)));
  assert.ok(colours("cpp", "int a = 1;\n".repeat(300)));
  assert.ok(!colours("cpp", "int a = 1;\n".repeat(400)));
  assert.ok(colours("python", "a = 1\n".repeat(1000)));
});

test("maths is what the notebook's outputs take for it", () => {
  const shown = (root) => [...root.elements()].map(({ attributes }) => attributes).filter((made) => /^nbgen-(maths|formula)$/.test(made.class));
  for (const [text, formulas] of MATHS) {
    const found = shown(page(text)).map((made) => [made.title, made.class === "nbgen-formula"]);
    assert.deepEqual(found, formulas, JSON.stringify(text));
  }
});

test("formulas become MathML, in a line and on their own", () => {
  const tags = (text) => [...page(text).elements()].map((element) => element.tag);
  for (const text of ["is $x^2$ here", "is \\(x^2\\) here", "the $x^2$th and $x^2$."]) assert.ok(tags(text).includes("msup"), text);
  for (const text of ["$$\\frac{a}{b}$$", "\\[\n\\frac{a}{b}\n\\]", "so\n$$\n\\frac{a}{b}\n\n$$\nend"]) {
    assert.ok(tags(text).includes("mfrac"), text);
    assert.match(String(page(text)), /class="nbgen-formula"/);
  }
  assert.match(String(page("$a_1 * b$ and $c * d_2$")), /<\/math><\/span> and <span/);
});

test("a formula is no part of a heading whose line stands below it", () => {
  assert.deepEqual(lex("x\n$$a$$\ny\n---\n").map(({ type }) => type), ["paragraph", "maths", "heading"]);
});

test("dollars, braces and code that are no formula stay as they are", () => {
  for (const text of ["it costs $5 and $10", "`$x$` and `\\(y\\)`", "```\n$$x$$\n```", "a $ b $ c", "\\$x$", "PID is $$", "$5 today and $6 tomorrow, PATH=$HOME/bin:$PATH"]) {
    assert.ok(![...page(text).elements()].some(({ tag }) => tag === "math"), text);
  }
  assert.match(String(page("$\\nonsense{$")), /<code class="nbgen-tex">\$\\nonsense\{\$<\/code>/);
});

test("a formula that is still open does not settle", () => {
  assert.equal(split("$$\na\n\nb").length, 0);
  assert.equal(split("text\n\n$$\na\n\nb").length, "text\n\n".length);
  assert.equal(split("\\begin{align}\na\n- b\n").length, 0);
});

test("markup means what it says", () => {
  const shows = (text, html) => assert.equal(page(text).childNodes.join(""), html);
  shows("**a** _b_ ~~c~~ `d`", "<p><strong>a</strong> <em>b</em> <del>c</del> <code>d</code></p>");
  shows("# T\n\n1. x\n2. y", '<h3>T</h3><ol dir="auto"><li>x</li><li>y</li></ol>');
  shows("<b>raw</b> &amp; &#65;", "<p>&lt;b>raw&lt;/b> &amp; A</p>");
  shows("[x](javascript:alert(1))", "<p>x</p>");
  shows("- [x] done", '<ul dir="auto"><li class="nbgen-task">☑ done</li></ul>');
  shows("- a\n  - b\n\n    c", '<ul dir="auto"><li>a<ul dir="auto"><li><p>b</p><p>c</p></li></ul></li></ul>');
  shows("1. **a**\n\n   b", '<ol dir="auto"><li><p><strong>a</strong></p><p>b</p></li></ol>');
  shows("- [ ] a\n\n  b", '<ul dir="auto"><li class="nbgen-task"><p>☐ a</p><p>b</p></li></ul>');
  shows("3~5 or 10~20", "<p>3~5 or 10~20</p>");
  shows("a<br>b <BR /><i>", "<p>a<br></br>b <br></br>&lt;i></p>");
  shows("<br>\n<i>", "<br></br>\n&lt;i>");
});

test("an image is a link, since loading it would tell its server", () => {
  assert.match(String(page("![cat](https://a.b/c.png)")), /<a href="https:\/\/a\.b\/c\.png"[^>]*>image: cat<\/a>/);
});

test("code keeps every character", () => {
  const code = "if a < b and c:\n    print('&amp;')";
  assert.ok(page(`\`\`\`python\n${code}\n\`\`\``).textContent.includes(code));
});

const LONG = "# Title\n\nOne **bold**\ntext.\n\n- a\n\n- b\n  - c\n\n```js\nlet x;\n\nlet y;\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nsee [r]\n\n> q\n> r\n\n1. x\n2. y\n\n$$\na^2\n\n= b\n$$\n\nwith $c$\n\nend\n\n[r]: https://a.b\n";

test("streamed in pieces it looks as it does at once", () => {
  const whole = String(page(LONG));
  for (let size = 1; size < 20; size += 1) assert.equal(String(streamed(LONG, size)), whole, `pieces of ${size}`);
});

test("settled blocks are not touched again", () => {
  const root = document.createElement("div");
  const blocks = new Blocks(root);
  blocks.update("first\n\nsecond");
  const first = root.childNodes[0];
  blocks.update("first\n\nsecond grows\n\nthird");
  assert.equal(root.childNodes[0], first);
});

test("code that is being written is the same in the page once it has ended and more comes", () => {
  const root = document.createElement("div");
  const blocks = new Blocks(root);
  blocks.update("```py\nx");
  const code = root.childNodes[0];
  blocks.update("```py\nx = 1\n```");
  blocks.update("```py\nx = 1\n```\n\nThat");
  blocks.update("```py\nx = 1\n```\n\nThat is\n\nall");
  assert.equal(root.childNodes[0], code);
  assert.equal(String(root), String(page("```py\nx = 1\n```\n\nThat is\n\nall")));
});

test("a list stays open across blank lines", () => {
  assert.equal(split("- a\n\n").length, 0);
  assert.equal(split("- a\n\ntext").length, "- a\n\n".length);
});

test("a text beyond measure is shown plain", () => {
  const root = document.createElement("div");
  const blocks = new Blocks(root);
  const long = "**x** ".repeat(40_000);
  blocks.update(long.slice(0, 100));
  blocks.update(long);
  blocks.finish(long);
  assert.equal(root.childNodes.length, 1);
  assert.equal(root.textContent, long);
});

test("characters that are named stand in addresses, too, and no name of JavaScript's is one", () => {
  const [link] = [...page("[x](https://h/?a&amp;b) &constructor; &#36;").elements()].filter(({ tag }) => tag === "a");
  assert.equal(link.attributes.href, "https://h/?a&b");
  assert.equal(page("&constructor; &toString; &amp;").textContent, "&constructor; &toString; &");
  assert.equal(page("![a &amp; b](https://h/)").textContent, "image: a & b");
  check(page("[x](java&#115;cript:alert(1)) [y](&#106;avascript:1) ![z](data&#58;text/html,1)"), "named");
});

test("what is repeated without end takes time in proportion to its length", () => {
  for (const again of ["[a](", "![a](", "**a ", "*a_", "`a ", "<a ", "http://a ", "a  \n", "www.a "]) {
    const text = again.repeat(400);
    for (const [{ tokens }] of [lex(text), lex(`- ${text}`)[0].items[0].tokens]) {
      assert.deepEqual(tokens.map(({ type }) => type), ["text"], again);
    }
    assert.equal(page(`**x** ${text}`).textContent.trim(), `**x** ${text}`.trim());
  }
  const start = process.cpuUsage(); // a busy machine takes longer by the clock
  for (const again of ["[a](", "**a ", "a\n\n", "$$a b\n"]) streamed(again.repeat(100_000 / again.length), 20_000);
  streamed("[\n".repeat(97_000), 200_000);
  lex("x\n$$a$$\n".repeat(25_000));
  for (const again of ["\\begin{a}\n", "x\n\\begin{a}\n", "\\begin{a}\n\n"]) lex(`${again.repeat(20_000)}\\end{a}`);
  for (const again of ["a\n===\n", "a\n---\n"]) lex(again.repeat(125_000));
  assert.ok(process.cpuUsage(start).user < 8_000_000, "a minute and more where each looks at all that follows");
  assert.match(String(page("**bold** and `code`, [a](https://b.c) ".repeat(30))), /<strong>bold<\/strong>.*<code>.*<a /, "but not what people write");
});

test("nesting without end does not end the panel", () => {
  for (const text of ["> ".repeat(3000) + "x", "[".repeat(3000), "- ".repeat(2000) + "x", "**".repeat(3000)]) {
    assert.doesNotThrow(() => streamed(text, text.length), text.slice(0, 4));
  }
});
