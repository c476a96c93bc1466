package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/nodeproxy/internal/machine"
	"github.com/meshcni/meshcni/plugin/attachment"
)

// want is what is wanted of a pod, and why.
type want struct {
	machine.Wanted
	pod  *corev1.Pod // nil: it does not exist
	id   PodID
	mesh *dialect.Dialect // the one that selects it, or that it may have been in; nil: none
	plan dialect.Plan     // if it is to be in
	// namespace is the pod's, as far as its mesh reads it.
	namespace *corev1.Namespace
	addrs     []netip.Addr
	// reason and detail say why the pod is out, or why it cannot be told.
	reason, detail string
	// releasing: all pods are given back.
	releasing bool
}

// Reasons of states besides those of package machine and package selection.
const (
	reasonUnknownNamespace = "namespace-unknown"
	reasonNoAddress        = "no-address"
	reasonReleasing        = "releasing"
	reasonEnded            = "ended"
	reasonGone             = "gone"
	reasonOtherMesh        = "other-mesh"
)

// want finds out what is wanted of the pod of the entry, whose mu is held.
func (c *Controller) want(ctx context.Context, e *entry) (w want) {
	w.id.UID, w.mesh, w.releasing = e.uid, e.mesh, c.releasing.Load()
	w.pod = c.pod(e.uid)
	if w.pod == nil {
		w.Choice, w.reason, w.detail = machine.Gone, reasonGone, "the pod does not exist"
		return w
	}
	w.id = PodID{UID: e.uid, Namespace: w.pod.Namespace, Name: w.pod.Name}
	w.addrs = addrsOf(w.pod)
	if len(w.addrs) == 0 || sameAddrs(w.addrs, e.addrs) {
		w.addrs = e.addrs // in the order in which the plugin knew them
	}
	defer func() {
		if w.mesh == nil {
			w.mesh = c.formerMesh(w.pod)
		}
		w.Status = c.opts.Status != nil && w.mesh != nil && w.mesh.NodeProxy.StatusAnnotation != ""
		w.Probes = c.opts.Probes != nil && len(w.addrs) > 0
	}()
	if phase := w.pod.Status.Phase; phase == corev1.PodSucceeded || phase == corev1.PodFailed {
		w.Choice, w.reason, w.detail = machine.Gone, reasonEnded, "the pod's containers have ended"
		return w
	}
	c.decide(ctx, &w)
	return w
}

// decide asks the meshes in turn.
func (c *Controller) decide(ctx context.Context, w *want) {
	if w.releasing {
		w.Choice, w.reason, w.detail = machine.Out, reasonReleasing, "the node's proxy gives back all pods"
		return
	}
	first := ""
	for i := range c.opts.Dialects {
		d := &c.opts.Dialects[i]
		var namespace *corev1.Namespace
		if d.ReadsNamespace(w.pod) {
			var err error
			if namespace, err = c.opts.Pods.Namespace(w.pod.Namespace); err != nil {
				w.Choice, w.reason, w.detail = machine.Unsure, reasonUnknownNamespace, err.Error()
				return
			}
		}
		decision := d.Decide(w.pod, namespace)
		if !decision.Selected {
			if d.NodeProxy != nil && first == "" {
				first = string(decision.Reason)
				w.reason, w.detail = first, decision.Detail
			}
			continue
		}
		if d.NodeProxy == nil {
			w.Choice, w.reason, w.detail = machine.Out, reasonOtherMesh, "the pod is in mesh "+d.Name
			return
		}
		w.mesh, w.namespace = d, namespace
		c.planIn(ctx, w)
		return
	}
	w.Choice = machine.Out
}

// planIn makes the plan of a pod that its mesh selects.
func (c *Controller) planIn(ctx context.Context, w *want) {
	var err error
	w.plan, err = w.mesh.Plan(ctx, dialect.Subject{Pod: w.pod, Namespace: w.namespace, Addrs: w.addrs}, c.opts.Plan)
	w.reason, w.detail = "", ""
	switch {
	case errors.Is(err, dialect.ErrNamespaceUnknown):
		w.Choice, w.reason, w.detail = machine.Unsure, reasonUnknownNamespace, err.Error()
	case err != nil && ctx.Err() == nil:
		w.Choice, w.Refused, w.reason, w.detail = machine.Unsure, true, machine.ReasonRefused, err.Error()
	case err != nil:
		w.Choice, w.reason, w.detail = machine.Unsure, machine.ReasonUnsure, err.Error()
	case len(w.addrs) == 0:
		w.Choice, w.reason, w.detail = machine.Unsure, reasonNoAddress, "the pod has no address yet"
	default:
		w.Choice = machine.In
	}
}

// formerMesh returns the mesh whose annotation the pod has, else the first with a proxy on the node.
func (c *Controller) formerMesh(pod *corev1.Pod) (mesh *dialect.Dialect) {
	for i := range c.opts.Dialects {
		d := &c.opts.Dialects[i]
		if d.NodeProxy == nil {
			continue
		}
		if _, has := pod.Annotations[d.NodeProxy.StatusAnnotation]; has {
			return d
		}
		if mesh == nil {
			mesh = d
		}
	}
	return mesh
}

// meshNamed returns the mesh of that name, if its proxy is on the node.
func (c *Controller) meshNamed(name string) *dialect.Dialect {
	i := slices.IndexFunc(c.opts.Dialects, func(d dialect.Dialect) bool { return d.Name == name && d.NodeProxy != nil })
	if i < 0 {
		return nil
	}
	return &c.opts.Dialects[i]
}

// workload is the pod as the proxy knows it.
func (w want) workload() Workload {
	l := Workload{PodID: w.id}
	if w.pod != nil {
		l.ServiceAccount = w.pod.Spec.ServiceAccountName
	}
	return l
}

func (w want) podOf() attachment.Pod {
	return attachment.Pod{Namespace: w.id.Namespace, Name: w.id.Name, UID: string(w.id.UID)}
}

// apiID names the pod as the API server does.
func (w want) apiID() PodID {
	id := w.id
	id.UID = w.pod.UID
	return id
}

// addrsOf returns the pod's addresses. One that cannot be read is as if it were not there yet.
func addrsOf(pod *corev1.Pod) (addrs []netip.Addr) {
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

func sameAddrs(a, b []netip.Addr) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x netip.Addr) bool { return !slices.Contains(b, x) })
}

// errSelection says why a pod is not to be captured.
func errSelection(w want) error {
	if w.detail != "" {
		return errors.New(w.detail)
	}
	return fmt.Errorf("the pod is not in the mesh: %s", w.reason)
}
