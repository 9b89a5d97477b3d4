// Builds the one bundle that every widget loads: nbgen/notebook/static/panel.js, or the file named as argument.
import { build } from "esbuild";

await build({
  entryPoints: [new URL("src/index.js", import.meta.url).pathname],
  outfile: process.argv[2] ?? new URL("../nbgen/notebook/static/panel.js", import.meta.url).pathname,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  banner: { js: "/* nbgen's panels. Source: js/src. Bundles marked and temml (MIT), highlight.js (BSD-3-Clause), see THIRD_PARTY_LICENSES.txt. */" },
});
