package otherplugin

import (
	"encoding/json"
	"strings"
)

// kumaCNI has the variables and volumes of Kuma's chart (deployments/charts/kuma), and the keys of its network configuration.
var kumaCNI = Plugin{
	Mesh:      "kuma",
	Type:      "kuma-cni",
	DaemonSet: []Mark{{ConfigMap: "kuma-cni-config"}, {ConfigMap: "-cni-config", Words: []string{"exec /install-cni"}}},
	Settings: map[string]Translate{
		"kubernetes.exclude_namespaces": Keep("excludeNamespaces", func(v string) (any, error) {
			var all []string
			err := json.Unmarshal([]byte(v), &all)
			names, _ := Words(strings.Join(all, ","))
			return names, err
		}),
		"kubernetes.cni_bin_dir":  Needless("volume cni-bin-dir says it"),
		"kubernetes.kubeconfig":   Needless(Bookkeeping),
		"kubernetes.k8s_api_root": Needless(Bookkeeping),
		"log_level":               Keep("logLevel", Level),
		"CNI_LOG_LEVEL":           Needless("log_level says it"),
		"cniVersion":              Needless(ListCounts),
		"name":                    Needless(Bookkeeping),
		"type":                    Needless(Bookkeeping),
		"CNI_CONF_NAME":           ConfName("CHAINED_CNI_PLUGIN", ""),
		"CNI_NET_DIR":             Needless("volume cni-net-dir says it"),
		"CHAINED_CNI_PLUGIN":      Chained,
		"volume cni-bin-dir":      Keep("cni.binDirs", Paths),
		"volume cni-net-dir":      Keep("cni.confDir", Path),
		"command":                 Needless(StartWay),
	},
	Before: []string{
		"kuma's chart runs plugin and injector by one value: without cni.enabled the injector goes back to init containers. Keep KUMA_RUNTIME_KUBERNETES_INJECTOR_CNI_ENABLED=true in the control plane's variables.",
	},
	Remove: []string{
		"Remove the other: cni.enabled=false of kuma's chart. Its agents take the binary out before the entry: pods that start in between are tried again by the kubelet.",
	},
}
