// One connection, step by step, and its way through the picture of the rules.
import { around, draw } from "./chart";
import { h } from "./dom";
import type { Chart, Conversation, Failure, Passage, View, Way } from "./types";
import { failed } from "./types";

interface Step extends Passage {
  onward: boolean;
}

function steps(c: Conversation, onward = false): Step[] {
  const own = c.packets.map((p) => ({ ...p, onward }));
  return c.onward ? [...own, ...steps(c.onward, true)] : own;
}

const outcomes = {
  mesh: "It goes through the mesh", direct: "It goes past the mesh", onward: "It goes straight on", dropped: "It is dropped", broken: "It does not work", unknown: "Cannot tell",
};

/** Shows a connection. Its first packet's way is lit; the others' at a click. */
export function showWay(to: HTMLElement, picture: HTMLElement, view: View, way: Way | Failure): void {
  if (failed(way)) {
    to.replaceChildren(h("p", { class: "outcome unknown" }, way.error.text));
    showPicture(picture, view.charts, null);
    return;
  }
  const all = steps(way.conversation);
  const why = h("p", { class: "why-step" });
  const buttons = all.map((s, i) => h("button", { type: "button", "aria-pressed": "false", onclick: () => choose(i) },
    `${i + 1}. ${s.what}`, h("small", {}, `${s.sent.src} → ${s.sent.dst}`)));
  const list = (title: string, onward: boolean) => {
    const own = buttons.filter((_, i) => all[i].onward === onward);
    return own.length > 0 && h("div", { class: "packets" }, h("p", {}, title), h("ol", { class: "steps" }, ...own.map((b) => h("li", {}, b))));
  };
  const choose = (i: number) => {
    for (const [j, b] of buttons.entries()) b.setAttribute("aria-pressed", String(i === j));
    const s = all[i];
    why.replaceChildren(h("strong", {}, s.verdict + (s.to_port ? ` ${s.to_port}` : "")), `: ${s.reason} `, h("small", {}, s.path.length ? `(${s.path.join(" → ")})` : ""));
    showPicture(picture, view.charts, s);
  };
  to.replaceChildren(
    h("p", { class: "outcome " + way.class }, h("strong", {}, `${outcomes[way.class]}: ${way.said}`), way.conversation.reason),
    h("div", { class: "conversations" }, list("Its packets", false), list("What the proxy sends on", true)),
    why,
  );
  if (all.length) choose(0);
  else showPicture(picture, view.charts, null);
}

let family = "ipv4";
let everything = false; // also the chains that the packet never comes near

export function showPicture(to: HTMLElement, charts: Chart[], step: Passage | null): void {
  if (step) family = step.sent.dst.startsWith("[") ? "ipv6" : "ipv4";
  const chart = charts.find((c) => c.family === family) ?? (step ? undefined : charts[0]);
  if (!chart) {
    to.replaceChildren(h("p", { class: "lead" }, charts.length ? `There are no rules for ${family === "ipv6" ? "IPv6" : "IPv4"}.` : "There are no rules: a pod that is not captured is left alone."));
    return;
  }
  const path = step?.path ?? [];
  const near = everything ? chart : around(chart, path);
  const drawn = draw(near, path);
  const others = h("p", { class: "hint" }, h("label", {}, h("input", { type: "checkbox", checked: everything, onchange: () => { everything = !everything; showPicture(to, charts, step); to.querySelector("input")?.focus(); } }), ` all ${chart.chains.length} chains`));
  const box = h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Picture of the rules" }, drawn);
  to.replaceChildren(box, others);
  const first = drawn.querySelector<SVGGElement>(".chain.on");
  if (!first) return;
  const [a, b] = [first.getBoundingClientRect(), box.getBoundingClientRect()];
  box.scrollTo({ left: Math.max(0, a.left - b.left - 20), top: Math.max(0, a.top - b.top - 20) });
}
