// Puts requests, a list on standard input, to the engine: node ask.mjs engine.wasm wasm_exec.js. The tests run it.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

globalThis.require = createRequire(import.meta.url); // wasm_exec.js is made for pages
const [module, glue] = process.argv.slice(2);
await import(pathToFileURL(resolve(glue)));
const go = new globalThis.Go();
const { instance } = await WebAssembly.instantiate(readFileSync(module), go.importObject);
void go.run(instance);
const answers = JSON.parse(readFileSync(0, "utf8")).map((r) => globalThis.meshcni(JSON.stringify(r)));
writeFileSync(1, JSON.stringify(answers));
process.exit(0);
