// Builds what the widgets load into nbgen/notebook/static, or into the folder named as argument.
import { build } from "esbuild";

const BUNDLED = "Bundles marked and temml (MIT), highlight.js (BSD-3-Clause), see THIRD_PARTY_LICENSES.txt.";
const BANNERS = {
  panel: `/* nbgen's panels. Source: js/src. ${BUNDLED} */`,
  loader: "/* What loads nbgen's panels. Source: js/src. */",
  monitor: "/* nbgen's monitor. Source: js/src. */",
};
const ENTRIES = { panel: "index", loader: "loader", monitor: "monitor" };

const here = (path) => new URL(path, import.meta.url).pathname;
const folder = process.argv[2] ?? here("../nbgen/notebook/static");

for (const [name, entry] of Object.entries(ENTRIES)) {
  await build({
    entryPoints: [here(`src/${entry}.js`)],
    outfile: `${folder}/${name}.js`,
    bundle: true,
    minify: true,
    format: "esm",
    target: "es2022",
    charset: "utf8",
    legalComments: "none",
    banner: { js: BANNERS[name] },
  });
}
