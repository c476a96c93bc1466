package main

import (
	"bytes"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/repair/integration/kubetest"
)

func TestMain(m *testing.M) {
	os.Exit(kubetest.Main(m, kubetest.Options{DisableAdmission: []string{"ServiceAccount"}}))
}

// The commands on a real API server: pods of the mesh with its init container, and one that nobody has injected.
func TestProgram(t *testing.T) {
	s := kubetest.Lend(t)
	admin := s.Admin(t)
	admin.Do(t, http.MethodPost, "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": "shop", "labels": map[string]string{"acme.example/mesh": "off"}}}, nil)
	pod := func(name string, init ...string) {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Spec:       corev1.PodSpec{NodeName: "a", Containers: []corev1.Container{{Name: "app", Image: "i"}}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.244.1.5", PodIPs: []corev1.PodIP{{IP: "10.244.1.5"}}},
		}
		if len(init) > 0 {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "acme-proxy", Image: "i"})
			p.Spec.InitContainers = []corev1.Container{{Name: "acme-init", Image: "i", Args: init}}
		}
		admin.Create(t, p)
	}
	pod("bare")
	pod("same", "--skip-ports", "")
	pod("other", "--skip-ports=3306")
	pod("odd", "--shiny")
	for args, want := range map[string][]string{
		"explain -o json --config none --namespace shop bare": {
			"has no proxy", "its namespace has the label acme.example/mesh=off", "kubectl label --overwrite namespace shop acme.example/mesh=on",
		},
		"explain -o json --config none --namespace shop same": {"To leave that to the plugin, tell the injector that there is one: cni: true in acme's configuration"},
		"migrate --from init-containers": {
			"3 pods of the mesh: 1 would be captured otherwise, 1 cannot be told, 1 would be captured the same", "out tcp to port 3306: pass there, redirect 7001 here",
			"dialect: acme", "New pods then have acme-validation instead of acme-init",
		},
		"check": {"no node"},
		"test":  {"0 of 0 nodes were tried"},
	} {
		var said bytes.Buffer
		p := program
		p.Stdout, p.Stderr = &said, &said
		p.Main(t.Context(), append([]string{"--kubeconfig", s.Kubeconfig(t, kubetest.AdminToken)}, strings.Fields(args)...))
		for _, w := range want {
			assert.Contains(t, said.String(), w, args)
		}
	}
}
