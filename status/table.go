package status

// Remedies of several rows.
const (
	again      Remedy = "Nothing: the agent tries again by itself. If it stays so: kubectl meshcni check"
	soon       Remedy = "Ask again in a few seconds"
	whoChanges Remedy = "If it happens again, find out who changes the rules: kubectl meshcni show"
	seeLog     Remedy = "See the agent's log, which says why"
	mend       Remedy = "Mend what is named; docs/troubleshooting.md#my-pod-does-not-start has each. The pod then starts by itself"
	byDesign   Remedy = "Nothing: this is by design"
	smaller    Remedy = "Make what the mesh reads of it smaller: 64 KiB are kept"
)

const nodeProxy = "troubleshooting.md#pods-of-a-proxy-on-the-node"

// short are the states of a pod that lacks something of the node's proxy: before it was captured, and after.
var short = []State{StateWaiting, StateDrifted}

func only(s State) []State { return []State{s} }

// podTable has the reasons of a pod's state.
var podTable = []Row{
	{Kind: KindPod, Code: CodeRecorded, States: only(StateCaptured), Sentence: "the plugin wrote its rules when it started"},
	{Kind: KindPod, Code: CodeAttached, States: only(StateCaptured), Sentence: "the plugin was called when it started"},
	{Kind: KindPod, Code: CodeCheckPassed, States: only(StateCaptured), Sentence: "the mesh's own check in the pod has passed, whoever made the rules"},
	{Kind: KindPod, Code: CodeVerified, States: only(StateCaptured), Sentence: "the agent has compared its rules"},
	{Kind: KindPod, Code: CodeCaptured, States: only(StateCaptured), Sentence: "the node's proxy listens in it, and its rules are there", Page: nodeProxy},

	{Kind: KindPod, Code: CodeNotCalled, States: only(StateFailed), Attention: true, Page: "troubleshooting.md#a-pod-started-without-the-plugin",
		Sentence: "it started before the plugin was on its node, or while its entry was gone", Do: []Remedy{Restart}},
	{Kind: KindPod, Code: CodePassedOver, States: only(StateFailed), Attention: true,
		Sentence: "the plugin left it alone when it started, and would not do so now: its annotations, its namespace or the plugin's settings have changed since", Do: []Remedy{Restart}},
	{Kind: KindPod, Code: CodeNoRules, States: only(StateFailed), Attention: true,
		Sentence: "none of its rules are there, and nothing says that it ever had any", Do: []Remedy{Restart}},
	{Kind: KindPod, Code: CodeRules, States: only(StateDrifted), Attention: true, Page: "troubleshooting.md#rules-drifted",
		Sentence: "it has other rules than it should have",
		Do:       []Remedy{Restart, "If it happens again, find out who changes them; the chart's repair.mode=repair writes them again by itself"}},

	{Kind: KindPod, Code: CodePodRefused, States: []State{StateWaiting, StateFailed}, Attention: true, Page: "troubleshooting.md#pods-refused",
		Sentence: "its settings are refused", Do: []Remedy{"Correct the settings that are named"}},
	{Kind: KindPod, Code: CodeAddFailed, States: only(StateWaiting), Attention: true, Page: "troubleshooting.md#my-pod-does-not-start",
		Sentence: "the plugin could not set it up when it was to start", Do: []Remedy{mend}},

	{Kind: KindPod, Code: CodeNoTrace, States: only(StateUnknown),
		Sentence: "the node has no record of it and no trace in the runtime's cache",
		Do:       []Remedy{BeSure, "If the runtime keeps its cache elsewhere, say where: --cni-cache-dir"}},
	{Kind: KindPod, Code: CodeUnreadable, States: only(StateUnknown),
		Sentence: "the runtime's cache or the plugin's records cannot be read", Do: []Remedy{seeLog}},
	{Kind: KindPod, Code: CodeDelegated, States: only(StateUnknown),
		Sentence: "Multus has set up its network, and what it has called is not known", Do: []Remedy{BeSure}},
	{Kind: KindPod, Code: CodeNamespace, States: only(StateUnknown),
		Sentence: "the labels of its namespace decide, and the agent cannot read them",
		Do:       []Remedy{"See the agent's log; the chart's excludeNamespaceSelector grants the right"}},
	{Kind: KindPod, Code: CodeTooLarge, States: only(StateUnknown),
		Sentence: "its labels, annotations and containers are larger than the agent keeps of a pod", Do: []Remedy{smaller}},
	{Kind: KindPod, Code: CodeDialect, States: only(StateUnknown), Attention: true,
		Sentence: "a dialect panics for it, so it cannot be told whether it is in the mesh",
		Do:       []Remedy{"Nothing can be done about the pod: the dialect's makers have to correct it"}},
	{Kind: KindPod, Code: CodeNamespaceUnknown, States: only(StateUnknown), Attention: true, Page: nodeProxy,
		Sentence: "the labels of its namespace are not known", Do: []Remedy{"See the agent's log, which says why the API server does not tell"}},
	{Kind: KindPod, Code: CodeSelectionUnknown, States: only(StateUnknown), Attention: true, Page: nodeProxy,
		Sentence: "it cannot be told what it is, or is to be", Do: []Remedy{seeLog}},

	{Kind: KindPod, Code: CodeNodeProxyGone, States: short, Attention: true, Page: "troubleshooting.md#node-proxy-missing",
		Sentence: "no proxy of its node is connected to the agent",
		Do:       []Remedy{"See that the node's ztunnel runs, and has the directory of --zds-socket: kubectl get pods --all-namespaces --selector app=ztunnel --output wide"}},
	{Kind: KindPod, Code: CodeNotHandedOver, States: short, Attention: true, Page: nodeProxy,
		Sentence: "the node's proxy has not accepted it yet", Do: []Remedy{again}},
	{Kind: KindPod, Code: CodeNoListeners, States: short, Attention: true, Page: nodeProxy,
		Sentence: "the node's proxy does not listen in it, or not on all ports", Do: []Remedy{again, "See the proxy's log"}},
	{Kind: KindPod, Code: CodeNoNetNS, States: short, Attention: true, Page: nodeProxy,
		Sentence: "its network namespace is not found, or not proven to be its own", Do: []Remedy{soon + ": most often it is starting or ending"}},
	{Kind: KindPod, Code: CodeNoAddress, States: only(StateWaiting), Attention: true, Page: nodeProxy,
		Sentence: "the API server does not have its addresses yet", Do: []Remedy{soon}},
	{Kind: KindPod, Code: CodeRulesMissing, States: short, Attention: true, Page: nodeProxy,
		Sentence: "its rules are not there", Do: []Remedy{again}},
	{Kind: KindPod, Code: CodeRulesDiffer, States: short, Attention: true, Page: nodeProxy,
		Sentence: "it has other rules than it should have", Do: []Remedy{again, whoChanges}},
	{Kind: KindPod, Code: CodeProbesMissing, Page: nodeProxy,
		Sentence: "the host's own connections to it, such as the kubelet's probes, are not exempted", Do: []Remedy{again}},
	{Kind: KindPod, Code: CodeStatusStale, Page: nodeProxy,
		Sentence: "its annotation says something else than is the case", Do: []Remedy{again}},
	{Kind: KindPod, Code: CodeBudget, States: only(StateDrifted), Attention: true, Page: nodeProxy,
		Sentence: "rules are to be written again, and the agent holds that back, since so many were lately", Do: []Remedy{"Find out who changes the rules: kubectl meshcni show"}},
	{Kind: KindPod, Code: CodeTooManyDrifted, States: only(StateDrifted), Attention: true, Page: nodeProxy,
		Sentence: "rules are to be written again, and the agent holds that back, since so many pods of its namespace have lost theirs",
		Do:       []Remedy{"Find out who changes the rules: kubectl meshcni show"}},
	{Kind: KindPod, Code: CodeStatusHeld, States: short, Attention: true, Page: nodeProxy,
		Sentence: "its annotation does not stay as the agent wrote it, so that is written more slowly", Do: []Remedy{"Find out who changes the annotation"}},
	{Kind: KindPod, Code: CodeVariant, States: short, Attention: true, Page: nodeProxy,
		Sentence: "its rules are those of iptables, which the agent does not find",
		Do:       []Remedy{"Set the backend as it was, or give the agent the host's programs (--repair-host-root)"}},
	{Kind: KindPod, Code: CodeNotReleased, States: only(StateDrifted), Attention: true, Page: nodeProxy,
		Sentence: "it is to leave the mesh, and has not yet", Do: []Remedy{again}},

	step(CodeHandOverFailed, "the node's proxy refuses it, or does not answer", "See the proxy's log"),
	step(CodeListenersFailed, "whether the node's proxy listens in it cannot be seen"),
	step(CodeSysctlFailed, "a sysctl by which connections move from one proxy to the next cannot be set in it"),
	step(CodeProbesFailed, "the host's own connections to it, such as the kubelet's probes, cannot be exempted"),
	step(CodeRulesFailed, "its rules cannot be read or written"),
	step(CodeDrainFailed, "its rules cannot be changed so that open connections end by themselves"),
	step(CodeRemoveRulesFailed, "its rules cannot be removed"),
	step(CodeTakeBackFailed, "the node's proxy does not give it back"),
	step(CodeRemoveProbesFailed, "the exemption of the host's own connections to it cannot be removed"),
	step(CodeStatusFailed, "its annotation cannot be written"),
	step(CodeForgetFailed, "what the agent keeps of it cannot be removed"),
	step(CodeLookFailed, "the agent cannot look how it is"),

	{Kind: KindPod, Code: CodeReleased, States: only(StateOutside), Page: nodeProxy, Sentence: "it is not in the mesh, or no more"},
	{Kind: KindPod, Code: CodeReleasing, States: only(StateOutside), Page: nodeProxy,
		Sentence: "all pods of the node are being released", Do: []Remedy{"To have them captured again: meshcni-node release --undo in the agent's container"}},
	{Kind: KindPod, Code: CodeGivenAway, States: only(StateOutside), Page: nodeProxy, Sentence: "another agent of the mesh has it, by meshcni-node release --to"},
	{Kind: KindPod, Code: CodeOtherMesh, States: only(StateOutside), Page: nodeProxy, Sentence: "another mesh has it"},
	{Kind: KindPod, Code: CodeOtherDialect, States: only(StateOutside), Attention: true, Page: "troubleshooting.md#pods-of-another-mesh",
		Sentence: "it is of a mesh that its node's plugin is not configured for, so its traffic bypasses that mesh",
		Do:       []Remedy{"Add the mesh to dialect in the chart's values", Restart}},
	{Kind: KindPod, Code: CodeFlapping, States: only(StateOutside), Page: nodeProxy,
		Sentence: "it joins and leaves the mesh again and again, and the agent follows more slowly", Do: []Remedy{"Find out who changes its labels, or those of its namespace"}},
	{Kind: KindPod, Code: CodeEnded, States: only(StateOutside), Page: nodeProxy, Sentence: "its containers have ended for good"},
	{Kind: KindPod, Code: CodeGone, States: only(StateOutside), Page: nodeProxy, Sentence: "it does not exist any more"},
	{Kind: KindPod, Code: CodeDetached, States: only(StateOutside), Page: nodeProxy, Sentence: "the runtime has removed its network"},

	{Kind: KindPod, Code: CodeNotBegun, Page: nodeProxy, Sentence: "another agent of the node has not ended yet", Do: []Remedy{again}},
	{Kind: KindPod, Code: CodeNotSynced, Page: nodeProxy, Sentence: "the agent has just started, and does not know the node's pods yet", Do: []Remedy{again}},
	{Kind: KindPod, Code: CodeUnknownPod, Page: nodeProxy, Sentence: "the agent does not know the pod, or not with that UID", Do: []Remedy{again}},
	{Kind: KindPod, Code: CodeAgentEnds, Page: nodeProxy, Sentence: "the agent ends, and the next one has not come yet", Do: []Remedy{again}},
	{Kind: KindPod, Code: CodeNamespaceFailed, Page: nodeProxy, Sentence: "the agent cannot keep the pod's network namespace", Do: []Remedy{seeLog}},
}

// step is the row of a step that failed.
func step(c Code, sentence string, do ...Remedy) Row {
	return Row{Kind: KindPod, Code: c, States: append(only(StateUnknown), short...), Attention: true, Page: nodeProxy, Sentence: sentence, Do: append([]Remedy{again}, do...)}
}
