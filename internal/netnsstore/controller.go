//go:build linux

package netnsstore

import (
	"context"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/plugin/agentsock"
)

// Namespaces is a [Store] as a [nodecontrol.Controller] uses it.
type Namespaces struct{ *Store }

// Put implements [nodecontrol.Namespaces].
func (n Namespaces) Put(a agentsock.Attachment, file *os.File) (nodecontrol.NetNS, error) {
	return use(n.Store.Put(Attachment{UID: types.UID(a.Pod.UID), NetNS: a.NetNS, Addrs: a.Addrs}, file))
}

// Find implements [nodecontrol.Namespaces].
func (n Namespaces) Find(ctx context.Context, pod Pod) (nodecontrol.NetNS, error) {
	return use(n.Store.Find(ctx, pod))
}

// use keeps a nil Ref from being an interface that is not.
func use(ref *Ref, err error) (nodecontrol.NetNS, error) {
	if err != nil {
		return nil, err
	}
	return ref, nil
}

// Foresee implements [nodecontrol.Namespaces]: what is held is proven again, and what is not is searched for, all at once.
func (n Namespaces) Foresee(ctx context.Context, pods []Pod) {
	still := n.StillThere(ctx, pods...)
	lost := slices.DeleteFunc(slices.Clone(pods), func(p Pod) bool { return still[p.UID] == nil })
	for _, f := range n.FindAll(ctx, lost...) {
		if f.Ref != nil {
			_ = f.Ref.Close() // the store keeps it
		}
	}
}
