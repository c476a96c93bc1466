package migration

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// ConsulConfig finds the JSON of a Consul container: the injector gives it in a variable or by a flag.
func ConsulConfig(c *corev1.Container) (string, error) {
	for _, e := range c.Env {
		if strings.HasSuffix(e.Name, "REDIRECT_TRAFFIC_CONFIG") {
			if e.ValueFrom != nil {
				return "", fmt.Errorf("the value of %s is not in the pod", e.Name)
			}
			return e.Value, nil
		}
	}
	words := append(append([]string{}, c.Command...), c.Args...)
	for i, w := range words {
		name, value, inline := strings.Cut(strings.TrimLeft(w, "-"), "=")
		switch {
		case name != "redirect-traffic-config" || !strings.HasPrefix(w, "-"):
		case inline:
			return value, nil
		case i+1 < len(words):
			return words[i+1], nil
		}
	}
	return "", errors.New("no argument or variable has the configuration of the rules")
}

// ConsulDualStack is the annotation. Without it, whether IPv6 is captured matters to pods with an address of it.
func ConsulDualStack(pod *corev1.Pod) (string, error) {
	v, ok := pod.Annotations[consul.DualStack]
	switch {
	case ok:
		return v, nil
	case HasIPv6(pod):
		return "", fmt.Errorf("annotation %s is absent, so whether it captures IPv6 is not known", consul.DualStack)
	}
	return "false", nil
}

// HasIPv6 reports whether the pod has an address of IPv6.
func HasIPv6(pod *corev1.Pod) bool {
	return slices.ContainsFunc(explain.Addrs(pod), func(a netip.Addr) bool { return ruleset.FamilyOf(a) == ruleset.IPv6 })
}

// withPlugin returns the pod without its init container as the mesh's injector makes it for a plugin: Consul's gives the container's
// configuration in annotations then. Pod is with the container. It changes neither.
func withPlugin(without, pod *corev1.Pod) *corev1.Pod {
	if without == pod {
		return pod
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		text, err := ConsulConfig(c)
		if c.Name != consul.InitContainer || err != nil {
			continue
		}
		as := *without
		as.Annotations = map[string]string{consul.TransparentProxyStatus: consul.StatusWaiting, consul.RedirectTrafficConfig: text}
		if dual, err := ConsulDualStack(pod); err == nil {
			as.Annotations[consul.DualStack] = dual
		}
		maps.Copy(as.Annotations, without.Annotations)
		return &as
	}
	return without
}
