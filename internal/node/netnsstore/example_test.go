//go:build linux

package netnsstore_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/meshcni/meshcni/internal/node/netnsstore"
)

// A running pod's namespace, from whatever knows it; the next start finds it in the journal.
func ExampleStore_Find() {
	store := netnsstore.New(netnsstore.Options{RunDir: "/nonexistent/run"})
	defer func() { _ = store.Close() }()

	pod := netnsstore.Pod{
		UID:   "0b1c7d0e-6f1f-4e0c-9a55-2f0f6f8c3f11",
		Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.5")},
	}
	ref, err := store.Find(context.Background(), pod)
	var notFound *netnsstore.NotFoundError
	switch {
	case errors.As(err, &notFound):
		fmt.Println("no process, try again later:", errors.Is(err, netnsstore.ErrNoProcess))
	case err == nil:
		defer func() { _ = ref.Close() }()
		fmt.Println(ref.ID(), "known from", ref.Source())
	}
	// Output: no process, try again later: true
}
