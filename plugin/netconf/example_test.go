package netconf_test

import (
	"fmt"
	"time"

	"github.com/meshcni/meshcni/plugin/netconf"
)

// The entry of a mesh's own plugin: what is not set is the default.
func Example() {
	entry := netconf.Config{
		Type: "acme-cni", RunDir: "/var/run/acme-cni", PodNamespace: "acme-system",
		AddDeadline: netconf.Duration(time.Minute), ReadyWithoutAgent: true,
	}.Marshal()
	fmt.Printf("%s", entry)
	read, unknown, err := netconf.Parse(entry)
	fmt.Println(read.AddDeadline, read.LogLevel.Level(), unknown, err)
	// Output:
	// {
	//   "type": "acme-cni",
	//   "backend": "auto",
	//   "log_level": "info",
	//   "run_dir": "/var/run/acme-cni",
	//   "pod_namespace": "acme-system",
	//   "add_deadline": "1m0s",
	//   "ready_without_agent": true,
	//   "kubernetes": {
	//     "kubeconfig": "/var/run/acme-cni/kubeconfig",
	//     "exclude_namespaces": [],
	//     "cni_bin_dir": "/opt/cni/bin"
	//   },
	//   "capabilities": {
	//     "io.kubernetes.cri.pod-annotations": true
	//   }
	// }
	// 1m0s INFO [] <nil>
}
