package status

// The reasons of a captured pod.
const (
	CodeRecorded    Code = "recorded"     // the plugin's record says so
	CodeAttached    Code = "attached"     // its network was set up with the plugin in the list
	CodeCheckPassed Code = "check-passed" // the mesh's check in the pod has succeeded
	CodeVerified    Code = "verified"     // its live rules were compared with the wanted ones
	CodeCaptured    Code = "captured"     // the node's proxy has it, and rules and listeners are there
)

// The reasons of a pod that lacks its rules, or some of them.
const (
	CodeNotCalled  Code = "not-called"  // its network was set up without the plugin
	CodePassedOver Code = "passed-over" // the plugin passed it over, and would not do so now
	CodeNoRules    Code = "no-rules"    // verification found none of its rules, and nothing says that it had any
	CodeRules      Code = "rules"       // verification found other rules than the wanted ones
)

// The reasons of a pod that does not start.
const (
	CodePodRefused Code = "pod-refused" // its settings are refused
	CodeAddFailed  Code = "add-failed"  // ADD fails otherwise
)

// The reasons for which nothing can be told of a pod.
const (
	CodeNoTrace          Code = "no-trace"          // the node has no attachment and no record of it
	CodeUnreadable       Code = "unreadable"        // attachments or records cannot be read
	CodeDelegated        Code = "delegated"         // Multus set up its network, and what it called is not known
	CodeNamespace        Code = "namespace"         // the labels of its namespace decide, and cannot be read
	CodeTooLarge         Code = "too-large"         // it is larger than what is kept of a pod
	CodeDialect          Code = "dialect"           // the Policy.Decline of a mesh panics
	CodeNamespaceUnknown Code = "namespace-unknown" // as CodeNamespace, of pods of the node's proxy
	CodeSelectionUnknown Code = "selection-unknown" // what it is to be, or is, cannot be found out
)

// The reasons of a pod that the node's proxy is to have.
const (
	CodeNodeProxyGone  Code = "no-proxy"         // no proxy of the node is connected
	CodeNotHandedOver  Code = "not-handed-over"  // the proxy has not accepted it
	CodeNoListeners    Code = "no-listeners"     // the proxy does not listen in it
	CodeNoNetNS        Code = "no-namespace"     // its network namespace is not found
	CodeNoAddress      Code = "no-address"       // the API server does not have its addresses
	CodeRulesMissing   Code = "rules-missing"    // its rules are not there
	CodeRulesDiffer    Code = "rules-differ"     // it has other rules
	CodeProbesMissing  Code = "probes-missing"   // the host's connections to it are not exempted
	CodeStatusStale    Code = "status-stale"     // its annotation says something else
	CodeBudget         Code = "budget"           // rules are written again too often
	CodeTooManyDrifted Code = "too-many-drifted" // too many pods of its namespace have lost theirs
	CodeStatusHeld     Code = "status-held"      // its annotation does not stay as it was written
	CodeVariant        Code = "variant"          // its rules are those of iptables, which is not found
	CodeNotReleased    Code = "not-released"     // it is to leave the mesh, and has not yet
)

// The reasons of a pod that is outside, beside those of the decision.
const (
	CodeReleased     Code = "released"      // it is not in the mesh, or no more
	CodeReleasing    Code = "releasing"     // all pods of the node are being released
	CodeGivenAway    Code = "given-away"    // another agent of the mesh has it
	CodeOtherMesh    Code = "other-mesh"    // another mesh has it
	CodeOtherDialect Code = "other-dialect" // it is of a mesh that the node is not configured for
	CodeFlapping     Code = "flapping"      // it joins and leaves again and again
	CodeEnded        Code = "ended"         // its containers have ended for good
	CodeGone         Code = "gone"          // it does not exist any more
	CodeDetached     Code = "detached"      // the runtime removed its network
)
