package dialecttest

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Case is a pod, and where its packets end.
type Case struct {
	Pod *corev1.Pod
	// Namespace is the pod's. Nil is one without labels and annotations.
	Namespace *corev1.Namespace
	// Refused: the pod's configuration is wrong.
	Refused bool
	// Fates are where probes end, by the probes' names.
	Fates map[string]string
}

// Addrs returns the addresses of the test world's pod, its primary one first.
func Addrs() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244::5")}
}

// Recorded reads a directory of recordings. cases/NAME.json is a Pod, with the annotations of its Namespace as
// namespaceAnnotations. expected.json has, by name, whether it is accepted (exit 0) and the fates.
func Recorded(t testing.TB, dir string) map[string]Case {
	t.Helper()
	var expected map[string]struct {
		Exit  int
		Fates map[string]string
	}
	read(t, filepath.Join(dir, "expected.json"), &expected)
	cases := make(map[string]Case, len(expected))
	for name, e := range expected {
		var pod struct {
			corev1.Pod
			NamespaceAnnotations map[string]string `json:"namespaceAnnotations"`
		}
		read(t, filepath.Join(dir, "cases", name+".json"), &pod)
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace, Annotations: pod.NamespaceAnnotations}}
		cases[name] = Case{Pod: &pod.Pod, Namespace: namespace, Refused: e.Exit != 0, Fates: e.Fates}
	}
	return cases
}

func read(t testing.TB, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("read recording: %v", err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("read recording %s: %v", path, err)
	}
}

// Rules returns the pod's rules, none when the dialect does not select it, and its
// Redirect. The error is that of [dialect.Dialect.Validate] or [dialect.Dialect.Plan].
func (c Case) Rules(d dialect.Dialect) (ruleset.Ruleset, redirect.Redirect, error) {
	if err := d.Validate(); err != nil {
		return ruleset.Ruleset{}, redirect.Redirect{}, err
	}
	subject := dialect.Subject{Pod: c.Pod, Namespace: c.Namespace, Addrs: Addrs()}
	if subject.Namespace == nil {
		subject.Namespace = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.Pod.Namespace}}
	}
	plan, err := d.Plan(subject, dialect.Options{})
	return plan.Ruleset, plan.Redirect, err
}
