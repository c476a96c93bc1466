// What the engine (internal/playground/engine) says, as far as the page shows it.

export interface Connection {
  direction: "out" | "in";
  who?: "app" | "proxy";
  proto: "tcp" | "udp";
  src?: string;
  dst: string;
  port: number;
}

export interface Subject {
  pod: string;
  namespace?: string;
  config?: Config;
}

/** The plugin's entry, as far as it is about a pod (docs/configuration.md). */
export interface Config {
  dialect?: string | string[];
  kubernetes?: { exclude_namespaces?: string[]; exclude_namespace_selector?: string };
  uncaptured_family?: string;
  refuse_proxy_uid?: boolean;
  refuse_net_raw?: boolean;
  ambient?: {
    dns_capture?: boolean;
    ipv6?: boolean;
    /** As text, the YAML that the form has. */
    enablement_selectors?: string | unknown[];
    probe_ipv4?: string;
    probe_ipv6?: string;
    [key: string]: unknown;
  };
  [key: string]: unknown;
}

export type Cls = "mesh" | "direct" | "onward" | "dropped" | "broken" | "unknown";

export interface Cell {
  family: string;
  who: string;
  what: string;
  ask: Connection;
  class: Cls;
  said: string;
  why: string;
}

export interface Row {
  id: string;
  match: string;
  why?: string;
  does: string;
  to?: string;
  end?: string;
}

export interface Box {
  id: string;
  table: string;
  name: string;
  rows: Row[];
}

export interface Chart {
  family: string;
  chains: Box[];
}

export interface Origin {
  source: string;
  key?: string;
  value?: string;
}

export interface Notice {
  code: string;
  what: string;
  do: string;
}

export interface Verdict {
  code: string;
  state: "captured" | "outside" | "refused" | "failed" | "unknown";
  mesh?: string;
  sentence: string;
  because: string[];
  do: string[];
  past: Notice[];
  excluded: Notice[];
  warnings: Notice[];
}

export interface View {
  explanation: {
    pod: { namespace: string; name: string };
    verdict: Verdict;
    dialect: string;
    decision: { selected: boolean; reason: string; detail: string };
    warnings: string[];
    settings?: { field: string; value?: unknown; from: Origin }[];
    answers?: { dialect: string; selected: boolean; reason: string; detail: string }[];
  };
  iptables: string;
  nft: string;
  charts: Chart[];
  matrix: Cell[];
}

export interface Passage {
  what: string;
  from: string;
  to?: string;
  verdict: string;
  to_port: number;
  path: string[];
  reason: string;
  sent: { src: string; dst: string };
  arrived?: { src: string; dst: string };
}

export interface Conversation {
  verdict: string;
  reason: string;
  packets: Passage[];
  onward?: Conversation;
}

export interface Way {
  class: Cls;
  said: string;
  conversation: Conversation;
}

export interface Compared {
  same: boolean;
  packets: number;
  connections: number;
  count: number;
  foreign: { family?: string; table: string; chain: string; rule: string; foreign: string }[];
  groups: { kind: string; other: string; otherIs: string; this: string; thisIs: string; examples: string[]; count: number }[];
}

export interface Failure {
  error: { in: string; text: string };
}

export interface Example extends Subject {
  group: string;
  title: string;
  key?: string;
}

export function failed(answer: unknown): answer is Failure {
  return typeof answer === "object" && answer !== null && "error" in answer;
}
