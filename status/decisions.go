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
	CodePartly  Code = "partly"  // it is captured, and there are ways past the mesh
	CodeRefused Code = "refused" // its settings are wrong, or may not be
	CodeNoMesh  Code = "no-mesh" // of several meshes none has to do with it
)

var decisions = []Row{
	decision(CodeSelected, StateCaptured, "it is in the mesh: its traffic is redirected"),
	decision(CodeNotKubernetes, "", "the runtime named no pod, and passed no configuration of its own", byDesign),
	decision(CodeAgentPod, StateOutside, "it is the node agent's own, by its namespace and the beginning of its name", "If it is not, give it another name or namespace"),
	decision(CodeExcludedNamespace, StateOutside, "the plugin's configuration excludes its namespace",
		"Take the namespace out of exclude_namespaces (excludeNamespaces in the chart's values)", Restart),
	decision(CodeHostNetwork, StateOutside, "it uses the network of its node and has none of its own, so it cannot be in a mesh",
		"If it need not use that network, set hostNetwork: false and create it anew"),
	decision(CodeInitContainer, StateOutside, "an init container of the mesh, such as istio-init, sets the rules itself",
		"Tell the mesh's injector that there is a CNI plugin", Restart),
	decision(CodeProxyDisabled, StateOutside, "the environment of its proxy turns the proxy off", "Take the variable away where it comes from", Restart),
	decision(CodeNoProxy, StateOutside, "no container has the name of the mesh's proxy: the injector has not touched it",
		"See that the injector runs, and that the pod and its namespace are labelled for it", Restart),
	decision(CodeProxyType, StateOutside, "its proxy is of a kind that takes no redirected traffic, such as a gateway, which clients address directly", byDesign),
	decision(CodeInjectDisabled, StateOutside, "a label or an annotation turns injection off", "Change the label or the annotation", Restart),
	decision(CodeHasSidecar, StateOutside, "it has a sidecar, which handles its traffic, so the proxy of its node does not",
		"Remove the sidecar, or have the sidecar's mesh among the plugin's dialects", Restart),
	decision(CodeNotEnabled, StateOutside, "no selector of the mesh matches the labels of the pod and its namespace",
		"Label the pod or its namespace as the mesh wants it: istio.io/dataplane-mode=ambient, for example"),
	decision(CodeNotInjected, StateOutside, "an annotation that the injector leaves is absent, or has another value",
		"See that the injector runs, that the pod and its namespace are labelled for it, and that the plugin has the right dialect", Restart),
	decision(CodeDryRun, StateOutside, "its configuration asks for a dry run, in which the mesh applies no rules", "Take dryRun out of the mesh's configuration", Restart),
	decision(CodeInterceptionNone, StateOutside, "it has a proxy, and asks for no redirection to it",
		"Take interceptionMode out of its annotations or of the ProxyConfig that it is from", Restart),
	decision(CodeNamespaceExcludedByLabel, StateOutside, "the plugin's configuration excludes the labels of its namespace",
		"Change the labels of the namespace, or exclude_namespace_selector (excludeNamespaceSelector in the chart's values)", Restart),
	decision(CodeNoRecord, "", "the plugin has no record of what it did when the pod started, so there is nothing to compare its rules with"),

	{Kind: KindDecision, Code: CodePartly, States: only(StateCaptured), Page: "troubleshooting.md#ways-past-the-mesh",
		Sentence: "it is captured, and some of its traffic can get past the mesh", Do: []Remedy{"Close each way that explain names, as it says"}},
	{Kind: KindDecision, Code: CodeRefused, States: only(StateRefused), Attention: true, Page: "troubleshooting.md#my-pod-does-not-start",
		Sentence: "its settings are wrong, or may not be, so it does not start", Do: []Remedy{"Correct the settings that are named"}},
	{Kind: KindDecision, Code: CodeNoMesh, States: only(StateOutside),
		Sentence: "no mesh has put its proxy into it, and nothing asks for one", Do: []Remedy{"Label it, or its namespace, for the mesh that is to have it"}},
}

func decision(c Code, s State, sentence string, do ...Remedy) Row {
	r := Row{Kind: KindDecision, Code: c, Sentence: sentence, Do: do}
	if s != "" {
		r.States = only(s)
	}
	return r
}
