package kubepod_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/testing/apiservertest"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/kubepod"
)

// BenchmarkPod compares one GET over TLS answered in protobuf and in JSON, for a pod of a usual size: cold is what a plugin
// pays (kubeconfig, client, dial, handshake, GET), warm is the GET alone. The server shares the process and the cores.
func BenchmarkPod(b *testing.B) {
	pod := testPod()
	for i := range 30 {
		pod.Annotations[fmt.Sprintf("example.com/annotation-%d", i)] = "some value of an ordinary length"
	}
	for i := range 3 {
		c := corev1.Container{Name: fmt.Sprintf("c%d", i), Image: "registry.example/app:1"}
		for j := range 20 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("NAME_%d", j), Value: "some value of an ordinary length"})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	server := apiservertest.NewAPIServer(b)
	server.SetPod(pod)
	path, err := server.WriteKubeconfig(b.TempDir())
	require.NoError(b, err)
	for _, format := range []string{"protobuf", "json"} {
		server.Handle(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
			if format == "json" {
				r.Header.Set("Accept", "application/json")
			}
			return false
		})
		get := func(b *testing.B, client plugin.Pods) {
			if _, err := client.Pod(b.Context(), pod.Namespace, pod.Name); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(format+"/cold", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				client, err := kubepod.Open(path)
				if err != nil {
					b.Fatal(err)
				}
				get(b, client)
				client.Close()
			}
		})
		b.Run(format+"/warm", func(b *testing.B) {
			client, err := kubepod.Open(path)
			require.NoError(b, err)
			defer client.Close()
			get(b, client)
			b.ReportAllocs()
			for b.Loop() {
				get(b, client)
			}
		})
	}
}

// BenchmarkOpen is what the kubeconfig and the client cost without any connection.
func BenchmarkOpen(b *testing.B) {
	server := apiservertest.NewAPIServer(b)
	path, err := server.WriteKubeconfig(b.TempDir())
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := kubepod.Open(path); err != nil {
			b.Fatal(err)
		}
	}
}
