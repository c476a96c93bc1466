package explain

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/brief"
)

// mesh holds the names by which its users know a mesh.
type mesh struct {
	title string
	// onPod and onNamespace are where people say whether a pod is to be in the mesh. The first of onNamespace is what they are told to
	// write, else the first of onPod.
	onPod, onNamespace []wish
	// podWins: what the pod says hides what its namespace says. Otherwise a no of either is a no.
	podWins bool
	// injector is the command that shows the injector's health; cniMode tells it that a CNI plugin writes the rules. Both are empty
	// for a mesh without an injector.
	injector, cniMode string
	// never are namespaces that the injector never touches.
	never []string
}

// wish is a label or annotation that says whether pods are to be in a mesh. With no values in on, any other than those in off.
type wish struct {
	kind, key string
	on, off   []string
}

// meshes follows the meshes' own documentation of injection; see also docs/install.md.
var meshes = map[string]mesh{
	"istio": {
		title: "Istio (sidecar)",
		onPod: []wish{{labels, "sidecar.istio.io/inject", []string{"true"}, []string{"false"}}, {annotations, "sidecar.istio.io/inject", []string{"true"}, []string{"false"}}, {labels, "istio.io/rev", nil, nil}},
		onNamespace: []wish{
			{labels, "istio-injection", []string{"enabled"}, []string{"disabled"}}, {labels, "istio.io/rev", nil, nil},
		},
		injector: "istioctl experimental check-inject says why, and kubectl --namespace istio-system get pods --selector app=istiod whether the injector runs",
		cniMode:  "pilot.cni.enabled=true in the values of istiod's chart",
		never:    []string{"kube-system", "kube-public", "kube-node-lease"},
	},
	"ambient": {
		title:       "Istio (ambient)",
		onPod:       []wish{{labels, "istio.io/dataplane-mode", []string{"ambient"}, []string{"none"}}},
		onNamespace: []wish{{labels, "istio.io/dataplane-mode", []string{"ambient"}, []string{"none"}}},
		podWins:     true,
	},
	"linkerd": {
		title:       "Linkerd",
		onPod:       []wish{{annotations, "linkerd.io/inject", []string{"enabled", "ingress"}, []string{"disabled"}}},
		onNamespace: []wish{{annotations, "linkerd.io/inject", []string{"enabled", "ingress"}, []string{"disabled"}}},
		podWins:     true,
		injector:    "kubectl --namespace linkerd get pods --selector linkerd.io/control-plane-component=proxy-injector says whether the injector runs",
		cniMode:     "cniEnabled=true in the values of linkerd-control-plane's chart",
		never:       []string{"kube-system"},
	},
	"kuma": {
		title:       "Kuma",
		onPod:       []wish{{labels, "kuma.io/sidecar-injection", []string{"enabled", "true"}, []string{"disabled", "false"}}},
		onNamespace: []wish{{labels, "kuma.io/sidecar-injection", []string{"enabled", "true"}, []string{"disabled", "false"}}},
		podWins:     true,
		injector:    "kubectl --namespace kuma-system get pods says whether the control plane, which injects, runs",
		cniMode:     "KUMA_RUNTIME_KUBERNETES_INJECTOR_CNI_ENABLED=true in the variables of Kuma's control plane",
	},
	"consul": {
		title:    "Consul",
		onPod:    []wish{{annotations, "consul.hashicorp.com/connect-inject", []string{"true"}, []string{"false"}}},
		injector: "kubectl get pods --all-namespaces --selector component=connect-injector says whether the injector runs",
		cniMode:  "-enable-cni=true among the arguments of Consul's injector, which its chart sets with connectInject.cni.enabled",
		never:    []string{"kube-system"},
	},
}

// Title is the name of a mesh for people.
func Title(name string) string {
	if m, ok := meshes[name]; ok {
		return m.title
	}
	return name
}

// asked is the wish of a pod or its namespace about being in a mesh.
type asked struct {
	// yes and no: somebody has said so. Neither: nobody has.
	yes, no bool
	// by names the one that wishes, such as "its namespace has the label istio-injection=disabled".
	by string
	// wish was found, and namespaced marks the namespace's.
	wish       wish
	namespaced bool
}

// asks reads the wishes. Without the namespace those on it are not known.
func (m mesh) asks(pod *corev1.Pod, namespace *corev1.Namespace) asked {
	onPod := find(m.onPod, pod.Labels, pod.Annotations)
	var onNamespace asked
	if namespace != nil {
		onNamespace = find(m.onNamespace, namespace.Labels, namespace.Annotations)
	}
	onNamespace.namespaced = true
	if onPod.by != "" {
		onPod.by = "the pod has the " + onPod.by
	}
	if onNamespace.by != "" {
		onNamespace.by = "its namespace has the " + onNamespace.by
	}
	switch {
	case onPod.no:
		return onPod
	case onNamespace.no && !(m.podWins && onPod.yes):
		return onNamespace
	case onPod.yes:
		return onPod
	}
	return onNamespace
}

// maxValue bounds what is repeated of a label, in bytes. Kubernetes allows 63.
const maxValue = 100

// find returns the first of the wishes that is there.
func find(wishes []wish, labelled, annotated map[string]string) asked {
	for _, w := range wishes {
		of := labelled
		if w.kind == annotations {
			of = annotated
		}
		value, ok := of[w.key]
		a := asked{
			wish: w, by: fmt.Sprintf("%s %s=%s", strings.TrimSuffix(w.kind, "s"), w.key, brief.Text(value, maxValue)),
			no: slices.Contains(w.off, value), yes: slices.Contains(w.on, value) || len(w.on) == 0 && value != "",
		}
		if ok && (a.yes || a.no) {
			return a
		}
	}
	return asked{}
}

// join is the command that asks the mesh for the pod: at its namespace where the mesh looks at that, else at the pod.
func (m mesh) join(pod *corev1.Pod, found asked) string {
	if found.no && !found.namespaced {
		on := found.wish.on[0]
		return set(pod, found.wish.kind, found.wish.key, &on)
	}
	if len(m.onNamespace) == 0 {
		if len(m.onPod) == 0 {
			return ""
		}
		return set(pod, m.onPod[0].kind, m.onPod[0].key, &m.onPod[0].on[0])
	}
	w := m.onNamespace[0]
	verb := map[string]string{labels: "label", annotations: "annotate"}[w.kind]
	return fmt.Sprintf("kubectl %s --overwrite namespace %s %s=%s", verb, word(pod.Namespace), w.key, w.on[0])
}
