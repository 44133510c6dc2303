/** A person's settings in JupyterLab; labextension/schema/plugin.json has their names and defaults. */

import type { LoadedSettings, SettingRegistry } from "./jupyterlab.ts";

type Flag = "openWithWatch" | "showHint";

export class Preferences {
  private constructor(
    private readonly plugin: string,
    private readonly registry: SettingRegistry | null,
    private readonly settings: LoadedSettings | null,
  ) {}

  /** Without stored settings, the defaults apply. */
  static async load(plugin: string, registry: SettingRegistry | null): Promise<Preferences> {
    const settings = (await registry?.load(plugin).catch(() => null)) ?? null;
    return new Preferences(plugin, registry, settings);
  }

  isOn(flag: Flag): boolean {
    return this.settings?.composite[flag] !== false;
  }

  get interval(): unknown {
    return this.settings?.composite.interval;
  }

  /** Returns a function that turns a flag off for good; null if this page stores no settings. */
  switchFor(flag: Flag): (() => void) | null {
    const { registry, settings } = this;
    return registry && settings ? () => void registry.set(this.plugin, flag, false).catch(() => {}) : null;
  }

  onChange(listener: () => void): void {
    this.settings?.changed.connect(listener);
  }
}
