package status

func present() []Row {
	return []Row{
		{Code: "captured", Sentence: "it is captured"},
		{Code: "outside", Sentence: "it is not in a mesh, and is not to be"},
		{Code: "ending", Sentence: "it is being deleted", Do: []Remedy{"Nothing; ask about the pod that replaces it"}},
		{Code: "unscheduled", Sentence: "it is on no node yet", Do: []Remedy{"See what the scheduler says: kubectl describe pod"}},
		{Code: CodeRefused, Attention: true, Sentence: "its settings are refused, so it does not start", Do: []Remedy{"Correct the settings that are named"}},
		{Code: "would-be-refused", Attention: true, Sentence: "it runs, and would not start again: its settings are refused now", Do: []Remedy{"Correct the settings that are named"}},
		{Code: "no-agent", Attention: true, Sentence: "its node has no agent", Do: []Remedy{"See the agents' DaemonSet: nodeSelector, tolerations"}},
		{Code: "agent-silent", Sentence: "its node's agent does not answer", Do: []Remedy{"See how it is, and that you may ask it: kubectl auth can-i create pods/portforward"}},
		{Code: "not-installed", Attention: true, Sentence: "its node's network configuration lacks the plugin's entry", Do: []Remedy{"See the agent's log"}},
		{Code: "network-failed", Attention: true, Sentence: "its network could not be set up", Do: []Remedy{"Mend what the message names"}},
		{Code: "starting", Sentence: "it has no network yet", Do: []Remedy{"Mend what its events name, if any; else ask again in a few seconds"}},
		{Code: "rules-lost", Attention: true, Sentence: "it has lost rules, or has others", Do: []Remedy{Restart, "If it happens again, find out who changes them: kubectl meshcni show"}},
		{Code: "bypassing", Attention: true, Sentence: "it bypasses the mesh: it has no rules", Do: []Remedy{Restart}},
		{Code: "waiting", Attention: true, Sentence: "it is to be captured, and is not yet", Do: []Remedy{"See the reason: kubectl meshcni explain"}},
		{Code: "unknown", Sentence: "nothing says whether it is captured", Do: []Remedy{BeSure}},
		{Code: "excluded-injected", Attention: true, Sentence: "it has a proxy, and the plugin leaves its namespace alone", Do: []Remedy{"Stop injection there, or take it off the excluded namespaces", Restart}},
		{Code: "other-dialect", Attention: true, Sentence: "it is of a mesh that its node's plugin is not configured for", Do: []Remedy{"Add the mesh to dialect", Restart}},
		{Code: "not-running", Attention: true, Sentence: "a container of it does not run", Do: []Remedy{"See the container's log and its last state"}},
	}
}
