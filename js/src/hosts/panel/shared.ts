/** Modules that the page shares with its extensions, by webpack's rules of module federation. */

import type { SharedModules } from "./jupyterlab.ts";

interface Shared {
  get(): Promise<() => unknown> | (() => unknown);
  loaded?: unknown;
}

export type ShareScope = Record<string, Record<string, Shared> | undefined>;

/** The module, or null if the page has none of that name. A loaded version is preferred, then the newest. */
export async function shared<Name extends keyof SharedModules>(
  scope: ShareScope,
  name: Name,
): Promise<SharedModules[Name] | null> {
  const versions = Object.entries(scope[name] ?? {}).sort(([a], [b]) =>
    b.localeCompare(a, undefined, { numeric: true }),
  );
  const found = versions.find(([, { loaded }]) => loaded) ?? versions[0];
  if (!found) return null;
  const factory = await found[1].get();
  return factory() as SharedModules[Name];
}
