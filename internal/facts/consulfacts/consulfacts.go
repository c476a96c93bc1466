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
			consul.RedirectTrafficConfig: fmt.Sprintf(`{"ProxyUserID":"%d","ProxyInboundPort":%d,"ProxyOutboundPort":%d,"ExcludeInboundPorts":["%[4]d"],"ExcludeOutboundPorts":["%[4]d"]}`,
				consul.ProxyUID, consul.InboundPort, consul.OutboundPort, mesh.ExcludedPort),
		}},
		Init:   &mesh.Init{Annotations: annotations, ForPlugin: true},
		Plugin: plugin, PluginTypes: []string{plugin.Type},
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

// plugin has the flags and volumes of Consul's chart (charts/consul), and those that install-cni has besides
// (control-plane/subcommand/install-cni).
var plugin = &mesh.Plugin{
	Type:      "consul-cni",
	DaemonSet: []mesh.Mark{{Words: []string{"consul-k8s-control-plane", "install-cni"}}},
	Settings: map[string]mesh.Translate{
		"--log-level":        mesh.Keep("logLevel", mesh.Level),
		"--log-json":         mesh.Needless("logs are JSON"),
		"--cni-bin-dir":      mesh.Keep("cni.binDirs", mesh.Paths),
		"--cni-net-dir":      mesh.Keep("cni.confDir", mesh.Path),
		"volume cni-bin-dir": mesh.Needless("--cni-bin-dir says it"),
		"volume cni-net-dir": mesh.Needless("--cni-net-dir says it"),
		"--bin-source-dir":   mesh.Needless(mesh.Bookkeeping),
		"--kubeconfig":       mesh.Needless(mesh.Bookkeeping),
		"--autorotate-token": mesh.Needless("the agent renews the plugin's token"),
		"--cni-token-path":   mesh.Needless(mesh.Bookkeeping),
		"--multus": func(value string, said map[string]string) mesh.Outcome {
			on, err := mesh.Truth(value)
			if err != nil {
				return mesh.Outcome{Err: err}
			}
			return mesh.Chained(fmt.Sprint(on != true), said) // the chart asks it the other way round
		},
	},
	Before: []string{
		"Consul's chart runs plugin and injector by one value, connectInject.cni.enabled. Leave it on, and keep its DaemonSet off the nodes: delete the DaemonSet after each upgrade of that chart, or render it away.",
	},
	Remove: []string{
		"Remove the other: kubectl delete its DaemonSet. Its agents take their entry, their binary and their credentials out.",
	},
}
