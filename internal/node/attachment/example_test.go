package attachment_test

import (
	"fmt"
	"os"
	"time"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/status"
)

// Which attachments of a node are captured, by the node's own records.
func ExampleStore_All() {
	run, err := os.MkdirTemp("", "example-")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(run) }()
	store := attachment.Open(run)

	// What ADD does.
	r := attachment.Record{
		ID:       attachment.ID{Network: "k8s", ContainerID: "c0ffee", IfName: "eth0"},
		Pod:      status.ID{Namespace: "shop", Name: "cart-0"},
		Selected: true, Reason: "selected", By: "ADD", Time: time.Now(),
	}
	r.Applied("nftables", redirect.Default().MustRuleset(), nil)
	if err := store.Write(r); err != nil {
		fmt.Println(err)
	}

	for r, err := range store.All() {
		if err != nil {
			fmt.Println(err) // one that cannot be read says nothing of its pod
			continue
		}
		fmt.Println(r.Pod.Namespace, r.Pod.Name, r.Reason, r.Backend)
	}
	// Output: shop cart-0 selected nftables
}
