// Package consulfacts has the facts of Consul that its rules do not need: see [mesh.Facts].
package consulfacts

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/mesh"
)

// New returns the facts. What the init container takes from the proxy's registration in Consul is not in the pod: it adds excluded inbound
// ports.
func New() mesh.Facts {
	return mesh.Facts{
		Name: "consul", Title: "Consul",
		Injection: mesh.Injection{
			Pod:        []mesh.Wish{mesh.Annotation("consul.hashicorp.com/connect-inject", []string{"true"}, []string{"false"})},
			Webhook:    "connect-injector.consul.hashicorp.com",
			Health:     "kubectl get pods --all-namespaces --selector component=connect-injector says whether the injector runs",
			PluginMode: "-enable-cni=true among the arguments of Consul's injector, which its chart sets with connectInject.cni.enabled",
			PluginMark: consul.TransparentProxyStatus,
			Never:      []string{"kube-system"},
		},
		TestPod: mesh.TestPod{Container: "consul-dataplane", Annotations: map[string]string{
			consul.InjectStatus: "injected", consul.TransparentProxyStatus: "enabled", consul.DualStack: "true",
			consul.RedirectTrafficConfig: fmt.Sprintf(`{"ProxyUserID":"%d","ProxyInboundPort":%d,"ProxyOutboundPort":%d}`,
				consul.ProxyUID, consul.InboundPort, consul.OutboundPort),
		}},
		Init:        &mesh.Init{Annotations: annotations, ForPlugin: true},
		PluginTypes: []string{"consul-cni"},
	}
}

// annotations are those that the injector writes for a plugin in place of the container's configuration, which is in a variable or a flag.
func annotations(c mesh.InitContainer) (map[string]string, error) {
	text, err := config(c.Container)
	if err != nil {
		return nil, err
	}
	dual, ok := c.Pod.Annotations[consul.DualStack]
	switch {
	case ok:
	case c.HasIPv6():
		return nil, fmt.Errorf("annotation %s is absent, so whether it captures IPv6 is not known", consul.DualStack)
	default:
		dual = "false"
	}
	return map[string]string{consul.TransparentProxyStatus: consul.StatusWaiting, consul.RedirectTrafficConfig: text, consul.DualStack: dual}, nil
}

// config finds the JSON that the injector gives in a variable or by a flag, also one within a shell's script.
func config(c *corev1.Container) (string, error) {
	for _, e := range c.Env {
		if strings.HasSuffix(e.Name, "REDIRECT_TRAFFIC_CONFIG") {
			if e.ValueFrom != nil {
				return "", fmt.Errorf("the value of %s is not in the pod", e.Name)
			}
			return e.Value, nil
		}
	}
	words := slices.Concat(c.Command, c.Args)
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
