package netconf_test

import (
	"errors"
	"fmt"
	"testing/fstest"
	"time"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// The entry of a mesh's own plugin: what is not set is the default.
func Example() {
	entry := netconf.Config{
		Type: "acme-cni", RunDir: "/var/run/acme-cni", PodNamespace: "acme-system",
		AddDeadline: netconf.Duration(time.Minute), ReadyWithoutAgent: true,
	}.Marshal()
	fmt.Printf("%s", entry)
	read, unknown, err := netconf.Parse(entry, meshcni.Identity{})
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

// The entry in force is in the list that the runtime loads, which is the first by name.
func ExampleFind() {
	node := fstest.MapFS{
		"10-k8s.conflist": {Data: []byte(`{"cniVersion": "1.0.0", "name": "k8s", "plugins": [{"type": "bridge"}, {"type": "meshcni", "dialect": "kuma"}]}`)},
		"20-old.conflist": {Data: []byte(`{"cniVersion": "1.0.0", "name": "old", "plugins": [{"type": "meshcni"}]}`)},
	}
	e, err := netconf.Find(node, "/etc/cni/net.d", meshcni.Identity{}, []string{"meshcni"})
	fmt.Println(e.File, e.Dialects, err)
	_, err = netconf.Find(node, "/etc/cni/net.d", meshcni.Identity{}, []string{"other"})
	var none *netconf.NoEntryError
	fmt.Println(errors.As(err, &none), err)
	// Output:
	// /etc/cni/net.d/10-k8s.conflist kuma <nil>
	// true /etc/cni/net.d/10-k8s.conflist, which the runtime loads, has no entry of type other
}
