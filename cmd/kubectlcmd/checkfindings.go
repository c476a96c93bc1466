package kubectlcmd

// findingCode is the kind of a finding, which never changes. [codes] has all.
type findingCode string

// The codes.
const (
	codeNoAgents         findingCode = "no-agents"           // no node has one
	codeNodeWithoutAgent findingCode = "node-without-agent"  // new pods of a node bypass the mesh
	codeAgentSilent      findingCode = "agent-silent"        // it does not answer, so nothing is known of its node
	codeAgentRights      findingCode = "agent-rights"        // its service account may not do what it has to
	codeNodeNotReady     findingCode = "node-not-ready"      // the agent says why
	codeNodeWarning      findingCode = "node-warning"        // the agent warns of something
	codeConfigRefused    findingCode = "config-refused"      // changed settings are refused, and older ones are in force
	codeNotEvicting      findingCode = "not-evicting"        // pods that start without the plugin stay so: auto does not act
	codeOtherMesh        findingCode = "other-mesh"          // another mesh's plugin is in the list beside ours
	codeNotInstalled     findingCode = "not-installed"       // no network configuration has the plugin's entry
	codeNotLoaded        findingCode = "not-loaded"          // the runtime loads another file than the one with the entry
	codeNotLast          findingCode = "not-last"            // plugins come after ours in the list
	codeCNIVersionOld    findingCode = "cni-version-old"     // the list's version has no CHECK
	codeUnknownKeys      findingCode = "unknown-keys"        // the entry has keys that mean nothing to the agent's version
	codeNoBackend        findingCode = "no-backend"          // the host has nothing that could write rules
	codeVersionsDiffer   findingCode = "versions-differ"     // between nodes
	codeSettingsDiffer   findingCode = "settings-differ"     // between nodes
	codePodBypasses      findingCode = "pod-bypasses"        // a pod of the mesh has no rules
	codePodDrifted       findingCode = "pod-drifted"         // a pod lacks some of its rules
	codePodWaiting       findingCode = "pod-waiting"         // a pod is not captured yet, or it cannot be told
	codeExcludedInjected findingCode = "excluded-injected"   // the injector put a proxy into a pod that the plugin leaves alone
	codeOwnInit          findingCode = "own-init"            // the injector lets an init container write the rules
	codeOtherDialect     findingCode = "other-dialect"       // a pod is of a mesh that its node's plugin does not know
	codePodRefused       findingCode = "pod-refused"         // a pod's settings are wrong, and it will not start again
	codePodsNotKnown     findingCode = "pods-not-known"      // what of the check takes pods was left out
	codeConfigurationOdd findingCode = "configuration-wrong" // the entry cannot be read
	codePlaceNotMounted  findingCode = "place-not-mounted"   // the agent works in its own container instead of on the node
	codePlaceUnusable    findingCode = "place-unusable"      // the agent cannot use one of its directories
	codePlaceDiffers     findingCode = "place-differs"       // the agent's directory is not the one that the plugin uses
	codeProgramMissing   findingCode = "program-missing"     // the plugin's program is not where the runtime looks
	codeProgramDiffers   findingCode = "program-differs"     // it is another one than the agent's
	codePluginsElsewhere findingCode = "plugins-elsewhere"   // the network's other plugins are in no directory that the agent knows
	codeKernelFeature    findingCode = "kernel-feature"      // the kernel refuses rules that pods of the node need
	codeInjectorExcluded findingCode = "injector-excluded"   // the injector takes a namespace that the plugin leaves alone
	codeInjectorDown     findingCode = "injector-down"       // nothing answers for the injector
	codeInjectorMissed   findingCode = "injector-missed"     // a pod has no proxy, and would get one today
	codeNoInjector       findingCode = "no-injector"         // a mesh has neither an injector nor pods
	codeInjectorUnknown  findingCode = "injector-unknown"    // what the injectors do could not be found out
)

// codes are all codes, as the page has them.
var codes = []findingCode{
	codeNoAgents, codeNodeWithoutAgent, codeAgentSilent, codeAgentRights, codeNodeNotReady, codeNodeWarning, codeConfigRefused, codeNotEvicting, codeOtherMesh, codeNotInstalled, codeNotLoaded, codeNotLast, codeCNIVersionOld,
	codeUnknownKeys, codeNoBackend, codeVersionsDiffer, codeSettingsDiffer, codePodBypasses, codePodDrifted, codePodWaiting, codeExcludedInjected, codeOwnInit, codeOtherDialect, codePodRefused,
	codePodsNotKnown, codeConfigurationOdd, codePlaceNotMounted, codePlaceUnusable, codePlaceDiffers, codeProgramMissing, codeProgramDiffers, codePluginsElsewhere, codeKernelFeature,
	codeInjectorExcluded, codeInjectorDown, codeInjectorMissed, codeNoInjector, codeInjectorUnknown,
}

// page has a section for each code.
const page = "https://github.com/meshcni/meshcni/blob/main/docs/check.md#"

// The levels of a finding.
const (
	levelError   = "error"   // pods bypass the mesh, or do not start
	levelWarning = "warning" // somebody should look at it
	levelUnknown = "unknown" // it could not be found out
)

// finding is something that check has found.
type finding struct {
	Code  findingCode `json:"code"`
	Level string      `json:"level"`
	// Where names the objects, such as node/a or pod/shop/cart, maxWhere at most; Count is how many there are.
	Where []string `json:"where,omitempty"`
	Count int      `json:"count"`
	Text  string   `json:"text"`
	// Remedy helps.
	Remedy string `json:"remedy"`
	Page   string `json:"page"`
}

// maxWhere bounds the objects that a finding names.
const maxWhere = 10

// findings gathers what is found. The same text of several objects is one finding.
type findings struct {
	all   []*finding
	known map[[2]string]*finding
}

func (f *findings) add(code findingCode, level, where, text string) {
	key := [2]string{string(code), text}
	x := f.known[key]
	if x == nil {
		x = &finding{Code: code, Level: level, Text: text, Remedy: remedies[code], Page: page + string(code)}
		f.known[key] = x
		f.all = append(f.all, x)
	}
	x.Count++
	if where != "" && len(x.Where) < maxWhere {
		x.Where = append(x.Where, where)
	}
}

// remedies say what to do about each code. The page says more.
var remedies = map[findingCode]string{
	codeNoAgents:         "Install the chart. If it is installed, name the labels of its pods by --agent-selector.",
	codeNodeWithoutAgent: "Look at the tolerations, the nodeSelector and the events of the agents' DaemonSet.",
	codeAgentSilent:      "Look at the agent's pod and its log. Asking it takes the right to create pods/portforward in its namespace.",
	codeAgentRights:      "Apply the roles of the chart (rbac.create) or of deploy/rbac for the settings that you run.",
	codeNodeNotReady:     "Look the code up in docs/troubleshooting.md#the-node-is-not-ready.",
	codeNodeWarning:      "Read the agent's log on that node; it says more.",
	codeConfigRefused:    "Correct the setting that the text names, in the chart's values or the ConfigMap.",
	codeNotEvicting:      "Set the chart's admission.enabled to true if the API server has ValidatingAdmissionPolicy (Kubernetes 1.30); else choose repair.mode none, delete or repair.",
	codeOtherMesh:        "Take the other mesh's entry out once its pods have moved: kubectl meshcni migrate guides you.",
	codeNotInstalled:     "Read the agent's log on that node: it says why it could not write the entry.",
	codeNotLoaded:        "Remove or rename the file that sorts first, unless you use Multus or --cni-conf-name on purpose.",
	codeNotLast:          "Let the other plugin put its entry before ours, or take it out.",
	codeCNIVersionOld:    "Raise the cniVersion in the configuration of the node's network to 0.4.0 or newer.",
	codeUnknownKeys:      "Correct the keys in the template of the plugin's entry, or bring the agent up to its version.",
	codeNoBackend:        "Install iptables on the node, or set the chart's backend to nftables.",
	codeVersionsDiffer:   "Wait for the upgrade to end; kubectl rollout status of the DaemonSet says whether it goes on.",
	codeSettingsDiffer:   "Wait for the upgrade to end; if it has, compare the entries of the nodes that are named.",
	codePodBypasses:      "Start the pod anew (kubectl meshcni explain -n NAMESPACE POD has the command), or let the agents do so (repair.mode in the chart's values).",
	codePodDrifted:       "Start the pod anew, and find out who changes the rules: kubectl meshcni explain -n NAMESPACE POD names them.",
	codePodWaiting:       "Wait a moment. If it stays so, kubectl meshcni explain says what is missing.",
	codeExcludedInjected: "Stop the injection in that namespace, or take it off the plugin's excluded ones, and start the pod anew.",
	codeOwnInit:          "Tell the mesh's injector that there is a CNI plugin, and start the pod anew.",
	codeOtherDialect:     "Add the mesh to dialect in the chart's values, then start the pod anew.",
	codePodRefused:       "Correct its settings where the pod comes from; kubectl meshcni explain -n NAMESPACE POD says which, and how.",
	codePodsNotKnown:     "Run check with the right to list pods and namespaces in the whole cluster.",
	codeConfigurationOdd: "Correct the setting in the chart's values, or use the kubectl meshcni of the agents' version.",
	codePlaceNotMounted:  "Mount the host's directory there in the agents' DaemonSet, as the chart does.",
	codePlaceUnusable:    "Mount the host's directory there and let the agent write to it; see the chart's cni values.",
	codePlaceDiffers:     "Give the flag and the mount in the agents' DaemonSet the same directory; the chart's cni values set both.",
	codeProgramMissing:   "Read the agent's log on that node: it says why it could not write the program.",
	codeProgramDiffers:   "Wait for the agent to install its own. If it stays so, something else writes the program: end that.",
	codePluginsElsewhere: "Set the chart's cni.binDirs to the directories of the runtime's configuration.",
	codeKernelFeature:    "Load the kernel's modules that the text speaks of, use another backend, or keep such pods off that node.",
	codeInjectorExcluded: "Stop the injection in that namespace, or take it off the plugin's excluded ones.",
	codeInjectorDown:     "Get the pods behind the injector's service ready, and then start anew what started meanwhile.",
	codeInjectorMissed:   "Start the pod anew, so that the injector sees it.",
	codeNoInjector:       "Install the mesh, or take its name out of the chart's dialect.",
	codeInjectorUnknown:  "Run check with the right to list mutatingwebhookconfigurations and endpointslices, or look at the webhook yourself.",
}
