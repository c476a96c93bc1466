package dialect

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/node/probeports"
	"github.com/meshcni/meshcni/redirect"
)

// ProbePorts returns the ports on which the pod's own probes and hooks ask it, those of init containers and sidecars too.
func (in Input) ProbePorts() redirect.PortSet {
	var ports []uint16
	for _, list := range [][]corev1.Container{in.Pod.Spec.InitContainers, in.Pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			ports = append(ports, probeports.Of(c, c.LivenessProbe), probeports.Of(c, c.ReadinessProbe), probeports.Of(c, c.StartupProbe))
			if l := c.Lifecycle; l != nil {
				ports = append(ports, probeports.OfHook(c, l.PostStart), probeports.OfHook(c, l.PreStop))
			}
		}
	}
	return redirect.Ports(slices.DeleteFunc(ports, func(p uint16) bool { return p == 0 })...)
}
