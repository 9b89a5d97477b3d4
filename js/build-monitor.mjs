// Builds the monitor: nbgen/notebook/static/monitor.js, or the file named as argument.
import { build } from "esbuild";

await build({
  entryPoints: [new URL("src/monitor.js", import.meta.url).pathname],
  outfile: process.argv[2] ?? new URL("../nbgen/notebook/static/monitor.js", import.meta.url).pathname,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  banner: { js: "/* nbgen's monitor. Source: js/src. */" },
});
