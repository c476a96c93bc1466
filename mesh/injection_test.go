package mesh_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/mesh"
)

// Which wish counts, and whose it is, where a pod and its namespace both have one.
func TestAsks(t *testing.T) {
	key := "acme.io/inject"
	wishes := []mesh.Wish{mesh.Label(key, []string{"on"}, []string{"off"})}
	const pod, namespace = "the pod has the label ", "its namespace has the label "
	for _, tt := range []struct {
		pod, namespace string
		podWins        bool
		answer         mesh.Answer
		by             string
	}{
		{"on", "on", false, mesh.Yes, pod + key + "=on"},
		{"on", "off", false, mesh.No, namespace + key + "=off"},
		{"off", "on", false, mesh.No, pod + key + "=off"},
		{"on", "off", true, mesh.Yes, pod + key + "=on"},
		{"off", "on", true, mesh.No, pod + key + "=off"},
		{"maybe", "on", false, mesh.Yes, namespace + key + "=on"},
		{"maybe", "on", true, mesh.Unknown, pod + key + "=maybe"},
		{"", "on", false, mesh.Yes, namespace + key + "=on"},
		{"", "on", true, mesh.Yes, namespace + key + "=on"},
		{"on", "", false, mesh.Yes, pod + key + "=on"},
		{"", "", false, mesh.Unknown, ""},
	} {
		labelled := func(value string) metav1.ObjectMeta {
			if value == "" {
				return metav1.ObjectMeta{}
			}
			return metav1.ObjectMeta{Labels: map[string]string{key: value}}
		}
		i := mesh.Injection{Pod: wishes, Namespace: wishes, PodWins: tt.podWins}
		got := i.Asks(&corev1.Pod{ObjectMeta: labelled(tt.pod)}, &corev1.Namespace{ObjectMeta: labelled(tt.namespace)})
		assert.Equal(t, tt.answer, got.Answer, "%+v", tt)
		assert.Equal(t, tt.by, got.By, "%+v", tt)
	}
}
