package plugin_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// kumaCall is an ADD of a pod of Kuma's with these annotations.
func kumaCall(annotations map[string]string) *call {
	c := newCall()
	c.config = set(c.config, "dialect", "kuma")
	p := meshPod()
	p.Annotations = map[string]string{"kuma.io/sidecar-injected": "true"}
	for key, value := range annotations {
		p.Annotations[key] = value
	}
	p.Spec.Containers = []corev1.Container{{Name: "app"}, {Name: "kuma-sidecar"}}
	c.pods.Set(p)
	return c
}

// TestKumaDryRun: a pod that asks for no rules starts without any, and the
// record says why.
func TestKumaDryRun(t *testing.T) {
	t.Parallel()
	annotations := map[string]string{
		"kuma.io/sidecar-injected": "true", "traffic.kuma.io/transparent-proxy-config": "kumaDPUser: \"5678\"\ndryRun: true\n",
	}
	c := kumaCall(annotations)
	out := c.run(t)
	require.Zero(t, out.exit, out.stdout)
	assert.Nil(t, c.netns.Live.IPv4)
	d := out.record(t, "decision")
	assert.Equal(t, "dry-run", d["reason"])
	assert.Equal(t, "traffic.kuma.io/transparent-proxy-config.dryRun is true: no rules are to be applied", d["detail"])
	assert.EqualValues(t, 1, d["api_calls"])

	c = kumaCall(nil)
	c.config["runtimeConfig"] = object{"io.kubernetes.cri.pod-annotations": annotations}
	out = c.run(t)
	require.Zero(t, out.exit, out.stdout)
	assert.Equal(t, "dry-run", out.record(t, "decision")["reason"])
	assert.Zero(t, c.pods.Calls(), "the runtime's word is enough")
}

// TestKumaAnnotationsBesideTheYAML: they neither stop the pod nor change its
// rules, and the record says so.
func TestKumaAnnotationsBesideTheYAML(t *testing.T) {
	t.Parallel()
	c := kumaCall(map[string]string{
		"traffic.kuma.io/transparent-proxy-config": "redirect: {inbound: {excludePorts: [9902]}}",
		"traffic.kuma.io/exclude-inbound-ports":    "http", "kuma.io/sidecar-uid": "1000",
	})
	out := c.run(t)
	require.Zero(t, out.exit, out.stdout)
	rules := c.netns.Live.IPv4.String()
	assert.Contains(t, rules, "--dport 9902 -j RETURN")
	assert.NotContains(t, rules, "1000")
	assert.Contains(t, out.stderr, `annotation traffic.kuma.io/exclude-inbound-ports=\"http\" has no effect`)
	assert.Contains(t, out.stderr, `annotation kuma.io/sidecar-uid=\"1000\" has no effect`)
}
