package explain

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/internal/podyaml"
)

// MaxManifest bounds the size of a manifest in bytes. etcd refuses objects above 1.5 MiB.
const MaxManifest = 8 << 20

// decode reads the one object of a YAML or JSON text into to. It ignores unknown fields, because the cluster may be newer
// than this program.
func decode(b []byte, kind string, to any) error {
	doc, err := onlyDocument(b)
	if err != nil {
		return err
	}
	var head metav1.TypeMeta
	if err := yaml.Unmarshal(doc, &head); err != nil {
		return err
	}
	if head.Kind != "" && head.Kind != kind {
		return fmt.Errorf("it is a %q", head.Kind)
	}
	return yaml.Unmarshal(doc, to)
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
		if err := podyaml.Unmarshal(doc, MaxManifest, &any); err != nil {
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

// Pod reads a Pod from YAML or JSON. One without a namespace is in the namespace default.
func Pod(text []byte) (*corev1.Pod, error) {
	var pod corev1.Pod
	if err := decode(text, "Pod", &pod); err != nil {
		return nil, err
	}
	// Messages contain the names, and a line break in one would forge a line.
	for _, n := range []string{pod.Name, pod.Namespace} {
		if strings.ContainsAny(n, " \t\r\n/") {
			return nil, fmt.Errorf("%q is no name", n)
		}
	}
	if pod.Namespace == "" {
		pod.Namespace = corev1.NamespaceDefault
	}
	return &pod, nil
}

// Namespace reads a Namespace from YAML or JSON.
func Namespace(text []byte) (*corev1.Namespace, error) {
	var ns corev1.Namespace
	return &ns, decode(text, "Namespace", &ns)
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
