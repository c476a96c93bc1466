package explain

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/internal/text/documents"
)

// decode reads the one object of a YAML or JSON text into what to returns for its kind, which is empty if the text has none. It
// ignores unknown fields, because the cluster may be newer than this program.
func decode(b []byte, to func(kind string) any) error {
	doc, err := onlyDocument(b)
	if err != nil {
		return err
	}
	var head metav1.TypeMeta
	if err := yaml.Unmarshal(doc, &head); err != nil {
		return err
	}
	into := to(head.Kind)
	if into == nil {
		return fmt.Errorf("it is a %q", head.Kind)
	}
	return yaml.Unmarshal(doc, into)
}

// onlyDocument returns the only document of a stream that is not empty, as JSON.
func onlyDocument(b []byte) (only []byte, err error) {
	all, err := documents.Split(b)
	if err != nil {
		return nil, err
	}
	for _, d := range all {
		doc, errs := d.JSON()
		switch {
		case len(errs) > 0:
			return nil, errors.Join(errs...)
		case string(doc) == "null":
		case only != nil:
			return nil, errors.New("it holds more than one document")
		default:
			only = doc
		}
	}
	if only == nil {
		return nil, errors.New("it is empty")
	}
	return only, nil
}

// Manifest is a pod that is read from a text.
type Manifest struct {
	Pod *corev1.Pod
	// Template: the text has a workload. Pod is what its template says, under the workload's name and with it as its controller; no
	// injector has seen it.
	Template bool
	// Namespaced: the text names the namespace. Else Pod's is default.
	Namespaced bool
}

// workload is an object with a template of pods.
type workload struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Template    *corev1.PodTemplateSpec `json:"template"`
		JobTemplate struct {
			Spec struct {
				Template *corev1.PodTemplateSpec `json:"template"`
			} `json:"spec"`
		} `json:"jobTemplate"`
	} `json:"spec"`
}

// kind is one of which pods are made.
type kind struct {
	groups   []string
	version  string // of the first group
	template []any  // the path to the template of pods; nil: it is none
}

// kinds are those that are read.
var kinds = func() map[string]kind {
	inSpec := []any{"spec", "template"}
	all := map[string]kind{
		"Pod": {[]string{""}, "v1", nil}, "Namespace": {[]string{""}, "v1", nil},
		"PodTemplate": {[]string{""}, "v1", []any{"template"}}, "ReplicationController": {[]string{""}, "v1", inSpec},
		"Job": {[]string{"batch"}, "v1", inSpec}, "CronJob": {[]string{"batch"}, "v1", []any{"spec", "jobTemplate", "spec", "template"}},
		"Rollout": {[]string{"argoproj.io"}, "v1alpha1", inSpec},
	}
	for name := range strings.FieldsSeq("Deployment StatefulSet DaemonSet ReplicaSet") {
		all[name] = kind{[]string{"apps", "extensions"}, "v1", inSpec}
	}
	return all
}()

// apiVersion is that of a workload; empty: the kind has no template in its spec.
func apiVersion(name string) string {
	k := kinds[name]
	if len(k.template) < 2 {
		return ""
	}
	return strings.TrimPrefix(k.groups[0]+"/"+k.version, "/")
}

// isName reports whether a name can stand in messages, where a line break in it would forge a line.
func isName(name string) bool { return len(name) <= 253 && !strings.ContainsAny(name, " \t\r\n/") }

// ParseManifest reads a Pod, or a workload with a template of pods, from YAML or JSON. One without a namespace is in the namespace default.
func ParseManifest(text []byte) (*Manifest, error) {
	var pod corev1.Pod
	var w workload
	var typ string
	if err := decode(text, func(kind string) any {
		if kind == "" || kind == "Pod" {
			return &pod
		}
		if apiVersion(kind) == "" {
			return nil
		}
		typ = kind
		return &w
	}); err != nil {
		return nil, err
	}
	if typ != "" {
		template := cmp.Or(w.Spec.Template, w.Spec.JobTemplate.Spec.Template)
		if template == nil {
			return nil, fmt.Errorf("the %s has no template of pods", typ)
		}
		controller := true
		pod.ObjectMeta, pod.Spec = template.ObjectMeta, template.Spec
		pod.Namespace, pod.Name = w.Namespace, w.Name
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion(typ), Kind: typ, Name: w.Name, Controller: &controller}}
	}
	for _, n := range []string{pod.Name, pod.Namespace} {
		if !isName(n) {
			return nil, fmt.Errorf("%q is no name", n)
		}
	}
	m := &Manifest{&pod, typ != "", pod.Namespace != ""}
	if !m.Namespaced {
		pod.Namespace = corev1.NamespaceDefault
	}
	return m, nil
}

// ParseNamespace reads a Namespace from YAML or JSON.
func ParseNamespace(text []byte) (*corev1.Namespace, error) {
	var ns corev1.Namespace
	return &ns, decode(text, func(kind string) any {
		if kind == "" || kind == "Namespace" {
			return &ns
		}
		return nil
	})
}

// Addrs returns the addresses in the pod's status, primary first.
func Addrs(pod *corev1.Pod) []netip.Addr {
	var addrs []netip.Addr
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			addrs = append(addrs, a.Unmap())
		}
	}
	if a, err := netip.ParseAddr(pod.Status.PodIP); err == nil && len(addrs) == 0 {
		addrs = append(addrs, a.Unmap())
	}
	return addrs
}
