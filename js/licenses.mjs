// What of the bundles others wrote, with the terms they gave it under.
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";

const FOLDER = "node_modules/";
const TERMS = /^(licen[sc]e|copying|notice)/i;
/** What esbuild leaves of the packages within a package that was bundled before, as plotly.js was. */
const WITHIN = /\/\*! Bundled license information:\s*([\s\S]*?)\*\//g;

/** Every package that went into what esbuild made, by name: as JupyterLab's list of licences has them. */
export async function licensesOf(metafiles, root = ".") {
  const files = new Map();
  for (const path of metafiles.flatMap(({ inputs }) => Object.keys(inputs))) {
    const folder = folderOf(path);
    if (folder) files.set(folder, [...(files.get(folder) ?? []), path]);
  }
  const packages = await Promise.all([...files].map(([folder, paths]) => packageIn(root, folder, paths)));
  return packages.sort((one, other) => one.name.localeCompare(other.name));
}

/** The same to be read by people. */
export function asText(packages) {
  const head =
    "The JavaScript in this folder contains the following packages. Everything else in it is\n" +
    "hfmem_widget's own, under the Apache License 2.0.\n";
  const each = packages.map(
    ({ name, versionInfo, licenseId, extractedText }) =>
      `${"-".repeat(80)}\n${name} ${versionInfo} (${licenseId})\n\n${extractedText}\n`,
  );
  return [head, ...each].join("\n");
}

function folderOf(path) {
  const at = path.lastIndexOf(FOLDER);
  if (at < 0) return "";
  const [scope, name] = path.slice(at + FOLDER.length).split("/");
  return path.slice(0, at + FOLDER.length) + (scope.startsWith("@") ? `${scope}/${name}` : scope);
}

async function packageIn(root, folder, paths) {
  const { name, version, license } = JSON.parse(await readFile(join(root, folder, "package.json"), "utf8"));
  const terms = (await readdir(join(root, folder))).filter((file) => TERMS.test(file)).sort();
  if (!terms.length) throw new Error(`${name} ${version} has no file with its licence`);
  const texts = await Promise.all(terms.map((file) => readFile(join(root, folder, file), "utf8")));
  for (const path of paths)
    for (const [, notice] of (await readFile(join(root, path), "utf8")).matchAll(WITHIN))
      texts.push(`It contains in turn:\n\n${notice}`);
  const extractedText = texts.map((text) => text.trim()).join("\n\n");
  return { name, versionInfo: version, licenseId: license ?? "", extractedText };
}
