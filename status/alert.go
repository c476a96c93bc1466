package status

import "strings"

// alertTable has the alerts of deploy/monitoring, by their names there.
func alertTable() []Row {
	return []Row{
		alert("MeshcniAgentDown", "the agent is gone, or does not answer Prometheus; the plugin works for two hours at least",
			"Describe its pod; else see NetworkPolicies and firewalls"),
		alert("MeshcniAgentsMissing", "fewer agents are ready than wanted", "See the agents' DaemonSet: tolerations, room, the image", nodeReady),
		alert("MeshcniNoAgents", "no agent is scraped, so no other alert can fire",
			"Install the chart, or correct metrics.serviceMonitor.labels or metrics.scrapeAnnotations"),
		alert("MeshcniAgentRestarts", "the agent restarts again and again",
			"See kubectl logs POD --previous; exit 2: the configuration; cannot serve yet: set health.port; OOMKilled: raise the limit"),
		alert("MeshcniNodeNotReady", "new pods of the node are not captured", nodeReady),
		alert("MeshcniEntryFoughtOver", "another program removes our entry again and again, and pods bypass the mesh meanwhile",
			"See the event Fight. Set Cilium's cni.exclusive: false, or remove another mesh's installer, or a second release; else set cni.ownFile: true",
			"Delete the pods that started meanwhile"),
		alert("MeshcniOtherMesh", "another mesh's plugin is in the list that the runtime loads", "Keep one of the two: docs/troubleshooting.md#another-meshs-plugin"),
		alert("MeshcniOtherDialect", "there are pods of a mesh that is not configured", "Add the mesh to dialect, and restart them"),
		alert("MeshcniDriftRepeated", "others keep changing what the agent installs",
			"See the metric's cause: a network's agent that keeps restarting, or configuration management"),
		alert("MeshcniAgentStepsFail", "the agent cannot do a step", "Its log says more: a missing mount, a full or read-only disk, SELinux (seLinuxOptions)"),
		alert("MeshcniConfigRefused", "a changed configuration is wrong, or needs a restart; the old one is in force", "Correct what the agent's log names"),
		alert("MeshcniRuntimeHookLost", "the container runtime's hook is not connected, so pods that the network's plugins do not capture start without their rules",
			"See that the runtime runs and has NRI on, and that its socket is runtimeHook.socket"),
		alert("MeshcniTokenExpires", "the plugin's token is not renewed; after it no pod of the mesh starts",
			"See no new token in the agent's log: RBAC, pluginServiceAccount.name, NODE_NAME, the connection, or the node's clock"),
		alert("MeshcniTokenOfTheAgent", "the plugin has the agent's own token", "Nothing on Kubernetes before 1.31: docs/security.md#without-tokens-for-nodes"),
		alert("MeshcniWatchPolls", "the limits of inotify are reached, so the agent polls", "Raise fs.inotify.max_user_instances and max_user_watches"),
		alert("MeshcniVersionsDiffer", "a rollout has not finished", "See kubectl rollout status; OnDelete waits for you"),

		alert("MeshcniAddFails", "pods do not start, because the plugin fails", mend),
		alert("MeshcniAddFailsMostly", "most pods of the mesh do not start", nodeReady, "If it is ready, mend what the pods' events name"),
		alert("MeshcniPodsRefused", "pods do not start, because their annotations are wrong (code 7)", "Tell their owner; nothing is wrong with the node"),
		alert("MeshcniPluginNotAvailable", "STATUS says that no ADD could work (code 50)", nodeReady),
		alert("MeshcniAddSlow", "pods wait long for the plugin",
			"See its records: several api_calls: the API server lacked the pod, or failed; one: it or the network is slow"),
		alert("MeshcniFamilyUncaptured", "an address family bypasses the mesh", "Usual with Istio; uncapturedFamily: drop closes it"),
		alert("MeshcniProxyIdentityShared", "a container runs as the proxy's user or group", "Give it another; the record's warnings name it"),
		alert("MeshcniPluginLogLost", "records are not printed fast enough, or are too-long, so metrics are too low", "See that the runtime reads the agent's output"),

		alert("MeshcniPodsBroken", "pods started without rules, and repair is off or has not helped", "See the pods' events"),
		alert("MeshcniPodsUncaptured", "pods started without the plugin, and bypass the mesh", "If they keep coming, make the node ready first", Restart),
		alert("MeshcniRulesDrifted", "running pods have other rules than theirs",
			"Find out who writes: NET_ADMIN, another plugin, a shell", "Delete the pods, unless repair.mode=repair restores them"),
		alert("MeshcniRulesRemovedRepeatedly", "rules of running pods are removed again and again", "Look for containers with NET_ADMIN in these pods"),
		alert("MeshcniVerificationFails", "pods' rules cannot be compared",
			"Result variant: iptables is not found, set backend back to auto or --repair-host-root. Result failed: see the log. Result cannot-tell: somebody else's rule is before the pod's own; the log and kubectl meshcni explain name it"),
		alert("MeshcniPodsControllerNotReady", "running pods are not looked after", "See /readyz: a permission (deploy/rbac), or the API server"),
		alert("MeshcniRepairFails", "repair does not help", "Look up the outcome: too-late, delete the pod; ineffective, see its check's log"),
		alert("MeshcniRepairWaits", "broken pods wait",
			"Outcome deferred: it goes on by itself (--repair-node-rate); blocked: mend the disruption budget at zero, or use --repair-force-delete"),
		alert("MeshcniRepairHeld", "deleting is held back, since it would make more broken pods",
			"Look up the reason: the node's plugin is not ready, or the API server is not proven to confine the agent"),
		alert("MeshcniPodsControllerRequestsFail", "the API server is overloaded or restarting", nextAttempt),

		alert("MeshcniNodeProxyMissing", "no ztunnel is connected: captured pods may be refused connections, new ones do not start",
			"See its log, and that it mounts /var/run/ztunnel; meshcni-node release takes the pods out meanwhile"),
		alert("MeshcniNodeProxyPodsLeftOut", "pods of the mesh are not in the care of the node's proxy", "Ask meshcni-node pods: docs/troubleshooting.md#pods-of-a-proxy-on-the-node"),
		alert("MeshcniNodeProxyDriftRepeated", "captured pods have to be mended again and again",
			"By kind: another program writes in pods (istio-cni's agent), or flushes the host's rules (probes), or another agent runs (status)"),
		alert("MeshcniNodeProxyJournalMissing", "pods' namespaces cannot be kept in /var/run/meshcni/netns; captured pods go on", "Mend the directory, SYS_ADMIN, SYS_CHROOT or hostPID"),
		alert("MeshcniHandOverSlow", "the node's proxy takes pods slowly",
			"Raise its CPU limit"),

		alert("MeshcniConntrackFilling", "a pod's connection tracking table is nearly full", "Ask meshcni-node pods how full", "Then as for MeshcniConntrackFull"),
		alert("MeshcniConntrackFull", "a pod's table is full: new connections time out, open ones go on; each takes two entries, until two minutes after its end",
			"Raise net.netfilter.nf_conntrack_max on the node (256 bytes an entry), by kube-proxy's conntrack.maxPerCore and conntrack.min where it sets it",
			"Or reuse connections; or lower nf_conntrack_tcp_timeout_time_wait in the pod; or exclude what need not pass the proxy"),

		alert("MeshcniTaintNoController", "no meshcni-taint has the Lease: nothing is tainted, and new nodes keep their taint",
			"See pods, Lease and log of deployment/meshcni-node-taint",
			"By hand: kubectl taint node NODE meshcni.io/agent-not-ready-, or for all meshcni-taint remove"),
		alert("MeshcniTaintBreaker", "more agents are gone than nodes may be tainted; those over the share take pods", "Find the cause: image, tolerations, a policy, the network"),
		alert("MeshcniNodesTainted", "nodes lost their agent for taint.grace, or booted", "See the agents' pods there", nodeReady),
		alert("MeshcniNodesWaiting", "a node that registered with the taint has no ready agent", "See that agents tolerate its other taints, and that an ambient proxy is connected"),
		alert("MeshcniTaintFails", "nodes cannot be patched; it is tried again", "The controller's log says why: the role, a webhook, the API server"),
	}
}

const nodeReady Remedy = "Make the node ready: kubectl meshcni status"

func alert(c Code, sentence string, do ...Remedy) Row {
	return Row{Kind: KindAlert, Code: c, Attention: true, Page: troubleshooting + strings.ToLower(string(c)), Sentence: sentence, Do: do}
}
