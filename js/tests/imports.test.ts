import { describe, expect, test } from "vitest";

declare global {
  interface ImportMeta {
    glob(patterns: string[], options: object): Record<string, string>;
  }
}

const SOURCES = import.meta.glob(["../src/**/*.ts", "../demo/*.ts"], {
  query: "?raw",
  import: "default",
  eager: true,
});
/** Types too: who reads a file has to know what it imports. */
const IMPORT = /^(?:import|export)\b[^"';]*["']([^"']+)["']/gm;

/** The table that Python reads, too: the one file of ours that is none of the front end's. */
const SHARED = "/hfmem_widget/session/series.json";

/** What each file imports of ours, as paths from here. */
const IMPORTS = new Map(
  Object.entries(SOURCES).map(([path, source]) => [
    path,
    [...source.matchAll(IMPORT)].flatMap(([, to]) => (to!.startsWith(".") ? resolve(path, to!) : [])),
  ]),
);

function resolve(from: string, to: string): string {
  return new URL(to, `file:///js/tests/${from}`).pathname.replace("/js/", "../");
}

/** The circles that a walk from every file comes upon. */
function circles(): string[] {
  const found: string[] = [];
  const ended = new Set<string>();
  const walk = (path: string, walked: string[]): void => {
    if (walked.includes(path)) found.push([...walked.slice(walked.indexOf(path)), path].join(" > "));
    else if (!ended.has(path)) for (const next of IMPORTS.get(path) ?? []) walk(next, [...walked, path]);
    ended.add(path);
  };
  for (const path of IMPORTS.keys()) walk(path, []);
  return found;
}

function importsOf(folder: string): string[] {
  return [...IMPORTS].flatMap(([path, to]) => (path.startsWith(folder) ? to : []));
}

describe("imports", () => {
  test("are all found", () => {
    expect(IMPORTS.get("../src/core/scene.ts")).toContain("../src/core/settings.ts");
    expect(IMPORTS.get("../src/hosts/panel/plugin.ts")).toContain("../src/hosts/panel/jupyterlab.ts");
    const modules = importsOf("../").filter((path) => !path.endsWith(".css") && path !== SHARED);
    expect(modules.filter((path) => !IMPORTS.has(path))).toEqual([]);
  });

  test("never come back to where they began", () => {
    expect(circles()).toEqual([]);
  });

  test("of the core lead to nothing but the core, its style sheets and the shared table", () => {
    const own = /^\.\.\/src\/(core|styles)\//;
    expect(importsOf("../src/core/").filter((path) => !own.test(path))).toEqual([SHARED]);
  });

  test("of the package never lead to the demo", () => {
    expect(importsOf("../src/").filter((path) => !path.startsWith("../src/"))).toEqual([SHARED]);
  });
});
