import { byId, h, tabs } from "./dom";
import { showCompared, showMatrix, showSettings } from "./details";
import { editor } from "./editor";
import { Engine, file, load } from "./engine";
import { decode, encode, type State } from "./state";
import { showPicture, showWay } from "./trace";
import type { Compared, Config, Connection, Example, Failure, Subject, View, Way } from "./types";
import { failed } from "./types";
import { showError, showVerdict } from "./verdict";

const module = load();
const engine = new Engine(module);
const comparer = new Engine(module); // by itself: a comparison takes longer than a keystroke
const everyMesh = ["istio", "ambient", "linkerd", "kuma", "consul"];

let state: State = { pod: "" };
let view: View | null = null;
let examples: Example[] = [];

const verdict = byId("verdict");
const detail = byId("detail");
const options = byId<HTMLFormElement>("options");
const connection = byId<HTMLFormElement>("connection");
const example = byId<HTMLSelectElement>("example");
const kind = byId<HTMLSelectElement>("with");

const podEditor = editor(byId("edit-pod"), { label: "Pod, YAML or JSON", hint: "Paste a pod here", changed: (text) => change({ pod: text }) });
const namespaceEditor = editor(byId("edit-namespace"), { label: "Namespace, YAML or JSON", hint: "Empty: not known", changed: (text) => change({ namespace: text }) });
const otherEditor = editor(byId("edit-other"), {
  label: "Another pod, YAML or JSON", hint: "Paste another pod here",
  changed: (text) => change({ other: text.trim() ? { ...(state.other ?? besides()), pod: text } : undefined }),
});
const savedEditor = editor(byId("edit-saved"), { label: "Saved rules", hint: "Paste saved rules here", yaml: false, changed: (text) => change({ saved: text.trim() ? text : undefined }) });

const showInput = tabs(byId("inputs"), () => undefined);
const showDetail = tabs(byId("details"), (name) => {
  if (state.tab === name) return;
  state.tab = name;
  keep();
  if (name === "compare") void compare();
  if (name === "trace") void follow();
});

const subject = (): Subject => ({ pod: state.pod, namespace: state.namespace, config: state.config });
/** What another pod is taken to have: this one's namespace and options. */
const besides = (): Omit<Subject, "pod"> => ({ namespace: state.namespace, config: state.config });

function change(to: Partial<State>): void {
  state = { ...state, ...to };
  example.selectedIndex = 0;
  keep();
  void look();
}

// The address follows the state, though not with each keystroke.
let keeping = 0;
let kept = "";
function keep(): void {
  window.clearTimeout(keeping);
  keeping = window.setTimeout(() => void address(), 300);
}

/** Writes the state into the address; false if it is too big for one. */
async function address(): Promise<boolean> {
  const fragment = await encode(state).catch(() => null);
  kept = fragment ?? "";
  history.replaceState(null, "", fragment ?? location.pathname + location.search);
  return fragment !== null;
}

/** Shows what is wrong in place of an answer. */
function fail(f: Failure): void {
  view = null;
  detail.hidden = true;
  showError(verdict, f);
}

/** Shows what went wrong, and why. */
function failBy(where: string, text: string, why: unknown): void {
  fail({ error: { in: where, text: `${text}: ${why instanceof Error ? why.message : why}` } });
}

// The page tells tests, and whoever else drives it, which question its answer is to: the last one, or one before.
let looks = 0;
async function look(): Promise<void> {
  const asked = String(++looks);
  document.body.dataset.asked = asked;
  if (await showAnswer()) document.body.dataset.answered = asked;
}

/** Shows what becomes of the pod; false if a newer question took this one's place. */
async function showAnswer(): Promise<boolean> {
  if (!state.pod.trim()) {
    verdict.className = "verdict";
    verdict.replaceChildren(h("h2", {}, "Paste a pod, or choose an example"), h("p", {}, "Any pod will do, also one that is not in a mesh yet."));
    detail.hidden = true;
    return true;
  }
  const answer = await engine.ask<View>("look", { op: "look", ...subject() });
  if (answer === null) return false;
  if (failed(answer)) {
    fail(answer);
    return true;
  }
  view = answer;
  showVerdict(verdict, view);
  if (performance.getEntriesByName("first answer").length === 0) performance.mark("first answer");
  detail.hidden = view.explanation.verdict.state === "refused";
  if (detail.hidden) return true;
  showMatrix(byId("out-matrix"), view.matrix, (c) => {
    state.connection = c;
    fillConnection();
    showDetail("trace");
    byId("tab-trace").focus();
    void follow();
    keep();
  });
  showSettings(byId("out-settings"), view);
  showRules();
  if (!state.connection && view.matrix.length) state.connection = view.matrix[0].ask;
  fillConnection();
  if (state.tab === "trace") void follow();
  if (state.tab === "compare") void compare();
  return true;
}

function showRules(): void {
  if (!view) return;
  const format = byId<HTMLSelectElement>("format").value;
  byId("rules").textContent = (format === "nft" ? view.nft : view.iptables) || "# no rules: this pod's traffic is left alone";
}

async function follow(): Promise<void> {
  if (!view || !state.connection) return;
  const shown = view;
  const answer = await engine.ask<Way>("trace", { op: "trace", ...subject(), connection: state.connection });
  if (answer === null || shown !== view) return;
  showWay(byId("way"), byId("picture"), view, answer);
}

function fillConnection(): void {
  const c = state.connection;
  if (!c || connection.contains(document.activeElement)) return;
  const field = (name: string) => connection.elements.namedItem(name) as HTMLInputElement;
  field("from").value = c.direction === "in" ? "in" : (c.who ?? "app");
  field("src").value = c.src ?? "";
  field("dst").value = c.dst;
  field("port").value = String(c.port || "");
  field("proto").value = c.proto;
  showSource();
}

const showSource = () => {
  connection.querySelector<HTMLElement>("[data-for=in]")!.hidden = (connection.elements.namedItem("from") as HTMLSelectElement).value !== "in";
};

connection.addEventListener("submit", (e) => e.preventDefault());
connection.addEventListener("input", () => {
  const f = new FormData(connection);
  const text = (name: string) => String(f.get(name) ?? "").trim();
  const port = /^\d{1,5}$/.test(text("port")) && Number(text("port")) < 65536 ? Number(text("port")) : 0;
  const proto = text("proto") as Connection["proto"];
  state.connection = text("from") === "in"
    ? { direction: "in", proto, src: text("src"), dst: text("dst"), port }
    : { direction: "out", who: text("from") as Connection["who"], proto, dst: text("dst"), port };
  showSource();
  keep();
  void follow();
});

async function compare(): Promise<void> {
  const to = byId("compared");
  const saved = kind.value === "saved";
  if (!view || (saved ? !state.saved : !state.other)) {
    to.replaceChildren();
    return;
  }
  const answer = await comparer.ask<Compared>("compare", { op: "compare", ...subject(), ...(saved ? { saved: state.saved } : { other: state.other }) });
  if (answer !== null) showCompared(to, answer);
}

kind.addEventListener("change", () => {
  byId("edit-other").hidden = byId("take").hidden = kind.value === "saved";
  byId("edit-saved").hidden = byId("saved-hint").hidden = kind.value !== "saved";
  void compare();
});
byId("take").addEventListener("click", () => {
  state.other = subject();
  otherEditor.set(state.pod);
  keep();
  void compare();
});

const split = (text: string) => text.split(/[\s,]+/).filter((s) => s !== "");

options.addEventListener("submit", (e) => e.preventDefault());
options.addEventListener("input", () => {
  const f = new FormData(options);
  const text = (name: string) => String(f.get(name) ?? "").trim();
  const c: Config = { ...(state.config ?? {}) }; // keys that the form does not have stay
  const set = (key: string, value: unknown) => {
    if (value) c[key] = value;
    else delete c[key];
  };
  const meshes = text("dialect") === "*" ? everyMesh : text("dialect").split(",");
  set("dialect", meshes.length > 1 ? meshes : meshes[0]);
  set("uncaptured_family", text("uncaptured_family"));
  set("refuse_proxy_uid", f.has("refuse_proxy_uid"));
  set("refuse_net_raw", f.has("refuse_net_raw"));
  const names = split(text("exclude_namespaces"));
  const selector = text("exclude_namespace_selector");
  set("kubernetes", (names.length || selector) && { ...(names.length ? { exclude_namespaces: names } : {}), ...(selector ? { exclude_namespace_selector: selector } : {}) });
  const { dns_capture: _d, ipv6: _i, enablement_selectors: _e, probe_ipv4: _4, probe_ipv6: _6, ...ambient } = c.ambient ?? {};
  if (!f.has("ambient_dns_capture")) ambient.dns_capture = false;
  if (!f.has("ambient_ipv6")) ambient.ipv6 = false;
  for (const key of ["enablement_selectors", "probe_ipv4", "probe_ipv6"] as const) if (text("ambient_" + key)) ambient[key] = text("ambient_" + key);
  set("ambient", Object.keys(ambient).length ? ambient : undefined);
  change({ config: c });
});

function fillOptions(): void {
  const c = state.config ?? {};
  const field = (name: string) => options.elements.namedItem(name) as HTMLInputElement & HTMLSelectElement;
  const names = c.dialect === undefined ? ["istio"] : [c.dialect].flat();
  const dialect = field("dialect") as unknown as HTMLSelectElement;
  const value = names.join() === everyMesh.join() ? "*" : names.join();
  if (![...dialect.options].some((o) => o.value === value)) dialect.add(new Option(names.join(", then "), value));
  dialect.value = value;
  field("uncaptured_family").value = c.uncaptured_family === "drop" ? "drop" : "";
  field("refuse_proxy_uid").checked = !!c.refuse_proxy_uid;
  field("refuse_net_raw").checked = !!c.refuse_net_raw;
  field("exclude_namespaces").value = (c.kubernetes?.exclude_namespaces ?? []).join(", ");
  field("exclude_namespace_selector").value = c.kubernetes?.exclude_namespace_selector ?? "";
  field("ambient_dns_capture").checked = c.ambient?.dns_capture !== false;
  field("ambient_ipv6").checked = c.ambient?.ipv6 !== false;
  const selectors = c.ambient?.enablement_selectors;
  field("ambient_enablement_selectors").value = selectors === undefined || typeof selectors === "string" ? (selectors ?? "") : JSON.stringify(selectors, null, 1);
  field("ambient_probe_ipv4").value = c.ambient?.probe_ipv4 ?? "";
  field("ambient_probe_ipv6").value = c.ambient?.probe_ipv6 ?? "";
}

for (const button of byId("fill-namespace").querySelectorAll("button"))
  button.addEventListener("click", () => {
    const name = JSON.stringify(view?.explanation.pod.namespace || "default"); // quoted, it is no number or truth value
    const labels = button.dataset.labels;
    const namespace = labels === undefined ? "" : `apiVersion: v1\nkind: Namespace\nmetadata:\n  name: ${name}\n  labels: ${labels}\n`;
    namespaceEditor.set(namespace);
    change({ namespace });
  });

/** Shows a state that did not come from the editors. */
function open(s: State): void {
  state = s;
  podEditor.set(s.pod);
  namespaceEditor.set(s.namespace ?? "");
  otherEditor.set(s.other?.pod ?? "");
  savedEditor.set(s.saved ?? "");
  kind.value = s.saved && !s.other ? "saved" : "other";
  kind.dispatchEvent(new Event("change"));
  fillOptions();
  showDetail(s.tab ?? "matrix");
  void look();
}

example.addEventListener("change", () => {
  const e = examples[Number(example.value)];
  if (!e) return;
  const { pod, namespace, config } = e;
  open({ pod, namespace, config, other: state.other, saved: state.saved, tab: state.tab });
  keep();
});

function fillExamples(): void {
  const groups = new Map<string, HTMLElement>();
  example.replaceChildren(h("option", { value: "" }, "choose one, or paste your own below"));
  for (const [i, e] of examples.entries()) {
    let group = groups.get(e.group);
    if (!group) groups.set(e.group, (group = h("optgroup", { label: e.group })));
    group.append(h("option", { value: i }, e.title));
  }
  example.append(...groups.values());
}

function said(button: HTMLElement, text: string): void {
  const before = button.dataset.label ?? (button.dataset.label = button.textContent ?? "");
  button.textContent = text;
  window.setTimeout(() => (button.textContent = before), 1500);
}

byId("share").addEventListener("click", async () => {
  if (!(await address())) return said(byId("share"), "Too big for a link");
  await navigator.clipboard.writeText(location.href).then(() => said(byId("share"), "Copied"), () => said(byId("share"), "See the address bar"));
});
byId("copy-rules").addEventListener("click", () => {
  void navigator.clipboard.writeText(byId("rules").textContent ?? "").then(() => said(byId("copy-rules"), "Copied"), () => said(byId("copy-rules"), "Not allowed"));
});
byId("format").addEventListener("change", showRules);

const theme = byId("theme");
function setTheme(dark: boolean): void {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  theme.setAttribute("aria-pressed", String(dark));
}
theme.addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme !== "dark";
  setTheme(dark);
  try {
    localStorage.setItem("theme", dark ? "dark" : "light");
  } catch {
    // storage may be off; the choice then lasts as long as the page
  }
});
const system = window.matchMedia("(prefers-color-scheme: dark)");
let chosen: string | null = null;
try {
  chosen = localStorage.getItem("theme");
} catch {
  chosen = null;
}
setTheme(chosen ? chosen === "dark" : system.matches);
system.addEventListener("change", (e) => setTheme(e.matches));

async function fromAddress(): Promise<State | null> {
  try {
    return await decode(location.hash);
  } catch (e) {
    failBy("link", "The link cannot be read", e);
    return { pod: "" };
  }
}

window.addEventListener("hashchange", async () => {
  if (location.hash === kept) return;
  const s = await fromAddress();
  if (s?.pod) open(s);
});

async function begin(): Promise<void> {
  engine.start();
  const [s, list] = await Promise.all([fromAddress(), file("examples.json").then((r) => r.json() as Promise<Example[]>)]);
  examples = list;
  fillExamples();
  if (s) {
    if (s.pod) open(s);
    return;
  }
  const { pod, namespace, config } = examples[1];
  open({ pod, namespace, config });
  example.value = "1";
}

showInput("pod");
showPicture(byId("picture"), [], null);
begin().catch((e) => failBy("examples", "The examples cannot be loaded", e));
