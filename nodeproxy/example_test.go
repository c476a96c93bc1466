package nodeproxy_test

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/nodeproxy"
)

// myProxy is a proxy of one's own. It opens its sockets in w.NetNS; see examples/own-node-proxy for one that does.
type myProxy struct{ connected bool }

func (p myProxy) Add(_ context.Context, w nodeproxy.Workload) error {
	if err := p.Ready(); err != nil {
		return fmt.Errorf("serve pod %s/%s: %w", w.Namespace, w.Name, err)
	}
	return nil
}

func (myProxy) Remove(context.Context, types.UID) error { return nil }

func (p myProxy) Ready() error {
	if !p.connected {
		return nodeproxy.ErrNoProxy
	}
	return nil
}

// ExampleProxy: of a pod that no proxy can take yet, the agent asks again.
func ExampleProxy() {
	var proxy nodeproxy.Proxy = myProxy{}
	err := proxy.Add(context.Background(), nodeproxy.Workload{PodID: nodeproxy.PodID{UID: "u-1", Namespace: "shop", Name: "web"}})
	fmt.Println(err, errors.Is(err, nodeproxy.ErrNoProxy))
	// Output: serve pod shop/web: no proxy is connected true
}
