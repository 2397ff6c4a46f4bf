// Writes the hash of all sources beside what was built from them. tests/show/test_assets.py computes it again, without
// Node, and so tells when the built files are stale.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";

const files = [
  "package.json",
  "package-lock.json",
  "tsconfig.json",
  "vite.config.ts",
  "stamp.mjs",
  ...readdirSync("src")
    .filter((name) => !name.includes(".test."))
    .map((name) => `src/${name}`),
].sort();
const hash = createHash("sha256");
for (const file of files) {
  hash.update(`${file}\n`);
  hash.update(readFileSync(file));
}
writeFileSync("../src/meshwright/show/assets/sources.sha256", `${hash.digest("hex")}\n`);
