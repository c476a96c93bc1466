package explain

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/internal/text/podyaml"
)

// MaxManifest bounds the size of a manifest in bytes. etcd refuses objects above 1.5 MiB.
const MaxManifest = 8 << 20

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

// onlyDocument returns the only document of a YAML stream that is not empty. The YAML library would read the first and
// ignore the others without a word. It refuses aliases, because the author of the pod may not be trusted.
func onlyDocument(b []byte) ([]byte, error) {
	var only []byte
	r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(b)))
	for {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		var any any
		if err := refuseAliases(doc); err != nil {
			return nil, err
		}
		if err := yaml.Unmarshal(doc, &any); err != nil {
			return nil, err
		}
		if any == nil {
			continue
		}
		if only != nil {
			return nil, errors.New("it holds more than one document")
		}
		only = doc
	}
	if only == nil {
		return nil, errors.New("it is empty")
	}
	return only, nil
}

// refuseAliases refuses what is too long, and aliases. A manifest's scripts and comments have their signs, so it is read as a tree, in which no
// alias is expanded and whose depth the library bounds.
func refuseAliases(doc []byte) error {
	if len(doc) > MaxManifest {
		return podyaml.ErrSize
	}
	if bytes.IndexByte(doc, '&') < 0 {
		return nil
	}
	var tree yamlv3.Node
	if err := yamlv3.Unmarshal(doc, &tree); err != nil {
		return err
	}
	for nodes := []*yamlv3.Node{&tree}; len(nodes) > 0; {
		n := nodes[len(nodes)-1]
		nodes = append(nodes[:len(nodes)-1], n.Content...)
		if n.Kind == yamlv3.AliasNode || n.Anchor != "" {
			return fmt.Errorf("line %d: %w", n.Line, podyaml.ErrAlias)
		}
	}
	return nil
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

// workloads are the kinds whose templates are read, with their API.
var workloads = map[string]string{
	"Deployment": "apps/v1", "StatefulSet": "apps/v1", "DaemonSet": "apps/v1", "ReplicaSet": "apps/v1", "Job": "batch/v1", "CronJob": "batch/v1",
}

// ParseManifest reads a Pod, or a workload with a template of pods, from YAML or JSON. One without a namespace is in the namespace default.
func ParseManifest(text []byte) (*Manifest, error) {
	var pod corev1.Pod
	var w workload
	var typ string
	if err := decode(text, func(kind string) any {
		if kind == "" || kind == "Pod" {
			return &pod
		}
		if workloads[kind] == "" {
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
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: workloads[typ], Kind: typ, Name: w.Name, Controller: &controller}}
	}
	// Messages contain the names, and a line break in one would forge a line.
	for _, n := range []string{pod.Name, pod.Namespace} {
		if strings.ContainsAny(n, " \t\r\n/") {
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
