package status

// The codes of a decision, in the order in which a mesh checks them. A dialect may add codes of its own.
const (
	CodeExcludedNamespace        Code = "excluded-namespace"          // the configuration excludes its namespace
	CodeHostNetwork              Code = "host-network"                // it has no network namespace of its own
	CodeInitContainer            Code = "init-container"              // an init container of the mesh sets the rules itself
	CodeProxyDisabled            Code = "proxy-disabled"              // the proxy container's environment disables the mesh
	CodeNoProxy                  Code = "no-proxy"                    // it has no proxy container
	CodeProxyType                Code = "proxy-type"                  // its proxy is of a kind that takes no redirected traffic
	CodeInjectDisabled           Code = "inject-disabled"             // a label or annotation disables injection
	CodeHasSidecar               Code = "has-sidecar"                 // it has a proxy of another kind, which captures its traffic
	CodeNotEnabled               Code = "not-enabled"                 // no selector matches the labels of the pod and its namespace
	CodeNotInjected              Code = "not-injected"                // the injector's annotations are missing
	CodeDryRun                   Code = "dry-run"                     // its configuration asks for a dry run, which applies no rules
	CodeInterceptionNone         Code = "interception-none"           // it has a proxy and asks for no redirection to it
	CodeNamespaceExcludedByLabel Code = "namespace-excluded-by-label" // the configuration excludes the labels of its namespace
	CodeProxyMissing             Code = "proxy-missing"               // it is to have a proxy container and has none, which its mesh minds
	CodeSelected                 Code = "selected"                    // none of the above: its traffic is redirected
)

// The codes of a decision for which no mesh is asked.
const (
	CodeNotKubernetes Code = "not-kubernetes" // the runtime named no pod
	CodeAgentPod      Code = "agent-pod"      // it is the node agent's own
	CodeNoRecord      Code = "no-record"      // CHECK finds no usable record of what ADD did
)

// The codes by which an explanation sums up what several meshes, or the pod's settings, have decided.
const (
	CodePartly          Code = "partly"           // it is captured, and there are ways past the mesh
	CodeNothingCaptured Code = "nothing-captured" // it is in the mesh, and its rules capture no connection
	CodeRefused         Code = "refused"          // its settings are wrong, or may not be
	CodeNoMesh          Code = "no-mesh"          // of several meshes none has to do with it
)

func decisions() []Row {
	return []Row{
		decision(CodeSelected, StateCaptured, "it is in the mesh: its traffic is redirected"),
		decision(CodeNotKubernetes, "", "the runtime named no pod", byDesign),
		decision(CodeAgentPod, StateOutside, "it is the agent's own, by namespace and name", "If not, give it another name"),
		decision(CodeExcludedNamespace, StateOutside, "the plugin's configuration excludes its namespace",
			"Take it out of excludeNamespaces", Restart),
		decision(CodeHostNetwork, StateOutside, "it uses its node's network",
			"Set hostNetwork: false, if it can"),
		decision(CodeInitContainer, StateOutside, "an init container of the mesh sets the rules itself",
			"Tell the injector that there is a CNI plugin", Restart),
		decision(CodeProxyDisabled, StateOutside, "its proxy's environment turns the proxy off", "Remove the variable", Restart),
		decision(CodeNoProxy, StateOutside, "it has no proxy: the injector has not touched it",
			"See that the injector runs, and that pod and namespace are labelled for it", Restart),
		{Kind: KindDecision, Code: CodeProxyMissing, States: []State{StateCaptured, StateRefused}, Attention: true,
			Sentence: "it is to have a proxy and has none, so its mesh refuses it, or captures it all the same",
			Do:       []Remedy{"See that the injector runs", Restart}},
		decision(CodeProxyType, StateOutside, "its proxy takes no redirected traffic, such as a gateway", byDesign),
		decision(CodeInjectDisabled, StateOutside, "a label or an annotation turns injection off", "Change it", Restart),
		decision(CodeHasSidecar, StateOutside, "it has a sidecar, which has its traffic",
			"Remove the sidecar, or add its mesh to dialect", Restart),
		decision("node-proxy-pod", StateOutside, "it is its mesh's proxy on the node", byDesign),
		decision(CodeNotEnabled, StateOutside, "no selector of the mesh matches its labels or its namespace's",
			"Label either as the mesh wants, istio.io/dataplane-mode=ambient, say"),
		decision(CodeNotInjected, StateOutside, "the injector's annotation is absent, or has another value",
			"As for no-proxy; see also that dialect is right", Restart),
		decision(CodeDryRun, StateOutside, "its configuration asks for a dry run", "Take dryRun out of it", Restart),
		decision(CodeInterceptionNone, StateOutside, "it asks for no redirection",
			"Take interceptionMode out of its annotations or its ProxyConfig", Restart),
		decision(CodeNamespaceExcludedByLabel, StateOutside, "the plugin's configuration excludes its namespace's labels",
			"Change the labels, or excludeNamespaceSelector", Restart),
		decision(CodeNoRecord, "", "the plugin has no record of its ADD to compare with"),

		{Kind: KindDecision, Code: CodePartly, States: only(StateCaptured), Page: "troubleshooting.md#ways-past-the-mesh",
			Sentence: "it is captured, with ways past the mesh", Do: []Remedy{"Close those that explain names"}},
		{Kind: KindDecision, Code: CodeNothingCaptured, States: only(StateFailed), Attention: true, Page: "troubleshooting.md#ways-past-the-mesh",
			Sentence: "it is in the mesh, and its settings leave out every connection", Do: []Remedy{"Exclude less, or take it out of the mesh", Restart}},
		{Kind: KindDecision, Code: CodeRefused, States: only(StateRefused), Attention: true, Page: "troubleshooting.md#my-pod-does-not-start",
			Sentence: "its settings are refused, so it does not start", Do: []Remedy{"Correct the settings that are named"}},
		{Kind: KindDecision, Code: CodeNoMesh, States: only(StateOutside),
			Sentence: "no mesh has to do with it", Do: []Remedy{"Label it or its namespace for one"}},
	}
}

func decision(c Code, s State, sentence string, do ...Remedy) Row {
	r := Row{Kind: KindDecision, Code: c, Sentence: sentence, Do: do}
	if s != "" {
		r.States = only(s)
	}
	return r
}
