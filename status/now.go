package status

// What is wrong with a pod now, by everything that the cluster tells, beside codes of other kinds.
const (
	CodeAgentSilent      Code = "agent-silent"      // the agent of its node does not answer
	CodeNotInstalled     Code = "not-installed"     // no network configuration of its node has the plugin's entry
	CodeExcludedInjected Code = "excluded-injected" // it has a proxy, and its namespace is excluded
	CodeOutside          Code = "outside"           // it is not, and is not to be
	CodeEnding           Code = "ending"            // it is being deleted
	CodeUnscheduled      Code = "unscheduled"       // it is on no node
	CodeWouldRefuse      Code = "would-be-refused"  // it runs, and would not start again
	CodeNoAgent          Code = "no-agent"          // its node has none
	CodeNetworkFailed    Code = "network-failed"    // its network could not be set up
	CodeStarting         Code = "starting"          // its network is not set up yet
	CodeRulesLost        Code = "rules-lost"        // rules are gone or others
	CodeBypassing        Code = "bypassing"         // it has no rules
	CodeWaiting          Code = "waiting"           // it is to be captured, and is not yet
	CodeUnknown          Code = "unknown"           // nothing says whether it has its rules
	CodeNotRunning       Code = "not-running"       // a container of it does not run
)

var present = []Row{
	{Code: CodeCaptured, Sentence: "it is captured"},
	{Code: CodeOutside, Sentence: "it is not in a mesh, and is not to be"},
	{Code: CodeEnding, Sentence: "it is being deleted", Do: []Remedy{"Nothing; ask about the pod that replaces it"}},
	{Code: CodeUnscheduled, Sentence: "it is on no node yet", Do: []Remedy{"See what the scheduler says: kubectl describe pod"}},
	{Code: CodeRefused, Attention: true, Sentence: "its settings are refused, so it does not start", Do: []Remedy{"Correct the settings that are named"}},
	{Code: CodeWouldRefuse, Attention: true, Sentence: "it runs, and would not start again: its settings are refused now", Do: []Remedy{"Correct the settings that are named"}},
	{Code: CodeNoAgent, Attention: true, Sentence: "its node has no agent", Do: []Remedy{"See the agents' DaemonSet: nodeSelector, tolerations"}},
	{Code: CodeAgentSilent, Sentence: "its node's agent does not answer", Do: []Remedy{"See how it is, and that you may ask it: kubectl auth can-i create pods/portforward"}},
	{Code: CodeNotInstalled, Attention: true, Sentence: "its node's network configuration lacks the plugin's entry", Do: []Remedy{"See the agent's log"}},
	{Code: CodeNetworkFailed, Attention: true, Sentence: "its network could not be set up", Do: []Remedy{"Mend what the message names"}},
	{Code: CodeStarting, Sentence: "it has no network yet", Do: []Remedy{"Ask again in a few seconds"}},
	{Code: CodeRulesLost, Attention: true, Sentence: "it has lost rules, or has others", Do: []Remedy{Restart, "If it happens again, find out who changes them: kubectl meshcni show"}},
	{Code: CodeBypassing, Attention: true, Sentence: "it bypasses the mesh: it has no rules", Do: []Remedy{Restart}},
	{Code: CodeWaiting, Attention: true, Sentence: "it is to be captured, and is not yet", Do: []Remedy{"See the reason: kubectl meshcni explain"}},
	{Code: CodeUnknown, Sentence: "nothing says whether it is captured", Do: []Remedy{BeSure}},
	{Code: CodeExcludedInjected, Attention: true, Sentence: "it has a proxy, and the plugin leaves its namespace alone", Do: []Remedy{"Stop injection there, or take it off the excluded namespaces", Restart}},
	{Code: CodeOtherDialect, Attention: true, Sentence: "it is of a mesh that its node's plugin is not configured for", Do: []Remedy{"Add the mesh to dialect", Restart}},
	{Code: CodeNotRunning, Attention: true, Sentence: "a container of it does not run", Do: []Remedy{"See the container's log and its last state"}},
}
