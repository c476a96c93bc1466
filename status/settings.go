package status

// settingTable has the codes of package warning, and those of errors of the CNI.
func settingTable() []Row {
	return []Row{
		warned("invalid-value", "the value cannot be read, so the setting counts as not set", "Correct the value"),
		warned("deprecated-key", "the setting is read under an old key", "Write the new key"),
		warned("unknown-key", "the key is not known, so it has no effect", "Correct it, or take it out"),
		warned("no-effect", "the setting has no effect on this pod", "Take it out, or see why it was set"),
		warned("contradiction", "the setting contradicts another part of the pod", "Make the two agree"),
		warned("fallback", "what would decide is not known, so something else does", "Nothing, if what is assumed is right"),
		warned("family-absent", "the kernel lacks an address family that the mesh captures", "Nothing"),
		warned("family-dropped", "TCP of a family that the mesh does not capture is dropped, and the pod has an address of it", "Capture it, if it is to be used"),
		at("an-init-container-has-no-network", warned("before-proxy", "init containers run before the proxy, so their connections, redirected to it, are refused",
			"Start the proxy before them, as a native sidecar (Istio: ENABLE_NATIVE_SIDECARS=true); or run them as the proxy's user (runAsUser); or exclude what they ask for, by the mesh's annotations for outbound addresses and ports")),
		warned("proxy-user", "the proxy container runs as another user than the rules know the proxy by, so its connections would be redirected to itself",
			"Run it as the mesh's user (runAsUser), or tell the mesh the other, where it has a setting for that"),
		warned("contested", "more than one mesh would select the pod; the first in the list has it",
			"Change the order of dialects, or take one proxy out of the pod, if that is not meant"),

		failed("1", "cniVersion is not supported, or too old for the verb"),
		failed("4", "a variable is missing or malformed"),
		failed("5", "standard input cannot be read"),
		failed("6", "standard input is not a JSON object"),
		failed("7", "the configuration or annotations are wrong; it names all that is"),
		failed("8", "CNI_NETNS is the host's namespace, is no network namespace, or is gone"),
		failed("11", "the pod could not be read, or rules applied, in time"),
		failed("50", "an ADD cannot work: no usable kubeconfig, no usable backend"),
		failed("100", "CHECK: redirection is no longer in force; it lists the differences"),
		failed("101", "the rules could not be applied; earlier ones are still there"),
		failed("999", "a fault of the plugin"),
	}
}

func warned(c Code, sentence string, do Remedy) Row {
	return Row{Kind: KindWarning, Code: c, Page: troubleshooting + "warnings", Sentence: sentence, Do: []Remedy{do}}
}

func failed(c Code, sentence string) Row {
	return Row{Kind: KindError, Code: c, Page: troubleshooting + "my-pod-does-not-start", Sentence: sentence} // the message has more
}
