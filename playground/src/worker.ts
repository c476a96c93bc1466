// The engine in a thread of its own, so that the page never waits for it.
import "wasm_exec";

declare class Go {
  importObject: WebAssembly.Imports;
  run(instance: WebAssembly.Instance): Promise<void>;
}
declare const self: { meshcni(request: string): string; onmessage: ((e: MessageEvent) => void) | null; postMessage(m: unknown): void; close(): void };

self.onmessage = async ({ data: module }: MessageEvent<WebAssembly.Module>) => {
  const go = new Go();
  const instance = await WebAssembly.instantiate(module, go.importObject);
  void go.run(instance);
  self.onmessage = ({ data: { id, request } }: MessageEvent<{ id: number; request: string }>) => {
    self.postMessage({ id, answer: JSON.parse(self.meshcni(request)) });
  };
  self.postMessage({ ready: true });
};
