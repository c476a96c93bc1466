package repairtest

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Admin returns the cluster's [Admin].
func (c *Cluster) Admin() Admin { return &admin{c: c} }

type admin struct {
	c *Cluster
	n int
}

// Namespace implements [Admin].
func (a *admin) Namespace(testing.TB) string {
	a.n++
	return fmt.Sprintf("test-%d", a.n)
}

// Create implements [Admin].
func (a *admin) Create(_ testing.TB, pod *corev1.Pod) *corev1.Pod { return a.c.Set(pod) }

// Touch implements [Admin].
func (a *admin) Touch(t testing.TB, namespace, name string) {
	t.Helper()
	pod, err := a.c.Pod(t.Context(), namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations["meshcni.io/touched"] = pod.ResourceVersion
	a.c.Set(pod)
}

// Remove implements [Admin].
func (a *admin) Remove(_ testing.TB, namespace, name string) { a.c.Gone(namespace, name) }

// Block implements [Admin].
func (a *admin) Block(_ testing.TB, namespace string) { a.c.Block(namespace, true) }
