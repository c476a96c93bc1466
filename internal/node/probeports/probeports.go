// Package probeports finds the ports of a pod that its own probes and hooks ask.
package probeports

import (
	"math"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Of returns the port of the pod that a probe of a container asks; 0: none.
func Of(c *corev1.Container, p *corev1.Probe) uint16 {
	switch {
	case p == nil:
		return 0
	case p.GRPC != nil:
		return portOf(c, intstr.FromInt32(p.GRPC.Port), "")
	}
	return OfHook(c, &corev1.LifecycleHandler{HTTPGet: p.HTTPGet, TCPSocket: p.TCPSocket})
}

// OfHook returns the port of the pod that a hook of a container asks; 0: none.
func OfHook(c *corev1.Container, h *corev1.LifecycleHandler) uint16 {
	switch {
	case h == nil:
		return 0
	case h.HTTPGet != nil:
		return portOf(c, h.HTTPGet.Port, h.HTTPGet.Host)
	case h.TCPSocket != nil:
		return portOf(c, h.TCPSocket.Port, h.TCPSocket.Host)
	}
	return 0
}

// portOf returns the number of a port of the pod's. With a host, another is asked, which the pod's author chooses. A name is that of a port
// of the container's, or else a number in quotes, as to the kubelet.
func portOf(c *corev1.Container, port intstr.IntOrString, host string) uint16 {
	if host != "" {
		return 0
	}
	n := port.IntVal
	if port.Type == intstr.String {
		i := slices.IndexFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == port.StrVal })
		if i >= 0 {
			n = c.Ports[i].ContainerPort
		} else if parsed, err := strconv.ParseUint(port.StrVal, 10, 16); err == nil {
			n = int32(parsed)
		}
	}
	if n < 0 || n > math.MaxUint16 {
		return 0
	}
	return uint16(n)
}
