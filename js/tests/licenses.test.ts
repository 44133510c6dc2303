import { build, type Metafile } from "esbuild";
import { beforeAll, describe, expect, test } from "vitest";
import { asText, type Licensed, licensesOf } from "../licenses.mjs";

const ENTRY_POINTS = ["src/hosts/inline.ts", "src/hosts/widget.ts", "src/hosts/panel/remote.ts"];

/** The names of the packages among esbuild's inputs, told without what is tested. */
function packagesIn({ inputs }: Metafile): Set<string> {
  const found = Object.keys(inputs).map((path) => path.match(/.*node_modules\/((?:@[^/]+\/)?[^/]+)/)?.[1]);
  return new Set(found.filter((name) => name !== undefined));
}

describe("the licences of bundled packages", () => {
  let metafile: Metafile;
  let packages: Licensed[];

  beforeAll(async () => {
    const loader = { ".css": "text" as const };
    const options = { bundle: true, write: false, metafile: true, outdir: "out", loader } as const;
    ({ metafile } = await build({ ...options, entryPoints: ENTRY_POINTS }));
    packages = await licensesOf([metafile]);
  });

  test("every package that esbuild took something of is named, and no other", () => {
    expect(packagesIn(metafile)).toContain("plotly.js-basic-dist-min");
    expect(new Set(packages.map(({ name }) => name))).toEqual(packagesIn(metafile));
  });

  test("each has its version and its licence's own text", () => {
    for (const { name, versionInfo, licenseId, extractedText } of packages) {
      expect(versionInfo).toMatch(/^\d+\.\d+\.\d+/);
      expect(licenseId).not.toBe("");
      expect(extractedText).toMatch(/copyright/i);
      expect(asText(packages)).toContain(`${name} ${versionInfo} (${licenseId})\n\n${extractedText}`);
    }
  });

  test("packages bundled inside a package keep their notices", () => {
    const plotly = packages.find(({ name }) => name === "plotly.js-basic-dist-min");

    expect(plotly?.extractedText).toContain("Permission is hereby granted");
    expect(plotly?.extractedText).toContain("polybooljs");
  });

  test("a package without the text of its licence ends the build", async () => {
    // One of vitest's own needs, which is published without.
    const inputs = { "node_modules/stackback/index.js": {} } as unknown as Metafile["inputs"];

    await expect(licensesOf([{ inputs, outputs: {} }])).rejects.toThrow("stackback");
  });
});
