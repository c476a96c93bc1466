// Questions to the engine. Of several that wait, only the newest of its kind is asked.
import type { Failure } from "./types";

/** Loads the engine's module. It is compressed by us, so that any file server will do. */
export async function load(): Promise<WebAssembly.Module> {
  const packed = await fetch("engine.bin");
  if (!packed.ok || !packed.body) throw new Error(`engine.bin: ${packed.status} ${packed.statusText}`);
  const plain = packed.body.pipeThrough(new DecompressionStream("gzip"));
  return WebAssembly.compileStreaming(new Response(plain, { headers: { "content-type": "application/wasm" } }));
}

interface Waiting {
  kind: string;
  request: string;
  done(answer: unknown): void;
}

const patience = 60_000; // milliseconds: a question takes some, a comparison some hundred; one that takes this long is given up

export class Engine {
  private worker: Worker | null = null;
  private ready = false;
  private asked: Waiting | null = null;
  private waiting: Waiting[] = [];
  private id = 0;
  private timer = 0;

  constructor(private module: Promise<WebAssembly.Module>) {}

  /** Asks a question; null if a newer one of its kind took its place. */
  ask<T>(kind: string, request: object): Promise<T | Failure | null> {
    return new Promise((done) => {
      for (const w of this.waiting) if (w.kind === kind) w.done(null);
      this.waiting = this.waiting.filter((w) => w.kind !== kind);
      this.waiting.push({ kind, request: JSON.stringify(request), done: (a) => done(a as T | Failure | null) });
      void this.next();
    });
  }

  async start(): Promise<void> {
    if (this.worker) return;
    const worker = (this.worker = new Worker("worker.js"));
    worker.onmessage = ({ data }) => {
      if (data.ready) this.ready = true;
      else if (data.id === this.id) this.finish(data.answer);
      void this.next();
    };
    worker.onerror = () => this.broken("the engine has failed on this input");
    worker.postMessage(await this.module);
  }

  private async next(): Promise<void> {
    if (this.asked || this.waiting.length === 0) return;
    if (!this.ready) {
      await this.start();
      return;
    }
    this.asked = this.waiting.shift()!;
    this.timer = window.setTimeout(() => this.broken("this takes the engine too long"), patience);
    this.worker!.postMessage({ id: ++this.id, request: this.asked.request });
  }

  private finish(answer: unknown): void {
    window.clearTimeout(this.timer);
    const asked = this.asked;
    this.asked = null;
    asked?.done(answer);
  }

  private broken(text: string): void {
    this.worker?.terminate();
    this.worker = null;
    this.ready = false;
    this.finish({ error: { in: "engine", text } } satisfies Failure);
    void this.next();
  }
}
