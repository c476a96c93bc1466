// Package statuscode has the codes of package status that nobody outside this module has to name. Their rows in status.Table say what
// each means.
package statuscode

import "github.com/meshcni/meshcni/status"

// NodeProxyPod is the code of a decision: the pod is the proxy that its mesh has on the node.
const NodeProxyPod status.Code = "node-proxy-pod"

// What the mesh's check in a pod, an init container, says of it. CheckPassed is one too.
const (
	NotMatched   status.Code = "not-matched"
	MirrorPod    status.Code = "mirror-pod"
	Deleting     status.Code = "deleting"
	Completed    status.Code = "completed"
	NoCheck      status.Code = "no-check"
	NotSelected  status.Code = "not-selected"
	NotChecked   status.Code = "not-checked"
	Recovered    status.Code = "recovered"
	OtherFailure status.Code = "other-failure"
	Checking     status.Code = "checking"
	Handled      status.Code = "handled"
	CheckFailed  status.Code = "check-failed"
	NotCaptured  status.Code = "not-captured"
)

// What an attempt to repair a pod came to. Recovered, Intact and Gone are outcomes too.
const (
	Found       status.Code = "found"
	Labelled    status.Code = "labelled"
	Unlabelled  status.Code = "unlabelled"
	Evicted     status.Code = "evicted"
	Deleted     status.Code = "deleted"
	Repaired    status.Code = "repaired"
	Ineffective status.Code = "ineffective"
	TooLate     status.Code = "too-late"
	Replaced    status.Code = "replaced"
	Mended      status.Code = "mended"
	Deferred    status.Code = "deferred"
	Held        status.Code = "held"
	Blocked     status.Code = "blocked"
	Spared      status.Code = "spared"
	Conflict    status.Code = "conflict"
	NoProcess   status.Code = "no-process"
	Forbidden   status.Code = "forbidden"
	Unverified  status.Code = "unverified"
	Failed      status.Code = "failed"
)

// What a comparison of a running pod's rules with the wanted ones came to, beside some of the above.
const (
	Intact     status.Code = "intact"
	CannotTell status.Code = "cannot-tell"
	Drifted    status.Code = "drifted"
	Uncaptured status.Code = "uncaptured"
	Restored   status.Code = "restored"
	Sandboxed  status.Code = "sandboxed"
)

// Why an attempt to repair a pod came to its outcome, beside some of the above.
const (
	PluginNotReady   status.Code = "plugin-not-ready"
	NotConfined      status.Code = "not-confined"
	SuccessorBroken  status.Code = "successor-broken"
	NodeBudget       status.Code = "node-budget"
	DisruptionBudget status.Code = "disruption-budget"
	Unmanaged        status.Code = "unmanaged"
	NoLabel          status.Code = "no-label"
	NotDeleting      status.Code = "not-deleting"
	FailsAgain       status.Code = "fails-again"
	GaveUp           status.Code = "gave-up"
	OtherUID         status.Code = "other-uid"
	OtherNode        status.Code = "other-node"
	NotFound         status.Code = "not-found"
	Timeout          status.Code = "timeout"
	Unauthorized     status.Code = "unauthorized"
	TooManyRequests  status.Code = "too-many-requests"
	APIError         status.Code = "api-error"
	Error            status.Code = "error"
)

// What is wrong with a pod now, by everything that the cluster tells, beside codes of other kinds.
const (
	AgentSilent      status.Code = "agent-silent"
	NotInstalled     status.Code = "not-installed"
	ExcludedInjected status.Code = "excluded-injected"
	Outside          status.Code = "outside"
	Ending           status.Code = "ending"
	Unscheduled      status.Code = "unscheduled"
	WouldRefuse      status.Code = "would-be-refused"
	NoAgent          status.Code = "no-agent"
	NetworkFailed    status.Code = "network-failed"
	Starting         status.Code = "starting"
	RulesLost        status.Code = "rules-lost"
	Bypassing        status.Code = "bypassing"
	Waiting          status.Code = "waiting"
	Unknown          status.Code = "unknown"
	NotRunning       status.Code = "not-running"
)

// The reasons of a pod that the node's proxy is to have.
const (
	NodeProxyGone status.Code = "no-proxy"
	NotHandedOver status.Code = "not-handed-over"
	NoListeners   status.Code = "no-listeners"
	NoNetNS       status.Code = "no-namespace"
	NoAddress     status.Code = "no-address"
	RulesMissing  status.Code = "rules-missing"
	RulesDiffer   status.Code = "rules-differ"
	ProbesMissing status.Code = "probes-missing"
	StatusStale   status.Code = "status-stale"
	Budget        status.Code = "budget"
	StatusHeld    status.Code = "status-held"
	Variant       status.Code = "variant"
	NotReleased   status.Code = "not-released"

	HandOverFailed     status.Code = "hand-over-failed"
	ListenersFailed    status.Code = "listeners-failed"
	SysctlFailed       status.Code = "sysctl-failed"
	ProbesFailed       status.Code = "probes-failed"
	RulesFailed        status.Code = "rules-failed"
	DrainFailed        status.Code = "drain-failed"
	RemoveRulesFailed  status.Code = "remove-rules-failed"
	TakeBackFailed     status.Code = "take-back-failed"
	RemoveProbesFailed status.Code = "remove-probes-failed"
	StatusFailed       status.Code = "status-failed"
	ForgetFailed       status.Code = "forget-failed"
	LookFailed         status.Code = "look-failed"
)

// The reasons for which the agent does not capture a pod for ADD, beside those above.
const (
	NotBegun        status.Code = "not-begun"
	NotSynced       status.Code = "not-synced"
	UnknownPod      status.Code = "unknown-pod"
	AgentEnds       status.Code = "ends"
	NamespaceFailed status.Code = "namespace-failed"
)

// The reasons of a captured pod.
const (
	Recorded    status.Code = "recorded"
	Attached    status.Code = "attached"
	CheckPassed status.Code = "check-passed"
	Verified    status.Code = "verified"
	Captured    status.Code = "captured"
)

// The reasons of a pod that lacks its rules, or some of them.
const (
	PassedOver status.Code = "passed-over"
	NoRules    status.Code = "no-rules"
	Rules      status.Code = "rules"
)

// The reasons of a pod that does not start.
const (
	AddFailed status.Code = "add-failed"
)

// The reasons for which nothing can be told of a pod.
const (
	NoTrace          status.Code = "no-trace"
	Unreadable       status.Code = "unreadable"
	Delegated        status.Code = "delegated"
	Namespace        status.Code = "namespace"
	TooLarge         status.Code = "too-large"
	Dialect          status.Code = "dialect"
	SelectionUnknown status.Code = "selection-unknown"
)

// The reasons of a pod that is outside, beside those of the decision.
const (
	Released     status.Code = "released"
	Releasing    status.Code = "releasing"
	GivenAway    status.Code = "given-away"
	OtherMesh    status.Code = "other-mesh"
	OtherDialect status.Code = "other-dialect"
	Flapping     status.Code = "flapping"
	Ended        status.Code = "ended"
	Gone         status.Code = "gone"
	Detached     status.Code = "detached"
)
