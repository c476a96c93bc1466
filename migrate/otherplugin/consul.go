package otherplugin

import "fmt"

// consulCNI has the flags and volumes of Consul's chart (charts/consul), and those that install-cni has besides
// (control-plane/subcommand/install-cni).
var consulCNI = Plugin{
	Mesh:      "consul",
	Type:      "consul-cni",
	DaemonSet: []Mark{{Words: []string{"consul-k8s-control-plane", "install-cni"}}},
	Settings: map[string]Translate{
		"--log-level":        Keep("logLevel", Level),
		"--log-json":         Needless("logs are JSON"),
		"--cni-bin-dir":      Keep("cni.binDirs", Paths),
		"--cni-net-dir":      Keep("cni.confDir", Path),
		"volume cni-bin-dir": Needless("--cni-bin-dir says it"),
		"volume cni-net-dir": Needless("--cni-net-dir says it"),
		"--bin-source-dir":   Needless(Bookkeeping),
		"--kubeconfig":       Needless(Bookkeeping),
		"--autorotate-token": Needless("the agent renews the plugin's token"),
		"--cni-token-path":   Needless(Bookkeeping),
		"--multus": func(value string, said map[string]string) Outcome {
			on, err := Truth(value)
			if err != nil {
				return Outcome{Err: err}
			}
			return Chained(fmt.Sprint(on != true), said) // the chart asks it the other way round
		},
	},
	Before: []string{
		"Consul's chart runs plugin and injector by one value, connectInject.cni.enabled. Leave it on, and keep its DaemonSet off the nodes: delete the DaemonSet after each upgrade of that chart, or render it away.",
	},
	Remove: []string{
		"Remove the other: kubectl delete its DaemonSet. Its agents take their entry, their binary and their credentials out.",
	},
}
