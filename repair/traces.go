package repair

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/meshcni/meshcni/internal/cnicache"
	"github.com/meshcni/meshcni/internal/filememo"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/status"
)

// tracer reads what a node has of its pods' attachments. A look at an unchanged node lists two directories.
type tracer struct {
	cacheDir string // libcni's; empty: it is not read

	mu      sync.Mutex
	cache   filememo.Memo[network]
	records func() ([]attachment.Record, error)
	last    traces
	lookAt  time.Time // of last
}

// recently is for how long a look that finds a pod captured need not be repeated. Pods change in bursts.
const recently = time.Second

func newTracer(cacheDir string, records attachment.Store) *tracer {
	return &tracer{cacheDir: cacheDir, records: records.Index()}
}

// recent returns the last look, and false if it was too long ago.
func (t *tracer) recent() (traces, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last, !t.lookAt.IsZero() && time.Since(t.lookAt) < recently
}

// look returns what there is now.
func (t *tracer) look() (found traces) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer func() { t.last, t.lookAt = found, time.Now() }()
	var errCache, errRecords error
	found.records, errRecords = t.records()
	if t.cacheDir != "" {
		found.networks, errCache = t.networks()
	}
	found.err = errors.Join(errCache, errRecords)
	return found
}

func (t *tracer) networks() (all []network, err error) {
	if _, err := os.Stat(t.cacheDir); err != nil {
		return nil, fmt.Errorf("read the runtime's cache of attachments: %w", err)
	}
	fsys := os.DirFS(t.cacheDir)
	found, err := t.cache.Refresh(fsys, append([]string{cnicache.MultusDir}, cnicache.Dirs...), func(name string) (network, error) {
		return readNetwork(fsys, name)
	})
	for _, n := range found {
		if n.ContainerID != "" {
			all = append(all, n)
		}
	}
	if err != nil {
		err = fmt.Errorf("read the runtime's cache of attachments: %w", err)
	}
	return all, err
}

func readNetwork(fsys fs.FS, name string) (n network, err error) {
	info, err := fs.Stat(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return n, nil
	}
	if err != nil {
		return n, err
	}
	a, err := cnicache.Read(fsys, name)
	if err != nil || a.IfName == "lo" { // containerd sets lo up by a network of its own, cni-loopback, and before the pod's
		return n, err
	}
	return network{
		ID:    attachment.ID{Network: a.NetworkName, ContainerID: a.ContainerID, IfName: a.IfName},
		pod:   status.ID{Namespace: a.Arg("K8S_POD_NAMESPACE"), Name: a.Arg("K8S_POD_NAME"), UID: a.Arg("K8S_POD_UID")},
		netns: a.Sandbox(), addrs: a.Addrs(), types: a.Types(), made: info.ModTime(), multus: strings.HasPrefix(name, cnicache.MultusDir+"/"),
	}, nil
}
