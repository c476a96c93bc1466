package kubectlcmd

import (
	"strings"
)

// restartIt and toBeSure stand for how the pod is restarted.
const (
	restartIt = "RESTART"
	toBeSure  = "To be sure, RESTART"
)

// remedy is the meaning of one of the agent's reasons, and its cure.
type remedy struct {
	is string
	do []string
}

// reasonRefused is that of a pod with wrong settings.
const reasonRefused = "pod-refused"

const again = "Nothing: the agent tries again by itself. If it stays so: kubectl meshcni check"

// agentReasons are those of docs/troubleshooting.md, "What the agent knows of each pod".
var agentReasons = map[string]remedy{
	"not-called":        {"it started before the plugin was on its node, or while its entry was gone", []string{restartIt}},
	"passed-over":       {"the plugin left it alone when it started, and would not do so now: its annotations, its namespace or the plugin's settings have changed since", []string{restartIt}},
	"no-rules":          {"none of its rules are there, and nothing says that it ever had any", []string{restartIt}},
	reasonRefused:       {"its settings are refused", []string{"Correct the settings that are named above"}},
	"add-failed":        {"the plugin could not set it up when it was to start", []string{"Mend what is named above; docs/troubleshooting.md#my-pod-does-not-start has each. The pod then starts by itself"}},
	"rules":             {"it has other rules than it should have", []string{restartIt, "If it happens again, find out who changes them; the chart's repair.mode=repair writes them again by itself"}},
	"no-trace":          {"the node has no record of it and no trace in the runtime's cache", []string{toBeSure, "If the runtime keeps its cache elsewhere, say where: --cni-cache-dir"}},
	"unreadable":        {"the runtime's cache or the plugin's records cannot be read", []string{"See the agent's log, which says why"}},
	"delegated":         {"Multus has set up its network, and what it has called is not known", []string{toBeSure}},
	"namespace":         {"the labels of its namespace decide, and the agent cannot read them", []string{"See the agent's log; the chart's excludeNamespaceSelector grants the right"}},
	"too-large":         {"its labels, annotations and containers are larger than the agent keeps of a pod", []string{"Make what the mesh reads of it smaller: 64 KiB are kept"}},
	"dialect":           {"a dialect panics for it, so it cannot be told whether it is in the mesh", []string{"Nothing can be done about the pod: the dialect's makers have to correct it"}},
	"no-proxy":          {"no proxy of its node is connected to the agent", []string{"See that the node's ztunnel runs, and has the directory of --zds-socket: kubectl get pods --all-namespaces --selector app=ztunnel --output wide"}},
	"not-handed-over":   {"the node's proxy has not accepted it yet", []string{again}},
	"no-listeners":      {"the node's proxy does not listen in it", []string{again, "See the proxy's log"}},
	"no-namespace":      {"its network namespace is not found", []string{"Ask again in a few seconds: most often it is starting or ending"}},
	"no-address":        {"the API server does not have its addresses yet", []string{"Ask again in a few seconds"}},
	"rules-missing":     {"its rules are not there", []string{again}},
	"rules-differ":      {"it has other rules than it should have", []string{again, "If it happens again, find out who changes them"}},
	"budget":            {"rules are to be written again, and the agent holds that back, since so many were lately", []string{"Find out who changes the rules: kubectl meshcni show"}},
	"too-many-drifted":  {"rules are to be written again, and the agent holds that back, since so many pods of its namespace have lost theirs", []string{"Find out who changes the rules: kubectl meshcni show"}},
	"flapping":          {"it joins and leaves the mesh again and again, and the agent follows more slowly", []string{"Find out who changes its labels, or those of its namespace"}},
	"status-held":       {"its annotation does not stay as the agent wrote it", []string{"Find out who changes the annotation"}},
	"variant":           {"its rules are those of iptables, which the agent does not find", []string{"Set the backend as it was, or give the agent the host's programs (--repair-host-root)"}},
	"not-released":      {"it is to leave the mesh, and has not yet", []string{again}},
	"namespace-unknown": {"the labels of its namespace are not known", []string{"See the agent's log, which says why the API server does not tell"}},
	"selection-unknown": {"it cannot be told what it is to be", []string{"See the agent's log"}},
}

// remedyOf looks a reason up. That of a step that failed ends with -failed.
func remedyOf(reason string) remedy {
	if r, ok := agentReasons[reason]; ok {
		return r
	}
	if step, ok := strings.CutSuffix(reason, "-failed"); ok {
		return remedy{"the step " + step + " failed", []string{again}}
	}
	return remedy{"the agent says " + reason, []string{"kubectl meshcni check looks at the whole installation"}}
}
