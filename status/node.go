package status

// The kinds of what is said of a node, and of an installation.
const (
	KindReadiness Kind = "readiness" // why a node is not ready: a new pod of the mesh would not be captured
	KindNotice    Kind = "notice"    // what else the agent says in events of the node
	KindCause     Kind = "cause"     // why the agent repaired what it had installed
	KindBypass    Kind = "bypass"    // how a captured pod can get past the mesh
	KindFinding   Kind = "finding"   // what kubectl meshcni check finds
)

// nodeTable has the codes of a node and of bypasses. The codes are constants of packages installer, nodeagent and dialect.
var nodeTable = []Row{
	ready("starting", "the agent has not looked at the node yet", "Ask again in a second"),
	ready("no-network", "there is no valid network configuration to chain into; each file is named, with why it was passed over",
		"Install the network's own plugin, or see that --cni-conf-dir is the directory that the runtime uses"),
	at("a-network-file-that-cannot-be-read", ready("conf-unreadable", "the agent cannot read a file that the runtime may load, so it cannot know which one counts",
		"Let the agent read the file, or remove it")),
	ready("named-file-missing", "the file of --cni-conf-name does not exist, or is not valid", "Correct the name, or leave it out"),
	ready("no-inline-plugins", "the list keeps its plugins in a directory of files (CNI 1.1), which cannot be chained into",
		"List the plugins in the file itself, or name another one by --cni-conf-name"),
	ready("unsupported-version", "the list has a cniVersion that the plugin does not support, so no pod could start with it",
		"Have the network's owner declare one of the versions that are named"),
	ready("conf-dir", "the directory of network configurations cannot be read", "Mend the mount or the permission that is named"),
	ready("bin-dir", "a directory of the runtime's plugins cannot be read", "Mend the mount or the permission that is named"),
	ready("no-binary", "--bin-source-dir has no plugin to install", "Check the agent's image"),
	ready("no-credentials", "the agent's own token or the CA cannot be read", "Mount them, as the chart's volume token does"),
	at("token-expires", ready("token-expired", "the plugin's token has expired, and the agent got no newer one", "See the agent's log: no new token")),
	ready("no-api-server", "the API server's address is not known", "Set KUBERNETES_SERVICE_HOST or --kubernetes-service-host"),
	ready("bad-entry", "our entry cannot be put into the file, or the template of --plugin-config is not valid", "Correct what is named"),
	ready("own-name-taken", "the file that would be ours belongs to somebody else", "Remove it, or choose another --cni-conf-name"),
	ready("sorts-later", "another file sorts before ours, so the runtime would load that one", "Choose a --cni-conf-name that sorts first"),
	at("entry-fought-over", ready("fight", "another program removes our entry as often as the agent adds it",
		"Set cni.ownFile to true in the chart's values; with Cilium set its cni.exclusive to false")),
	ready("write-failed", "a file could not be written: a full or read-only disk, a permission", "Mend what is named; the agent tries again"),
	ready("still-named", "an uninstall has removed our entry, and another entry still names the plugin or its kubeconfig",
		"Remove the entry that is named, and uninstall again"),
	ready("uninstalled", "meshcni-node uninstall was run on this node", "Remove /var/run/meshcni/uninstalled, or restart the agent"),
	ready("superseded", "another agent has started on this node since", "Nothing: that one acts"),
	ready("waiting", "the agent before this one goes on, because this one cannot do its work yet", "Mend what this one lacks; its message names it"),
	ready("repair", "repair is on and does not work: a permission is missing, or the API server does not answer", "Apply the chart's roles, or deploy/rbac"),
	ready("pods-unknown", "with agent: require, the node's pods could not be listed yet", "See why: the API server, or a missing right"),
	ready("dialects-invalid", "a dialect of your own cannot work, so the plugin refuses its pods", "Correct it as the message says"),
	ready("ambient-failed", "the controller of the node's proxy cannot begin", "Mend what the message names; it is tried again"),
	ready("ambient-pods-unknown", "the controller of the node's proxy does not have the node's pods yet", "See the agent's log, if it stays so"),
	ready("ambient-releasing", "meshcni-node release is giving all pods back", "Nothing; or meshcni-node release --undo"),
	ready("ambient-pods-held", "the agent runs without --ambient, and pods are still in the care of the node's proxy",
		"Switch ambient mode on again, or run meshcni-node release on the node"),
	at("node-proxy-missing", ready("no-proxy", "no proxy of the node is connected, and readiness depends on it", "See that the node's ztunnel runs")),

	notice("ready", "every new pod of the mesh is captured again"),
	notice("own-file-taken", "our entry was gone after a boot or removed twice, so the agent keeps a list of its own from now on"),
	at("another-meshs-plugin", notice("other-mesh", "another mesh's plugin is in the list that the runtime loads", "Keep one of the two")),
	at("another-meshs-plugin", notice("other-mesh-gone", "and no longer")),
	at("pods-of-another-mesh", notice("other-dialect", "there are pods of a mesh that the plugin is not configured for", "Add the mesh to dialect in the chart's values")),
	at("config-refused", notice("config-refused", "the changed configuration is refused, and the one before it is in force", "Correct the setting that is named")),
	notice("ambient-pods-held", "the agent runs without --ambient, and pods are still in the care of the node's proxy",
		"Switch ambient mode on again, or run meshcni-node release on the node"),

	cause("first-install", "nothing: the file had not had our entry before"),
	cause("entry-removed", "the network's owner rewrote its file without our entry"),
	cause("entry-changed", "our entry was changed, or what it is to say has"),
	cause("entry-elsewhere", "our entry was in a file that counts no more"),
	cause("conf-broken", "no runtime could load the file any more; it is again what it was"),
	cause("conf-appeared", "somebody wrote a .conf that sorts before the list"),
	cause("own-file-taken", "our entry was gone after a boot or removed twice, and --own-file is auto"),
	cause("entry-beside", "our own file was removed twice, so the network's file got our entry too"),
	cause("own-file-missing", "our own file was removed"),
	cause("own-file-outdated", "the file that ours is derived from has changed"),
	cause("binary-missing", "the plugin's program was removed"),
	cause("binary-changed", "the plugin's program was not the one to install"),
	cause("kubeconfig-missing", "the kubeconfig was removed"),
	cause("kubeconfig-mode", "the kubeconfig's mode was not 0600"),
	cause("credentials-changed", "the plugin's token was renewed, or the CA: this is normal, about every two hours"),
	cause("type-new", "the plugin is installed under a name from --plugin-config, which an uninstall must know"),
	cause("killed-run", "a run that was killed left a temporary file"),
	cause("given-back", "an uninstall gave a .conf back"),
	cause("uninstall", "an uninstall"),

	bypass("ipv4", "the pod's kernel has IPv4, and the mesh does not capture it", "Have the mesh capture it, or set uncapturedFamily to drop in the chart's values"),
	bypass("ipv6", "the pod's kernel has IPv6, and the mesh does not capture it",
		"Have the mesh capture it (Istio: ISTIO_DUAL_STACK on the proxy), or set uncapturedFamily to drop in the chart's values"),
	bypass("proxy-id", "a container runs as the proxy's user or group, so the rules take it for the proxy",
		"Give it another runAsUser; refuseProxyUID in the chart's values refuses such pods"),
	bypass("net-raw", "a container may have NET_RAW or NET_ADMIN, so it can mark its traffic as the proxy's",
		"Have it drop all capabilities; refuseNetRaw in the chart's values refuses such pods"),
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
	return Row{Kind: KindBypass, Code: c, Attention: true, Page: troubleshooting + "ways-past-the-mesh", Sentence: sentence, Do: do}
}

const troubleshooting = "troubleshooting.md#"

// at is the row with a section of its own.
func at(section string, r Row) Row {
	r.Page = troubleshooting + section
	return r
}
