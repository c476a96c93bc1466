package status

// What the mesh's check in a pod, an init container, says of it. CodeCheckPassed is one too.
const (
	CodeNotMatched   Code = "not-matched"   // a selector or the required annotation excludes the pod
	CodeMirrorPod    Code = "mirror-pod"    // it mirrors a static pod, which no action on it would affect
	CodeDeleting     Code = "deleting"      // it is being deleted
	CodeCompleted    Code = "completed"     // it has succeeded
	CodeNoCheck      Code = "no-check"      // it has no init container that checks redirection
	CodeNotSelected  Code = "not-selected"  // the mesh passes it over
	CodeNotChecked   Code = "not-checked"   // the check has not ended for the first time yet
	CodeRecovered    Code = "recovered"     // the check succeeded after it had failed
	CodeOtherFailure Code = "other-failure" // the check ended with another exit code or message
	CodeChecking     Code = "checking"      // the check failed and is running again
	CodeHandled      Code = "handled"       // it has the label that marks broken pods
	CodeCheckFailed  Code = "check-failed"  // the check failed because redirection is missing
	CodeNotCaptured  Code = "not-captured"  // detection found that it started without its rules
)

// What an attempt to repair a pod came to. CodeRecovered, CodeIntact and CodeGone are outcomes too.
const (
	CodeFound       Code = "found"       // reported only
	CodeLabelled    Code = "labelled"    // it has the label
	CodeUnlabelled  Code = "unlabelled"  // the label was removed
	CodeEvicted     Code = "evicted"     // it was evicted
	CodeDeleted     Code = "deleted"     // it was deleted, since it could not be evicted
	CodeRepaired    Code = "repaired"    // the rules were written
	CodeIneffective Code = "ineffective" // the check of a repaired pod has failed again
	CodeTooLate     Code = "too-late"    // it has failed for good, so rules cannot help it
	CodeReplaced    Code = "replaced"    // another pod had the same name
	CodeMended      Code = "mended"      // it was no longer broken when it was read again
	CodeDeferred    Code = "deferred"    // the budget of the node or the cluster is used up for now
	CodeHeld        Code = "held"        // deletions are held back
	CodeBlocked     Code = "blocked"     // a disruption budget forbids eviction for now
	CodeSpared      Code = "spared"      // it has no owner that would replace it
	CodeConflict    Code = "conflict"    // it changed between the read and the action
	CodeNoProcess   Code = "no-process"  // no running process leads to its network namespace
	CodeForbidden   Code = "forbidden"   // a permission is missing
	CodeUnverified  Code = "unverified"  // the action succeeded, but its effect does not show
	CodeFailed      Code = "failed"      // any other failure
)

// What a comparison of a running pod's rules with the wanted ones came to, beside some of the above.
const (
	CodeIntact     Code = "intact"     // they are the wanted ones
	CodeDrifted    Code = "drifted"    // it had its rules, and some are not as they were
	CodeUncaptured Code = "uncaptured" // none is there, and nothing says that it had any
	CodeRestored   Code = "restored"   // they were written again
)

// Why an attempt to repair a pod came to its outcome, beside some of the above.
const (
	CodePluginNotReady   Code = "plugin-not-ready"
	CodeNotConfined      Code = "not-confined"
	CodeTooManyBroken    Code = "too-many-broken"
	CodeSuccessorBroken  Code = "successor-broken"
	CodeNodeBudget       Code = "node-budget"
	CodeClusterBudget    Code = "cluster-budget"
	CodeDisruptionBudget Code = "disruption-budget"
	CodeUnmanaged        Code = "unmanaged"
	CodeNoLabel          Code = "no-label"
	CodeNotDeleting      Code = "not-deleting"
	CodeFailsAgain       Code = "fails-again"
	CodeGaveUp           Code = "gave-up"
	CodeOtherUID         Code = "other-uid"
	CodeOtherNode        Code = "other-node"
	CodeNotFound         Code = "not-found"
	CodeTimeout          Code = "timeout"
	CodeUnauthorized     Code = "unauthorized"
	CodeTooManyRequests  Code = "too-many-requests"
	CodeAPIError         Code = "api-error"
	CodeError            Code = "error"
)

const nextAttempt Remedy = "Nothing: it is tried again"

// checks, outcomes, verifications and attempts are the rows about repair.
var (
	checks = []Row{
		{Code: CodeCheckFailed, Attention: true, Sentence: "its check failed because redirection is missing", Do: []Remedy{Restart}},
		{Code: CodeNotCaptured, Attention: true, Sentence: "detection found that it started without its rules", Do: []Remedy{Restart},
			Page: "troubleshooting.md#a-pod-started-without-the-plugin"},
		{Code: CodeChecking, Sentence: "its check failed and is running again"},
		{Code: CodeNotChecked, Sentence: "its check has not ended yet"},
		{Code: CodeCheckPassed, Sentence: "its check succeeded"},
		{Code: CodeRecovered, Sentence: "its check succeeded after failing"},
		{Code: CodeOtherFailure, Sentence: "its check failed for another reason", Do: []Remedy{"See the check's log"}},
		{Code: CodeNoCheck, Sentence: "it has no init container that checks"},
		{Code: CodeNotSelected, Sentence: "the mesh passes it over"},
		{Code: CodeNotMatched, Sentence: "a selector or the required annotation leaves it out"},
		{Code: CodeMirrorPod, Sentence: "it is a static pod"},
		{Code: CodeDeleting, Sentence: "it is being deleted"},
		{Code: CodeCompleted, Sentence: "it has succeeded"},
		{Code: CodeHandled, Sentence: "it has the label of broken pods already"},
	}
	outcomes = []Row{
		{Code: CodeFound, Event: "MeshRedirectionMissing", Attention: true, Sentence: "its rules are missing; it is only reported", Do: []Remedy{Restart}},
		{Code: CodeLabelled, Event: "MeshRepairLabelled", Attention: true, Sentence: "it has the label of broken pods", Do: []Remedy{Restart}},
		{Code: CodeUnlabelled, Event: "MeshRepairUnlabelled", Sentence: "its check has succeeded, so the label is gone"},
		{Code: CodeEvicted, Event: "MeshRepairEvicted", Attention: true, Sentence: "it was evicted", Do: []Remedy{"Nothing: its owner makes another one"}},
		{Code: CodeDeleted, Event: "MeshRepairDeleted", Attention: true, Sentence: "it was deleted, by --repair-force-delete", Do: []Remedy{"Nothing: its owner makes another one"}},
		{Code: CodeRepaired, Event: "MeshRepairRepaired", Sentence: "its rules were written; its check will succeed"},
		{Code: CodeIntact, Event: "MeshRepairIntact", Sentence: "its rules were there already"},
		{Code: CodeRecovered, Event: "MeshRepairRecovered", Sentence: "its check has succeeded after its rules were written"},
		{Code: CodeIneffective, Event: "MeshRepairIneffective", Attention: true, Sentence: "its rules are there, and its check fails five times",
			Do: []Remedy{"See the check's log"}},
		{Code: CodeTooLate, Event: "MeshRepairTooLate", Attention: true, Sentence: "it has failed for good", Do: []Remedy{"Delete it"}},
		{Code: CodeMended, Event: "MeshRepairNotNeeded", Sentence: "it was no longer broken when it was read again"},
		{Code: CodeDeferred, Event: "MeshRepairDeferred", Sentence: "the budget is exhausted for now", Do: []Remedy{nextAttempt}, Page: "troubleshooting.md#meshcnirepairwaits"},
		{Code: CodeHeld, Event: "MeshRepairHeld", Attention: true, Sentence: "deleting it is held back", Do: []Remedy{"Look up the reason"}, Page: "troubleshooting.md#meshcnirepairheld"},
		{Code: CodeBlocked, Event: "MeshRepairBlocked", Attention: true, Sentence: "a disruption budget forbids eviction now", Page: "troubleshooting.md#meshcnirepairwaits",
			Do: []Remedy{"Mend what keeps it at zero, or use --repair-force-delete"}},
		{Code: CodeSpared, Event: "MeshRepairSpared", Attention: true, Sentence: "nothing would recreate it (--repair-spare-unmanaged)", Do: []Remedy{"Create it anew yourself"}},
		{Code: CodeNoProcess, Event: "MeshRepairNoProcess", Attention: true, Sentence: "no process shows its network namespace now",
			Do: []Remedy{"Nothing: its check's next attempt will"}},
		{Code: CodeUnverified, Event: "MeshRepairUnverified", Attention: true, Sentence: "the action's effect was not seen", Do: []Remedy{nextAttempt}},
		{Code: CodeFailed, Event: "MeshRepairFailed", Attention: true, Sentence: "it could not be repaired", Do: []Remedy{"Look up the reason"}, Page: "troubleshooting.md#meshcnirepairfails"},
		{Code: CodeGone, Sentence: "it was gone when it was read again"},
		{Code: CodeReplaced, Sentence: "another pod has its name"},
		{Code: CodeConflict, Sentence: "it changed between the read and the action", Do: []Remedy{nextAttempt}},
		{Code: CodeForbidden, Attention: true, Sentence: "a permission is missing",
			Do: []Remedy{"Grant what the log and /readyz name"}, Page: "troubleshooting.md#meshcnipodscontrollernotready"},
	}
	verifications = []Row{
		{Code: CodeIntact, Sentence: "its rules are those that it should have"},
		{Code: CodeDrifted, Event: "MeshRulesDrifted", Attention: true, Sentence: "some of its rules were removed, added or moved", Page: "troubleshooting.md#meshcnirulesdrifted",
			Do: []Remedy{Restart, "Find out who changes them; repair.mode=repair restores them"}},
		{Code: CodeUncaptured, Event: "MeshNotCaptured", Attention: true, Sentence: "none of its rules is there, and it seems that none ever was", Do: []Remedy{Restart},
			Page: "troubleshooting.md#a-pod-started-without-the-plugin"},
		{Code: CodeRestored, Event: "MeshRulesRestored", Sentence: "its rules were restored"},
		{Code: CodeRefused, Attention: true, Sentence: "the plugin would not start it now", Do: []Remedy{"Correct what kubectl meshcni explain names"}},
		{Code: CodeNoProcess, Sentence: "no process shows its network namespace", Do: []Remedy{nextAttempt}},
		{Code: CodeVariant, Attention: true, Sentence: "its rules are iptables', which the controller does not find", Page: "troubleshooting.md#meshcniverificationfails",
			Do: []Remedy{"Set backend back to auto, or give --repair-host-root"}},
		{Code: CodeFailed, Attention: true, Sentence: "its rules could not be compared", Do: []Remedy{seeLog}, Page: "troubleshooting.md#meshcniverificationfails"},
	}
	attempts = []Row{
		{Code: CodePluginNotReady, Attention: true, Sentence: "its node's plugin is not ready", Do: []Remedy{"Make the node ready: kubectl meshcni status"}},
		{Code: CodeNotConfined, Attention: true, Sentence: "the API server is not proven to confine the agent to its node",
			Do: []Remedy{"See the event, or choose repair.mode none, delete or repair"}},
		{Code: CodeTooManyBroken, Attention: true, Sentence: "too many pods of its namespace are broken, or too many namespaces' are",
			Do: []Remedy{"Find out why: one at a time is deleted meanwhile"}},
		{Code: CodeSuccessorBroken, Attention: true, Sentence: "the replacement of a deleted pod is broken too", Do: []Remedy{"Find out why"}},
		{Code: CodeNodeBudget, Sentence: "the node's budget is exhausted", Do: []Remedy{nextAttempt, "Or raise --repair-node-rate"}},
		{Code: CodeClusterBudget, Sentence: "the cluster's budget is exhausted, or its Lease cannot be read", Do: []Remedy{nextAttempt, "Or raise --repair-cluster-rate"}},
		{Code: CodeDisruptionBudget, Attention: true, Sentence: "a disruption budget forbids eviction", Do: []Remedy{"Mend what keeps it at zero, or use --repair-force-delete"}},
		{Code: CodeUnmanaged, Attention: true, Sentence: "nothing would replace it", Do: []Remedy{"Create it anew yourself"}},
		{Code: CodeNoLabel, Attention: true, Sentence: "the API server took the label and does not show it", Do: []Remedy{"See whether a webhook removes it"}},
		{Code: CodeNotDeleting, Attention: true, Sentence: "the API server took the deletion and the pod stays", Do: []Remedy{nextAttempt}},
		{Code: CodeRulesDiffer, Attention: true, Sentence: "its rules are not those just written", Do: []Remedy{"Find out who changes them: kubectl meshcni show"}},
		{Code: CodeFailsAgain, Attention: true, Sentence: "its check fails although its rules are there", Do: []Remedy{"See the check's log"}},
		{Code: CodeGaveUp, Attention: true, Sentence: "its check fails after five repairs", Do: []Remedy{"See the check's log"}},
		{Code: CodeOtherUID, Sentence: "another pod has its name"},
		{Code: CodeOtherNode, Sentence: "it is on another node"},
		{Code: CodeNotFound, Sentence: "it is gone"},
		{Code: CodeConflict, Sentence: "it changed between the read and the action", Do: []Remedy{nextAttempt}},
		{Code: CodeForbidden, Attention: true, Sentence: "a permission is missing", Do: []Remedy{"Grant what the log and /readyz name"}},
		{Code: CodeRefused, Attention: true, Sentence: "the API server refuses the request", Do: []Remedy{seeLog}},
		{Code: CodePodRefused, Attention: true, Sentence: "the plugin would not start the pod either", Do: []Remedy{"Correct what the event names"}},
		{Code: CodeNoProcess, Sentence: "no process shows its network namespace", Do: []Remedy{nextAttempt}},
		{Code: CodeVariant, Attention: true, Sentence: "its rules are iptables', which the controller does not find",
			Do: []Remedy{"Set backend back to auto, or give --repair-host-root"}},
		{Code: CodeTimeout, Sentence: "it took too long", Do: []Remedy{nextAttempt}},
		{Code: CodeUnauthorized, Attention: true, Sentence: "the API server does not know the controller", Do: []Remedy{seeLog}},
		{Code: CodeTooManyRequests, Sentence: "the API server has too much to do", Do: []Remedy{nextAttempt}},
		{Code: CodeAPIError, Sentence: "the API server failed", Do: []Remedy{nextAttempt}},
		{Code: CodeError, Attention: true, Sentence: "it failed otherwise", Do: []Remedy{seeLog}},
	}
)
