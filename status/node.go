package status

// The kinds of what is said of a node, and of an installation.
const (
	KindReadiness Kind = "readiness" // why a node is not ready: a new pod of the mesh would not be captured
	KindNotice    Kind = "notice"    // what else the agent says in events of the node
	KindCause     Kind = "cause"     // why the agent repaired what it had installed
	KindBypass    Kind = "bypass"    // how a captured pod can get past the mesh
	KindFinding   Kind = "finding"   // what kubectl meshcni check finds
	KindTaint     Kind = "taint"     // why meshcni-taint changes a node's taint, or does not
	KindAlert     Kind = "alert"     // what Prometheus tells of, by the alert's name
	KindWarning   Kind = "warning"   // what is odd about a pod's settings: the codes of package warning
	KindError     Kind = "error"     // the codes of the plugin's CNI errors
)

// nodeTable has the codes of a node and of bypasses. The codes are constants of packages installer, nodeagent and dialect.
func nodeTable() []Row {
	return []Row{
		ready("starting", "the agent has not looked at the node yet", "Ask again in a second"),
		ready("no-network", "there is no valid network configuration to chain into; files are named, with why not",
			"Install the network's plugin, or correct --cni-conf-dir"),
		at("a-network-file-that-cannot-be-read", ready("conf-unreadable", "the agent cannot read a file that the runtime may load",
			"Let the agent read the file, or remove it")),
		ready("named-file-missing", "the file of --cni-conf-name does not exist, or is not valid", "Correct the name, or leave it out"),
		ready("no-inline-plugins", "the list keeps its plugins in a directory (CNI 1.1)",
			"List them in the file, or name another by --cni-conf-name"),
		ready("unsupported-version", "the plugin does not support the list's cniVersion",
			"Have its owner declare one that is named"),
		ready("conf-dir", "the directory of network configurations cannot be read", "Mend the mount or permission that is named"),
		ready("bin-dir", "a directory of the runtime's plugins cannot be read", "Mend the mount or permission that is named"),
		ready("no-binary", "--bin-source-dir has no plugin to install", "Check the agent's image"),
		ready("no-credentials", "the agent's own token or the CA cannot be read", "Mount them"),
		at("meshcnitokenexpires", ready("token-expired", "the plugin's token has expired", "See the agent's log: no new token")),
		ready("no-api-server", "the API server's address is not known", "Set KUBERNETES_SERVICE_HOST or --kubernetes-service-host"),
		ready("bad-entry", "our entry does not fit the file, or --plugin-config is not valid", "Correct what is named"),
		ready("own-name-taken", "the file that would be ours belongs to somebody else", "Remove it, or choose another --cni-conf-name"),
		ready("sorts-later", "another file sorts before ours", "Choose a --cni-conf-name that sorts first"),
		ready("not-whole", "no pod can start: the list that the runtime loads names a plugin or a file that is not there",
			"Install what is named, or give the runtime's other directories by --cni-bin-dir"),
		ready("self-delegating", "a plugin like Multus would delegate to the list that it is in, or ours would take its place",
			"Set cni.ownFile: false, and restart that plugin"),
		at("meshcnientryfoughtover", ready("fight", "another program removes our entry as often as the agent adds it",
			"With Cilium set its cni.exclusive: false; else do what the message names first")),
		ready("passed-by", "the container runtime started the newest pod of the mesh without the plugin, although its entry is in place",
			"See that the runtime reads that directory, and which network it took; then start the pod anew"),
		ready("write-failed", "a file cannot be written: a full or read-only disk, a permission", "Mend what is named"),
		ready("still-named", "after an uninstall another entry still names the plugin or its kubeconfig",
			"Remove it, and uninstall again"),
		ready("uninstalled", "meshcni-node uninstall was run on this node", "Remove /var/run/meshcni/uninstalled, or restart the agent"),
		ready("superseded", "another agent has started on this node since", "Nothing: that one acts"),
		ready("waiting", "the agent before this one goes on, because this one cannot work yet", "Mend what its message names"),
		ready("repair", "repair lacks a permission, or the API server does not answer", "Apply the chart's roles, or deploy/rbac"),
		ready("pods-unknown", "with agent: require, the node's pods are not listed yet", "See whether it is the API server, or a missing right"),
		ready("no-backend", "no backend takes the rules that pods need, as tried in an empty network namespace",
			"Set backend: nftables if it is said to work, else load the modules that are named"),
		ready("dialects-invalid", "a dialect of your own cannot work", "Correct it as the message says"),
		ready("ambient-failed", "the controller of the node's proxy cannot begin", "Mend what the message names"),
		ready("ambient-pods-unknown", "the controller of the node's proxy does not know the pods yet", "See the agent's log, if it stays so"),
		ready("ambient-releasing", "meshcni-node release is giving all pods back", "Nothing; or meshcni-node release --undo"),
		ready("ambient-pods-held", "without --ambient, pods are still in the care of the node's proxy",
			"Switch ambient mode on again, or run meshcni-node release"),
		at("meshcniruntimehooklost", ready("no-runtime-hook", "nothing but the container runtime's hook captures pods ([cni.enabled](runtime-hook.md#alone) is false), and it is not there, not connected, or the agent lacks the capabilities",
			"Switch NRI on in the runtime, and set runtimeHook.mode: capture; or do without it")),
		at("meshcninodeproxymissing", ready("no-proxy", "no proxy of the node is connected", "See that the node's ztunnel runs")),

		notice("ready", "every new pod of the mesh is captured again"),
		notice("own-file-taken", "our entry was gone after a boot or removed twice, so the agent keeps a list of its own"),
		at("another-meshs-plugin", notice("other-mesh", "another mesh's plugin is in the list that the runtime loads", "Keep one of the two")),
		at("another-meshs-plugin", notice("other-mesh-gone", "no other mesh's plugin is in the list any more")),
		at("pods-of-another-mesh", notice("other-dialect", "there are pods of a mesh that is not configured", "Add the mesh to dialect")),
		at("meshcniconfigrefused", notice("config-refused", "the changed configuration is refused; the old one is in force", "Correct the setting that is named")),
		notice("address-taken", "the agent cannot listen on an address of its own, where another program may answer in its name; without that of its health it does not start",
			"End that program, or choose another health.port or metrics.port"),
		notice("pods-outdated", "the API server has told nothing of the node's pods for more than a minute; the plugin asks it itself",
			"See whether it can be reached, and what it says in the agent's log"),
		notice("cilium-socket-lb", "the loaded list is Cilium's, which may replace a Service's address before a pod's rules see the connection, or remove our entry",
			"Set socketLB.hostNamespaceOnly=true and cni.exclusive=false in Cilium's values; give the agent get on that ConfigMap, and it sees for itself"),
		at("meshcniruntimehooklost", notice("runtime-hook-lost", "the container runtime's hook is not connected, so pods that the network's plugins do not capture start without their rules",
			"See that the runtime runs and has NRI on, and that its socket is runtimeHook.socket")),
		notice("runtime-hook-refused", "the container runtime ends the connection when it is told which requests the agent wants",
			"Set runtimeHook.mode: off, or update the runtime"),
		notice("runtime-hook-late", "the agent answered the container runtime's hook too late, and a pod may have started without its rules",
			"See what keeps the node or the API server busy"),
		notice("runtime-hook-held", "the containers of a pod are refused, since it has no rules and must have some, or its settings are refused",
			"Mend what its text names; the pod goes on by itself"),

		cause("first-install", "nothing: the file had not had our entry before"),
		cause("entry-removed", "the network's owner rewrote its file without our entry"),
		cause("entry-changed", "our entry was changed, or is to be"),
		cause("entry-elsewhere", "our entry was in another file"),
		cause("conf-appeared", "somebody wrote a .conf that sorts before the list"),
		cause("own-file-taken", "our entry was gone after a boot or removed twice, and --own-file is auto"),
		cause("own-file-missing", "our own file was removed"),
		cause("own-file-outdated", "the file that ours is derived from has changed"),
		cause("binary-missing", "the plugin's program was removed"),
		cause("binary-changed", "the plugin's program was another"),
		cause("kubeconfig-missing", "the kubeconfig was removed"),
		cause("kubeconfig-mode", "the kubeconfig's mode was not 0600"),
		cause("credentials-changed", "token or CA were renewed: normal, every two hours"),
		cause("type-new", "the plugin has a name from --plugin-config"),
		cause("killed-run", "a run that was killed left a temporary file"),
		cause("owner-gone", "the plugin of a .conf that we made a list of was removed, so the list goes too"),
		cause("owner-back", "that plugin is there again, and so is the list"),
		cause("given-back", "an uninstall gave a .conf back"),
		cause("hook-plugin", "the plugin that the container runtime starts by itself was not as it is to be"),
		cause("uninstall", "an uninstall"),

		tainted("agent-ready", "AgentTaintRemoved", "its agent is ready, so the taint is removed"),
		tainted("no-agent", "AgentTaintRemoved", "no agent can run on it, so the taint is removed"),
		tainted("agent-gone", "AgentTaintAdded", "its agent has been gone or not ready for taint.grace, so the taint is put back"),
		tainted("node-booted", "AgentTaintAdded", "it booted, so the taint is put back"),
		tainted("held", "AgentTaintHeld", "more nodes than taint.maxShare would have the taint, so it is not put back"),
		tainted("nodes-outdated", "AgentTaintOutdated", "the API server has told the controller nothing of nodes or agents for over a minute, so taints stay as they are",
			"See whether it can be reached, and what the controller's log and /readyz say"),

		bypass("ipv4", "the kernel has IPv4, and the mesh does not capture it", "Capture it, or set uncapturedFamily: drop"),
		bypass("ipv6", "the kernel has IPv6, and the mesh does not capture it",
			"Capture it (Istio: ISTIO_DUAL_STACK=true on the proxy), or set uncapturedFamily: drop"),
		bypass("inbound", "no inbound connection is captured", "Include ports, or exclude fewer, if that is not meant"),
		bypass("outbound", "no outbound connection is captured", "Include destinations, or exclude fewer, if that is not meant"),
		bypass("init-proxy-id", "an init container that runs before the proxy has its user or group, and is past the mesh until it ends",
			"Give it another runAsUser, if it needs no network, or place it after a proxy that is a native sidecar"),
		bypass("proxy-id", "a container runs as the proxy's user or group",
			"Give it another runAsUser and runAsGroup; refuseProxyUID refuses such pods"),
		bypass("net-raw", "a container can mark its traffic as the proxy's",
			"Drop its capabilities (securityContext.capabilities.drop: [ALL]); refuseNetRaw refuses such pods"),
		bypass("sandboxed", "by its runtime class, or by where its interface hands packets on to, the pod has a kernel or a network stack of its own, whose packets no rule sees: nothing of it is captured",
			"Give it a runtime class that shares the node's kernel, or take it out of the mesh; allowSandboxed: false refuses such pods"),
	}
}

func ready(c Code, sentence string, do ...Remedy) Row {
	return Row{Kind: KindReadiness, Code: c, Attention: c != "superseded" && c != "starting", Page: troubleshooting + "the-node-is-not-ready", Sentence: sentence, Do: do}
}

func notice(c Code, sentence string, do ...Remedy) Row {
	return Row{Kind: KindNotice, Code: c, Attention: len(do) > 0, Page: troubleshooting + "events-of-the-node", Sentence: sentence, Do: do}
}

func cause(c Code, sentence string) Row {
	return Row{Kind: KindCause, Code: c, Page: troubleshooting + "what-the-agent-repairs", Sentence: sentence}
}

func bypass(c Code, sentence string, do ...Remedy) Row {
	return Row{Kind: KindBypass, Code: c, Attention: true, Event: "MeshBypass", Page: troubleshooting + "ways-past-the-mesh", Sentence: sentence, Do: do}
}

func tainted(c Code, event, sentence string, do ...Remedy) Row {
	return Row{Kind: KindTaint, Code: c, Event: event, Attention: len(do) > 0, Page: "taint.md#when-something-is-wrong", Sentence: sentence, Do: do}
}

const troubleshooting = "troubleshooting.md#"

// at is the row with a section of its own.
func at(section string, r Row) Row {
	r.Page = troubleshooting + section
	return r
}
