package dialect

import (
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// NodeProxy describes a mesh whose proxy is not in its pods: one proxy on the node opens its sockets in the network
// namespace of each pod. The rules of such a pod refuse its connections until the proxy listens, so that an agent has to
// hand the namespace over.
type NodeProxy struct {
	// StatusAnnotation is the annotation in which the agent reports that a pod is in the proxy's care. Others of the mesh
	// encrypt what they send to the pod by it, so it is no report of the moment. Empty: the mesh has none.
	StatusAnnotation string
	// Enrolled is its value from when the pod is captured and its proxy listens until it leaves, whatever is missing meanwhile.
	// Pending is its value when rules are there that let what is sent to the pod pass, and nobody has listened for peers for a
	// minute. The annotation is absent from a pod that is outside.
	Enrolled, Pending string
	// ProbeSources are the source addresses, one a family, that the host's own connections to captured pods get, so that
	// the rules can let the kubelet's probes pass.
	ProbeSources redirect.PrefixSet
	// Agents are other programs of the mesh that do on a node what our agent does, by their names. A node's pods can be given
	// to one, without a moment in which they are not captured. nil: none is known.
	Agents map[string]OtherAgent
}

// StatusAnnotation is that of the mesh's NodeProxy; empty if it has none.
func (d Dialect) StatusAnnotation() string {
	if d.NodeProxy == nil {
		return ""
	}
	return d.NodeProxy.StatusAnnotation
}

// OtherAgent is another program of a mesh, which captures pods whose proxy is on the node.
type OtherAgent struct {
	// Rules returns the rules that it has for a pod with the settings, in the names that it uses.
	Rules func(redirect.Redirect) ruleset.Ruleset
	// Layout names its tables and chains with nftables.
	Layout ruleset.Layout
}
