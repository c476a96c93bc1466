// The answer in words, first of all for somebody who knows none of our terms.
import { h } from "./dom";
import type { Failure, View } from "./types";

const marks = { captured: "✓", outside: "–", refused: "✕", failed: "✕", unknown: "?" };
const places: Record<string, string> = {
  pod: "This is not a pod that can be read", namespace: "The namespace cannot be read", config: "An option is wrong",
};

function list(items: string[]): Node {
  return items.length === 1 ? document.createTextNode(items[0]) : h("ul", {}, ...items.map((i) => h("li", {}, i)));
}

function parts(...pairs: [string, string[]][]): HTMLElement {
  return h("dl", {}, ...pairs.filter(([, items]) => items.length > 0).flatMap(([title, items]) => [h("dt", {}, title), h("dd", {}, list(items))]));
}

// The command line's word on a namespace that was not given names a flag, which this page does not have.
function onPage(text: string): string {
  return text.replace("give it with --namespace-file", "paste it under Namespace").replace("Give the namespace too (--namespace-file)", "Paste the namespace under Namespace");
}

export function showVerdict(to: HTMLElement, view: View): void {
  const v = view.explanation.verdict;
  to.className = "verdict " + v.state + (v.past.length ? " leaky" : "");
  const { namespace, name } = view.explanation.pod;
  to.replaceChildren(
    h("h2", {}, h("span", { class: "mark", "aria-hidden": "true" }, marks[v.state]), v.sentence),
    parts(["Because", v.because], ["What to do", v.do.map(onPage)], ["Left out", v.excluded.map((n) => n.what)], ["Pod", [`${namespace}/${name || "(no name)"}`]]),
  );
  if (v.state === "outside") to.lastElementChild!.append(h("dt", {}, "Reason code"), h("dd", {}, h("code", {}, v.code)));
  for (const p of v.past)
    to.append(h("div", { class: "past" }, h("p", {}, h("strong", {}, "Some traffic gets past the mesh: "), p.what), h("p", {}, "To close it: ", p.do)));
  const cures = new Map(v.warnings.map((n) => [n.what, n.do]));
  const warnings = view.explanation.warnings.map((w) => onPage(w) + (cures.get(w) ? ` (what helps: ${cures.get(w)})` : ""));
  if (warnings.length)
    to.append(h("details", { open: warnings.length < 3 }, h("summary", {}, warnings.length === 1 ? "1 warning" : `${warnings.length} warnings`), h("ul", {}, ...warnings.map((w) => h("li", {}, w)))));
  const answers = view.explanation.answers ?? [];
  if (answers.length)
    to.append(h("details", {}, h("summary", {}, "What each mesh says"), h("ul", {}, ...answers.map((a) => h("li", {}, h("strong", {}, a.dialect), `: ${a.detail} `, h("span", { class: "code" }, `(${a.reason})`))))));
}

export function showError(to: HTMLElement, f: Failure): void {
  to.className = "verdict error";
  to.replaceChildren(
    h("h2", {}, h("span", { class: "mark", "aria-hidden": "true" }, "!"), places[f.error.in] ?? "This cannot be answered"),
    h("pre", {}, f.error.text),
  );
}
