package dialect

import "github.com/meshcni/meshcni/redirect"

// NodeProxy describes a mesh whose proxy is not in its pods: one proxy on the node opens its sockets in the network
// namespace of each pod. The rules of such a pod refuse its connections until the proxy listens, so that an agent has to
// hand the namespace over.
type NodeProxy struct {
	// StatusAnnotation is the annotation in which the agent reports that a pod is in the proxy's care. Others of the mesh
	// may act on it, so it must never say more than is true. Empty: the mesh has none.
	StatusAnnotation string
	// Enrolled is its value when the pod is captured and its proxy listens, Pending when the rules are there and the proxy is
	// not. The annotation is absent from a pod that is outside.
	Enrolled, Pending string
	// ProbeSources are the source addresses, one a family, that the host's own connections to captured pods get, so that
	// the rules can let the kubelet's probes pass.
	ProbeSources redirect.PrefixSet
}
