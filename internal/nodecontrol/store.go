//go:build linux

package nodecontrol

import (
	"context"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/netnsstore"
)

// Store is a store of namespaces as [Namespaces].
type Store struct{ *netnsstore.Store }

// Put implements [Namespaces].
func (n Store) Put(a agentsock.Attachment, file *os.File) (NetNS, error) {
	return use(n.Store.Put(netnsstore.Attachment{UID: types.UID(a.Pod.UID), NetNS: a.NetNS, Addrs: a.Addrs}, file))
}

// Find implements [Namespaces].
func (n Store) Find(ctx context.Context, pod Sought) (NetNS, error) {
	return use(n.Store.Find(ctx, pod))
}

// use keeps a nil Ref from being an interface that is not.
func use(ref *netnsstore.Ref, err error) (NetNS, error) {
	if err != nil {
		return nil, err
	}
	return ref, nil
}

// Foresee implements [Namespaces]: what is held is proven again, and what is not is searched for, all at once.
func (n Store) Foresee(ctx context.Context, pods []Sought) {
	still := n.StillThere(ctx, pods...)
	lost := slices.DeleteFunc(slices.Clone(pods), func(p Sought) bool { return still[p.UID] == nil })
	for _, f := range n.FindAll(ctx, lost...) {
		if f.Ref != nil {
			_ = f.Ref.Close() // the store keeps it
		}
	}
}
