// Questions to the engine. Of several that wait, only the newest of its kind is asked.
import type { Failure } from "./types";

/** Fetches one of the page's own files. */
export async function file(name: string): Promise<Response> {
  const got = await fetch(name);
  if (!got.ok) throw new Error(`${name}: ${got.status} ${got.statusText}`);
  return got;
}

/** Loads the engine's module. It is compressed by us, so that any file server will do. */
export async function load(): Promise<WebAssembly.Module> {
  const plain = (await file("engine.bin")).body!.pipeThrough(new DecompressionStream("gzip"));
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
      this.next();
    });
  }

  start(): void {
    if (this.worker) return;
    const worker = (this.worker = new Worker("worker.js"));
    worker.onmessage = ({ data }) => {
      if (data.ready) this.ready = true;
      else if (data.id === this.id) this.finish(data.answer);
      this.next();
    };
    worker.onerror = () => this.broken(this.ready ? "the engine has failed on this input" : "the engine cannot be started");
    this.module.then((m) => worker.postMessage(m), (e) => this.broken(`the engine cannot be loaded: ${e instanceof Error ? e.message : e}`));
  }

  private next(): void {
    if (this.asked || this.waiting.length === 0) return;
    if (!this.ready) return this.start();
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

  /** Gives up the thread, and what it was asked. One that did not start will not start for what waits either. */
  private broken(text: string): void {
    const failure: Failure = { error: { in: "engine", text } };
    if (!this.ready) for (const w of this.waiting.splice(0)) w.done(failure);
    this.worker?.terminate();
    this.worker = null;
    this.ready = false;
    this.finish(failure);
    this.next();
  }
}
