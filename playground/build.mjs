// Builds the page into dist/: the engine by Go, the rest by esbuild. `node build.mjs --serve` also serves it, on loopback.
import { execFile } from "node:child_process";
import { copyFile, mkdir, readFile, rm, writeFile } from "node:fs/promises";
import path from "node:path";
import { promisify } from "node:util";
import { gzipSync } from "node:zlib";
import * as esbuild from "esbuild";

const here = import.meta.dirname;
const dist = path.join(here, "dist");
const run = async (program, args, env = {}) =>
  (await promisify(execFile)(program, args, { cwd: here, env: { ...process.env, ...env }, maxBuffer: 1 << 26 })).stdout;

await rm(dist, { recursive: true, force: true });
await mkdir(dist, { recursive: true });

const engine = path.join(dist, "engine.wasm");
const goroot = (await run("go", ["env", "GOROOT"])).trim();
const wasm = run("go", ["build", "-trimpath", "-ldflags=-s -w", "-o", engine, "./wasm"], { GOOS: "js", GOARCH: "wasm", CGO_ENABLED: "0" });
const examples = run("go", ["run", "./examples"]);

await esbuild.build({
  absWorkingDir: here,
  entryPoints: ["src/main.ts", "src/worker.ts"],
  alias: { wasm_exec: path.join(goroot, "lib/wasm/wasm_exec.js") },
  bundle: true, minify: true, format: "esm", target: "es2022", outdir: dist, legalComments: "linked", logLevel: "warning",
});
await esbuild.build({ absWorkingDir: here, entryPoints: ["src/style.css"], minify: true, outdir: dist, logLevel: "warning" });
await copyFile(path.join(here, "src/index.html"), path.join(dist, "index.html"));
await writeFile(path.join(dist, "examples.json"), await examples);

// Compressed here, the module needs nothing of a file server; the page unpacks it while it is compiled.
await wasm;
await writeFile(path.join(dist, "engine.bin"), gzipSync(await readFile(engine), { level: 9 }));
await rm(engine);

if (process.argv.includes("--serve")) {
  const served = await (await esbuild.context({})).serve({ servedir: dist, host: "127.0.0.1", port: 8000 });
  console.log(`the playground is at http://127.0.0.1:${served.port}/, until you press Ctrl-C`);
}
