package redirectcmd

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

// maxManifest bounds the size of an input file. etcd refuses objects above 1.5 MiB.
const maxManifest = 8 << 20

// standardInput is what errors call the file "-".
const standardInput = "standard input"

// read returns the content of a file, or of standard input if name is "-".
func (p Program) read(name string) (b []byte, err error) {
	if name == "-" {
		name = standardInput
		if b, err = io.ReadAll(io.LimitReader(p.Stdin, maxManifest+1)); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	} else if b, err = p.ReadFile(name); err != nil {
		return nil, err
	}
	if len(b) > maxManifest {
		return nil, fmt.Errorf("read %s: larger than %d MiB", name, maxManifest>>20)
	}
	return b, nil
}

// manifest reads the one object of a YAML or JSON file into to. It ignores
// unknown fields, because the cluster may be newer than this program.
func (p Program) manifest(name, kind string, to any) error {
	b, err := p.read(name)
	if err != nil {
		return err
	}
	if err := decode(b, kind, to); err != nil {
		if name == "-" {
			name = standardInput
		}
		return fmt.Errorf("read %s from %s: %w", kind, name, err)
	}
	return nil
}

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
		if err := podyaml.Unmarshal(doc, maxManifest, &any); err != nil {
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

func (p Program) pod(name string) (*corev1.Pod, error) {
	var pod corev1.Pod
	if err := p.manifest(name, "Pod", &pod); err != nil {
		return nil, err
	}
	// Messages contain the names, and a line break in one would forge a line.
	for _, n := range []string{pod.Name, pod.Namespace} {
		if strings.ContainsAny(n, " \t\r\n/") {
			return nil, fmt.Errorf("read Pod from %s: %q is no name", name, n)
		}
	}
	if pod.Namespace == "" {
		pod.Namespace = corev1.NamespaceDefault
	}
	return &pod, nil
}

func (p Program) namespace(name string) (*corev1.Namespace, error) {
	var ns corev1.Namespace
	return &ns, p.manifest(name, "Namespace", &ns)
}

// podAddrs returns the addresses in the pod's status, primary first.
func podAddrs(pod *corev1.Pod) []netip.Addr {
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
