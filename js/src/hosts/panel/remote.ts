/**
 * remoteEntry.js: the JupyterLab extension, as a container of the one module that JupyterLab requests.
 *
 * `@jupyterlab/builder` would make the same container; docs/how-it-works.md says why it is not used.
 */

import type { Plugin } from "./jupyterlab.ts";
import { definePlugin } from "./plugin.ts";
import type { ShareScope } from "./shared.ts";

interface Container {
  init(scope: ShareScope): void;
  get(module: string): Promise<() => { __esModule: true; default: Plugin }>;
}

const page = globalThis as { _JUPYTERLAB?: Record<string, Container> };
let scope: ShareScope = {};

page._JUPYTERLAB ??= {};
page._JUPYTERLAB["hfmem-widget"] = {
  init(given) {
    scope = given;
  },
  async get() {
    const plugin = await definePlugin(scope);
    return () => ({ __esModule: true, default: plugin });
  },
};
