package status

import "strings"

// alertTable has the alerts of deploy/monitoring, by their names there.
var alertTable = []Row{
	alert("MeshcniAgentDown", "the agent is gone, or does not answer Prometheus; until the plugin's token expires, two hours at least, new pods are captured",
		"See kubectl describe of its pod; if that is well, a NetworkPolicy or firewall is in the way"),
	alert("MeshcniAgentsMissing", "fewer agents are ready than wanted", "See the agents' DaemonSet: a taint without a toleration, no room, an image that cannot be pulled", nodeReady),
	alert("MeshcniNoAgents", "no agent is scraped, so no other alert can fire",
		"Install the chart, or have a monitor select the agents: metrics.serviceMonitor.labels, metrics.scrapeAnnotations"),
	alert("MeshcniAgentRestarts", "the agent restarts again and again",
		"See kubectl logs POD --previous. Exit 2: correct the configuration. It cannot serve yet: another program has the port, set health.port. OOMKilled: raise the limit"),
	alert("MeshcniNodeNotReady", "new pods of the node are not captured", nodeReady),
	alert("MeshcniEntryFoughtOver", "another program removes the plugin's entry as fast as it is added, and pods bypass the mesh meanwhile",
		"The node's event Fight says what it does. Set Cilium's cni.exclusive to false, remove another mesh's installer or a second release of this chart; else set cni.ownFile to true",
		"Delete the pods that started meanwhile"),
	alert("MeshcniOtherMesh", "another mesh's plugin is in the list that the runtime loads", "Keep one of the two: docs/troubleshooting.md#another-meshs-plugin"),
	alert("MeshcniOtherDialect", "there are pods of a mesh that the plugin is not configured for, so they bypass it", "Add the mesh to dialect, and delete the pods"),
	alert("MeshcniDriftRepeated", "what the agent has installed is changed again and again",
		"The metric's cause says what: a network's agent that keeps restarting, or configuration management that restores files"),
	alert("MeshcniAgentStepsFail", "the agent cannot do a step", "Its log has the path and the remedy: a missing mount, a full or read-only disk, SELinux (seLinuxOptions)"),
	alert("MeshcniConfigRefused", "a changed configuration is wrong, or needs a restart; the old one stays in force", "Correct what the agent's log names"),
	alert("MeshcniTokenExpires", "the plugin's token is not renewed; once it has expired, no pod of the mesh starts on the node",
		"See no new token in the agent's log: it cannot create the resource, apply the RBAC; serviceaccounts not found, pluginServiceAccount.name; nodes not found, NODE_NAME; else the connection. Check the node's clock too"),
	alert("MeshcniTokenOfTheAgent", "the plugin has the agent's own token", "Nothing on Kubernetes before 1.31: docs/security.md#without-tokens-for-nodes"),
	alert("MeshcniWatchPolls", "the limits of inotify are reached, so the agent polls", "Raise fs.inotify.max_user_instances and max_user_watches; nothing else is affected"),
	alert("MeshcniVersionsDiffer", "a rollout has not finished", "See kubectl -n meshcni-system rollout status daemonset/meshcni-node; OnDelete waits for you"),

	alert("MeshcniAddFails", "pods do not start, because the plugin fails", mend),
	alert("MeshcniAddFailsMostly", "most pods of the mesh do not start", nodeReady, "If it is ready, mend what the pods' events name"),
	alert("MeshcniPodsRefused", "pods do not start, because their annotations are wrong (code 7)", "Tell their owner; nothing is wrong with the node"),
	alert("MeshcniPluginNotAvailable", "STATUS says that no ADD could work (code 50)", nodeReady),
	alert("MeshcniAddSlow", "pods wait long for the plugin",
		"See duration_ms and api_calls of its records. Several calls: the API server did not have the pod, or failed. One: it or the network is slow"),
	alert("MeshcniFamilyUncaptured", "an address family bypasses the mesh", "Usual with Istio; uncapturedFamily: drop in the chart's values closes it"),
	alert("MeshcniProxyIdentityShared", "a container runs as the proxy's user or group", "Give it another; the record's warnings name it"),
	alert("MeshcniPluginLogLost", "records are not printed fast enough (queue-full), or are too-long, so metrics are too low", "See that the runtime reads the agent's output"),

	alert("MeshcniPodsBroken", "pods started without rules, and repair is off or has not helped", "See the pods' events"),
	alert("MeshcniPodsUncaptured", "pods of the mesh bypass it, because they started without the plugin", "If they keep coming, make the node ready first: kubectl meshcni status", Restart),
	alert("MeshcniRulesDrifted", "running pods have other rules than theirs",
		"See their events MeshRulesDrifted, and find out who writes: NET_ADMIN, another plugin, a shell", "With repair.mode=repair they are restored; else delete the pods"),
	alert("MeshcniRulesRemovedRepeatedly", "rules of running pods are removed again and again", "Look for containers with NET_ADMIN in these pods"),
	alert("MeshcniVerificationFails", "pods' rules cannot be compared",
		"Result variant: iptables is not found, set backend back to auto or --repair-host-root. Result failed: see the log"),
	alert("MeshcniPodsControllerNotReady", "running pods are not looked after", "See /readyz, which says what is missing: a permission (deploy/rbac), or the API server"),
	alert("MeshcniRepairFails", "repair does not help", "Look up the outcome: too-late, delete the pod; ineffective, see its check's log"),
	alert("MeshcniRepairWaits", "broken pods wait",
		"Outcome deferred: the budget is used up, it goes on by itself (--repair-node-rate, --repair-cluster-rate). Outcome blocked: mend the disruption budget that stays at zero, or use --repair-force-delete"),
	alert("MeshcniRepairHeld", "deleting is held back, since it would only make more broken pods",
		"Reason plugin-not-ready: make the node ready. Reason too-many-broken: over --repair-max-broken-share, one pod is tried each --repair-trial-interval. Reason successor-broken: the replacement is broken too; find out why"),
	alert("MeshcniPodsControllerRequestsFail", "the API server is overloaded or restarting", nextAttempt),

	alert("MeshcniNodeProxyMissing", "no ztunnel is connected: captured pods may be refused every connection, new ones do not start",
		"See its pod and its log: does it mount /var/run/ztunnel? meshcni-node release takes the pods out meanwhile, until release --undo or a restart"),
	alert("MeshcniNodeProxyPodsLeftOut", "pods of the mesh are not in the care of the node's proxy", "Ask meshcni-node pods: docs/troubleshooting.md#pods-of-a-proxy-on-the-node"),
	alert("MeshcniNodeProxyDriftRepeated", "captured pods have to be mended again and again",
		"Kinds of rules: another program writes in pods (istio-cni's agent). Of probes: one flushes the host's rules. Of the annotation: another agent"),
	alert("MeshcniNodeProxyJournalMissing", "pods' namespaces cannot be kept in /var/run/meshcni/netns; captured pods go on", "Mend the directory, SYS_ADMIN, SYS_CHROOT or hostPID"),
	alert("MeshcniHandOverSlow", "the node's proxy takes pods slowly",
		"Raise its CPU limit. A pod that its control plane does not know is accepted, and connections hang for 5 s"),

	alert("MeshcniConntrackFilling", "a pod's connection tracking table is nearly full", "Ask meshcni-node pods how full", "Then as for MeshcniConntrackFull"),
	alert("MeshcniConntrackFull", "a pod's table is full, so new connections time out while open ones go on; a proxied connection takes two entries, until two minutes after its end",
		"Raise the limit on the node: sysctl -w net.netfilter.nf_conntrack_max=1048576 (256 bytes an entry), with kube-proxy its conntrack.maxPerCore and conntrack.min",
		"Or reuse connections; or lower nf_conntrack_tcp_timeout_time_wait in the pod; or exclude what need not pass the proxy"),

	alert("MeshcniTaintNoController", "no meshcni-taint has the Lease: nothing is tainted, and new nodes keep their taint",
		"See kubectl -n meshcni-system get pods,leases -l app.kubernetes.io/component=taint, the log of deployment/meshcni-node-taint, and helm test",
		"By hand: kubectl taint node NODE meshcni.io/agent-not-ready-, or for all meshcni-taint remove"),
	alert("MeshcniTaintBreaker", "more agents are gone than nodes may be tainted; those over the share take pods", "Find the one cause: image, tolerations, a policy, the network"),
	alert("MeshcniNodesTainted", "nodes' agents have been gone for taint.grace, or the nodes booted", "See the agents' pods there", nodeReady),
	alert("MeshcniNodesWaiting", "a node that registered with the taint has no ready agent", "See that agents tolerate its other taints; with ambient mode, that its proxy is connected"),
	alert("MeshcniTaintFails", "nodes cannot be patched; it is tried again", "The controller's log says why: the role, a webhook, the API server"),
}

const nodeReady Remedy = "Make the node ready: kubectl meshcni status"

func alert(c Code, sentence string, do ...Remedy) Row {
	return Row{Kind: KindAlert, Code: c, Attention: true, Page: troubleshooting + strings.ToLower(string(c)), Sentence: sentence, Do: do}
}
