// Package rights has what this module's programs ask of the API server, by their settings. It does no I/O. The roles of the chart and
// of deploy/rbac grant the same; tests hold the one against the other.
package rights

import (
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
)

// Needs are the settings of an agent that decide what it asks.
type Needs struct {
	// Namespace is the agent's, and Node its node.
	Namespace, Node string
	// PluginAccount is the service account whose tokens the plugin gets. Empty: it has the agent's own.
	PluginAccount string
	// OwnToken: the plugin has the agent's own for lack of that.
	OwnToken bool
	// DaemonSet is the agent's, if it watches that, and then it reads its node too. Empty: it does not.
	DaemonSet string
	// Serves: the plugin gets pods from the agent. OnlyServes: and from nowhere else.
	Serves, OnlyServes bool
	// Namespaces: the pod's namespace decides too.
	Namespaces bool
	// WriteStatus: the plugin writes the pods' status.
	WriteStatus bool
	// Ambient: the agent has pods whose proxy is on the node.
	Ambient bool
	// Repair lists the permissions to find and repair pods. Nil: the agent does not look for them.
	Repair []authorizationv1.ResourceAttributes
}

// What they are for, in the words of a finding.
const (
	forPlugin    = "without it no pod of the mesh starts"
	forStatus    = "without it no pod says that its rules are in place"
	forToken     = "without it the plugin has the agent's own token"
	forNodeEvent = "without it the node has no events about why it is not ready"
	forLeaving   = "without it the agent cannot see that it leaves its node for good"
	forServing   = "without it the agent does not know its node's pods"
	forAmbient   = "without it pods whose proxy is on the node are not captured"
	forRepair    = "without it pods that started without the plugin are not found, or not repaired"
	forTaint     = "without it the taint's controller does not work"
)

// nodesEvents is the namespace of events about nodes.
const nodesEvents = metav1.NamespaceDefault

// Agent returns what an agent and its plugin need.
func Agent(n Needs) []agentapi.Right {
	var l list
	l.account, l.why = n.PluginAccount, forPlugin
	if n.OwnToken {
		l.account = ""
	}
	if !n.OnlyServes {
		l.add(api.Right{Verb: "get", Resource: "pods"})
		if n.Namespaces {
			l.add(api.MayGet(api.Namespaces))
		}
	}
	if n.WriteStatus {
		l.why = forStatus
		l.add(api.MayPatchStatus)
	}
	l.account = ""
	if n.PluginAccount != "" {
		l.why = forToken
		l.add(named(n.Namespace, n.PluginAccount, api.MayCreateTokens)...)
	}
	l.why = forNodeEvent
	l.add(in(nodesEvents, api.MayCreateEvents, api.MayPatchEvents)...)
	if n.DaemonSet != "" {
		l.why = forLeaving
		l.add(named(n.Namespace, n.DaemonSet, api.MayGet(api.DaemonSets), api.MayList(api.DaemonSets), api.MayWatch(api.DaemonSets))...)
		l.add(named(n.Namespace, n.Namespace, api.MayGet(api.Namespaces))...)
		if n.Node != "" {
			l.add(named("", n.Node, api.MayGetNodes)...)
		}
	}
	if n.Ambient {
		l.why = forAmbient
		l.add(api.MayListPods, api.MayWatchPods, api.MayList(api.Namespaces), api.MayWatch(api.Namespaces), api.MayPatchStatus,
			api.MayCreateEvents, api.MayPatchEvents)
	}
	if n.Serves {
		l.why = forServing
		l.add(api.MayListPods, api.MayWatchPods)
		if n.Namespaces {
			l.add(api.MayList(api.Namespaces), api.MayWatch(api.Namespaces))
		}
	}
	l.why = forRepair
	l.add(n.Repair...)
	return l.onNode(n.Node)
}

// Least returns what the agent of a node needs with almost any settings.
func Least(node string) []agentapi.Right {
	l := list{why: forServing}
	l.add(api.MayListPods, api.MayWatchPods)
	return l.onNode(node)
}

// Taint returns what the taint's controller needs. It has client-go's clients.
func Taint(namespace, daemonSet, lease string) []agentapi.Right {
	l := list{why: forTaint}
	verbs := func(group, resource, namespace, name string, verbs ...string) {
		for _, verb := range verbs {
			l.add(api.Right{Verb: verb, Group: group, Resource: resource, Namespace: namespace, Name: name})
		}
	}
	verbs("", "nodes", "", "", "get", "list", "watch", "patch")
	verbs("", "pods", namespace, "", "list", "watch")
	verbs("apps", "daemonsets", namespace, daemonSet, "list", "watch")
	verbs("coordination.k8s.io", "leases", namespace, "", "create")
	verbs("coordination.k8s.io", "leases", namespace, lease, "get", "update")
	verbs("", "events", namespace, "", "create", "patch")
	verbs("", "events", nodesEvents, "", "create", "patch")
	return l.all
}
