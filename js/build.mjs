// `node build.mjs` fills ../hfmem_widget/static; `--demo` builds the stand-alone demo and the bench page.
import { createHash } from "node:crypto";
import { copyFile, mkdir, readFile, rm, writeFile } from "node:fs/promises";
import * as esbuild from "esbuild";
import { asText, licensesOf } from "./licenses.mjs";

const STATIC = "../hfmem_widget/static";
const LABEXTENSION = `${STATIC}/labextension`;

const options = {
  bundle: true,
  minify: true,
  charset: "utf8",
  legalComments: "eof",
  target: "es2022",
  loader: { ".css": "text" },
  logLevel: "warning",
  metafile: true,
};
const chart = {
  ...options,
  entryPoints: { chart: "src/hosts/inline.ts" },
  format: "esm",
  outdir: STATIC,
};

/** Whoever asks for the chart does so under the hash of its content, so that no cache serves an old one. */
async function buildStatic() {
  // What an earlier version built would go into the wheel, too.
  await rm(STATIC, { recursive: true, force: true });
  const made = await esbuild.build(chart);
  const define = { CHART_HASH: JSON.stringify(hashOf(await readFile(`${STATIC}/chart.js`))) };
  const widget = await esbuild.build({ ...chart, entryPoints: { widget: "src/hosts/widget.ts" }, define });
  const carried = await esbuild.build({
    ...chart,
    entryPoints: { what_if: "src/hosts/what_if.ts", moments: "src/hosts/moments.ts" },
    format: "iife",
  });
  const panel = await buildLabextension(define);
  await writeLicenses([made.metafile, widget.metafile, carried.metafile, panel]);
}

/** Once for people, beside the bundles, and once for JupyterLab, whose Help › Licenses looks there. */
async function writeLicenses(metafiles) {
  const packages = await licensesOf(metafiles);
  await writeFile(`${STATIC}/THIRD-PARTY-LICENSES.txt`, asText(packages));
  const text = JSON.stringify({ packages }, null, 2);
  await writeFile(`${LABEXTENSION}/static/third-party-licenses.json`, `${text}\n`);
}

/** What JupyterLab loads: a module federation container under the hash of its content, and its description. Returns esbuild's account of it. */
async function buildLabextension(define) {
  await mkdir(`${LABEXTENSION}/schemas/hfmem-widget`, { recursive: true });
  const { metafile, outputFiles } = await esbuild.build({
    ...options,
    entryPoints: ["src/hosts/panel/remote.ts"],
    format: "iife",
    define,
    write: false,
  });
  const [{ contents }] = outputFiles;
  const load = `static/remoteEntry.${hashOf(contents)}.js`;
  await mkdir(`${LABEXTENSION}/static`);
  await writeFile(`${LABEXTENSION}/${load}`, contents);
  const { version } = JSON.parse(await readFile("package.json", "utf8"));
  const about = JSON.parse(await readFile("labextension/package.json", "utf8"));
  const jupyterlab = { ...about.jupyterlab, _build: { load, extension: "./extension" } };
  const text = JSON.stringify({ ...about, version, jupyterlab }, null, 2);
  await writeFile(`${LABEXTENSION}/package.json`, `${text}\n`);
  await copyFile("labextension/install.json", `${LABEXTENSION}/install.json`);
  await copyFile("labextension/schema/plugin.json", `${LABEXTENSION}/schemas/hfmem-widget/plugin.json`);
  return metafile;
}

function hashOf(content) {
  return createHash("sha256").update(content).digest("hex").slice(0, 12);
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
