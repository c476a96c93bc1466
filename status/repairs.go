package status

const nextAttempt Remedy = "Nothing: it is tried again"

func checks() []Row {
	return []Row{
		{Code: "check-failed", Attention: true, Sentence: "its check failed because redirection is missing", Do: []Remedy{Restart}},
		{Code: "not-captured", Attention: true, Sentence: "detection found that it started without its rules", Do: []Remedy{Restart},
			Page: "troubleshooting.md#a-pod-started-without-the-plugin"},
		{Code: "checking", Sentence: "its check failed and is running again"},
		{Code: "not-checked", Sentence: "its check has not ended yet"},
		{Code: "check-passed", Sentence: "its check succeeded"},
		{Code: "recovered", Sentence: "its check succeeded after failing"},
		{Code: "other-failure", Sentence: "its check failed for another reason", Do: []Remedy{"See the check's log"}},
		{Code: "no-check", Sentence: "it has no init container that checks"},
		{Code: "not-selected", Sentence: "the mesh passes it over"},
		{Code: "not-matched", Sentence: "a selector or the required annotation leaves it out"},
		{Code: "mirror-pod", Sentence: "it is a static pod"},
		{Code: "deleting", Sentence: "it is being deleted"},
		{Code: "completed", Sentence: "it has succeeded"},
		{Code: "handled", Sentence: "it has the label of broken pods already"},
	}
}

func outcomes() []Row {
	return []Row{
		{Code: "found", Event: "MeshRedirectionMissing", Attention: true, Sentence: "its rules are missing; it is only reported", Do: []Remedy{Restart}},
		{Code: "labelled", Event: "MeshRepairLabelled", Attention: true, Sentence: "it has the label of broken pods", Do: []Remedy{Restart}},
		{Code: "unlabelled", Event: "MeshRepairUnlabelled", Sentence: "its check has succeeded, so the label is gone"},
		{Code: "evicted", Event: "MeshRepairEvicted", Attention: true, Sentence: "it was evicted", Do: []Remedy{"Nothing: its owner makes another one"}},
		{Code: "deleted", Event: "MeshRepairDeleted", Attention: true, Sentence: "it was deleted, by --repair-force-delete", Do: []Remedy{"Nothing: its owner makes another one"}},
		{Code: "repaired", Event: "MeshRepairRepaired", Sentence: "its rules were written; its check will succeed"},
		{Code: "intact", Event: "MeshRepairIntact", Sentence: "its rules were there already"},
		{Code: "recovered", Event: "MeshRepairRecovered", Sentence: "its check has succeeded after its rules were written"},
		{Code: "ineffective", Event: "MeshRepairIneffective", Attention: true, Sentence: "its rules are there, and its check fails five times",
			Do: []Remedy{"See the check's log"}},
		{Code: "too-late", Event: "MeshRepairTooLate", Attention: true, Sentence: "it has failed for good", Do: []Remedy{"Delete it"}},
		{Code: "mended", Event: "MeshRepairNotNeeded", Sentence: "it was no longer broken when it was read again"},
		{Code: "deferred", Event: "MeshRepairDeferred", Sentence: "the budget is exhausted for now", Do: []Remedy{nextAttempt}, Page: "troubleshooting.md#meshcnirepairwaits"},
		{Code: "held", Event: "MeshRepairHeld", Attention: true, Sentence: "deleting it is held back", Do: []Remedy{"Look up the reason"}, Page: "troubleshooting.md#meshcnirepairheld"},
		{Code: "blocked", Event: "MeshRepairBlocked", Attention: true, Sentence: "a disruption budget forbids eviction now", Page: "troubleshooting.md#meshcnirepairwaits",
			Do: []Remedy{"Mend what keeps it at zero, or use --repair-force-delete"}},
		{Code: "spared", Event: "MeshRepairSpared", Attention: true, Sentence: "nothing would recreate it (--repair-spare-unmanaged)", Do: []Remedy{"Create it anew yourself"}},
		{Code: "no-process", Event: "MeshRepairNoProcess", Attention: true, Sentence: "neither the runtime nor a process shows its network namespace now",
			Do: []Remedy{"Nothing: its check's next attempt will"}},
		{Code: "unverified", Event: "MeshRepairUnverified", Attention: true, Sentence: "the action's effect was not seen", Do: []Remedy{nextAttempt}},
		{Code: "failed", Event: "MeshRepairFailed", Attention: true, Sentence: "it could not be repaired", Do: []Remedy{"Look up the reason"}, Page: "troubleshooting.md#meshcnirepairfails"},
		{Code: "gone", Sentence: "it was gone when it was read again"},
		{Code: "replaced", Sentence: "another pod has its name"},
		{Code: "conflict", Sentence: "it changed between the read and the action", Do: []Remedy{nextAttempt}},
		{Code: "forbidden", Attention: true, Sentence: "a permission is missing",
			Do: []Remedy{"Grant what the log and /readyz name"}, Page: "troubleshooting.md#meshcnipodscontrollernotready"},
	}
}

func verifications() []Row {
	return []Row{
		{Code: "intact", Sentence: "its rules are those that it should have, and its packets come to them"},
		{Code: "cannot-tell", Attention: true, Sentence: "its rules are there, and whether its packets come to them cannot be told: somebody else's rule is before them",
			Do: []Remedy{"See the rule: kubectl meshcni explain", Restart}, Page: "troubleshooting.md#meshcniverificationfails"},
		{Code: "drifted", Event: "MeshRulesDrifted", Attention: true, Sentence: "some of its rules were removed, added or moved, or others' rules are before them", Page: "troubleshooting.md#meshcnirulesdrifted",
			Do: []Remedy{Restart, "Find out who changes them; repair.mode=repair restores them"}},
		{Code: "uncaptured", Event: "MeshNotCaptured", Attention: true, Sentence: "none of its rules is there, and it seems that none ever was", Do: []Remedy{Restart},
			Page: "troubleshooting.md#a-pod-started-without-the-plugin"},
		{Code: "sandboxed", Event: "MeshBypass", Attention: true, Sentence: "its packets do not come to its rules: an interface hands them on before, or none has its addresses",
			Do: []Remedy{sharedKernel}, Page: troubleshooting + "ways-past-the-mesh"},
		{Code: "restored", Event: "MeshRulesRestored", Sentence: "its rules were restored"},
		{Code: CodeRefused, Attention: true, Sentence: "the plugin would not start it now", Do: []Remedy{"Correct what kubectl meshcni explain names"}},
		{Code: "no-process", Sentence: "neither the runtime nor a process shows its network namespace", Do: []Remedy{nextAttempt}},
		{Code: "variant", Attention: true, Sentence: "its rules are iptables', which the controller does not find", Page: "troubleshooting.md#meshcniverificationfails",
			Do: []Remedy{"Set backend back to auto, or give --repair-host-root"}},
		{Code: "failed", Attention: true, Sentence: "its rules could not be compared", Do: []Remedy{seeLog}, Page: "troubleshooting.md#meshcniverificationfails"},
	}
}

func attempts() []Row {
	return []Row{
		{Code: "plugin-not-ready", Attention: true, Sentence: "its node's plugin is not ready", Do: []Remedy{"Make the node ready: kubectl meshcni status"}},
		{Code: "not-confined", Attention: true, Sentence: "the API server is not proven to confine the agent to its node",
			Do: []Remedy{"See the event, or choose repair.mode none, delete or repair"}},
		{Code: "successor-broken", Attention: true, Sentence: "the replacement of a deleted pod is broken too", Do: []Remedy{"Find out why"}},
		{Code: "node-budget", Sentence: "its namespace's budget on the node is exhausted", Do: []Remedy{nextAttempt, "Or raise --repair-node-rate"}},
		{Code: "disruption-budget", Attention: true, Sentence: "a disruption budget forbids eviction", Do: []Remedy{"Mend what keeps it at zero, or use --repair-force-delete"}},
		{Code: "unmanaged", Attention: true, Sentence: "nothing would replace it", Do: []Remedy{"Create it anew yourself"}},
		{Code: "no-label", Attention: true, Sentence: "the API server took the label and does not show it", Do: []Remedy{"See whether a webhook removes it"}},
		{Code: "not-deleting", Attention: true, Sentence: "the API server took the deletion and the pod stays", Do: []Remedy{nextAttempt}},
		{Code: "rules-differ", Attention: true, Sentence: "its rules are not those just written", Do: []Remedy{"Find out who changes them: kubectl meshcni show"}},
		{Code: "fails-again", Attention: true, Sentence: "its check fails although its rules are there", Do: []Remedy{"See the check's log"}},
		{Code: "gave-up", Attention: true, Sentence: "its check fails after five repairs", Do: []Remedy{"See the check's log"}},
		{Code: "other-uid", Sentence: "another pod has its name"},
		{Code: "other-node", Sentence: "it is on another node"},
		{Code: "not-found", Sentence: "it is gone"},
		{Code: "conflict", Sentence: "it changed between the read and the action", Do: []Remedy{nextAttempt}},
		{Code: "forbidden", Attention: true, Sentence: "a permission is missing", Do: []Remedy{"Grant what the log and /readyz name"}},
		{Code: CodeRefused, Attention: true, Sentence: "the API server refuses the request", Do: []Remedy{seeLog}},
		{Code: CodePodRefused, Attention: true, Sentence: "the plugin would not start the pod either", Do: []Remedy{"Correct what the event names"}},
		{Code: "no-process", Sentence: "neither the runtime nor a process shows its network namespace", Do: []Remedy{nextAttempt}},
		{Code: "variant", Attention: true, Sentence: "its rules are iptables', which the controller does not find",
			Do: []Remedy{"Set backend back to auto, or give --repair-host-root"}},
		{Code: "timeout", Sentence: "it took too long", Do: []Remedy{nextAttempt}},
		{Code: "unauthorized", Attention: true, Sentence: "the API server does not know the controller", Do: []Remedy{seeLog}},
		{Code: "too-many-requests", Sentence: "the API server has too much to do", Do: []Remedy{nextAttempt}},
		{Code: "api-error", Sentence: "the API server failed", Do: []Remedy{nextAttempt}},
		{Code: "error", Attention: true, Sentence: "it failed otherwise", Do: []Remedy{seeLog}},
	}
}
