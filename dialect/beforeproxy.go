package dialect

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/redirect"
)

// beforeProxy returns the names of the pod's init containers that run before its proxy does, and whose connections the rules send to
// it all the same: nobody answers them. The mesh's own are none, nor those that run as the proxy's user or as one whose
// connections are excluded.
func (d *Dialect) beforeProxy(pod *corev1.Pod, own []string, r redirect.Redirect) (names []string) {
	if d.NodeProxy != nil || r.Outbound.CIDRs.Empty() && r.Outbound.Ports.Empty() {
		return nil
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		switch {
		case slices.Contains(own, c.Name):
			return names // those after it find the proxy there
		case c.Name == d.Check.Container, d.Policy.SetsRules(c), slices.Contains(d.Policy.PrivilegedInitContainers, c.Name):
		case len(byID(pod, c, r.Proxy, BypassInitID)) == 0 && !excluded(pod, c, r.Outbound.Exclude):
			names = append(names, c.Name)
		}
	}
	return names
}

// excluded reports whether connections of the container's user, some at least, are left alone.
func excluded(pod *corev1.Pod, c *corev1.Container, exclusions []redirect.Exclusion) bool {
	its, pods := contexts(pod, c)
	user := its.RunAsUser
	if user == nil {
		user = pods.RunAsUser
	}
	return user != nil && slices.ContainsFunc(exclusions, func(e redirect.Exclusion) bool {
		return slices.ContainsFunc(e.UIDs, func(r redirect.IDRange) bool { return int64(r.First) <= *user && *user <= int64(r.Last) })
	})
}
