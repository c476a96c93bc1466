package nodecontrol

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/judge"
	"github.com/meshcni/meshcni/internal/node/podid"
	"github.com/meshcni/meshcni/internal/node/podkeep"
	"github.com/meshcni/meshcni/internal/nodecontrol/machine"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/status"
)

// want is the wanted state of a pod, and the reason.
type want struct {
	machine.Wanted
	pod  *corev1.Pod // nil: it does not exist
	id   nodeproxy.PodID
	mesh *dialect.Dialect // the one that selects it, or that it may have been in; nil: none
	plan dialect.Plan     // what the meshes say
	// namespace is the pod's, as far as a mesh reads it.
	namespace *corev1.Namespace
	addrs     []netip.Addr
	// detail says more than Why.
	detail string
	// releasing: all pods are given back.
	releasing bool
}

// want finds out what is wanted of the pod of the entry, whose mu is held.
func (c *Controller) want(ctx context.Context, e *entry) (w want) {
	w.id.UID, w.mesh, w.releasing = e.uid, e.mesh, c.mode().on
	w.pod = c.pod(e.uid)
	if w.pod == nil {
		w.Choice, w.Why, w.detail = machine.Gone, statuscode.Gone, "the pod does not exist"
		return w
	}
	w.id = nodeproxy.PodID{UID: e.uid, Namespace: w.pod.Namespace, Name: w.pod.Name}
	w.addrs = judge.Addrs(w.pod)
	if len(w.addrs) == 0 || sameAddrs(w.addrs, e.addrs) {
		w.addrs = e.addrs // in the order in which the plugin knew them
	}
	if len(w.addrs) == 0 && e.ns != nil {
		w.addrs = e.ns.Addrs() // the plugin told an agent that has ended since
	}
	defer func() {
		if w.mesh == nil {
			w.mesh = c.formerMesh(w.pod)
		}
		w.Status = c.opts.Status != nil && w.mesh != nil && w.mesh.NodeProxy.StatusAnnotation != ""
		w.Probes = c.opts.Probes != nil && len(w.addrs) > 0
	}()
	if podid.Ended(w.pod) {
		w.Choice, w.Why, w.detail = machine.Gone, statuscode.Ended, "the pod's containers have ended"
		return w
	}
	c.decide(ctx, &w)
	return w
}

// decide reads the pod's judgement.
func (c *Controller) decide(ctx context.Context, w *want) {
	if w.releasing {
		w.Choice, w.Why, w.detail = machine.Out, statuscode.Releasing, "the node's proxy gives back all pods"
		return
	}
	j := c.opts.Pods.Judgement(w.pod)
	p, err := j.Plan(w.addrs, redirect.Kernel{})
	w.plan, w.namespace, w.Why, w.detail = p, j.Namespace, p.Decision.Reason, p.Decision.Detail
	switch {
	case errors.Is(err, podkeep.ErrTooLarge):
		w.Choice, w.Why, w.detail = machine.Unsure, statuscode.TooLarge, err.Error()
	case errors.Is(err, redirect.ErrNamespaceUnknown):
		w.Choice, w.Why, w.detail = machine.Unsure, status.CodeNamespaceUnknown, err.Error()
	case j.Undecided():
		w.Choice, w.Why, w.detail = machine.Unsure, statuscode.SelectionUnknown, err.Error()
	case !j.Selected():
		w.Choice = machine.Out
	case j.Mesh.NodeProxy == nil:
		w.Choice, w.Why, w.detail = machine.Out, statuscode.OtherMesh, "the pod is in mesh "+j.Mesh.Name
	default:
		w.mesh = j.Mesh
		w.selected(ctx, err)
	}
}

// selected sets what is wanted of a pod that a mesh with a proxy on the node selects.
func (w *want) selected(ctx context.Context, err error) {
	w.Why, w.detail = "", contested(w.plan)
	switch {
	case err != nil && ctx.Err() == nil:
		w.Choice, w.Why, w.detail = machine.Unsure, status.CodePodRefused, err.Error()
	case err != nil:
		w.Choice, w.Why, w.detail = machine.Unsure, statuscode.SelectionUnknown, err.Error()
	case len(w.addrs) == 0:
		w.Choice, w.Why, w.detail = machine.Unsure, statuscode.NoAddress, "the pod has no address yet"
	default:
		w.Choice = machine.In
	}
}

// Plan returns what the meshes plan for the pod with the UID, from what is known of it now. Errors are those of
// [dialect.Set.Plan], and that there is no such pod.
func (c *Controller) Plan(uid types.UID) (dialect.Plan, error) {
	pod := c.pod(uid)
	if pod == nil {
		return dialect.Plan{}, fmt.Errorf("plan pod %s: %w", uid, agentsock.ErrUnknown)
	}
	return c.opts.Pods.Judgement(pod).Plan(judge.Addrs(pod), redirect.Kernel{})
}

// contested returns that another mesh would select the pod too; empty: none would.
func contested(p dialect.Plan) string {
	for _, w := range p.Warnings {
		if w.Code == dialect.WarningContested {
			return w.Text
		}
	}
	return ""
}

// othersProxy reports whether the pod has the proxy of another mesh.
func (w *want) othersProxy() bool {
	is := func(r status.Code) bool { return r == status.CodeHasSidecar }
	return w.Why == statuscode.OtherMesh || is(w.plan.Decision.Reason) ||
		slices.ContainsFunc(w.plan.Answers, func(a dialect.Answer) bool { return is(a.Reason) })
}

// formerMesh returns the mesh whose annotation the pod has, else the first with a proxy on the node.
func (c *Controller) formerMesh(pod *corev1.Pod) (mesh *dialect.Dialect) {
	for d := range c.opts.Meshes.All() {
		if d.NodeProxy == nil {
			continue
		}
		if _, has := pod.Annotations[d.NodeProxy.StatusAnnotation]; has {
			return &d
		}
		mesh = cmp.Or(mesh, &d)
	}
	return mesh
}

// meshNamed returns the mesh of that name, if its proxy is on the node.
func (c *Controller) meshNamed(name string) *dialect.Dialect {
	if d := c.opts.Meshes.Lookup(name); d != nil && d.NodeProxy != nil {
		return d
	}
	return nil
}

// workload is the pod as the proxy knows it.
func (w want) workload() nodeproxy.Workload {
	l := nodeproxy.Workload{PodID: w.id}
	if w.pod != nil {
		l.ServiceAccount = w.pod.Spec.ServiceAccountName
	}
	return l
}

func (w want) podOf() status.ID {
	return status.ID{Namespace: w.id.Namespace, Name: w.id.Name, UID: string(w.id.UID)}
}

func sameAddrs(a, b []netip.Addr) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x netip.Addr) bool { return !slices.Contains(b, x) })
}

// errSelection returns the reason why a pod is not to be captured.
func errSelection(w want) error {
	if w.detail != "" {
		return errors.New(w.detail)
	}
	return fmt.Errorf("the pod is not in the mesh: %s", w.Why)
}
