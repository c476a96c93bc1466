// The picture: each chain is a box of its rules, and a line leads from a rule to the chain that it jumps to.
import { Graph, layout } from "@dagrejs/dagre";
import { svg } from "./dom";
import type { Box, Chart, Row } from "./types";

const width = 364;
const head = 30;
const line = 20;
const gap = 34;
const chars = 43; // of a rule's text that fit into a line

const heightOf = (_: Row) => line + 22;
const height = (b: Box) => head + Math.max(b.rows.reduce((sum, r) => sum + heightOf(r), 0), 14) + 6;
/** Names of matches say nothing that the match itself does not. */
const brief = (match: string) => match.replace(/(^| )-m \w+(?= )/g, "").trim() || "all";
const cut = (s: string, n: number) => (s.length > n ? s.slice(0, n - 1) + "…" : s);

/** What a rule does, short enough for its badge. */
function badge(r: Row): string {
  if (r.to) return "→ " + r.to.slice(r.to.indexOf("/") + 1);
  if (r.end?.startsWith("proxy:")) return "→ proxy " + r.end.slice(6);
  if (r.end?.startsWith("to:")) return "→ " + r.end.slice(3);
  if (r.end === "pass") return "pass";
  if (r.end === "drop") return "drop";
  return r.does === "back to the caller" ? "return" : r.does;
}

/** The chains of a path and those that they lead to; all chains without a path. */
export function around(chart: Chart, path: string[]): Chart {
  const met = new Set(path.map((p) => p.slice(0, p.lastIndexOf(":"))));
  for (let before = 0; before < met.size; ) {
    before = met.size;
    for (const b of chart.chains)
      for (const r of b.rows) if (r.to && met.has(b.id)) met.add(r.to);
  }
  return met.size ? { ...chart, chains: chart.chains.filter((b) => met.has(b.id)) } : chart;
}

/** Draws a family's rules, with the rules of a packet's path lit up, in their order. */
export function draw(chart: Chart, path: string[]): SVGSVGElement {
  const g = new Graph({ multigraph: true });
  g.setGraph({ rankdir: "TB", nodesep: gap, ranksep: 44, marginx: 8, marginy: 8 });
  g.setDefaultEdgeLabel(() => ({}));
  const boxes = new Map(chart.chains.map((b) => [b.id, b]));
  for (const b of chart.chains) g.setNode(b.id, { width, height: height(b) });
  for (const b of chart.chains)
    for (const r of b.rows) if (r.to && boxes.has(r.to)) g.setEdge(b.id, r.to, {}, r.id);
  layout(g);
  const size = g.graph() as { width: number; height: number };
  const root = svg("svg", {
    viewBox: `0 0 ${Math.ceil(size.width)} ${Math.ceil(size.height)}`, width: Math.ceil(size.width), height: Math.ceil(size.height), style: `min-width: ${Math.ceil(size.width * 0.85)}px`,
    role: "img", "aria-label": `The ${chart.family} rules: ${chart.chains.length} chains` + (path.length ? `; the packet meets ${path.join(", ")}` : ""),
    class: path.length ? "chart lit" : "chart",
  });
  root.append(svg("defs", {}, marker("arrow"), marker("arrow-lit")));
  const at = (id: string) => g.node(id) as unknown as { x: number; y: number; height: number };
  const lines: SVGElement[] = [];
  for (const b of chart.chains) {
    const n = at(b.id);
    const left = n.x - width / 2;
    const top = n.y - n.height / 2;
    const inside = path.some((p) => p.startsWith(b.id + ":"));
    const group = svg("g", { class: inside ? "chain on" : "chain", transform: `translate(${left},${top})` });
    group.append(svg("rect", { class: "box", width, height: n.height, rx: 8 }));
    group.append(svg("text", { class: "name", x: 12, y: 20 }, b.name), svg("text", { class: "table", x: width - 12, y: 20, "text-anchor": "end" }, b.table));
    let y = head;
    let turn = 0;
    const turns = b.rows.filter((r) => r.to && boxes.has(r.to)).length;
    for (const r of b.rows) {
      const h = heightOf(r);
      group.append(row(r, y, h, path));
      if (r.to && boxes.has(r.to)) {
        const t = at(r.to);
        const lit = path.includes(r.id);
        // From the rule's badge along the side of its box, then to the top of the chain.
        const [x1, y1, x2, y2] = [left + width - 8, top + y + 29, t.x + 6 * turn, t.y - t.height / 2];
        const side = left + width + 8 + 5 * turn;
        const under = Math.max(top + n.height + 12 + 6 * (turns - turn), y1);
        turn++;
        const d = `M${x1},${y1} H${side} V${under} H${x2} V${y2 - 2}`;
        const l = svg("path", { d, class: lit ? "jump on" : "jump", "marker-end": `url(#${lit ? "arrow-lit" : "arrow"})` });
        if (lit) lines.push(l);
        else lines.unshift(l);
      }
      y += h;
    }
    if (b.rows.length === 0) group.append(svg("text", { class: "why", x: 12, y: head + 10 }, "no rules: back to the caller"));
    root.append(group);
  }
  root.append(...lines);
  return root;
}

function row(r: Row, y: number, h: number, path: string[]): SVGElement {
  const step = path.indexOf(r.id);
  const g = svg("g", { class: step >= 0 ? "rule on" : "rule", "data-rule": r.id });
  const text = badge(r);
  const kind = r.end?.split(":")[0] ?? (r.to ? "go" : "more");
  const w = Math.min(text.length, 24) * 6.4 + 14;
  g.append(
    svg("title", {}, `${r.id} ${r.match || "all"}: ${r.does}${r.why ? "\n" + r.why : ""}`),
    svg("rect", { class: "row", x: 4, y, width: width - 8, height: h - 2, rx: 5 }),
    svg("text", { class: "match", x: 30, y: y + 15 }, cut(brief(r.match), chars)),
    svg("text", { class: "number", x: 12, y: y + 15 }, step >= 0 ? "●" : r.id.slice(r.id.lastIndexOf(":") + 1)),
    svg("rect", { class: "badge " + kind, x: width - w - 8, y: y + 20, width: w, height: 17, rx: 8.5 }),
    svg("text", { class: "does " + kind, x: width - w / 2 - 8, y: y + 32.5, "text-anchor": "middle" }, cut(text, 24)),
  );
  if (r.why) g.append(svg("text", { class: "why", x: 30, y: y + 32 }, cut(r.why, Math.floor((width - w - 46) / 5.9))));
  return g;
}

function marker(id: string): SVGElement {
  return svg("marker", { id, viewBox: "0 0 10 10", refX: 9, refY: 5, markerUnits: "userSpaceOnUse", markerWidth: 10, markerHeight: 10, orient: "auto" }, svg("path", { d: "M0,0 L10,5 L0,10 z", class: id }));
}
