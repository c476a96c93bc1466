//go:build linux

package podrules

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/kernel/bypass"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/node/netnsstore"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Live holds the rules and addresses of a pod's network namespace.
type Live struct {
	// NetNS names the source of the namespace. Empty: it was not.
	NetNS string
	Rules ruleset.Live
	// Differences are those from the rules that the record has in force, if it has any.
	Differences []ruleset.Difference
	// Bypasses are the ways that packets have past all rules of the namespace. BypassError says why there may be others.
	Bypasses    []dialect.Bypass
	BypassError string
}

// Look reads the rules in the pod's network namespace. The record is that of its attachment, by whose UID the pod is known, or has its UID
// alone. Rules are ours if they are those of the record's mesh or of one of the owners.
func Look(ctx context.Context, known *inventory.Inventory, pod netnsstore.Pod, record attachment.Record, hostRoot string, owners ...ruleset.Ruleset) (l Live, err error) {
	ref, err := enter(ctx, known, pod, record, hostRoot)
	if err != nil {
		return l, err
	}
	defer func() { _ = ref.Close() }()
	ns := ref.NetNS()
	l.NetNS = ns.Path()
	var unread error
	if l.Bypasses, unread = bypass.Live(ns, pod.Addrs); unread != nil {
		l.BypassError = unread.Error()
	}
	o := apply.Options{Root: hostRoot}
	wanted := record.InForce()
	l.Rules, err = apply.Live(ctx, ns, o, append(owners, wanted)...)
	if record.Selected {
		var checkErr error
		l.Differences, checkErr = differences(ctx, ns, record, wanted, o)
		err = errors.Join(err, checkErr)
	}
	return l, err
}

func differences(ctx context.Context, ns *netnsexec.NetNS, record attachment.Record, wanted ruleset.Ruleset, o apply.Options) ([]ruleset.Difference, error) {
	o.Backend, o.Runner = record.Backend, ns.Sandbox()
	b, err := apply.Choose(ctx, ns, o)
	if err != nil {
		return nil, err
	}
	return b.Check(ctx, wanted)
}

// errHidden says that whether a namespace is there cannot be told from here.
var errHidden = errors.New("the agent may not look into the pod")

// enter finds the pod's namespace.
func enter(ctx context.Context, known *inventory.Inventory, pod netnsstore.Pod, record attachment.Record, hostRoot string) (*netnsstore.Ref, error) {
	pod.UID, pod.Record = types.UID(record.Pod.UID), &record
	pod.OwnUsers = pod.OwnUsers || record.NetNS.Ino != 0 // the record tells
	ref, err := netnsstore.New(netnsstore.Options{Inventory: known, HostRoot: hostRoot, Fleeting: true}).Find(ctx, pod)
	switch {
	case err == nil:
		return ref, nil
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%w: %w", errHidden, err)
	case record.NetNS.Path != "" && !visible(record.NetNS.Path, hostRoot) && errors.Is(err, netnsstore.ErrNoProcess):
		return nil, fmt.Errorf("%w: neither %s nor a process of the pod is to be seen from here", errHidden, record.NetNS.Path)
	}
	return nil, err
}

// visible reports whether the place where a namespace would be is to be seen: a container without the node's has an empty one, or none.
func visible(path, hostRoot string) bool {
	if strings.HasPrefix(path, "/var/run/") { // a link, which would lead out of the host's root
		path = strings.TrimPrefix(path, "/var")
	}
	return slices.ContainsFunc([]string{hostRoot, ""}, func(root string) bool {
		entries, err := os.ReadDir(filepath.Dir(filepath.Join("/", root, path)))
		return err == nil && (root != "" || len(entries) > 0)
	})
}
