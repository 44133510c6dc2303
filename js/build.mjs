// `node build.mjs` fills ../hfmem_widget/static; `--demo` builds the stand-alone demo and the bench page.
import { createHash } from "node:crypto";
import { copyFile, mkdir, readFile } from "node:fs/promises";
import * as esbuild from "esbuild";

const options = {
  bundle: true,
  minify: true,
  charset: "utf8",
  legalComments: "none",
  target: "es2022",
  loader: { ".css": "text" },
  logLevel: "warning",
};
const chart = {
  ...options,
  entryPoints: { chart: "src/hosts/inline.ts" },
  format: "esm",
  outdir: "../hfmem_widget/static",
};

/** The loader asks for the chart under the hash of its content, so that no cache serves an old one. */
async function buildStatic() {
  await esbuild.build(chart);
  const hash = createHash("sha256").update(await readFile("../hfmem_widget/static/chart.js"));
  await esbuild.build({
    ...chart,
    entryPoints: { widget: "src/hosts/widget.ts" },
    define: { CHART_HASH: JSON.stringify(hash.digest("hex").slice(0, 12)) },
  });
}

/** Classic scripts: a browser refuses modules from file:, and the demo must open from there. */
async function buildDemo() {
  await mkdir("demo/dist", { recursive: true });
  await esbuild.build({
    ...options,
    entryPoints: { demo: "demo/demo.ts", bench: "bench/bench.ts" },
    format: "iife",
    outdir: "demo/dist",
  });
  await copyFile("demo/index.html", "demo/dist/index.html");
  await copyFile("bench/index.html", "demo/dist/bench.html");
}

if (process.argv.includes("--watch")) await (await esbuild.context(chart)).watch();
else await (process.argv.includes("--demo") ? buildDemo() : buildStatic());
