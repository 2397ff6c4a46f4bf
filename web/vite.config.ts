/// <reference types="vitest/config" />
import { defineConfig } from "vite";

// One script and one style sheet, with names that do not change: the package puts them into the page.
export default defineConfig({
  test: { testTimeout: 240_000 }, // milliseconds: other tests may keep the machine busy
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none", charset: "ascii" },
  build: {
    outDir: "../src/meshwright/show/assets",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    rollupOptions: {
      input: "src/main.tsx",
      output: { format: "iife", entryFileNames: "app.js", assetFileNames: "app[extname]" },
    },
  },
});
