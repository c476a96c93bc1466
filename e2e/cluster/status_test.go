package cluster_test

// status is what "meshcni-node status" prints in the agent's pod.
type status struct {
	Ready bool
	News  []news
	Pods  []struct{ Namespace, Name, State, Reason, Detail string }
}

// news is one thing that it says of the node.
type news struct{ Kind, Code, Text string }

// capture returns a pod's state and its code, empty if the agent does not name it.
func (s status) capture(namespace, name string) (state, reason string) {
	for _, p := range s.Pods {
		if p.Namespace == namespace && p.Name == name {
			return p.State, p.Reason
		}
	}
	return "", ""
}
