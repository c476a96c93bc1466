package repairtest

import (
	"cmp"
	"context"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Redirector has the rules of pods in memory: it knows for each pod whether its rules are there. The zero value has none.
// It is safe for concurrent use.
type Redirector struct {
	// Rule is the text of a missing rule. Empty means "-j MESH_OUTPUT".
	Rule string

	mu    sync.Mutex
	right map[types.UID]bool
	err   error
	calls []string
}

// SetRules sets whether the pod's rules are as wanted.
func (r *Redirector) SetRules(uid types.UID, right bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.set(uid, right)
}

func (r *Redirector) set(uid types.UID, right bool) {
	if r.right == nil {
		r.right = map[types.UID]bool{}
	}
	r.right[uid] = right
}

// Fail makes all calls return the error; nil ends that.
func (r *Redirector) Fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// Calls returns all calls so far, as "verb namespace/name".
func (r *Redirector) Calls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// Check returns a missing rule, unless the rules are as wanted.
func (r *Redirector) Check(_ context.Context, pod *corev1.Pod) ([]ruleset.Difference, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, "check "+pod.Namespace+"/"+pod.Name)
	if r.err != nil || r.right[pod.UID] {
		return nil, r.err
	}
	return []ruleset.Difference{{
		Kind: ruleset.KindMissing, Family: ruleset.IPv4, Table: "nat", Chain: ruleset.Output, Position: 1, Rule: cmp.Or(r.Rule, "-j MESH_OUTPUT"),
	}}, nil
}

// Apply makes them so.
func (r *Redirector) Apply(_ context.Context, pod *corev1.Pod) (apply.Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, "apply "+pod.Namespace+"/"+pod.Name)
	if r.err != nil {
		return apply.Result{}, r.err
	}
	changed := !r.right[pod.UID]
	r.set(pod.UID, true)
	return apply.Result{Changed: changed}, nil
}
