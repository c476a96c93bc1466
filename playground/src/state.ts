// The page's state is in the fragment of its address, as internal/playground writes it: the version, then compressed JSON.
import type { Connection, Subject } from "./types";

export interface State extends Subject {
  other?: Subject;
  saved?: string;
  connection?: Connection;
  tab?: string;
}

const prefix = "#1=";
const limit = 1 << 20; // bytes of a state, as in internal/playground

/** Puts bytes through a stream. It throws if more than the limit come out. */
async function through(bytes: Uint8Array, transform: CompressionStream | DecompressionStream): Promise<Uint8Array> {
  const reader = new Blob([bytes as BlobPart]).stream().pipeThrough(transform as ReadableWritablePair<Uint8Array, Uint8Array>).getReader();
  const parts: Uint8Array[] = [];
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > limit) {
      await reader.cancel();
      throw new Error("it holds too much");
    }
    parts.push(value);
  }
  const all = new Uint8Array(size);
  let at = 0;
  for (const p of parts) {
    all.set(p, at);
    at += p.length;
  }
  return all;
}

/** Writes a fragment. It throws if the state is too big to be read again. */
export async function encode(s: State): Promise<string> {
  const plain = new TextEncoder().encode(JSON.stringify(s));
  if (plain.length > limit) throw new Error("it holds too much");
  const packed = await through(plain, new CompressionStream("deflate-raw"));
  let text = "";
  for (const b of packed) text += String.fromCharCode(b);
  return prefix + btoa(text).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

/** Reads a fragment; null if it has no state. It throws if the state cannot be read. */
export async function decode(fragment: string): Promise<State | null> {
  if (!fragment.startsWith(prefix)) return null;
  const text = atob(fragment.slice(prefix.length).replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(text, (c) => c.charCodeAt(0));
  const s = JSON.parse(new TextDecoder().decode(await through(bytes, new DecompressionStream("deflate-raw")))) as State;
  if (typeof s?.pod !== "string") throw new Error("it has no pod");
  return s;
}
