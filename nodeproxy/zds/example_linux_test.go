package zds_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/nodeproxy/zds"
)

// An agent and its proxy: the proxy takes the pod that is there when it connects, and one that comes later, and gives that
// back.
func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	netns, err := os.Open("/proc/self/ns/net") // a pod's, in earnest
	if err != nil {
		panic(err)
	}
	defer func() { _ = netns.Close() }()
	cart := nodeproxy.Workload{PodID: nodeproxy.PodID{UID: "uid-1", Namespace: "shop", Name: "cart"}, ServiceAccount: "cart", NetNS: netns}
	bank := nodeproxy.Workload{PodID: nodeproxy.PodID{UID: "uid-2", Namespace: "shop", Name: "bank"}, ServiceAccount: "bank", NetNS: netns}

	told := make(chan struct{}, 10)
	agent, err := zds.Listen(context.Background(), zds.Options{
		Path:     filepath.Join(dir, "zds.sock"),
		UIDs:     []uint32{uint32(os.Getuid())},
		Snapshot: func(context.Context) ([]nodeproxy.Workload, error) { return []nodeproxy.Workload{cart}, nil },
		OnChange: func() { told <- struct{}{} },
	})
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- agent.Run(ctx) }()

	proxy, err := zds.Dial(ctx, filepath.Join(dir, "zds.sock"))
	if err != nil {
		panic(err)
	}
	defer func() { _ = proxy.Close() }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			request, netns, err := proxy.Receive()
			if err != nil {
				return
			}
			if netns != nil { // here it would listen in it
				_ = netns.Close()
			}
			fmt.Println(request)
			_ = proxy.Ack(nil)
		}
	}()
	for agent.Ready() != nil {
		<-told
	}
	err = errors.Join(agent.Add(ctx, bank), agent.Remove(ctx, bank.UID))
	stop()
	<-done
	fmt.Println(errors.Join(err, <-ended))
	// Output:
	// Add uid-1
	// SnapshotSent
	// Add uid-2
	// Del uid-2
	// <nil>
}
