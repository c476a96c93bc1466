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
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/internal/podyaml"
)

// maxManifest bounds what is read of a file: far above etcd's 1.5 MiB, which
// no object exceeds.
const maxManifest = 8 << 20

// read returns a file's content; "-" is standard input.
func (p Program) read(name string) ([]byte, error) {
	if name != "-" {
		b, err := p.ReadFile(name)
		if err == nil && len(b) > maxManifest {
			err = fmt.Errorf("%s: larger than %d MiB", name, maxManifest>>20)
		}
		return b, err
	}
	b, err := io.ReadAll(io.LimitReader(p.Stdin, maxManifest+1))
	if err == nil && len(b) > maxManifest {
		err = fmt.Errorf("larger than %d MiB", maxManifest>>20)
	}
	if err != nil {
		return nil, fmt.Errorf("read standard input: %w", err)
	}
	return b, nil
}

// manifest reads the one object of a YAML or JSON file into to. Fields that
// this program does not know are let be: the cluster may be newer.
func (p Program) manifest(name, kind string, to any) error {
	b, err := p.read(name)
	if err != nil {
		return err
	}
	where := name
	if name == "-" {
		where = "standard input"
	}
	doc, err := onlyDocument(b)
	if err != nil {
		return fmt.Errorf("read %s from %s: %w", kind, where, err)
	}
	var head struct {
		Kind string `json:"kind"`
	}
	if err := yaml.Unmarshal(doc, &head); err != nil {
		return fmt.Errorf("read %s from %s: %w", kind, where, err)
	}
	if head.Kind != "" && head.Kind != kind {
		return fmt.Errorf("read %s from %s: it is a %q", kind, where, head.Kind)
	}
	if err := yaml.Unmarshal(doc, to); err != nil {
		return fmt.Errorf("read %s from %s: %w", kind, where, err)
	}
	return nil
}

// onlyDocument returns the one document of a YAML stream that holds something,
// and refuses aliases in it: the pod need not be the reader's own.
// (The YAML library would read the first and say nothing of the others.)
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
	// Names end up in messages, where a line break would forge lines.
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
	if err := p.manifest(name, "Namespace", &ns); err != nil {
		return nil, err
	}
	return &ns, nil
}

// podAddrs are the addresses in the pod's status, primary first.
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
