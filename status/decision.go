package status

// decisionTable has the reasons of a decision, in the order in which they are looked for. The codes are constants of package selection; a
// mesh can add its own.
var decisionTable = []Row{
	decision("selected", "it is in the mesh: its traffic is redirected"),
	decision("not-kubernetes", "the runtime named no pod, and passed no configuration of a mesh's own"),
	decision("agent-pod", "it is the agent's own: in its namespace, and named as its pods are", "Give the pod another name or namespace"),
	decision("excluded-namespace", "its namespace is excluded", "Take the namespace off excludeNamespaces in the chart's values", anew),
	decision("host-network", "it uses the node's network and has none of its own", "Set hostNetwork to false"),
	decision("init-container", "an init container of the mesh sets the rules itself", "Tell the mesh's injector that there is a CNI plugin", anew),
	decision("proxy-disabled", "the proxy's environment turns it off (DISABLE_ENVOY)", "Remove the variable", anew),
	decision("no-proxy", "no container has the proxy's name: the injector has not touched it",
		"See that the injector runs, and that namespace and pod are labelled for it", anew),
	decision("proxy-type", "its proxy takes no redirected traffic, as that of a gateway"),
	decision("inject-disabled", "a label or an annotation of it turns injection off", "Change that", anew),
	decision("has-sidecar", "it has a sidecar, which handles its traffic", "Remove the sidecar, or use the dialect of the sidecar's mesh"),
	decision("not-enabled", "no selector matches its labels and those of its namespace",
		"For ambient mode, label it or its namespace istio.io/dataplane-mode=ambient"),
	decision("not-injected", "an annotation that the injector leaves is absent, or has another value",
		"See that the injector runs, and that the right dialect is configured", anew),
	decision("dry-run", "Kuma's configuration says dryRun, so no rules are made", "Remove that from Kuma's configuration", anew),
	decision("interception-none", "it asks for no redirection, by Istio's interception mode NONE",
		"Remove sidecar.istio.io/interceptionMode, or interceptionMode in its ProxyConfig", anew),
	decision("namespace-excluded-by-label", "the labels of its namespace match excludeNamespaceSelector", "Change the labels or the selector", anew),
}

// anew ends the remedies of settings that count when a pod starts.
const anew Remedy = "Start the pod anew"

func decision(c Code, sentence string, do ...Remedy) Row {
	return Row{Kind: KindDecision, Code: c, Sentence: sentence, Do: do}
}
