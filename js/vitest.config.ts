import { readFileSync } from "node:fs";
import { defineConfig } from "vitest/config";

export default defineConfig({
  define: { CHART_HASH: JSON.stringify("test") },
  plugins: [
    {
      // As in build.mjs: a style sheet is its text.
      name: "css-as-text",
      enforce: "pre",
      load: (id) =>
        id.endsWith(".css") ? `export default ${JSON.stringify(readFileSync(id, "utf8"))}` : undefined,
    },
  ],
  test: { include: ["tests/**/*.test.ts"], restoreMocks: true, testTimeout: 120_000 },
});
