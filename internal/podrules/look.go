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

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/bypass"
	"github.com/meshcni/meshcni/internal/podnetns"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/plugin/attachment"
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

// Look reads the rules in the network namespace of the record's pod, or, if it names none, in the one that is as wanted in which the pod with
// its UID has a process. Rules are ours if they are those of the record's mesh or of one of the owners.
func Look(ctx context.Context, record attachment.Record, want podnetns.Wanted, hostRoot string, owners ...ruleset.Ruleset) (l Live, err error) {
	ns, err := enter(ctx, record, want, hostRoot)
	if err != nil {
		return l, err
	}
	defer func() { _ = ns.Close() }()
	l.NetNS = ns.Path()
	var unread error
	if l.Bypasses, unread = bypass.Live(ns, want.Addrs); unread != nil {
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

// enter opens the namespace of the record. Its path is the host's, whose root may be elsewhere, and may by now lead to
// another namespace.
func enter(ctx context.Context, record attachment.Record, want podnetns.Wanted, hostRoot string) (*netnsexec.NetNS, error) {
	path := record.NetNS.Path
	if strings.HasPrefix(path, "/var/run/") { // a link, which would lead out of the host's root
		path = strings.TrimPrefix(path, "/var")
	}
	var errs []error
	seen := false // the place where the namespace would be
	for _, root := range slices.Compact([]string{hostRoot, ""}) {
		if path == "" {
			break
		}
		at := filepath.Join("/", root, path)
		ns, err := netnsexec.Open(at)
		if err == nil && record.NetNS.Is(ns.ID()) {
			return ns, nil
		}
		if err == nil {
			err = fmt.Errorf("%s is another namespace by now", ns.Path())
			_ = ns.Close()
		}
		entries, unread := os.ReadDir(filepath.Dir(at))
		seen = seen || unread == nil && (root != "" || len(entries) > 0) // a container without the node's has an empty one, or none
		errs = append(errs, err)
	}
	want.OwnUsers = want.OwnUsers || record.NetNS.Ino != 0 // the record tells
	found, err := podnetns.Find(ctx, podnetns.At("/proc"), record.Pod.UID, want)
	if err == nil {
		var ns *netnsexec.NetNS
		if ns, err = found.Open("/proc"); err == nil && record.NetNS.Ino != 0 && !record.NetNS.Is(ns.ID()) {
			err = errors.Join(fmt.Errorf("%s is not the namespace of the record", ns.Path()), ns.Close())
		}
		if err == nil {
			return ns, nil
		}
	}
	errs = append(errs, err)
	switch all := errors.Join(errs...); {
	case errors.Is(all, fs.ErrPermission):
		return nil, fmt.Errorf("%w: %w", errHidden, all)
	case path != "" && !seen && errors.Is(err, podnetns.ErrNoProcess):
		return nil, fmt.Errorf("%w: neither %s nor a process of the pod is to be seen from here", errHidden, path)
	default:
		return nil, all
	}
}
