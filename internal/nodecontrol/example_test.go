package nodecontrol_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/plugin/agentsock"
)

// myProxy is a proxy of one's own. It opens its sockets in w.NetNS.
type myProxy struct{}

func (myProxy) Add(_ context.Context, w nodeproxy.Workload) error { return nil }
func (myProxy) Remove(context.Context, types.UID) error           { return nil }
func (myProxy) Ready() error                                      { return nil }

// noPods is a node without pods.
type noPods struct{}

func (noPods) Pods() []*corev1.Pod { return nil }
func (noPods) Namespace(string) (*corev1.Namespace, error) {
	return nil, errors.New("not known")
}
func (noPods) Synced() bool                     { return true }
func (noPods) Subscribe(func(types.UID)) func() { return func() {} }

// noNamespaces finds no namespace.
type noNamespaces struct{}

func (noNamespaces) Put(agentsock.Attachment, *os.File) (nodecontrol.NetNS, error) {
	return nil, errors.New("not kept")
}

func (noNamespaces) Find(context.Context, nodeproxy.PodID, []netip.Addr) (nodecontrol.NetNS, error) {
	return nil, errors.New("not found")
}
func (noNamespaces) Known() []types.UID     { return nil }
func (noNamespaces) Forget(types.UID) error { return nil }

// A controller for a proxy of one's own. Packages nodepods and netnsstore have the pods and namespaces of a real node.
func ExampleNew() {
	c, err := nodecontrol.New(nodecontrol.Options{
		Meshes: dialect.SetOf(ambient.New(ambient.Options{ExcludedNamespaces: []string{"kube-system"}})), Pods: noPods{}, Namespaces: noNamespaces{}, Proxy: myProxy{},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(c.Ready())
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	pods, err := c.Snapshot(ctx) // what a proxy that connects is told; it waits until the pods are known
	fmt.Println(len(pods), err, c.Ready())
	stop()
	fmt.Println(<-ended)
	// Output:
	// the node's pods are not known yet
	// 0 <nil> <nil>
	// <nil>
}
