import { resolve } from "node:path";
import { defineConfig } from "vitest/config";

export default defineConfig({
  define: { CHART_HASH: JSON.stringify("test") },
  plugins: [
    {
      // As in build.mjs: a style sheet is its text.
      name: "css-as-text",
      enforce: "pre",
      resolveId: (source, importer) =>
        source.endsWith(".css") ? `${resolve(importer ?? "", "..", source)}?raw` : undefined,
    },
  ],
  test: {
    include: ["tests/**/*.test.ts"],
    css: true, // or vitest empties them, also as text
    // By name, since vitest picks another where it sees a CI or an agent; its closing lines are read.
    reporters: ["default"],
    restoreMocks: true,
    testTimeout: 120_000,
  },
});
