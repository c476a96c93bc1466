package status

// Remedies of several rows.
const (
	again      Remedy = "Nothing: it is tried again; if it stays so: kubectl meshcni check"
	soon       Remedy = "Ask again in a few seconds"
	whoChanges Remedy = "If it happens again, find out who changes them: kubectl meshcni show"
	seeLog     Remedy = "See the agent's log"
	mend       Remedy = "Mend what is named (docs/troubleshooting.md#my-pod-does-not-start); it then starts by itself"
	byDesign   Remedy = "Nothing"
	// sharedKernel is for pods of sandboxed runtimes.
	sharedKernel Remedy = "Give it a runtime class that shares the node's kernel, or take it out of the mesh"
	smaller      Remedy = "Make labels, annotations and containers smaller: 64 KiB are kept"
)

const nodeProxy = "troubleshooting.md#pods-of-a-proxy-on-the-node"

// short are the states of a pod that lacks something of the node's proxy: before it was captured, and after.
var short = []State{StateWaiting, StateDrifted}

func only(s State) []State { return []State{s} }

// podTable has the reasons of a pod's state.
func podTable() []Row {
	return []Row{
		{Kind: KindPod, Code: "recorded", States: only(StateCaptured), Sentence: "the plugin wrote its rules when it started"},
		{Kind: KindPod, Code: "attached", States: only(StateCaptured), Sentence: "the plugin was called when it started"},
		{Kind: KindPod, Code: "check-passed", States: only(StateCaptured), Sentence: "the mesh's check in the pod has passed"},
		{Kind: KindPod, Code: "verified", States: only(StateCaptured), Sentence: "the agent has compared its rules"},
		{Kind: KindPod, Code: "captured", Event: "MeshEnrolled", States: only(StateCaptured), Sentence: "the node's proxy listens in it, and its rules are there", Page: nodeProxy},

		{Kind: KindPod, Code: CodeNotCalled, States: only(StateFailed), Attention: true, Page: "troubleshooting.md#a-pod-started-without-the-plugin",
			Sentence: "it started before the plugin was on its node, or while its entry was gone", Do: []Remedy{Restart}},
		{Kind: KindPod, Code: "passed-over", States: only(StateFailed), Attention: true,
			Sentence: "the plugin left it alone when it started, and would not do so now", Do: []Remedy{Restart}},
		{Kind: KindPod, Code: "no-rules", States: only(StateFailed), Attention: true,
			Sentence: "none of its rules are there, and it seems that none ever were", Do: []Remedy{Restart}},
		{Kind: KindPod, Code: "rules", States: only(StateDrifted), Attention: true, Page: "troubleshooting.md#meshcnirulesdrifted",
			Sentence: "it has other rules than it should have",
			Do:       []Remedy{Restart, "If it happens again, find out who changes them"}},

		{Kind: KindPod, Code: "sandboxed", Event: "MeshBypass", States: only(StateFailed), Attention: true, Page: troubleshooting + "ways-past-the-mesh",
			Sentence: "its packets do not come to its rules: an interface hands them on before, or none has its addresses", Do: []Remedy{sharedKernel}},

		{Kind: KindPod, Code: CodePodRefused, States: []State{StateWaiting, StateFailed}, Attention: true, Page: "troubleshooting.md#meshcnipodsrefused",
			Sentence: "its settings are refused", Do: []Remedy{"Correct the settings that are named"}},
		{Kind: KindPod, Code: "add-failed", States: only(StateWaiting), Attention: true, Page: "troubleshooting.md#my-pod-does-not-start",
			Sentence: "the plugin could not set it up", Do: []Remedy{mend}},

		{Kind: KindPod, Code: "cannot-tell", States: only(StateUnknown), Attention: true, Page: "troubleshooting.md#meshcniverificationfails",
			Sentence: "its rules are there, and whether its packets come to them cannot be told: somebody else's rule is before them",
			Do:       []Remedy{"See the rule: kubectl meshcni explain", Restart}},
		{Kind: KindPod, Code: "no-trace", States: only(StateUnknown),
			Sentence: "neither the plugin's records nor the runtime's cache know it",
			Do:       []Remedy{BeSure, "If the cache is elsewhere, set --cni-cache-dir"}},
		{Kind: KindPod, Code: "unreadable", States: only(StateUnknown),
			Sentence: "the runtime's cache or the plugin's records cannot be read", Do: []Remedy{seeLog}},
		{Kind: KindPod, Code: "delegated", States: only(StateUnknown),
			Sentence: "Multus has set up its network, by plugins that are not known", Do: []Remedy{BeSure}},
		{Kind: KindPod, Code: "namespace", States: only(StateUnknown),
			Sentence: "the labels of its namespace decide, and the agent cannot read them",
			Do:       []Remedy{"See the agent's log"}},
		{Kind: KindPod, Code: "too-large", States: only(StateUnknown),
			Sentence: "it is larger than the agent keeps of a pod", Do: []Remedy{smaller}},
		{Kind: KindPod, Code: "dialect", States: only(StateUnknown), Attention: true,
			Sentence: "a dialect panics for it",
			Do:       []Remedy{"The dialect's makers have to correct it"}},
		{Kind: KindPod, Code: CodeNamespaceUnknown, States: only(StateUnknown), Attention: true, Page: nodeProxy,
			Sentence: "the labels of its namespace are not known", Do: []Remedy{"See the agent's log"}},
		{Kind: KindPod, Code: "selection-unknown", States: only(StateUnknown), Attention: true, Page: nodeProxy,
			Sentence: "it cannot be told what it is, or is to be", Do: []Remedy{seeLog}},

		{Kind: KindPod, Code: "no-proxy", States: short, Attention: true, Page: "troubleshooting.md#meshcninodeproxymissing",
			Sentence: "no proxy of its node is connected to the agent",
			Do:       []Remedy{"See that the node's ztunnel runs and has --zds-socket: kubectl get pods -A -l app=ztunnel -o wide"}},
		{Kind: KindPod, Code: "not-handed-over", States: short, Attention: true, Page: nodeProxy,
			Sentence: "the node's proxy has not accepted it yet", Do: []Remedy{again}},
		{Kind: KindPod, Code: "no-listeners", Event: "MeshDriftMended", States: short, Attention: true, Page: nodeProxy,
			Sentence: "the node's proxy does not listen on all ports in it", Do: []Remedy{again, "See the proxy's log"}},
		{Kind: KindPod, Code: "no-namespace", States: short, Attention: true, Page: nodeProxy,
			Sentence: "its network namespace is not found or not proven", Do: []Remedy{soon}},
		{Kind: KindPod, Code: "no-address", States: only(StateWaiting), Attention: true, Page: nodeProxy,
			Sentence: "the API server does not have its addresses yet", Do: []Remedy{soon}},
		{Kind: KindPod, Code: "rules-missing", Event: "MeshDriftMended", States: short, Attention: true, Page: nodeProxy,
			Sentence: "its rules are not there", Do: []Remedy{again}},
		{Kind: KindPod, Code: "rules-differ", Event: "MeshDriftMended", States: short, Attention: true, Page: nodeProxy,
			Sentence: "it has other rules than it should have", Do: []Remedy{again, whoChanges}},
		{Kind: KindPod, Code: "probes-missing", Event: "MeshDriftMended", Page: nodeProxy,
			Sentence: "the host's own connections to it are not exempted", Do: []Remedy{again}},
		{Kind: KindPod, Code: "status-stale", Event: "MeshDriftMended", Page: nodeProxy,
			Sentence: "its annotation is not true", Do: []Remedy{again}},
		{Kind: KindPod, Code: "budget", States: only(StateDrifted), Attention: true, Page: nodeProxy,
			Sentence: "rules are missing; too many were written lately", Do: []Remedy{"Find out who changes them: kubectl meshcni show"}},
		{Kind: KindPod, Code: "status-held", States: short, Attention: true, Page: nodeProxy,
			Sentence: "its annotation does not stay as the agent wrote it", Do: []Remedy{"Find out who changes the annotation"}},
		{Kind: KindPod, Code: "variant", States: short, Attention: true, Page: nodeProxy,
			Sentence: "its rules are iptables', which the agent does not find",
			Do:       []Remedy{"Set backend back to auto, or give --repair-host-root"}},
		{Kind: KindPod, Code: "not-released", States: only(StateDrifted), Attention: true, Page: nodeProxy,
			Sentence: "it is to leave the mesh, and has not yet", Do: []Remedy{again}},

		step("hand-over-failed", "the node's proxy refuses it, or does not answer", "See the proxy's log"),
		step("listeners-failed", "its listeners cannot be read"),
		step("sysctl-failed", "net.ipv4.tcp_migrate_req cannot be set in it"),
		step("probes-failed", "the host's own connections to it cannot be exempted"),
		step("rules-failed", "its rules cannot be read or written"),
		step("drain-failed", "its open connections cannot be let end"),
		step("remove-rules-failed", "its rules cannot be removed"),
		step("take-back-failed", "the node's proxy does not give it back"),
		step("remove-probes-failed", "that exemption cannot be removed"),
		step("status-failed", "its annotation cannot be written"),
		step("forget-failed", "what is kept of it cannot be removed"),
		step("look-failed", "the agent cannot look how it is"),

		{Kind: KindPod, Code: "starting", States: only(StateWaiting), Sentence: "the runtime has not set up its network yet"},
		{Kind: KindPod, Code: "released", Event: "MeshReleased", States: only(StateOutside), Page: nodeProxy, Sentence: "it is not in the mesh, or no more"},
		{Kind: KindPod, Code: "releasing", States: only(StateOutside), Page: nodeProxy,
			Sentence: "all pods of the node are being released", Do: []Remedy{"To capture them again: meshcni-node release --undo"}},
		{Kind: KindPod, Code: "given-away", States: only(StateOutside), Page: nodeProxy, Sentence: "another agent of the mesh has it, by meshcni-node release --to"},
		{Kind: KindPod, Code: "other-mesh", States: only(StateOutside), Page: nodeProxy, Sentence: "another mesh has it"},
		{Kind: KindPod, Code: "other-dialect", States: only(StateOutside), Attention: true, Page: "troubleshooting.md#pods-of-another-mesh",
			Sentence: "it is of a mesh that its node's plugin is not configured for",
			Do:       []Remedy{"Add the mesh to dialect", Restart}},
		{Kind: KindPod, Code: "flapping", States: only(StateOutside), Page: nodeProxy,
			Sentence: "it joins and leaves again and again, and the agent follows slowly", Do: []Remedy{"Find out who changes its labels or its namespace's"}},
		{Kind: KindPod, Code: "ended", States: only(StateOutside), Page: nodeProxy, Sentence: "its containers have ended for good"},
		{Kind: KindPod, Code: "gone", States: only(StateOutside), Page: nodeProxy, Sentence: "it does not exist any more"},
		{Kind: KindPod, Code: "detached", States: only(StateOutside), Page: nodeProxy, Sentence: "the runtime has removed its network"},

		{Kind: KindPod, Code: "not-begun", Page: nodeProxy, Sentence: "another agent of the node has not ended yet", Do: []Remedy{again}},
		{Kind: KindPod, Code: "not-synced", Page: nodeProxy, Sentence: "the agent does not know the node's pods yet", Do: []Remedy{again}},
		{Kind: KindPod, Code: "unknown-pod", Page: nodeProxy, Sentence: "the agent does not know the pod with that UID", Do: []Remedy{again}},
		{Kind: KindPod, Code: "ends", Page: nodeProxy, Sentence: "the agent ends", Do: []Remedy{again}},
		{Kind: KindPod, Code: "namespace-failed", Page: nodeProxy, Sentence: "the agent cannot keep the pod's network namespace", Do: []Remedy{seeLog}},
	}
}

// step is the row of a step that failed.
func step(c Code, sentence string, do ...Remedy) Row {
	r := Row{Kind: KindPod, Code: c, States: append(only(StateUnknown), short...), Attention: true, Page: nodeProxy, Sentence: sentence, Do: append([]Remedy{again}, do...)}
	if c == "hand-over-failed" {
		r.Event = "MeshHandOverFailed"
	}
	return r
}
