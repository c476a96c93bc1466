package repairtest

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/repair"
)

// Mender is a [repair.Mender] in memory: it knows for each pod whether its rules
// are there. The zero value has none. It is safe for concurrent use.
type Mender struct {
	// Rule is the text of a rule that is missing; empty is "-j MESH_OUTPUT".
	Rule string

	mu    sync.Mutex
	right map[types.UID]bool
	err   error
	calls []string
}

var _ repair.Mender = (*Mender)(nil)

// SetRules says whether the pod's rules are as wanted.
func (m *Mender) SetRules(uid types.UID, right bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.right == nil {
		m.right = map[types.UID]bool{}
	}
	m.right[uid] = right
}

// Fail makes all calls fail with the error; nil ends that.
func (m *Mender) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

// Calls are what was asked so far, as "verb namespace/name".
func (m *Mender) Calls() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.calls...)
}

// Check implements repair.Mender.
func (m *Mender) Check(_ context.Context, pod *corev1.Pod) ([]ruleset.Difference, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, "check "+pod.Namespace+"/"+pod.Name)
	if m.err != nil {
		return nil, m.err
	}
	if m.right[pod.UID] {
		return nil, nil
	}
	rule := m.Rule
	if rule == "" {
		rule = "-j MESH_OUTPUT"
	}
	return []ruleset.Difference{{
		Kind: ruleset.Missing, Family: ruleset.IPv4, Table: "nat", Chain: ruleset.Output, Position: 1, Rule: rule,
	}}, nil
}

// Apply implements repair.Mender.
func (m *Mender) Apply(_ context.Context, pod *corev1.Pod) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, "apply "+pod.Namespace+"/"+pod.Name)
	if m.err != nil {
		return false, m.err
	}
	changed := !m.right[pod.UID]
	if m.right == nil {
		m.right = map[types.UID]bool{}
	}
	m.right[pod.UID] = true
	return changed, nil
}
