// The engine in a thread of its own, so that the page never waits for it.
import "wasm_exec";

declare class Go {
  importObject: WebAssembly.Imports;
  run(instance: WebAssembly.Instance): Promise<void>;
}
declare const self: { meshcni(request: string): string; onmessage: ((e: MessageEvent) => void) | null; postMessage(m: unknown): void; reportError(e: unknown): void };

self.onmessage = async ({ data: module }: MessageEvent<WebAssembly.Module>) => {
  const go = new Go();
  const instance = await WebAssembly.instantiate(module, go.importObject).catch((e) => {
    self.reportError(e); // what a promise fails by does not come to the page by itself
    throw e;
  });
  void go.run(instance);
  self.onmessage = ({ data: { id, request } }: MessageEvent<{ id: number; request: string }>) => {
    self.postMessage({ id, answer: JSON.parse(self.meshcni(request)) });
  };
  self.postMessage({ ready: true });
};
