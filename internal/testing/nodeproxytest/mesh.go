package nodeproxytest

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// mesh is what the control plane has told the proxy. Its lock is its own: connections wait for it while the proxy drops their pod.
type mesh struct {
	mu      sync.Mutex
	unknown []types.UID
	changed chan struct{} // closed and replaced when it changes
}

func (m *mesh) set(unknown []types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unknown = unknown
	if m.changed != nil {
		close(m.changed)
	}
	m.changed = make(chan struct{})
}

// await waits until the control plane has told about a pod, and reports whether it has in time.
func (m *mesh) await(ctx context.Context, uid types.UID, patience time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		m.mu.Lock()
		unknown, changed := slices.Contains(m.unknown, uid), m.changed
		m.mu.Unlock()
		if !unknown {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}
