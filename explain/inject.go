package explain

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/redirect"
)

// inject makes of the input's pod what the injector of the mesh that is asked for it would, and of a namespace that is not known one that
// asks for it.
func (m *manifests) inject(in *Input) {
	pod, known := in.Subject.Pod, in.Subject.Namespace != nil
	var chosen *dialect.Dialect
	for d := range m.meshes.All() {
		asked := in.Facts.Of(d.Name, &d).Injection
		wish := asked.Asks(pod, in.Subject.Namespace)
		switch {
		case d.Policy.ExcludesNamespace(pod.Namespace) || slices.Contains(asked.Never, pod.Namespace):
		case wish.Answer == mesh.Yes && (chosen == nil || in.Facts.Of(chosen.Name, chosen).Injection.Asks(pod, in.Subject.Namespace).Answer != mesh.Yes):
			chosen = &d
		case wish.By == "" && chosen == nil && (!known || len(asked.Namespace) == 0):
			chosen = &d
		}
	}
	first := m.meshes.Lookup(m.meshes.Names()[0])
	if !known {
		in.Subject.Namespace = asking(cmp.Or(chosen, first), in.Facts, pod.Namespace)
	}
	if chosen == nil || chosen.NodeProxy != nil || pod.Spec.HostNetwork || chosen.Policy.Proxy(pod) != nil {
		return
	}
	in.Subject.Pod, in.Template = injected(chosen, pod, in.Subject), false
}

// asking is a namespace of which nothing is known but that it asks for a mesh.
func asking(d *dialect.Dialect, facts mesh.List, name string) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if wishes := facts.Of(d.Name, d).Injection.Namespace; len(wishes) > 0 {
		value := "true"
		if on := wishes[0].On; len(on) > 0 {
			value = on[0]
		}
		all := map[string]string{wishes[0].Key: value}
		if wishes[0].Source == redirect.FromAnnotation {
			ns.Annotations = all
		} else {
			ns.Labels = all
		}
	}
	return withName(ns)
}

// injected returns a pod as the mesh's injector leaves it.
func injected(d *dialect.Dialect, pod *corev1.Pod, s dialect.Subject) *corev1.Pod {
	pod = pod.DeepCopy()
	if d.Injected != nil {
		d.Injected(pod)
	} else {
		byPolicy(d, pod)
	}
	proxy := d.Policy.Proxy(pod)
	reading, err := d.Redirect(pod, s.Namespace, s.Addrs)
	if proxy == nil || err != nil {
		return pod
	}
	context := proxy.SecurityContext
	if context == nil {
		context = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
	}
	run := func(as **int64, ids []uint32) {
		if *as == nil && len(ids) > 0 {
			id := int64(ids[0])
			*as = &id
		}
	}
	run(&context.RunAsUser, reading.Redirect.Proxy.UIDs)
	run(&context.RunAsGroup, reading.Redirect.Proxy.GIDs)
	proxy.SecurityContext = context
	return pod
}

// byPolicy adds the container and the annotations by which the mesh's Policy knows an injected pod.
func byPolicy(d *dialect.Dialect, pod *corev1.Pod) {
	p := d.Policy
	if len(p.ProxyContainers) > 0 {
		proxy := corev1.Container{Name: p.ProxyContainers[0]}
		if p.ProxyCommand != "" && len(p.ProxyTypes) > 0 {
			proxy.Args = []string{p.ProxyCommand, p.ProxyTypes[0]}
		}
		pod.Spec.Containers = append(pod.Spec.Containers, proxy)
	}
	mark := func(key string, values ...string) {
		if key == "" || pod.Annotations[key] != "" {
			return
		}
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations[key] = "injected"
		if len(values) > 0 {
			pod.Annotations[key] = values[0]
		}
	}
	mark(p.StatusAnnotation)
	if len(p.Traces) > 0 {
		mark(p.Traces[0])
	}
	for _, r := range p.Required {
		if !slices.ContainsFunc(r.Keys, func(key string) bool { return pod.Annotations[key] != "" }) {
			mark(r.Keys[0], r.Values...)
		}
	}
}
